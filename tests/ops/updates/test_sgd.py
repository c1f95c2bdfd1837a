"""MomentumSGD and MomentumSGDUpdate."""

import numpy as np
import pytest
from hypothesis import strategies as st

from netbuilder.ops.updates.sgd import MomentumSGD, MomentumSGDUpdate
from suite import OperatorSuite, f32, floats, i32, refusal


def _draw(data, operator, params):
    g = data.draw(floats((0, 4), (1, 5)))
    m = data.draw(floats(*g.shape))
    lr = data.draw(st.sampled_from([np.float32([0.1]), np.array(-0.3, np.float32)]))
    op = operator(momentum=data.draw(st.sampled_from([0.0, 0.9])), nesterov=data.draw(st.booleans()))
    return op, [g, m, lr, *(data.draw(floats(*g.shape)) for _ in range(params))]


def _reference(op, g, m, lr):
    new = np.empty_like(m)
    step = np.empty_like(m)
    for i in np.ndindex(m.shape):
        new[i] = op.momentum * m[i] + lr.item() * g[i]
        step[i] = new[i]
        if op.nesterov:
            step[i] += op.momentum * (new[i] - m[i])
    return step, new


class TestMomentumSGD(OperatorSuite):
    operator = MomentumSGD
    no_gradient = "an update"
    refusals = (
        refusal(MomentumSGD(), [f32(2, 3), f32(3, 2), f32(1)], r"moment must have the shape of grad, \(2, 3\)"),
        refusal(MomentumSGD(), [f32(2), f32(2), f32(2)], "lr must have one element, got shape"),
        refusal(
            MomentumSGD(),
            [i32(2), i32(2), f32(1)],
            "the inputs must have one floating type, got grad int32, moment int32",
        ),
    )

    def draw(self, data):
        return _draw(data, MomentumSGD, 0)

    def reference(self, op, g, m, lr):
        return list(_reference(op, g, m, lr))


class TestMomentumSGDUpdate(OperatorSuite):
    operator = MomentumSGDUpdate
    no_gradient = "an update"
    refusals = (
        refusal(MomentumSGDUpdate(), [f32(2), f32(2), f32(1), f32(3)], r"param must have the shape of grad, \(2,\)"),
        refusal(MomentumSGDUpdate(), [f32(2), f32(2), f32(0), f32(2)], "lr must have one element, got shape"),
    )

    def draw(self, data):
        return _draw(data, MomentumSGDUpdate, 1)

    def reference(self, op, g, m, lr, p):
        step, new = _reference(op, g, m, lr)
        return [step, new, p - step]


def test_half_precision_is_computed_in_single():
    from checks import run_plain

    g, m, p = (np.full((3,), v, np.float16) for v in (0.001, 1.0, 2.0))
    step, new, after = run_plain(MomentumSGDUpdate(momentum=0.9), [g, m, np.float32([0.1]), p])
    assert step.dtype == new.dtype == after.dtype == np.float16
    assert after == pytest.approx(2.0 - (0.9 + 0.0001), abs=1e-3)
