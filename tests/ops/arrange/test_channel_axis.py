"""NCHW2NHWC and NHWC2NCHW."""

from __future__ import annotations

import numpy as np
import pytest

from checks import run_plain
from netbuilder.ops.arrange.channel_axis import NCHW2NHWC, NHWC2NCHW
from netbuilder.proto import ShapeError
from suite import OperatorSuite, f32, floats, refusal

TOO_FEW = "axes of samples, channels and positions"


class TestNCHW2NHWC(OperatorSuite):
    operator = NCHW2NHWC
    refusals = (refusal(NCHW2NHWC(), [f32(2, 3)], TOO_FEW, ShapeError),)

    def draw(self, data):
        return NCHW2NHWC(), [data.draw(floats((1, 3), (1, 3), (1, 3), (0, 3)))]

    def reference(self, op, x):
        return [np.einsum("nchw->nhwc", x)]


class TestNHWC2NCHW(OperatorSuite):
    operator = NHWC2NCHW
    refusals = (refusal(NHWC2NCHW(), [f32()], r"X must have shape \(N, \*S, C\)", ShapeError),)

    def draw(self, data):
        return NHWC2NCHW(), [data.draw(floats((1, 3), (1, 3), (1, 3), (0, 3)))]

    def reference(self, op, x):
        return [np.einsum("nhwc->nchw", x)]


@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 3, 4, 5), (2, 3, 4, 5, 2)])
def test_one_undoes_the_other(shape):
    x = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    (moved,) = run_plain(NCHW2NHWC(), [x])
    assert moved.shape == (*shape[:1], *shape[2:], shape[1])
    assert np.array_equal(run_plain(NHWC2NCHW(), [moved])[0], x)
