"""Lars."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.updates.lars import Lars
from netbuilder.proto import ArgumentError
from suite import OperatorSuite, f32, floats, refusal


def one(value):
    return np.float32([value])


class TestLars(OperatorSuite):
    operator = Lars
    no_gradient = "a rate"
    refusals = (
        refusal(Lars(), [f32(2), f32(3), f32(1), f32(1), f32(1)], r"dX must have the shape of X, \(2,\)"),
        refusal(Lars(), [f32(2), f32(2), f32(1), f32(2), f32(1)], r"trust must have one element, got shape \(2,\)"),
        refusal(Lars(offset=-1.0), [f32(2), f32(2), f32(1), f32(1), f32(1)], "offset must lie in", ArgumentError),
    )

    def draw(self, data):
        x = data.draw(floats((1, 4), (1, 4)))
        op = data.draw(st.sampled_from([Lars(), Lars(offset=0.0, lr_min=0.0)]))
        return op, [x, data.draw(floats(*x.shape)), one(0.1), one(0.5), one(data.draw(st.sampled_from([0.3, 9.0])))]

    def reference(self, op, x, dx, wd, trust, lr_max):
        rate = trust / (np.linalg.norm(dx) / np.linalg.norm(x) + wd + op.offset)
        return [np.clip(rate, op.lr_min, lr_max)]


@pytest.mark.parametrize(
    ("x", "dx", "lr_max", "fields", "want"),
    [
        (0, 1, 50, {}, 1),
        (0, 1, 0.5, {}, 0.5),
        (0, 0, 50, {}, 1),
        (1, 0, 50, {}, 2),
        (1, 0, 1e30, {"offset": 0.0}, 1e30),
        (1, 1e9, 50, {"offset": 0.0}, 0.02),
        (1, 1, 0.1, {"lr_min": 0.2}, 0.2),
    ],
)
def test_norms_of_zero_and_bounds(x, dx, lr_max, fields, want):
    got = run_plain(Lars(**fields), [one(x), one(dx), one(0), one(1), one(lr_max)])
    np.testing.assert_array_equal(got[0], one(want))


def test_empty_parameter():
    empty = np.zeros((0,), np.float32)
    assert run_plain(Lars(), [empty, empty, one(0), one(1), one(50)])[0] == 1
