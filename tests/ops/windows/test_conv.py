"""Convolution and its gradient."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import GPU, check_forward, check_gradient, run_plain
from netbuilder.engines.gpu import gpu
from netbuilder.graph import Net
from netbuilder.ops.core.operator import spec_of
from netbuilder.ops.windows.conv import Conv, ConvGradient
from netbuilder.proto import ArgumentError, ShapeError
from on_gpu import gpus
from suite import OperatorSuite, f32, floats, refusal
from window_reference import correlate, correlate_gradients, to_channels_first, to_order


def arguments(draw, axes, order):
    """Draw the arguments of a convolution over images with so many axes, in one of their spellings."""
    each = st.lists(st.integers(1, 2), min_size=axes, max_size=axes)
    pads = st.lists(st.integers(0, 2), min_size=axes, max_size=axes)
    strides, dilations, begin, end = draw(each), draw(each), draw(pads), draw(pads)
    found = {"order": order, "group": draw(st.integers(1, 2))}
    if axes == 2 and draw(st.booleans()):
        found |= {"stride_h": strides[0], "stride_w": strides[1], "dilation_h": dilations[0]}
        found |= {"dilation_w": dilations[1], "pad_t": begin[0], "pad_l": begin[1], "pad_b": end[0], "pad_r": end[1]}
        if not any(begin + end):
            found["pads"] = (0, 0, 0, 0)
    elif draw(st.booleans()):
        found |= {"stride": strides[0], "dilation": dilations[0], "pad": begin[0]}
        strides, dilations, begin, end = ([v[0]] * axes for v in (strides, dilations, begin, begin))
    else:
        found |= {"strides": tuple(strides), "dilations": tuple(dilations), "pads": tuple(begin + end)}
    return found, (strides, dilations, begin, end, found["group"])


def draw_conv(data, cls=Conv, most=2):
    """Draw an operator, X and W, and the arguments of the reference."""
    axes, order = data.draw(st.sampled_from([2, 2, 1, 3])), data.draw(st.sampled_from(["NCHW", "NHWC"]))
    given, reference = arguments(data.draw, axes, order)
    kernel = [data.draw(st.integers(1, 3 if axes < 3 else 2)) for _ in range(axes)]
    extents = [d * (k - 1) + 1 + data.draw(st.integers(0, 2)) for k, d in zip(kernel, reference[1])]
    per_group, group = data.draw(st.integers(1, most)), given["group"]
    n, m = data.draw(st.integers(1, most)), group * data.draw(st.integers(1, most))
    x = to_order(data.draw(floats(n, per_group * group, *extents)), order)
    w = to_order(data.draw(floats(m, per_group, *kernel)), order)
    if data.draw(st.booleans()):
        given["kernels"] = tuple(kernel)
    return cls(**given), np.ascontiguousarray(x), np.ascontiguousarray(w), reference


class TestConv(OperatorSuite):
    operator = Conv
    wrt = (0, 1, 2)
    atol = 1e-5
    refusals = (
        refusal(Conv(), [f32(2, 3), f32(4, 3)], "at least one image axis"),
        refusal(Conv(kernel=3), [f32(2, 3, 8), f32(4, 3, 3, 3)], "the same number of axes as X"),
        refusal(Conv(kernel=3), [f32(2, 3, 8, 8), f32(4, 3, 5, 5)], r"a kernel of \(3, 3\), but W .* of \(5, 5\)"),
        refusal(Conv(), [f32(2, 3, 8, 8), f32(4, 2, 3, 3)], r"X \(2, .* in order NCHW has 3 channels, W .* takes 2$"),
        refusal(Conv(group=2), [f32(2, 3, 8, 8), f32(4, 2, 3, 3)], "3 channels, W .* takes 4, 2 in each of 2 groups"),
        refusal(Conv(), [f32(2, 8, 8, 3), f32(4, 3, 3, 3)], "takes 3; if X is in order NHWC, give order='NHWC'"),
        refusal(Conv(order="NHWC"), [f32(2, 3, 8, 8), f32(4, 3, 3, 3)], "takes 3; if X is in order NCHW, give"),
        refusal(Conv(group=2), [f32(2, 4, 8, 8), f32(3, 2, 3, 3)], "number of filters divisible by 2"),
        refusal(Conv(), [f32(2, 3, 2, 8), f32(4, 3, 3, 3)], "does not fit X"),
        refusal(Conv(), [f32(2, 3, 8, 8), f32(4, 3, 3, 3), f32(3)], r"b must have shape \(4,\)"),
        refusal(Conv(strides=(1,)), [f32(2, 3, 8, 8), f32(4, 3, 3, 3)], "strides must have 2 numbers"),
        refusal(Conv(stride_h=2), [f32(2, 3, 8), f32(4, 3, 3)], "images with 2 axes, got 1; use strides"),
        refusal(Conv(pads=(1, 1)), [f32(2, 3, 8, 8), f32(4, 3, 3, 3)], "pads must have 4 numbers"),
        refusal(Conv(pad_t=1), [f32(2, 3, 8), f32(4, 3, 3)], "images with 2 axes, got 1; use pads"),
        refusal(Conv(stride=0), [f32(2, 3, 8, 8), f32(4, 3, 3, 3)], "stride must be at least 1"),
        refusal(Conv(order="CHWN"), [f32(2, 3, 8, 8), f32(4, 3, 3, 3)], "NCHW or NHWC", ArgumentError),
        refusal(Conv(group=0), [f32(2, 3, 8, 8), f32(4, 3, 3, 3)], "group must be at least 1", ArgumentError),
        refusal(Conv(legacy_pad=4), [f32(2, 3, 8, 8), f32(4, 3, 3, 3)], "legacy_pad must be 0 to 3", ArgumentError),
        refusal(Conv(legacy_pad=2, pad=1), [f32(2, 3, 8, 8), f32(4, 3, 3, 3)], "determines the pads", ArgumentError),
        refusal(Conv(pad=-1), [f32(2, 3, 8, 8), f32(4, 3, 3, 3)], "must not be negative", ArgumentError),
    )

    def draw(self, data):
        op, x, w, _ = draw_conv(data)
        return op, [x, w, data.draw(floats(w.shape[0]))] if data.draw(st.booleans()) else [x, w]

    def draw_gradient(self, data):
        op, x, w, _ = draw_conv(data, most=1)
        return op, [x, w, data.draw(floats(w.shape[0]))] if data.draw(st.booleans()) else [x, w]

    def reference(self, op, x, w, b=None):
        axes = x.ndim - 2
        strides, dilations = op.per_axis("stride", axes), op.per_axis("dilation", axes)
        images, filters = to_channels_first(x, op.order), to_channels_first(w, op.order)
        y = correlate(images, filters, strides, dilations, *op.explicit_pads(axes), op.group)
        if b is not None:
            y += b.reshape(-1, *(1,) * axes)
        return [to_order(y, op.order)]


class TestConvGradient(OperatorSuite):
    operator = ConvGradient
    no_gradient = "a gradient operator"
    rtol, atol = 1e-4, 1e-4
    refusals = (
        refusal(ConvGradient(), [f32(2, 3, 8, 8), f32(4, 3, 3, 3), f32(2, 4, 8, 8)], r"shape of Y, \(2, 4, 6, 6\)"),
        refusal(
            ConvGradient(no_bias=True),
            [f32(2, 3, 8, 8), f32(4, 3, 3, 3), f32(2, 4, 6, 6)],
            "outputs are dW and dX, got 3",
            n_out=3,
        ),
    )

    def draw(self, data):
        op, x, w, _ = draw_conv(data, ConvGradient)
        (y,) = TestConv().reference(op, x, w)
        no_bias = data.draw(st.booleans())
        n_out = data.draw(st.integers(1, 2 if no_bias else 3))
        return replace(op, no_bias=no_bias).with_arity(3, n_out), [x, w, data.draw(floats(*y.shape))]

    def reference(self, op, x, w, dy):
        axes = x.ndim - 2
        strides, dilations = op.per_axis("stride", axes), op.per_axis("dilation", axes)
        arrays = [to_channels_first(a, op.order) for a in (x, w, dy)]
        dw, dx = correlate_gradients(*arrays, strides, dilations, *op.explicit_pads(axes), op.group)
        db = arrays[2].sum(axis=(0, *range(2, x.ndim)))
        dw, dx = to_order(dw, op.order), to_order(dx, op.order)
        return ([dw, dx] if op.no_bias else [dw, db, dx])[: op.n_out]


def geometry(shape, w_shape, **args):
    op = Conv(**args)
    op.check()
    return op.geometry(f32(*shape), f32(*w_shape))


def test_spellings_of_one_geometry():
    for args in (
        {"kernel": 3, "stride": 2, "pad": 1, "dilation": 2},
        {"kernels": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1), "dilations": (2, 2)},
        {"kernel_h": 3, "kernel_w": 3, "stride_h": 2, "stride_w": 2, "dilation_h": 2, "dilation_w": 2}
        | {"pad_t": 1, "pad_l": 1, "pad_b": 1, "pad_r": 1},
        {"stride": 2, "pad": 1, "dilation": 2},
    ):
        found = geometry((2, 3, 9, 10), (4, 3, 3, 3), **args)
        assert found == geometry((2, 9, 10, 3), (4, 3, 3, 3), order="NHWC", **args)
        assert (found.kernel, found.strides, found.dilations) == ((3, 3), (2, 2), (2, 2))
        assert (found.begin, found.end, found.out, found.reach) == ((1, 1), (1, 1), (4, 4), (5, 5))


def test_pads_that_legacy_pad_sets():
    same = geometry((1, 1, 7, 8), (1, 1, 3, 3), stride=2, legacy_pad=2)
    assert (same.out, same.begin, same.end) == ((4, 4), (1, 0), (1, 1))
    short = geometry((1, 1, 6, 8), (1, 1, 1, 1), stride=3, legacy_pad=2)
    assert (short.out, short.begin, short.end) == ((2, 3), (-1, 0), (-1, -1))
    valid = geometry((1, 1, 7, 8), (1, 1, 3, 3), stride=2, legacy_pad=1)
    assert (valid.out, valid.begin, valid.end) == ((3, 3), (0, 0), (0, 0))


@pytest.mark.parametrize("order", ["NCHW", "NHWC"])
def test_large_batches_are_cut_in_parts(monkeypatch, order):
    """With the bound on unrolled windows at one image, the results are the same."""
    rng = np.random.default_rng(0)
    x, w = (to_order(rng.standard_normal(s).astype(np.float32), order) for s in ((5, 4, 6, 6), (6, 2, 3, 3)))
    op = Conv(pad=1, group=2, order=order)
    (y,) = run_plain(op, [x, w])
    gradient = ConvGradient(pad=1, group=2, order=order).with_arity(3, 3)
    whole = run_plain(gradient, [x, w, y])
    monkeypatch.setattr("netbuilder.ops.windows.conv_windows.IM2COL_BYTES", 1)
    np.testing.assert_allclose(run_plain(op, [x, w])[0], y, 1e-5, 1e-5)
    for part, want in zip(run_plain(gradient, [x, w, y]), whole):
        np.testing.assert_allclose(part, want, 1e-4, 1e-4)


@pytest.mark.emulated
def test_a_gpu_unrolls_as_much_as_its_memory_allows():
    """The windows may take a sixteenth of the GPU's memory: one product for a small batch, several for a large one."""
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((5, 4, 6, 6), (6, 4, 3, 3)))
    op, columns = Conv(pad=1, no_bias=True), 4 * 9 * 36 * 4
    with gpus(1) as machine:
        products = {}
        for memory in (16 * 5 * columns, 16 * 2 * columns, 1):
            gpu(0).memory = memory
            machine.launches.clear()
            (y,) = run_plain(op, [x, w], GPU)
            np.testing.assert_allclose(y, run_plain(op, [x, w])[0], 1e-5, 1e-5)
            products[memory] = sum(launch.name.startswith("cublas") for launch in machine.launches)
        assert list(products.values()) == [1, 3, 5]


