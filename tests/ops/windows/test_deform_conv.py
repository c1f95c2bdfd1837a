"""DeformConv and its gradient."""

import numpy as np
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.windows.conv import Conv
from netbuilder.ops.windows.deform_conv import DeformConv, DeformConvGradient
from netbuilder.proto import ArgumentError
from suite import OperatorSuite, f32, floats, refusal

FITS = [f32(1, 2, 4, 4), f32(1, 8, 3, 3), f32(3, 2, 2, 2)]


def draw_case(data, cls):
    draw = data.draw
    op = cls(
        kernel=draw(st.integers(1, 2)), stride=draw(st.integers(1, 2)), pad=draw(st.integers(0, 1)),
        dilation=draw(st.integers(1, 2)), group=draw(st.integers(1, 2)), deformable_group=draw(st.integers(1, 2)),
        padding_mode=draw(st.sampled_from(["border", "zeros"])), masked=draw(st.booleans()),
    )  # fmt: skip
    x = draw(floats((1, 2), 2, (3, 4), (3, 4)))
    filters = draw(floats(2, 2 // op.group, op.kernel, op.kernel))
    reach = op.dilation * (op.kernel - 1) + 1
    out = [(n + 2 * op.pad - reach) // op.stride + 1 for n in x.shape[2:]]
    # Sampled values jump at the edges, and their slopes at integers, so offsets avoid integers.
    whole = np.random.default_rng(draw(st.integers(0, 2**32 - 1))).integers(
        -2, 2, (len(x), 2 * op.deformable_group * op.kernel**2, *out)
    )
    offset = whole + draw(floats(*whole.shape, low=0.1, high=0.9))
    mask = [draw(floats(len(x), op.deformable_group * op.kernel**2, *out))] if op.masked else []
    return op, x, np.float32(offset), filters, mask


def reads(op, offset, extents):
    """Yield (image, part, element of the window, its row and column, place of Y, y, x, row, column, share) of each."""
    for n, part, i, j, p, q in np.ndindex(len(offset), op.deformable_group, op.kernel, op.kernel, *offset.shape[2:]):
        channel = 2 * (part * op.kernel**2 + i * op.kernel + j)
        y = p * op.stride - op.pad + i * op.dilation + offset[n, channel, p, q]
        x = q * op.stride - op.pad + j * op.dilation + offset[n, channel + 1, p, q]
        if op.padding_mode == "zeros" or 0 <= y < extents[0] and 0 <= x < extents[1]:
            if op.padding_mode == "border":
                y, x = min(y, extents[0] - 1), min(x, extents[1] - 1)
            for row, column in np.ndindex(*extents):
                share = max(0, 1 - abs(y - row)) * max(0, 1 - abs(x - column))
                if share:
                    yield n, part, i, j, p, q, row, column, share


def terms(op, x, offset, filters, mask):
    """Yield for each product of the convolution its place in Y, in filters, and in X, and its share."""
    per_part, per_group = x.shape[1] // op.deformable_group, x.shape[1] // op.group
    for n, part, i, j, p, q, row, column, share in reads(op, offset, x.shape[2:]):
        if op.masked:
            share *= mask[n, part * op.kernel**2 + i * op.kernel + j, p, q]
        for c in range(part * per_part, (part + 1) * per_part):
            group = c // per_group
            of_group = len(filters) // op.group
            for m in range(group * of_group, (group + 1) * of_group):
                yield (n, m, p, q), (m, c % per_group, i, j), (n, c, row, column), share


class TestDeformConv(OperatorSuite):
    operator = DeformConv
    wrt = (0, 1, 2, 3, 4)
    rtol, atol = 1e-4, 1e-4
    refusals = (
        refusal(DeformConv(kernel=2), [f32(1, 2, 4), *FITS[1:]], r"X must be \(N, C, H, W\)"),
        refusal(DeformConv(kernel=2), [FITS[0], f32(1, 4, 3, 3), FITS[2]], r"offset must have shape \(1, 8, 3, 3\)"),
        refusal(DeformConv(kernel=2), [*FITS[:2], f32(3, 1, 2, 2)], "filter must have shape"),
        refusal(DeformConv(kernel=2, deformable_group=3), FITS, "not divisible by the groups"),
        refusal(DeformConv(kernel=2), [*FITS, f32(2)], r"bias must have shape \(3,\)"),
        refusal(DeformConv(kernel=2, order="NHWC"), FITS, "order must be NCHW", ArgumentError),
        refusal(DeformConv(kernel=2, group=0), FITS, "must be 1 or more", ArgumentError),
        refusal(DeformConv(kernel=2, no_bias=True), [*FITS, f32(3)], "it has 3 inputs, got 4", ArgumentError),
    )

    def draw(self, data):
        op, *inputs, mask = draw_case(data, DeformConv)
        if data.draw(st.booleans()):
            inputs.append(data.draw(floats(2)))
        return op.with_arity(len(inputs + mask), 1), inputs + mask

    def reference(self, op, x, offset, filters, *more):
        bias, mask = op.bias_and_mask(more)
        y = np.zeros((len(x), len(filters), *offset.shape[2:]))
        for at, of_filter, of_x, share in terms(op, x, offset, filters, mask):
            y[at] += filters[of_filter] * x[of_x] * share
        return [y if bias is None else y + bias[:, None, None]]


class TestDeformConvGradient(OperatorSuite):
    operator = DeformConvGradient
    no_gradient = "a gradient operator"
    rtol, atol = 1e-3, 1e-4
    refusals = (
        refusal(DeformConvGradient(kernel=2), [*FITS, f32(1, 3, 3, 2)], r"dY must have shape \(1, 3, 3, 3\)"),
        refusal(
            DeformConvGradient(kernel=2, no_bias=True),
            [*FITS, f32(1, 3, 3, 3)],
            "4 inputs and at most 3 outputs",
            ArgumentError,
            n_out=4,
        ),
    )

    def draw(self, data):
        op, x, offset, filters, mask = draw_case(data, DeformConvGradient)
        dy = data.draw(floats(len(x), len(filters), *offset.shape[2:]))
        return op.with_arity(4 + op.masked, data.draw(st.sampled_from([2, 4]))), [x, offset, filters, dy, *mask]

    def reference(self, op, x, offset, filters, dy, mask=None):
        d_filters, dx = np.zeros(filters.shape), np.zeros(x.shape)
        for at, of_filter, of_x, share in terms(op, x, offset, filters, mask):
            d_filters[of_filter] += dy[at] * x[of_x] * share
            dx[of_x] += dy[at] * filters[of_filter] * share
        return [None, d_filters, dy.sum(axis=(0, 2, 3)), dx][: op.n_out]


def test_without_offsets_it_is_a_convolution():
    rng = np.random.default_rng(0)
    x, filters, bias = (rng.normal(size=s).astype(np.float32) for s in ((2, 4, 6, 5), (6, 2, 3, 3), (6,)))
    offset, args = np.zeros((2, 18, 3, 3), np.float32), {"kernel": 3, "stride": 2, "pad": 1, "group": 2}
    found = run_plain(DeformConv(**args).with_arity(4, 1), [x, offset, filters, bias])[0]
    np.testing.assert_allclose(
        found, run_plain(Conv(**args).with_arity(3, 1), [x, filters, bias])[0], rtol=1e-4, atol=1e-5
    )
