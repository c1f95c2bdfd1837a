"""GroupSpatialSoftmax and its gradient."""

import numpy as np

from netbuilder.ops.detection.anchor_classes import GroupSpatialSoftmax, GroupSpatialSoftmaxGradient
from netbuilder.proto import ArgumentError
from suite import OperatorSuite, f32, floats, i32, refusal


def softmax(x, classes):
    """Return the softmax of each group of channels, in the shape of X."""
    y = np.zeros(x.shape)
    for start in range(0, x.shape[1], classes):
        e = np.exp(x[:, start : start + classes])
        y[:, start : start + classes] = e / e.sum(axis=1, keepdims=True)
    return y


class TestGroupSpatialSoftmax(OperatorSuite):
    operator = GroupSpatialSoftmax
    refusals = (
        refusal(GroupSpatialSoftmax(num_classes=3), [f32(1, 4, 2, 2)], r"X must be \(N, anchors \* 3, H, W\)"),
        refusal(GroupSpatialSoftmax(num_classes=3), [i32(1, 3, 2, 2)], "one floating type"),
        refusal(GroupSpatialSoftmax(num_classes=0), [f32(1, 3, 2, 2)], "at least 1, got 0", ArgumentError),
    )

    def draw(self, data):
        return GroupSpatialSoftmax(num_classes=3), [data.draw(floats((1, 2), 6, (1, 2), (1, 2)))]

    def reference(self, op, x):
        return [softmax(x, 3)]


class TestGroupSpatialSoftmaxGradient(OperatorSuite):
    operator = GroupSpatialSoftmaxGradient
    no_gradient = "a gradient operator"
    refusals = (
        refusal(
            GroupSpatialSoftmaxGradient(num_classes=2),
            [f32(1, 4, 2, 2), f32(1, 4, 2, 1)],
            r"d_probabilities must have the shape of probabilities, \(1, 4, 2, 2\)",
        ),
    )

    def draw(self, data):
        p = softmax(data.draw(floats((1, 2), 6, (1, 2), (1, 2))), 3).astype(np.float32)
        return GroupSpatialSoftmaxGradient(num_classes=3), [p, data.draw(floats(*p.shape))]

    def test_flops(self):
        probabilities = f32(2, 6, 5, 3)
        assert GroupSpatialSoftmaxGradient(num_classes=3).flops(probabilities, probabilities) == 4 * probabilities.size

    def reference(self, op, p, dp):
        dx = np.zeros(p.shape)
        for start in (0, 3):
            part = slice(start, start + 3)
            dx[:, part] = p[:, part] * (dp[:, part] - (p[:, part] * dp[:, part]).sum(axis=1, keepdims=True))
        return [dx]
