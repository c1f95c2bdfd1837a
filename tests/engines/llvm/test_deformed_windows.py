"""DeformConv and its gradient as machine code against the plain kernels in float64, which are tested against loops."""

import numpy as np
import pytest

from checks import run_plain
from machine_code import alone, parts_of_calls
from netbuilder.engines.arrays import aligned_empty
from netbuilder.engines.llvm import deformed_windows, machine, products
from netbuilder.engines.llvm.deformed_windows import DEFORMED_WINDOWS, filter_panels
from netbuilder.graph import Net
from netbuilder.ops.core.operator import TensorSpec, spec_of
from netbuilder.ops.windows.deform_conv import DeformConv, DeformConvGradient
from netbuilder.runtime import Workspace
from netbuilder.runtime.profile.profiling import profile
from prepared import Value, bind

pytestmark = pytest.mark.skipif(not machine.available(), reason="needs llvmlite")

KERNEL = "llvm deformed windows"
GUARD = 256
"""Bytes around buffers, which must stay as they are."""


@pytest.fixture(autouse=True)
def many_threads(monkeypatch):
    monkeypatch.setattr(deformed_windows, "_OF_A_THREAD", 1)


def drawn(seed, *, extents=(5, 13), **given):
    """Return a forward operator and its inputs, a gradient operator and its inputs; offsets avoid integers.

    Args:
        extents: of images, the lowest and the end.
        given: arguments of the operators; the others are drawn.
    """
    rng = np.random.default_rng(seed)

    def numbers(*low_high):
        return tuple(int(rng.integers(*low_high)) for _ in range(2))

    def floats(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    groups, parts = numbers(1, 5)
    channels = int(np.lcm(groups, parts)) * int(rng.choice([1, 2, 5, 8, 16, 17]))
    outputs = groups * int(rng.choice([1, 3, 16, 21, 40]))
    args = {
        "kernels": numbers(1, 4), "strides": numbers(1, 3), "dilations": numbers(1, 3), "pads": numbers(0, 3) * 2,
        "group": groups, "deformable_group": parts, "padding_mode": str(rng.choice(["border", "zeros"])),
        "masked": bool(rng.integers(2)),
    } | given  # fmt: skip
    op, x = DeformConv(**args), floats(int(rng.integers(1, 4)), channels, *numbers(*extents))
    taps, out = int(np.prod(op.kernels)), op.slide(spec_of(x), op.kernels).out
    whole = rng.integers(-4, 5, (len(x), 2 * parts * taps, *out))
    offset = (whole + rng.uniform(0.1, 0.9, whole.shape)).astype(np.float32)
    filters = floats(outputs, channels // groups, *op.kernels)
    bias = [floats(outputs)] if rng.integers(2) else []
    mask = [floats(len(x), parts * taps, *out)] if op.masked else []
    forward = [x, offset, filters, *bias, *mask]
    backward = [x, offset, filters, floats(len(x), outputs, *out), *mask]
    gradient = DeformConvGradient(**args, no_bias=bool(rng.integers(2)))
    most = 4 - gradient.no_bias + gradient.masked
    return (
        (op.with_arity(len(forward), 1), forward),
        (gradient.with_arity(len(backward), int(rng.choice([2, most, most]))), backward),
    )


def served(op, inputs, threads=1):
    found = bind(DEFORMED_WINDOWS[op.type], op, [Value.of(each) for each in inputs], threads=threads)
    found.call()
    return [value.plain() for value in found.outputs]


def check(op, inputs, threads=1):
    expected = run_plain(op, [each.astype(np.float64) for each in inputs])
    found = served(op, inputs, threads)
    assert len(found) == len(expected)
    for got, want in zip(found, expected):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-5 * max(1, np.abs(want).max()))


@pytest.mark.parametrize("wide", [False, True], ids=["AVX2", "AVX-512"])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("seed", range(25))
def test_against_the_plain_kernels(seed, threads, wide, monkeypatch):
    monkeypatch.setattr(machine, "has_wide_registers", lambda: wide)
    for op, inputs in drawn(seed):
        check(op, inputs, threads)


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("seed", range(6))
def test_threads_change_no_bit(seed, which, monkeypatch):
    divided = parts_of_calls(monkeypatch, deformed_windows)
    op, inputs = drawn(seed, extents=(20, 30))[which]
    first, *others = (served(op, inputs, threads) for threads in (1, 2, 3))
    for other in others:
        for x, y in zip(first, other):
            np.testing.assert_array_equal(x, y)
    assert {2, 3} <= {*divided}


@pytest.mark.parametrize("part", [1, 3000, 30000])
@pytest.mark.parametrize("seed", range(6))
def test_parts_of_images_and_of_the_batch(seed, part, monkeypatch):
    monkeypatch.setattr(deformed_windows, "_PART", part)
    monkeypatch.setattr(deformed_windows, "_TABLE", 4 * part)
    monkeypatch.setattr(deformed_windows, "_SAMPLES", 1)
    for op, inputs in drawn(seed):
        check(op, inputs, threads=2)


def test_memory_does_not_grow_with_the_batch():
    def scratch(n):
        shapes = [(n, 32, 60, 60), (n, 18, 60, 60), (64, 32, 3, 3), (n, 64, 60, 60)]
        specs = [TensorSpec(shape, np.dtype(np.float32)) for shape in shapes]
        forward = DEFORMED_WINDOWS["DeformConv"](DeformConv(kernel=3, pad=1).with_arity(3, 1), alone(), *specs[:3])
        gradient = DeformConvGradient(kernel=3, pad=1).with_arity(4, 4)
        return forward.scratch, DEFORMED_WINDOWS["DeformConvGradient"](gradient, alone(), *specs).scratch

    assert scratch(64) == scratch(1000)
    assert max(scratch(64)) < 1 << 25


@pytest.mark.parametrize("seed", range(8))
def test_nothing_is_written_outside_of_the_buffers(seed):
    for op, inputs in drawn(seed):
        made = DEFORMED_WINDOWS[op.type](op, alone(2), *map(spec_of, inputs))
        sizes = [spec.nbytes for spec in made.outputs] + [made.scratch]
        buffers = [aligned_empty(size + 2 * GUARD) for size in sizes]
        for buffer in buffers:
            buffer[:] = 0xAB
        *outs, scratch = (buffer[GUARD : GUARD + size] for buffer, size in zip(buffers, sizes))
        outs = [out.view(np.float32).reshape(spec.shape) for out, spec in zip(outs, made.outputs)]
        before = [each.copy() for each in inputs]
        made.bind(inputs, outs, scratch)()
        for buffer, size in zip(buffers, sizes):
            assert (buffer[:GUARD] == 0xAB).all() and (buffer[GUARD + size :] == 0xAB).all()
        for each, copy in zip(inputs, before):
            np.testing.assert_array_equal(each, copy)


@pytest.mark.parametrize("padding_mode", ["border", "zeros"])
@pytest.mark.parametrize("numbers", [(-1, 0, 1, 2), (np.nan, np.inf, -np.inf, 1e30, -1e30, 0.3)], ids=["whole", "far"])
def test_whole_and_far_offsets_and_nan(numbers, padding_mode):
    """Where pixels change and at edges, and of what is not finite, all is as the plain kernels have it."""
    for seed in range(6):
        for op, inputs in drawn(seed, padding_mode=padding_mode):
            inputs[1] = np.random.default_rng(seed).choice(np.float32(numbers), inputs[1].shape)
            if seed % 2:
                inputs[1][1:], inputs[1][:1] = 0.3, np.where(np.isnan(inputs[1][:1]), 0.2, inputs[1][:1])
            with np.errstate(invalid="ignore"):
                expected = run_plain(op, inputs)
            for got, want in zip(served(op, inputs), expected):
                np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("which, value", [(0, np.nan), (0, np.inf), (-1, np.nan)], ids=["X", "infinite X", "mask"])
def test_inputs_that_are_not_finite(which, value):
    """Also a pixel with weight 0 makes NaN."""
    for seed in range(12):
        for op, inputs in drawn(seed, masked=True):
            inputs[which][0, 0, 0, 0] = value
            with np.errstate(invalid="ignore"):
                expected = run_plain(op, inputs)
            for got, want in zip(served(op, inputs), expected):
                np.testing.assert_array_equal(np.isfinite(got), np.isfinite(want))


@pytest.mark.parametrize("shape, filters", [((1, 1, 1, 1), (1, 1, 1, 1)), ((2, 17, 1, 4), (33, 17, 1, 2))], ids=str)
def test_small_images(shape, filters):
    rng = np.random.default_rng(0)
    op = DeformConv(kernels=filters[2:]).with_arity(3, 1)
    out = op.slide(TensorSpec(shape, np.dtype(np.float32)), op.kernels).out
    shapes = shape, (shape[0], 2 * filters[2] * filters[3], *out), filters, (shape[0], filters[0], *out)
    *inputs, dy = (rng.uniform(0.1, 0.4, each).astype(np.float32) for each in shapes)
    check(op, inputs)
    check(DeformConvGradient(kernels=filters[2:]).with_arity(4, 4), [*inputs, dy])


@pytest.mark.parametrize("outputs", [3, 16, 33])
def test_what_is_in_panels(outputs):
    filters = np.random.default_rng(0).normal(size=(2 * outputs, 5, 3, 2)).astype(np.float32)
    layout = filter_panels(2, outputs, 5, 6)
    spec = TensorSpec(filters.shape, filters.dtype)
    memory = np.full(layout.nbytes, 7, np.uint8)  # used before
    products.reorder(alone(), spec, spec.with_layout(layout)).bind([filters], [memory], None)()
    wide = np.zeros((2, -(-outputs // 16) * 16, 5, 6))
    wide[:, :outputs] = filters.reshape(2, outputs, 5, 6)
    expected = wide.reshape(2, -1, 16, 5, 6).transpose(0, 1, 4, 3, 2)
    np.testing.assert_array_equal(memory.view(np.float32).reshape(expected.shape), expected)


def net_of(seed):
    """Return a net and its inputs by name, and the result."""
    op, inputs = drawn(seed, masked=False)[0]
    net, names = Net("net"), ["x", "offset", "filters", "bias"][: len(inputs)]
    args = {name: getattr(op, name) for name in (
        "kernels", "strides", "dilations", "pads", "group", "deformable_group", "padding_mode")}  # fmt: skip
    net.DeformConv(names, "y", **args)
    return net, dict(zip(names, inputs)), run_plain(op, [each.astype(np.float64) for each in inputs])[0]


@pytest.mark.parametrize("constants", [[], ["filters"]])
@pytest.mark.parametrize("has_memory", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_in_a_net(seed, constants, has_memory, monkeypatch):
    """Filters that stay the same are stored in panels once, if there is memory, and again when they are fed."""
    monkeypatch.setattr(products, "machine_memory", lambda: 1 << 40 if has_memory else 0)
    net, feeds, want = net_of(seed)
    workspace = Workspace(threads=2)
    for factor in (1, 2):
        for name, value in feeds.items():
            workspace.feed(name, value * factor if name in ("filters", "bias") else value)
        if factor == 1:
            workspace.create_net(net, constants=constants)
        workspace.run_net(net)
        np.testing.assert_allclose(workspace.fetch("y"), factor * want, rtol=1e-4, atol=1e-4 * np.abs(want).max())
    calls = profile(workspace, net.Name(), runs=1, warmup=1, limits={}).calls
    assert [call.kernel for call in calls] == [KERNEL]


def test_what_is_left_to_numpy():
    for op, inputs in drawn(0):
        for dtype in (np.float64, np.float16):
            others = [Value.of(each.astype(dtype)) for each in inputs]
            assert bind(DEFORMED_WINDOWS[op.type], op, others) is None
        empty = [Value.of(each if i == 2 else each[:0]) for i, each in enumerate(inputs) if each.ndim > 1]
        assert bind(DEFORMED_WINDOWS[op.type], op.with_arity(len(empty), op.n_out), empty) is None
