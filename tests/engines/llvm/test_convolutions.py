"""Convolutions with constant filters by machine code: numbers, threads, changed filters, where others serve."""

import numpy as np
import pytest

from checks import interpret
from netbuilder.engines import onednn
from netbuilder.engines.llvm import convolutions, machine
from netbuilder.engines.onednn.machine_code import channels_of_block
from netbuilder.graph import Net
from netbuilder.runtime import Workspace
from netbuilder.runtime.profile.profiling import profile
from switches import single

pytestmark = pytest.mark.skipif(not (machine.available() and onednn.available()), reason="needs llvmlite and oneDNN")

WIDE = pytest.mark.skipif(not machine.has_wide_registers(), reason="needs AVX-512")
KERNEL = "llvm convolution"
CASES = {
    "1x1": ((1, 24, 5, 5), (32, 24, 1, 1), {"kernel": 1}),
    "1x1 of one position": ((1, 40, 1, 1), (8, 40, 1, 1), {"kernel": 1}),
    "3x3": ((1, 16, 7, 6), (32, 16, 3, 3), {"kernel": 3, "pad": 1}),
    "strides": ((1, 16, 9, 8), (16, 16, 3, 3), {"kernel": 3, "pad": 1, "stride": 2}),
    "strides without padding": ((1, 16, 8, 9), (16, 16, 1, 1), {"kernel": 1, "stride": 2}),
    "dilated": ((1, 16, 9, 9), (24, 16, 3, 3), {"kernel": 3, "pad": 2, "dilation": 2}),
    "uneven window and padding": (
        (1, 16, 6, 9), (16, 16, 1, 5), {"kernel_h": 1, "kernel_w": 5, "pad_t": 1, "pad_l": 0, "pad_b": 0, "pad_r": 3}
    ),
    "channels that fill no blocks": ((1, 21, 4, 5), (19, 21, 3, 3), {"kernel": 3, "pad": 1}),
    "images": ((3, 16, 4, 4), (24, 16, 3, 3), {"kernel": 3, "pad": 1}),
    "groups of two": ((1, 16, 5, 5), (16, 2, 3, 3), {"kernel": 3, "pad": 1, "group": 8}),
    "groups of four": ((2, 16, 5, 5), (16, 4, 3, 3), {"kernel": 3, "pad": 1, "group": 4}),
    "groups that fill no block": ((1, 36, 5, 5), (36, 4, 3, 3), {"kernel": 3, "pad": 1, "group": 9}),
    "groups of eight": ((1, 32, 5, 5), (32, 8, 3, 3), {"kernel": 3, "pad": 1, "group": 4}),
    "groups of 48 to 32": ((1, 96, 3, 3), (64, 48, 1, 1), {"kernel": 1, "group": 2}),
    "sums in parts": ((1, 136, 3, 4), (40, 136, 3, 3), {"kernel": 3, "pad": 1}),
}  # fmt: skip


@pytest.fixture(autouse=True, params=[8, pytest.param(16, marks=WIDE)])
def block(monkeypatch, request):
    """Blocks of so many channels."""
    monkeypatch.setattr(machine, "has_wide_registers", lambda: request.param == 16)
    assert channels_of_block() == request.param
    return request.param


def built(case, *, bias=True, add=False, relu=True, seed=0):
    """Return a net, its inputs, and the result in float64."""
    x, w, arguments = CASES[case]
    rng = np.random.default_rng(seed)
    feeds = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in (("x", x), ("w", w))}
    if bias:
        feeds["b"] = rng.standard_normal(w[0]).astype(np.float32)
    net = Net("convolution")
    net.Conv(["x", "w", *(["b"] if bias else [])], "y", **arguments)
    if add:
        net.Add(["y", "a"], "y")
        exact = interpret(net.Proto().op[:1], {name: value.astype(np.float64) for name, value in feeds.items()})
        feeds["a"] = rng.standard_normal(exact["y"].shape).astype(np.float32)
    if relu:
        net.Relu("y", "y")
    want = interpret(net.Proto().op, {name: value.astype(np.float64) for name, value in feeds.items()})["y"]
    return net, feeds, want


