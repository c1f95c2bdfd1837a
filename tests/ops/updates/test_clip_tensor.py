"""ClipTensorByScaling."""

import numpy as np
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.updates.clip_tensor import ClipTensorByScaling
from netbuilder.proto import ArgumentError
from suite import OperatorSuite, f32, floats, i32, refusal


class TestClipTensorByScaling(OperatorSuite):
    operator = ClipTensorByScaling
    no_gradient = "it has none"
    refusals = (
        refusal(ClipTensorByScaling(), [f32(2), f32(1)], "threshold must be given", ArgumentError),
        refusal(ClipTensorByScaling(threshold=0.0), [f32(2), f32(1)], "must be given and positive", ArgumentError),
        refusal(ClipTensorByScaling(threshold=1.0), [f32(2), f32(2)], "norm must have one element"),
        refusal(ClipTensorByScaling(threshold=1.0), [f32(2), f32(1), f32(3)], "additional_threshold must have one"),
        refusal(ClipTensorByScaling(threshold=1.0), [i32(2), f32(1)], "the inputs must have one floating type"),
    )

    def draw(self, data):
        x = data.draw(floats((0, 3), 2))
        inputs = [x, np.float32(np.linalg.norm(x)).reshape(data.draw(st.sampled_from([(), (1,)])))]
        if data.draw(st.booleans()):
            inputs.append(np.float32([0.5]))
        return ClipTensorByScaling(threshold=data.draw(st.sampled_from([0.1, 1.0, 100.0]))), inputs

    def reference(self, op, x, norm, additional=None):
        bound = op.threshold * (1 if additional is None else additional.item())
        return [x * (bound / norm.item()) if norm.item() > bound else x]


def test_a_gradient_of_zero_stays():
    (y,) = run_plain(ClipTensorByScaling(threshold=1.0), [np.zeros(3, np.float32), np.float32([0])])
    assert y.tolist() == [0, 0, 0]
