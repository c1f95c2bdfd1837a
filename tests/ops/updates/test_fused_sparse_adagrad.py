"""Adagrad fused with the gradients of lookups, against a loop over single rows; Caffe2's numbers are golden cases."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.updates import fused_sparse_adagrad as module
from netbuilder.proto import ArgumentError, ShapeError
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from suite import OperatorSuite, f32, floats, i32, refusal

ROWS = 4


class _Fused(OperatorSuite):
    no_gradient = "an update"
    atol = 1e-5

    @property
    def weighted(self):
        return "aux_param" in self.operator.inputs

    def draw(self, data):
        lengths = np.array(data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=3)), np.int32)
        row = data.draw(st.sampled_from([(), (3,), (2, 2)]))
        rng = np.random.default_rng(data.draw(st.integers(0, 99)))
        indices = rng.integers(0, ROWS, lengths.sum()).astype(data.draw(st.sampled_from([np.int32, np.int64])))
        moment = data.draw(floats(ROWS, *(() if self.operator.by_row else row), low=0.1))
        weights = [data.draw(floats(3))] if self.weighted else []
        grad, lr = data.draw(floats(lengths.size, *row)), np.float32([-0.1])
        op = self.operator(weight_decay=data.draw(st.sampled_from([0.0, 0.1])), epsilon=1e-3)
        return op, [data.draw(floats(ROWS, *row)), moment, *weights, indices, grad, lr, lengths]

    def reference(self, op, param, moment, *rest):
        weights = rest[0] if self.weighted else np.ones(3)
        indices, grad, lr, lengths = rest[-4:]
        before, param, moment = param, param.copy(), moment.copy()
        slopes, at = [], 0
        for s, n in enumerate(lengths.tolist()):
            for place in range(n):
                row = indices[at + place]
                slopes.append((grad[s] * before[row]).sum())
                g = grad[s] * weights[place] / (n if op.mean else 1) + op.weight_decay * param[row]
                moment[row] += np.mean(g * g) if op.by_row else g * g
                param[row] += lr[0] * g / (np.sqrt(moment[row]) + op.epsilon)
            at += n
        return [param, moment, *([np.array(slopes)] if self.weighted else [])]


def bad(cls):
    weights = [f32(3)] if "aux_param" in cls.inputs else []
    moment = f32(4) if cls.by_row else f32(4, 2)
    rest = [i32(3), f32(2, 2), f32(1), i32(2)]
    found = [
        refusal(cls(epsilon=-1.0), [f32(4, 2), moment, *weights, *rest], "epsilon", ArgumentError),
        refusal(
            cls(),
            [f32(4, 2), moment, *weights, i32(3), f32(3, 2), f32(1), i32(2)],
            r"lengths must have shape \(3,\) = \(M,\)",
        ),
        refusal(
            cls(),
            [f32(4, 2), moment, *weights, f32(3), *rest[1:]],
            "indices must have elements of type int32 or int64, got float32",
        ),
        refusal(cls(), [f32(4, 2), f32(5), *weights, *rest], "moment"),
    ]
    if weights:
        found.append(refusal(cls(), [f32(4, 2), moment, f32(3, 1), *rest], r"aux_param must have shape \(P,\)"))
    return tuple(found)


for _name in module.__all__:
    _cls = getattr(module, _name)
    globals()[f"Test{_name}"] = type(f"Test{_name}", (_Fused,), {"operator": _cls, "refusals": bad(_cls)})

TABLE, MOMENT = np.ones((4, 2), np.float32), np.ones((4, 2), np.float32)
LR = np.float32([-0.1])


@pytest.mark.parametrize(
    ("indices", "lengths", "error", "message"),
    [
        ([0, 4], [2], IndexError, r"must lie in \[0, 4\), got 4"),
        ([0, -1], [2], IndexError, r"must lie in \[0, 4\), got -1"),
        ([0, 1], [3], ShapeError, "sum of the lengths must be the number of rows, 2, got 3"),
        ([0, 1, 2, 3], [4], ShapeError, "aux_param must have one weight per position in a segment, 4, got 3"),
    ],
)
def test_what_does_not_fit(indices, lengths, error, message):
    inputs = [TABLE, MOMENT, np.ones(3, np.float32), np.int32(indices), np.ones((1, 2), np.float32), LR]
    op = module.SparseAdagradFusedWithSparseLengthsWeightedSumGradient()
    with pytest.raises(error, match=message):
        run_plain(op, [*inputs, np.int32(lengths)])


def test_the_same_as_the_gradient_and_the_update_in_turn():
    rng = np.random.default_rng(0)
    table, moment = rng.standard_normal((50, 8)).astype(np.float32), rng.random((50, 8)).astype(np.float32)
    lengths = rng.integers(0, 6, 20).astype(np.int32)
    feeds = {
        "indices": rng.integers(0, 50, lengths.sum()).astype(np.int32),
        "dy": rng.standard_normal((20, 8)).astype(np.float32),
        "lr": LR,
        "lengths": lengths,
    }
    made = []
    fused = make_op(
        "SparseAdagradFusedWithSparseLengthsMeanGradient", ["t", "m", "indices", "dy", "lr", "lengths"], ["t", "m"]
    )
    apart = [
        make_op("SparseLengthsIndicesInGradientMeanGradient", ["dy", "lengths", "indices"], ["rows"]),
        make_op("SparseAdagrad", ["t", "m", "indices", "rows", "lr"], ["t", "m"]),
    ]
    for ops in ([fused], apart):
        workspace = Workspace()
        for name, value in {**feeds, "t": table, "m": moment}.items():
            workspace.feed(name, value)
        for op in ops:
            workspace.run_operator_once(op)
        made.append((workspace.fetch("t"), workspace.fetch("m")))
    for a, b in zip(*made):
        np.testing.assert_allclose(a, b, 1e-6, 1e-7)