def test_windows_shorter_than_strides():
    """With SAME pads, the rows and columns that no window takes in are divided between both ends."""
    x, w = np.arange(36, dtype=np.float32).reshape(1, 1, 6, 6), np.ones((1, 1, 1, 1), np.float32)
    op = Conv(stride=3, legacy_pad=2)
    check_forward(op, [x, w], [x[:, :, 1::3, 1::3]])
    check_gradient(op, [x, w], wrt=(0, 1))
    dy = np.ones((1, 1, 2, 2), np.float32)
    dx = np.zeros_like(x)
    dx[:, :, 1::3, 1::3] = 1
    backward = ConvGradient(stride=3, legacy_pad=2, no_bias=True).with_arity(3, 2)
    check_forward(backward, [x, w, dy], [x[:, :, 1::3, 1::3].sum().reshape(1, 1, 1, 1), dx])


@pytest.mark.parametrize("inputs", [["x", "w", "b"], ["x", "w"]])
@pytest.mark.parametrize("op_type", ["Conv", "ConvTranspose"])
def test_the_gradient_of_the_input_can_be_omitted(op_type, inputs):
    net = Net("n")
    getattr(net, op_type)(inputs, "y", kernel=3, no_gradient_to_input=1)
    net.AveragedLoss("y", "loss")
    slopes = net.AddGradientOperators(["loss"])
    made = net.Proto().op[-1]
    assert made.type == f"{op_type}Gradient"
    assert list(made.output) == [f"{blob}_grad" for blob in inputs[1:]]
    assert {str(blob) for blob in slopes} >= set(inputs[1:]) and "x" not in {str(blob) for blob in slopes}


