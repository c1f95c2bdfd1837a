"""Quantile."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.reductions.quantile import Quantile
from netbuilder.proto import ArgumentError
from suite import QUICK, OperatorSuite, f32, floats, i32, refusal


class TestQuantile(OperatorSuite):
    """The integers 0, 1, 2 ... and a small ``tol``: the result is between two of them."""

    operator = Quantile
    no_gradient = "as in Caffe2"
    refusals = (
        refusal(Quantile(), [f32(3)], r"input quantile should be in \[0, 1\], got -1", ArgumentError),
        refusal(Quantile(quantile=1.5), [f32(3)], r"got 1.5", ArgumentError),
        refusal(Quantile(quantile=0.5, tol=0), [f32(3)], "tolerance tol must be positive, got 0", ArgumentError),
        refusal(Quantile(quantile=0.5), [f32(0), f32(2, 0)], "must have at least one element, got none"),
        refusal(
            Quantile(quantile=0.5),
            [f32(3), i32(2)],
            "the inputs must have one floating type, got X float32, input 1 int32",
        ),
    )

    def draw(self, data):
        size = data.draw(st.integers(1, 30))
        x = np.random.default_rng(size).permutation(size).astype(np.float32)
        cut = data.draw(st.integers(0, size))
        quantile = data.draw(st.sampled_from([0.0, 0.25, 0.5, 1.0]))
        return Quantile(quantile=quantile, tol=1e-6), [x[:cut], x[cut:].reshape(1, -1)]

    def reference(self, op, *xs):
        size = sum(x.size for x in xs)
        rank = math.ceil(size * op.quantile)
        if rank in (0, 1, size):
            return [np.array([0.0 if rank < 2 and size > 1 else size - 1])]
        low, high = 0.0, size - 1.0
        while not rank <= math.floor((low + high) / 2) + 1 < rank + 1:  # as many as rank do not exceed the middle
            middle = (low + high) / 2
            low, high = (low, middle) if math.floor(middle) + 1 > rank else (middle, high)
        return [np.array([(low + high) / 2])]


@QUICK
@given(x=floats((1, 200)), quantile=st.floats(0, 1, width=16), magnitudes=st.booleans())
def test_the_share_is_reached_and_nothing_much_smaller_reaches_it(x, quantile, magnitudes):
    (found,) = run_plain(Quantile(quantile=quantile, abs=magnitudes, tol=1e-5), [x])
    x = abs(x) if magnitudes else x
    target = math.ceil(x.size * quantile)
    assert (x <= found[0]).sum() >= target
    assert (x <= found[0] - 3e-5 * abs(found[0]) - 1e-12).sum() <= target


def test_nan_and_neighbors():
    assert run_plain(Quantile(quantile=0.5), [np.float32([1, 2, 3, np.nan])])[0].tolist() == [2]
    assert np.isnan(run_plain(Quantile(quantile=0.5), [np.float32([np.nan])])[0]).all()
    ties = np.float32([1] * 4 + [np.nextafter(np.float32(1), np.float32(2))] * 6)
    assert run_plain(Quantile(quantile=0.5, tol=1e-12), [ties])[0].tolist() == [float(ties[-1])]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_type_is_that_of_the_inputs(dtype):
    (found,) = run_plain(Quantile(quantile=1), [np.array([[1, -4]], dtype)])
    assert (found.tolist(), found.dtype) == ([4], dtype)
