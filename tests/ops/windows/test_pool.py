"""Pooling and its gradients."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st

from netbuilder.ops.windows.pool import AveragePool, AveragePoolGradient, MaxPool, MaxPoolGradient
from netbuilder.proto import ArgumentError
from suite import OperatorSuite, f32, floats, refusal
from window_reference import pool, pool_gradient, to_channels_first, to_order


def draw_pool(data, cls, **values):
    """Draw an operator and X."""
    draw = data.draw
    axes, order = draw(st.sampled_from([2, 2, 1, 3])), draw(st.sampled_from(["NCHW", "NHWC"]))
    extents = [draw(st.integers(3, 5 if axes < 3 else 3)) for _ in range(axes)]
    given = {"order": order}
    if draw(st.integers(0, 4)) == 0:
        given["global_pooling"] = True
    else:
        kernel = tuple(draw(st.integers(1, 3)) for _ in extents)
        given |= {"kernels": kernel, "strides": tuple(draw(st.integers(1, 3)) for _ in extents)}
        given["legacy_pad"] = draw(st.sampled_from([0, 0, 1, 2, 3]))
        if given["legacy_pad"] == 3:  # with larger strides the last window could be outside of X
            given["strides"] = tuple(min(s, k) for s, k in zip(given["strides"], kernel))
        if given["legacy_pad"] in (0, 3):
            begin = tuple(draw(st.integers(0, k - 1)) for k in kernel)
            end = tuple(draw(st.integers(0, k - 1)) for k in kernel)
            given["pads"] = begin + (begin if given["legacy_pad"] == 3 else end)
    if "Average" in cls.__name__:
        given["count_include_pad"] = draw(st.booleans())
    x = draw(floats(draw(st.integers(1, 2)), draw(st.integers(1, 2)), *extents, **values))
    return cls(**given), np.ascontiguousarray(to_order(x, order))


def windows(op, x):
    """Return kernel, strides, pads before, and output extents, worked out by the rules in BVLC Caffe's words."""
    extents = to_channels_first(x, op.order).shape[2:]
    axes = len(extents)
    if op.global_pooling:
        return extents, (1,) * axes, (0,) * axes, (1,) * axes
    kernel, strides, (begin, end) = op.kernels, op.strides, op.explicit_pads(axes)
    if op.legacy_pad == 2:
        out = [int(np.ceil(n / s)) for n, s in zip(extents, strides)]
        begin = [int(((o - 1) * s + k - n) / 2) for n, k, s, o in zip(extents, kernel, strides, out)]
    elif op.legacy_pad == 3:
        out = [int(np.ceil((n + 2 * b - k) / s)) + 1 for n, k, s, b in zip(extents, kernel, strides, begin)]
        out = [o - (b > 0 and (o - 1) * s >= n + b) for n, s, b, o in zip(extents, strides, begin, out)]
    else:
        out = [int(np.floor((n + b + e - k) / s)) + 1 for n, k, s, b, e in zip(extents, kernel, strides, begin, end)]
    return kernel, strides, begin, out


POOL_REFUSALS = [
    ({"kernel": 2}, [f32(2, 3)], "at least one image axis", None),
    ({}, [f32(2, 3, 4, 4)], "kernel must be at least 1", None),
    ({"kernel": 5}, [f32(2, 3, 4, 4)], "does not fit X", None),
    ({"kernel": 2, "dilation": 2}, [f32(2, 3, 4, 4)], "dilation is not supported", None),
    ({"kernel": 2, "stride": 3, "legacy_pad": 3}, [f32(2, 3, 3, 3)], "is outside of X", None),
    ({"kernel": 2, "pad": 2}, [f32(2, 3, 4, 4)], "pads must be smaller than the kernel", None),
    ({"global_pooling": True, "pad": 1}, [f32(2, 3, 4, 4)], "must not be given together", ArgumentError),
]


def refusals(cls):
    return tuple(
        refusal(cls(**args), specs, match, **({"error": error} if error else {}))
        for args, specs, match, error in POOL_REFUSALS
    )


class TestMaxPool(OperatorSuite):
    operator = MaxPool
    refusals = refusals(MaxPool)

    def draw(self, data):
        # Far from 0, so that a window that took in the pads would show.
        op, x = draw_pool(data, MaxPool, low=-9, high=-5)
        return op, [x]

    def draw_gradient(self, data):
        op, x = draw_pool(data, MaxPool, apart=0.1)
        return op, [x]

    def reference(self, op, x):
        return [to_order(pool(to_channels_first(x, op.order), "max", *windows(op, x)), op.order)]


class TestAveragePool(OperatorSuite):
    operator = AveragePool
    refusals = refusals(AveragePool)

    def draw(self, data):
        op, x = draw_pool(data, AveragePool)
        return op, [x]

    def reference(self, op, x):
        images = to_channels_first(x, op.order)
        return [to_order(pool(images, "mean", *windows(op, x), op.count_include_pad), op.order)]


class _GradientSuite(OperatorSuite):
    no_gradient = "a gradient operator"
    kind = "mean"

    def draw(self, data):
        op, x = draw_pool(data, self.operator)
        if data.draw(st.booleans()):
            x = np.round(x)  # equal elements
        images = to_channels_first(x, op.order)
        y = np.ascontiguousarray(to_order(pool(images, self.kind, *windows(op, x)), op.order).astype(np.float32))
        return op, [x, y, data.draw(floats(*y.shape))]

    def reference(self, op, x, y, dy):
        kernel, strides, begin, _ = windows(op, x)
        images, slopes = to_channels_first(x, op.order), to_channels_first(dy, op.order)
        whole = getattr(op, "count_include_pad", False)
        return [to_order(pool_gradient(images, slopes, self.kind, kernel, strides, begin, whole), op.order)]


def gradient_refusals(cls):
    x, y = f32(2, 3, 4, 4), f32(2, 3, 2, 2)
    return (
        refusal(cls(kernel=2, stride=2), [x, x, y], r"dY must have the shape of Y, \(2, 3, 4, 4\)"),
        refusal(cls(kernel=2, stride=2), [x, y, x], r"dY must have the shape of Y, \(2, 3, 2, 2\)"),
    )


class TestMaxPoolGradient(_GradientSuite):
    operator = MaxPoolGradient
    kind = "max"
    refusals = gradient_refusals(MaxPoolGradient)


class TestAveragePoolGradient(_GradientSuite):
    operator = AveragePoolGradient
    refusals = gradient_refusals(AveragePoolGradient)


@pytest.mark.parametrize("cls", [MaxPool, AveragePool])
def test_cost(cls):
    assert cls(kernel=3, stride=2).flops(f32(2, 4, 7, 7)) == 2 * 4 * 3 * 3 * 9
    assert cls(global_pooling=True).flops(f32(2, 4, 7, 7)) == 2 * 4 * 49