def run(net, feeds, *, threads=1, constants=("w", "b"), **options):
    workspace = Workspace(threads=threads, **options)
    for name, value in feeds.items():
        workspace.feed(name, value)
    workspace.create_net(net, constants=[name for name in constants if name in feeds], observable="outputs")
    workspace.run_net(net)
    return workspace


def kernels(workspace, net):
    return [call.kernel for call in profile(workspace, net.Name(), runs=1, warmup=1, limits={}).calls]


def close(got, want):
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-6 * max(1, np.abs(want).max()))


@pytest.mark.parametrize("case", CASES)
def test_numbers(case):
    net, feeds, want = built(case)
    workspace = run(net, feeds)
    close(workspace.fetch("y"), want)
    assert KERNEL in kernels(workspace, net)


@pytest.mark.parametrize("kernel, stride, size", [(3, 1, 5), (5, 2, 7), (5, 1, 2), (3, 1, 20)])
def test_a_depthwise_convolution_between_others(kernel, stride, size):
    """The images keep their order, whoever has the kernel."""
    rng = np.random.default_rng(0)
    shapes = {"x": (1, 16, size, size), "v": (40, 16, 1, 1), "w": (40, 1, kernel, kernel), "u": (24, 40, 1, 1)}
    feeds = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    net = Net("depthwise")
    net.Conv(["x", "v"], "a", kernel=1)
    net.Relu("a", "a")
    net.Conv(["a", "w"], "b", kernel=kernel, pad=kernel // 2, stride=stride, group=40)
    net.Relu("b", "b")
    net.Conv(["b", "u"], "y", kernel=1)
    want = interpret(net.Proto().op, {name: value.astype(np.float64) for name, value in feeds.items()})["y"]
    workspace = run(net, feeds, constants=("u", "v", "w"))
    close(workspace.fetch("y"), want)
    if size < 16:
        (plan,) = workspace.net(net.Name()).plans
        assert {step.inputs[0].name for step in plan.steps if step.what == "reorder"} <= {"x", "y"}


@pytest.mark.parametrize("case", ["groups of four", "sums in parts", "channels that fill no blocks"])
@pytest.mark.parametrize("bias, add, relu", [(False, False, False), (False, True, True), (True, True, False)])
def test_what_is_computed_with_it(case, bias, add, relu):
    net, feeds, want = built(case, bias=bias, add=add, relu=relu)
    workspace = run(net, feeds)
    close(workspace.fetch("y"), want)
    assert KERNEL in kernels(workspace, net)


@pytest.mark.parametrize("case", ["1x1", "3x3", "groups of four", "sums in parts", "images"])
def test_threads_change_no_bit(monkeypatch, case):
    monkeypatch.setattr(convolutions, "_OF_A_THREAD", 1)
    net, feeds, _ = built(case)
    found = [run(net, feeds, threads=threads).fetch("y") for threads in (1, 2, 3)]
    assert all(np.array_equal(found[0], other) for other in found[1:])


def test_work_is_divided_by_channels_or_by_positions(block):
    def divided(outputs, size, threads=2):
        window = convolutions.Window(
            (1, 16, size, size), (outputs, size, size), (1, 1), (1, 1), (1, 1), (0, 0), 1, block
        )
        return [share[:2] for share in convolutions._Tables(window).divided(threads)]

    tiles = {8: 11, 16: 6}[block]  # of up to six, or twelve, of 64 positions
    assert divided(8 * block, 4) == [((0, 2), (0, {8: 3, 16: 2}[block])), ((2, 4), (0, {8: 3, 16: 2}[block]))]
    assert divided(2 * block, 8) == [((0, 1), (0, tiles // 2)), ((0, 1), (tiles // 2, tiles))]
    assert divided(2 * block, 1) == [((0, 1), (0, 1))]


def test_nan_stays_where_it_is_read():
    net, feeds, want = built("3x3")
    feeds["x"][0, 5, 0, 0] = np.nan
    got = run(net, feeds).fetch("y")
    assert np.isnan(got[:, :, :2, :2]).all()
    got[:, :, :2, :2] = want[:, :, :2, :2] = 0
    close(got, want)


@pytest.mark.parametrize("relu", [False, True])
def test_infinities_stay(relu):
    """Of channels that are padding the products with infinity are no numbers, and must not be read."""
    rng = np.random.default_rng(0)
    shapes = {"x": (1, 16, 3, 3), "v": (19, 16, 1, 1), "w": (8, 19, 1, 1)}
    feeds = {name: np.abs(rng.standard_normal(shape)).astype(np.float32) for name, shape in shapes.items()}
    feeds["x"][0, 3, 1, 1] = np.inf
    net = Net("infinite")
    net.Conv(["x", "v"], "a", kernel=1)
    if relu:
        net.Relu("a", "a")
    net.Conv(["a", "w"], "y", kernel=1)
    got = run(net, feeds, constants=("v", "w")).fetch("y")
    assert np.isposinf(got[:, :, 1, 1]).all() and np.isfinite(got).sum() == got.size - got.shape[1]


def test_long_sums_are_as_exact_as_those_of_blocks():
    """All elements are positive; one sum of 8,192 of them would be ten times as far from the exact one."""
    x, w = (np.abs(np.random.default_rng(0).standard_normal(shape)) for shape in ((1, 8192, 2, 2), (16, 8192, 1, 1)))
    feeds = {"x": x.astype(np.float32), "w": w.astype(np.float32)}
    net = Net("long")
    net.Conv(["x", "w"], "y", kernel=1)
    want = np.einsum("oi,ihw->ohw", feeds["w"][:, :, 0, 0].astype(np.float64), feeds["x"][0])
    assert np.max(np.abs(run(net, feeds).fetch("y")[0] / want - 1)) < 2e-6


def test_filters_that_are_fed_again_are_used():
    net, feeds, _ = built("groups of four")
    workspace = run(net, feeds)
    _, others, want = built("groups of four", seed=1)
    for name, value in others.items():
        workspace.feed(name, value)
    workspace.run_net(net)
    close(workspace.fetch("y"), want)


@pytest.mark.parametrize(
    "constants, options",
    [((), {}), (("w", "b"), {"engines": ["ONEDNN"]}), (("w", "b"), {"without": single("small_images")})],
    ids=["fed", "engine", "switched off"],
)
def test_where_the_library_serves(constants, options):
    net, feeds, want = built("3x3")
    workspace = run(net, feeds, constants=constants, **options)
    assert KERNEL not in kernels(workspace, net)
    close(workspace.fetch("y"), want)


@pytest.mark.parametrize("channels", [(32, 64, 32), (36, 36, 12), (3, 16, 1), (40, 40, 2), (16, 32, 8)])
def test_groups_without_code(block, channels):
    """Groups of one channel for two, three channels, groups that are no whole blocks, groups of two for four."""
    inputs, outputs, groups = channels
    window = convolutions.Window((1, inputs, 4, 4), (outputs, 4, 4), (1, 1), (1, 1), (1, 1), (0, 0), groups, block)
    assert not window.factors


def test_large_images_are_left_to_the_library():
    rng = np.random.default_rng(0)
    feeds = {"x": rng.standard_normal((1, 16, 17, 16)), "w": rng.standard_normal((16, 16, 1, 1))}
    net = Net("large")
    net.Conv(["x", "w"], "y", kernel=1)
    assert KERNEL not in kernels(run(net, {name: value.astype(np.float32) for name, value in feeds.items()}), net)