def test_an_empty_batch():
    x, w, b = np.zeros((0, 3, 8, 8), np.float32), np.ones((4, 3, 3, 3), np.float32), np.ones(4, np.float32)
    assert run_plain(Conv(), [x, w, b])[0].shape == (0, 4, 6, 6)
    dw, db, dx = run_plain(ConvGradient().with_arity(3, 3), [x, w, np.zeros((0, 4, 6, 6), np.float32)])
    assert not dw.any() and dw.shape == w.shape and not db.any() and dx.shape == x.shape


def test_cost():
    x, w, b, y = f32(2, 4, 8, 8), f32(6, 2, 3, 3), f32(6), f32(2, 6, 6, 6)
    once = 2 * 2 * 6 * 36 * 2 * 9
    assert Conv(group=2).flops(x, w) == once
    assert Conv(group=2).flops(x, w, b) == once + y.size
    assert ConvGradient(group=2).with_arity(3, 3).flops(x, w, y) == 2 * once + y.size
    assert ConvGradient(group=2, no_bias=True).with_arity(3, 1).flops(x, w, y) == once


def test_geometry_names_what_is_wrong():
    with pytest.raises(ShapeError, match="kernel must be at least 1"):
        Conv().geometry(f32(1, 1, 4, 4), spec_of(np.zeros((1, 1, 0, 3))))
