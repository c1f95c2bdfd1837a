"""LC over images with any number of axes, and its gradients."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.windows.locally_connected import (
    LC,
    LC1D,
    LC2D,
    LC3D,
    LC1DGradient,
    LC2DGradient,
    LC3DGradient,
    LCGradient,
)
from netbuilder.proto import ArgumentError
from suite import OperatorSuite, f32, floats, refusal
from window_reference import to_channels_first, to_order

FITS = [f32(2, 3, 5, 4), f32(4, 3, 6, 3, 2, 2)]


def draw_case(data, cls, axes):
    """Return an operator, images, filters and the shape of the bias."""
    draw, grouped = data.draw, data.draw(st.booleans())
    op = cls(
        kernels=(2,) + (1,) * (axes - 1), strides=tuple(draw(st.integers(1, 2)) for _ in range(axes)),
        dilations=(draw(st.integers(1, 2)),) * axes, pads=(1,) + (0,) * (2 * axes - 1), group=1 + grouped,
        order="NCHW" if grouped else draw(st.sampled_from(["NCHW", "NHWC"])),
    )  # fmt: skip
    x = draw(floats((1, 2), 2, *[(3, 4)] * axes))
    windows = [
        (n + b - (k - 1) * d - 1) // s + 1
        for n, k, s, d, b in zip(x.shape[2:], op.kernels, op.strides, op.dilations, op.pads)
    ]
    filters = draw(floats(*windows, 2, 2 // op.group, *op.kernels))
    if op.order == "NHWC":
        filters = np.ascontiguousarray(np.moveaxis(filters, axes + 1, -1))
    return op, np.ascontiguousarray(to_order(x, op.order)), filters, (*windows, 2)


def terms(op, x, filters):
    """Yield for each product its place in Y and X, both channels-first, and in filters, channels first."""
    axes = x.ndim - 2
    for at in np.ndindex(*filters.shape[: axes + 1], *filters.shape[axes + 1 :]):
        place, m, channel, element = at[:axes], at[axes], at[axes + 1], at[axes + 2 :]
        seen = tuple(p * s - b + e * d for p, s, b, e, d in zip(place, op.strides, op.pads, element, op.dilations))
        if all(0 <= i < n for i, n in zip(seen, x.shape[2:])):
            first = m // (filters.shape[axes] // op.group) * filters.shape[axes + 1]
            for n in range(len(x)):
                yield (n, m, *place), (n, first + channel, *seen), at


def filters_first(op, filters, axes):
    return np.moveaxis(filters, -1, axes + 1) if op.order == "NHWC" else filters


class _Forward(OperatorSuite):
    axes = 2
    wrt = (0, 1, 2)
    rtol, atol = 1e-4, 1e-5

    def draw(self, data):
        op, x, filters, shape = draw_case(data, self.operator, self.axes)
        inputs = [x, filters, data.draw(floats(*shape))][: data.draw(st.integers(2, 3))]
        return op.with_arity(len(inputs), 1), inputs

    def reference(self, op, x, filters, bias=None):
        images, filters = to_channels_first(x, op.order), filters_first(op, filters, self.axes)
        extents = filters.shape[: self.axes + 1]
        y = np.zeros((len(x), extents[-1], *extents[:-1]))
        for of_y, of_x, of_filter in terms(op, images, filters):
            y[of_y] += images[of_x] * filters[of_filter]
        if bias is not None:
            y += np.moveaxis(bias, -1, 0)
        return [to_order(y, op.order)]


class TestLC(_Forward):
    operator = LC
    refusals = (
        refusal(LC(kernel=2), [FITS[0], f32(4, 4, 6, 3, 2, 2)], r"filter must have shape \(4, 3, 'M', 3, 2, 2\)"),
        refusal(LC(kernel=2), [*FITS, f32(4, 3, 5)], r"bias must have shape \(4, 3, 6\)"),
        refusal(LC(kernel=2, group=2), FITS, "must be divisible by group 2"),
        refusal(LC(kernel=2, group=3, order="NHWC"), FITS, "with order NCHW, more", ArgumentError),
        refusal(LC(kernel=2, no_bias=True), [*FITS, f32(4, 3, 6)], "with no_bias it has two inputs", ArgumentError),
    )


class TestLC1D(_Forward):
    operator, axes = LC1D, 1
    refusals = (refusal(LC1D(kernel=2), FITS, "X must have a batch, channels and 1 image axes"),)


class TestLC2D(_Forward):
    operator = LC2D
    refusals = (refusal(LC2D(kernel=2), [f32(2, 3, 4), FITS[1]], "X must have a batch, channels and 2 image axes"),)


class TestLC3D(_Forward):
    operator, axes = LC3D, 3
    refusals = (refusal(LC3D(kernel=2), FITS, "X must have a batch, channels and 3 image axes"),)

    def draw_gradient(self, data):
        op, inputs = self.draw(data)
        return op, [inputs[0][:1], *inputs[1:]]


class _Backward(OperatorSuite):
    axes = 2
    no_gradient = "a gradient operator"
    rtol, atol = 1e-4, 1e-5

    def draw(self, data):
        op, x, filters, shape = draw_case(data, self.operator, self.axes)
        dy = data.draw(floats(len(x), shape[-1], *shape[:-1]))
        return op.with_arity(3, data.draw(st.integers(1, 3))), [
            x,
            filters,
            np.ascontiguousarray(to_order(dy, op.order)),
        ]

    def reference(self, op, x, filters, dy):
        images, slopes = to_channels_first(x, op.order), to_channels_first(dy, op.order)
        first = filters_first(op, filters, self.axes)
        d_filters, dx = np.zeros(first.shape), np.zeros(images.shape)
        for of_y, of_x, of_filter in terms(op, images, first):
            d_filters[of_filter] += images[of_x] * slopes[of_y]
            dx[of_x] += first[of_filter] * slopes[of_y]
        if op.order == "NHWC":
            d_filters = np.moveaxis(d_filters, self.axes + 1, -1)
        bias = np.moveaxis(slopes.sum(axis=0), 0, -1)
        return [d_filters, bias, to_order(dx, op.order)][: op.n_out]


class TestLCGradient(_Backward):
    operator = LCGradient
    refusals = (
        refusal(LCGradient(kernel=2), [*FITS, f32(2, 6, 4, 4)], r"dY must have shape \(2, 6, 4, 3\)"),
        refusal(
            LCGradient(kernel=2, no_bias=True), [*FITS, f32(2, 6, 4, 3)], "at most two outputs", ArgumentError, n_out=3
        ),
    )


class TestLC1DGradient(_Backward):
    operator, axes = LC1DGradient, 1
    refusals = (
        refusal(LC1DGradient(kernel=2), [*FITS, f32(2, 6, 4, 3)], "X must have a batch, channels and 1 image axes"),
    )


class TestLC2DGradient(_Backward):
    operator = LC2DGradient
    refusals = (
        refusal(LC2DGradient(kernel=2), [f32(2, 3, 4), *FITS], "X must have a batch, channels and 2 image axes"),
    )


class TestLC3DGradient(_Backward):
    operator, axes = LC3DGradient, 3
    refusals = (
        refusal(LC3DGradient(kernel=2), [*FITS, f32(2, 6, 4, 3)], "X must have a batch, channels and 3 image axes"),
    )


@pytest.mark.parametrize("outputs", [1, 2])
def test_gradients_without_bias(outputs):
    rng = np.random.default_rng(0)
    x, filters, dy = (rng.normal(size=s).astype(np.float32) for s in ((2, 1, 4), (3, 2, 1, 2), (2, 2, 3)))
    plain = run_plain(LCGradient(kernels=(2,)).with_arity(3, 3), [x, filters, dy])
    without = run_plain(LCGradient(kernels=(2,), no_bias=True).with_arity(3, outputs), [x, filters, dy])
    for got, want in zip(without, (plain[0], plain[2])):
        np.testing.assert_array_equal(got, want)
