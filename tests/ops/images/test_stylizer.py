"""Images of bytes to planes and back."""

import numpy as np
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.images.stylizer import (
    BRGNCHWCToPackedInt8BGRAStylizerDeprocess,
    PackedInt8BGRANHWCToNCHWCStylizerPreprocess,
)
from netbuilder.proto import ArgumentError
from suite import OperatorSuite, f32, floats, refusal

MEAN = np.float32([10, 20, 30])


class TestPackedInt8BGRANHWCToNCHWCStylizerPreprocess(OperatorSuite):
    operator = PackedInt8BGRANHWCToNCHWCStylizerPreprocess
    no_gradient = "as in Caffe2"
    refusals = (
        refusal(operator(noise_size=0), [f32(1), f32(3)], "noise_size must be at least 1", ArgumentError),
        refusal(operator(), [f32(1, 2, 2, 4), f32(3)], "X must have elements of type uint8"),
        refusal(operator(), [TensorSpec((1, 2, 2, 4), np.dtype(np.uint8)), f32(4)], "mean must have 3 elements"),
    )

    def draw(self, data):
        rng = np.random.default_rng(data.draw(st.integers(0, 99)))
        return self.operator(noise_std=0), [rng.integers(0, 256, (2, 3, 2, 4), dtype=np.uint8), MEAN]

    def reference(self, op, x, mean):
        return [np.moveaxis(x[..., :3].astype(float) - mean, 3, 1)]


class TestBRGNCHWCToPackedInt8BGRAStylizerDeprocess(OperatorSuite):
    operator = BRGNCHWCToPackedInt8BGRAStylizerDeprocess
    no_gradient = "as in Caffe2"
    refusals = (
        refusal(operator(), [f32(1, 4, 2, 2), f32(3)], r"X must have shape \(N, 3, H, W\)"),
        refusal(operator(), [f32(1, 3, 2, 2), f32(2)], "mean must have 3 elements"),
    )

    def draw(self, data):
        return self.operator(), [data.draw(floats(2, 3, 2, 2, low=-50, high=300)), MEAN]

    def reference(self, op, x, mean):
        y = np.full((2, 2, 2, 4), 255)
        for n, c, i, j in np.ndindex(x.shape):
            y[n, i, j, c] = int(min(max(np.float32(x[n, c, i, j]) + np.float32(mean[c]), 0), 255))
        return [y]


def test_the_noise_goes_round_and_is_the_same_in_each_run():
    op = PackedInt8BGRANHWCToNCHWCStylizerPreprocess(noise_std=5, noise_size=6)
    x = np.zeros((2, 1, 4, 4), np.uint8)
    (y,), (again,) = run_plain(op, [x, 0 * MEAN]), run_plain(op, [x, 0 * MEAN])
    np.testing.assert_array_equal(y, again)
    np.testing.assert_array_equal(y[0], y[1])
    np.testing.assert_array_equal(y[..., :2], y[..., 2:])
    assert len(np.unique(y)) == 6 and 1 < y.std() < 15


def test_nan_becomes_0():
    x = np.full((1, 3, 1, 1), np.nan, np.float32)
    y = run_plain(BRGNCHWCToPackedInt8BGRAStylizerDeprocess(), [x, MEAN])[0]
    assert y.tolist() == [[[[0, 0, 0, 255]]]]
