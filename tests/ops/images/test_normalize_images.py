"""NormalizeImages: the formula in float64, and the bits of the host's transformation of images."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import interpret
from netbuilder.data import ImageTransform
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.images.normalize_images import NormalizeImages
from netbuilder.proto import ArgumentError
from netbuilder.proto.arguments import make_op
from suite import OperatorSuite, f32, refusal

MEANS = st.floats(-300, 300).map(np.float32).map(float)
STDS = st.floats(0.01, 300).map(np.float32).map(float)


def pixels(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


class TestNormalizeImages(OperatorSuite):
    operator = NormalizeImages
    no_gradient = "pixels have none"
    rtol, atol = 1e-5, 1e-2  # up to 600 / 0.01, which cancels
    refusals = (
        refusal(NormalizeImages(), [f32(2, 3, 4)], r"X must have shape \(N, H, W, C\)"),
        refusal(NormalizeImages(mean=(1.0, 2.0)), [f32(2, 4, 4, 3)], r"mean must have one number.*got \[1.0, 2.0\]"),
        refusal(NormalizeImages(std=(1.0, 2.0)), [f32(2, 4, 4, 3)], "std must have one number, or one for each"),
        refusal(NormalizeImages(), [TensorSpec((2, 4, 4, 3), np.dtype(np.int32))], "uint8"),
        refusal(NormalizeImages(std=(1.0, 0.0)), [f32(2, 4, 4, 2)], "std must be positive, got", ArgumentError),
        refusal(NormalizeImages(order="HWCN"), [f32(2, 4, 4, 2)], "order must be NCHW or NHWC", ArgumentError),
    )

    def draw(self, data):
        channels = data.draw(st.integers(1, 5))
        x = pixels(*(data.draw(st.integers(0 if k == 0 else 1, 5)) for k in range(3)), channels)
        mean, std = (
            tuple(data.draw(st.lists(numbers, min_size=count, max_size=count)))
            for numbers, count in zip((MEANS, STDS), (data.draw(st.sampled_from([1, channels])) for _ in range(2)))
        )
        given = x if data.draw(st.booleans()) else (x - np.float32(0.25)).astype(np.float32)
        return NormalizeImages(mean=mean, std=std, order=data.draw(st.sampled_from(["NCHW", "NHWC"]))), [given]

    def reference(self, op, x):
        y = (x.astype(np.float64) - op.mean) / op.std
        return [y.transpose(0, 3, 1, 2) if op.order == "NCHW" else y]


@pytest.mark.parametrize("channels", [1, 3])
def test_it_has_the_bits_of_the_transformation_of_images(channels):
    mean, std = (103.53, 116.28, 123.675)[:channels], (57.375, 57.12, 58.395)[:channels]
    x = pixels(4, 9, 7, channels)
    transform = ImageTransform(mean=mean, std=std, color=channels == 3, is_test=True)
    want = np.stack([transform(image, np.random.default_rng(0)) for image in x])
    found = interpret([make_op("NormalizeImages", ["x"], ["y"], mean=mean, std=std)], {"x": x})["y"]
    np.testing.assert_array_equal(found, want)
