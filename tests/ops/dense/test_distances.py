"""SquaredL2Distance and L1Distance, and their gradients."""

from __future__ import annotations

import numpy as np
import pytest

from netbuilder import Net, Workspace
from netbuilder.ops.dense.distances import L1Distance, L1DistanceGradient, SquaredL2Distance, SquaredL2DistanceGradient
from netbuilder.proto import ShapeError
from suite import OperatorSuite, f32, floats, i32, refusal

PAIRS = (
    ([f32(3, 4), f32(3)], r"Y must have the shape of X, \(3, 4\)"),
    ([i32(3), i32(3)], "one floating type, got X int32, Y int32"),
)


def draw_pair(data):
    x = data.draw(floats((1, 4), (1, 3), (1, 3)))
    y = data.draw(floats(*x.shape))
    rank = data.draw(floats(1, low=1, high=4)).astype(int)[0]
    shape = (x.shape[0], -1) if rank == 2 else (-1,) if rank == 1 else x.shape
    return x.reshape(shape), y.reshape(shape)


class TestSquaredL2Distance(OperatorSuite):
    operator = SquaredL2Distance
    wrt = (0, 1)
    refusals = tuple(refusal(SquaredL2Distance(), specs, match, ShapeError) for specs, match in PAIRS)

    def draw(self, data):
        return SquaredL2Distance(), [*draw_pair(data)]

    def reference(self, op, x, y):
        return [np.array([0.5 * np.linalg.norm(np.ravel(a) - np.ravel(b)) ** 2 for a, b in zip(x, y)])]


class TestSquaredL2DistanceGradient(OperatorSuite):
    operator = SquaredL2DistanceGradient
    no_gradient = "a gradient operator"
    refusals = (
        *(
            refusal(SquaredL2DistanceGradient(), [*specs, f32(3)], match.replace("int32, Y int32", ".*"), ShapeError)
            for specs, match in PAIRS
        ),
        refusal(
            SquaredL2DistanceGradient(),
            [f32(3, 4), f32(3, 4), f32(4)],
            r"dZ must have 3 elements, got shape \(4,\)",
            ShapeError,
        ),
    )

    def draw(self, data):
        x, y = draw_pair(data)
        return SquaredL2DistanceGradient(), [x, y, data.draw(floats(len(x)))]

    def reference(self, op, x, y, dz):
        dx = np.array([(a - b) * d for a, b, d in zip(x, y, dz)])
        return [dx, -dx]


class TestL1Distance(OperatorSuite):
    operator = L1Distance
    wrt = (0, 1)
    refusals = tuple(refusal(L1Distance(), specs, match, ShapeError) for specs, match in PAIRS)

    def draw(self, data):
        x, y = draw_pair(data)
        return L1Distance(), [x, np.where(abs(x - y) < 0.01, x + 0.1, y)]

    def reference(self, op, x, y):
        return [np.array([np.linalg.norm(np.ravel(a) - np.ravel(b), 1) for a, b in zip(x, y)])]


class TestL1DistanceGradient(OperatorSuite):
    operator = L1DistanceGradient
    no_gradient = "a gradient operator"
    refusals = (
        refusal(
            L1DistanceGradient(),
            [f32(3, 4), f32(3, 4), f32(4)],
            r"dZ must have 3 elements, got shape \(4,\)",
            ShapeError,
        ),
    )

    def draw(self, data):
        x, y = draw_pair(data)
        y = np.where(abs(x - y) < 0.01, x + 0.1, y)
        return L1DistanceGradient(), [x, y, data.draw(floats(len(x)))]

    def reference(self, op, x, y, dz):
        dx = np.array([np.where(a > b, d, -d) for a, b, d in zip(x, y, dz)])
        return [dx, -dx]


@pytest.mark.parametrize(
    ("op_type", "z", "slopes"),
    [
        ("SquaredL2Distance", 2, (2, -2)),
        ("L1Distance", 2, (1, -1)),
        ("DotProduct", 3, (1, 3)),
        ("CosineSimilarity", 1, (0, 0)),
    ],
)
def test_scalars_are_one_sample(op_type, z, slopes):
    workspace = Workspace()
    workspace.feed("x", np.float32(3))
    workspace.feed("y", np.float32(1))
    net = Net("one_sample")
    loss = net.AveragedLoss(getattr(net, op_type)(["x", "y"], "z"), "loss")
    gradients = net.AddGradientOperators([loss])
    workspace.run_net_once(net)
    assert workspace.fetch("z").tolist() == [z]
    for blob, slope in zip("xy", slopes):
        found = workspace.fetch(str(gradients[blob]))
        assert found.shape == () and found == slope
