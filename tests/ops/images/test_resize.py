"""ResizeNearest, ResizeNearest3D, UpsampleBilinear, and their gradients."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.images.resize import (
    ResizeNearest,
    ResizeNearest3D,
    ResizeNearest3DGradient,
    ResizeNearestGradient,
    UpsampleBilinear,
    UpsampleBilinearGradient,
)
from netbuilder.proto import ArgumentError, ShapeError
from suite import OperatorSuite, f32, floats, i32, refusal

SCALES = st.sampled_from([0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 2.25])


def nearest_matrix(extent, scale):
    """Return the matrix that resizes along one axis, a row per place of the output."""
    matrix = np.zeros((int(extent * scale), extent))
    for row in range(len(matrix)):
        matrix[row, min(int(row / scale), extent - 1)] = 1
    return matrix


def bilinear_matrix(extent, scale):
    matrix = np.zeros((int(extent * scale), extent))
    for row in range(len(matrix)):
        exact = row * (extent - 1) / (len(matrix) - 1) if len(matrix) > 1 else 0.0
        first = min(int(exact + 1e-6), extent - 1)
        matrix[row, first] += 1 - (exact - first)
        matrix[row, min(first + 1, extent - 1)] += exact - first
    return matrix


def resized(x, matrices, first):
    for axis, matrix in enumerate(matrices, first):
        x = np.moveaxis(np.tensordot(matrix, x, (1, axis)), 0, axis)
    return x


class _Images(OperatorSuite):
    matrix = staticmethod(nearest_matrix)
    with_order = True
    by_input = True

    def draw_case(self, data, cls):
        """Return an operator, X, the scales, what they are as an input, and the first image axis."""
        scales = data.draw(SCALES), data.draw(SCALES)
        order = data.draw(st.sampled_from(["NCHW", "NHWC"])) if self.with_order else "NCHW"
        shape = (2, 2, *data.draw(st.tuples(st.integers(2, 4), st.integers(2, 4))))
        x = data.draw(floats(*(shape if order == "NCHW" else (shape[0], *shape[2:], shape[1]))))
        given = {"order": order} if order == "NHWC" else {}
        if data.draw(st.booleans()):
            return cls(**given), x, [np.float32(scales)]
        return cls(height_scale=scales[0], width_scale=scales[1], **given), x, []

    def matrices(self, op, x, scales):
        height, width = (op.height_scale, op.width_scale) if scales is None else scales
        first = 1 if getattr(op, "order", "NCHW") == "NHWC" else 2
        return [self.matrix(x.shape[first], height), self.matrix(x.shape[first + 1], width)], first


class _Forward(_Images):
    def draw(self, data):
        op, x, given = self.draw_case(data, self.operator)
        return op, [x, *given]

    def reference(self, op, x, scales=None):
        return [resized(x, *self.matrices(op, x, scales))]


class _Backward(_Images):
    no_gradient = "a gradient operator"

    def draw(self, data):
        op, x, given = self.draw_case(data, self.operator)
        y = resized(x, *self.matrices(op, x, *(given or [None])))
        return op, [data.draw(floats(*y.shape)), x, *given]

    def reference(self, op, dy, x, scales=None):
        matrices, first = self.matrices(op, x, scales)
        return [resized(dy, [m.T for m in matrices], first)]


class TestResizeNearest(_Forward):
    operator = ResizeNearest
    refusals = (
        refusal(ResizeNearest(), [f32(2, 3, 4)], "X must have 4 axes"),
        refusal(ResizeNearest(), [i32(1, 1, 2, 2)], "one floating type"),
        refusal(ResizeNearest(height_scale=0.1), [f32(1, 1, 2, 2)], "the resized extents must be 1 or more"),
        refusal(ResizeNearest(), [f32(1, 1, 2, 2), f32(2)], "only when the net runs", ShapeError),
        refusal(ResizeNearest(width_scale=0.0), [f32(1, 1, 2, 2)], "width_scale must be positive", ArgumentError),
        refusal(ResizeNearest(order="HW"), [f32(1, 1, 2, 2)], "order must be NCHW or NHWC", ArgumentError),
    )


class TestResizeNearestGradient(_Backward):
    operator = ResizeNearestGradient
    refusals = (
        refusal(
            ResizeNearestGradient(height_scale=2.0),
            [f32(1, 1, 2, 2), f32(1, 1, 2, 2)],
            r"dY must have shape \(1, 1, 4, 2\)",
        ),
        refusal(ResizeNearestGradient(width_scale=-1.0), [f32(1, 1, 2, 2)] * 2, "must be positive", ArgumentError),
    )


class TestUpsampleBilinear(_Forward):
    operator = UpsampleBilinear
    matrix = staticmethod(bilinear_matrix)
    with_order = False
    atol = 1e-5
    refusals = (
        refusal(UpsampleBilinear(), [f32(2, 3)], "X must have 4 axes"),
        refusal(UpsampleBilinear(order="NHWC"), [f32(1, 2, 2, 1)], "put NHWC2NCHW before", ArgumentError),
    )


class TestUpsampleBilinearGradient(_Backward):
    operator = UpsampleBilinearGradient
    matrix = staticmethod(bilinear_matrix)
    with_order = False
    atol = 1e-5
    refusals = (
        refusal(UpsampleBilinearGradient(), [f32(1, 1, 2, 2), f32(1, 1, 3, 2)], r"dY must have shape \(1, 1, 3, 2\)"),
    )


def volumes(data, cls):
    scales = [data.draw(SCALES) for _ in range(3)]
    x = data.draw(floats((1, 2), (1, 2), (2, 3), (2, 3), (2, 3)))
    return cls(temporal_scale=scales[0], height_scale=scales[1], width_scale=scales[2]), x


def volume_matrices(op, x):
    return [nearest_matrix(n, s) for n, s in zip(x.shape[2:], (op.temporal_scale, op.height_scale, op.width_scale))]


class TestResizeNearest3D(OperatorSuite):
    operator = ResizeNearest3D
    refusals = (
        refusal(ResizeNearest3D(), [f32(1, 1, 2, 2)], "X must have 5 axes"),
        refusal(ResizeNearest3D(temporal_scale=0.0), [f32(1, 1, 2, 2, 2)], "temporal_scale must", ArgumentError),
    )

    def draw(self, data):
        op, x = volumes(data, ResizeNearest3D)
        return op, [x]

    def reference(self, op, x):
        return [resized(x, volume_matrices(op, x), 2)]


class TestResizeNearest3DGradient(OperatorSuite):
    operator = ResizeNearest3DGradient
    no_gradient = "a gradient operator"
    refusals = (refusal(ResizeNearest3DGradient(height_scale=2.0), [f32(1, 1, 2, 2, 2)] * 2, r"dY must have shape"),)

    def draw(self, data):
        op, x = volumes(data, ResizeNearest3DGradient)
        y = resized(x, volume_matrices(op, x), 2)
        return op, [data.draw(floats(*y.shape)), x]

    def reference(self, op, dy, x):
        return [resized(dy, [m.T for m in volume_matrices(op, x)], 2)]


@pytest.mark.parametrize("scales", [np.float32([1, 2, 3]), np.float32([0, 1])])
def test_scales_that_are_not_two_numbers_above_0(scales):
    with pytest.raises(ShapeError, match="scales must be 2 positive numbers"):
        run_plain(ResizeNearest(), [np.ones((1, 1, 2, 2), np.float32), scales])


def test_half_precision_sums_in_float32():
    dy = np.full((1, 1, 64, 64), 1.0, np.float16)
    op = ResizeNearestGradient(height_scale=64.0, width_scale=64.0)
    (dx,) = run_plain(op, [dy, np.ones((1, 1, 1, 1), np.float16)])
    assert dx.dtype == np.float16 and dx.item() == 4096
