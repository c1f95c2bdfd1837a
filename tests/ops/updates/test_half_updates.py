"""FP16MomentumSGDUpdate and FP32MomentumSGDUpdate."""

import numpy as np
from hypothesis import strategies as st

from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.updates.half_updates import FP16MomentumSGDUpdate, FP32MomentumSGDUpdate
from netbuilder.proto import ArgumentError
from suite import OperatorSuite, f32, floats, refusal


def f16(*shape):
    return TensorSpec(shape, np.dtype(np.float16))


class _Updates(OperatorSuite):
    no_gradient = "an update"
    dtype = np.float32

    def draw(self, data):
        g = data.draw(floats((0, 4), (1, 5)))
        g, m, p = (x.astype(self.dtype) for x in (g, data.draw(floats(*g.shape)), data.draw(floats(*g.shape))))
        fields = {
            "momentum": data.draw(st.sampled_from([0.0, 0.9])),
            "nesterov": data.draw(st.booleans()),
            "weight_decay": data.draw(st.sampled_from([0.0, 0.25])),
        }
        return self.operator(**fields), [g, m, np.float32([0.1]), p]

    def reference(self, op, g, m, lr, p):
        new = op.momentum * m + lr * (g + op.weight_decay * p)
        step = new + op.momentum * (new - m) if op.nesterov else new
        return [step, new, p - step]


class TestFP32MomentumSGDUpdate(_Updates):
    operator = FP32MomentumSGDUpdate
    refusals = (
        refusal(FP32MomentumSGDUpdate(), [f32(2), f32(2), f32(1), f16(2)], "float32, got float16; .* PseudoFP16Init"),
        refusal(
            FP32MomentumSGDUpdate(), [f32(2), f32(3), f32(1), f32(2)], r"moment must have the shape of grad, \(2,\)"
        ),
        refusal(
            FP32MomentumSGDUpdate(), [f32(2), f32(2), f32(2), f32(2)], r"lr must have one element, got shape \(2,\)"
        ),
        refusal(
            FP32MomentumSGDUpdate(weight_decay=-1.0),
            [f32(2), f32(2), f32(1), f32(2)],
            "weight_decay must lie in",
            ArgumentError,
        ),
    )


class TestFP16MomentumSGDUpdate(_Updates):
    operator = FP16MomentumSGDUpdate
    dtype = np.float16
    rtol = atol = 2e-3
    refusals = (
        refusal(FP16MomentumSGDUpdate(), [f32(2), f32(2), f32(1), f32(2)], "grad must have elements of type float16"),
        refusal(FP16MomentumSGDUpdate(), [f32(2), f16(2), f32(1), f16(2)], "grad must have elements of type float16"),
    )
