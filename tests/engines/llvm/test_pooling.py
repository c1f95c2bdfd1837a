"""MaxPool of blocked images by machine code: numbers, NaN and infinities, threads, where the library serves."""

import numpy as np
import pytest

from checks import interpret
from netbuilder.engines import onednn
from netbuilder.engines.llvm import machine, pooling
from netbuilder.graph import Net
from netbuilder.runtime import Workspace
from netbuilder.runtime.profile.profiling import profile

pytestmark = pytest.mark.skipif(not (machine.available() and onednn.available()), reason="needs llvmlite and oneDNN")

WINDOWS = {
    "3x3 of all": {"kernel": 3, "stride": 1, "pad": 1},
    "strides": {"kernel": 3, "stride": 2},
    "uneven": {"kernel_h": 2, "kernel_w": 5, "stride": 2, "pad_t": 1, "pad_l": 0, "pad_b": 0, "pad_r": 3},
    "all": {"global_pooling": 1},
}


@pytest.fixture(autouse=True)
def _many_threads(monkeypatch):
    monkeypatch.setattr(pooling, "_OF_A_THREAD", 1)


def pooled(x, *, threads=1, engines=None, **arguments):
    """Return what a net of a convolution that changes nothing, and a pool, computes; what is exact; the kernels."""
    net = Net("pooling")
    channels = x.shape[1]
    net.Conv(["x", "w"], "a", kernel=1)
    net.MaxPool("a", "y", **arguments)
    feeds = {"x": x, "w": np.eye(channels, dtype=np.float32)[:, :, None, None]}
    workspace = Workspace(threads=threads, **({"engines": engines} if engines else {}))
    for name, value in feeds.items():
        workspace.feed(name, value)
    workspace.create_net(net, constants=["w"], observable="outputs")
    workspace.run_net(net)
    want = interpret(net.Proto().op[1:], {"a": x.astype(np.float64)})["y"]
    calls = profile(workspace, net.Name(), runs=1, warmup=1, limits={}).calls
    return workspace.fetch("y"), want, [call.kernel for call in calls]


def images(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("channels", [16, 21])
@pytest.mark.parametrize("window", WINDOWS)
def test_numbers(window, channels):
    got, want, kernels = pooled(images(2, channels, 7, 9), **WINDOWS[window])
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-6)
    assert "llvm max pool" in kernels


def test_nan_and_infinities():
    """A window of -inf alone has that maximum, and one with NaN has NaN, whatever follows in it."""
    x = images(1, 8, 6, 6)
    x[0, :4, :3, :3] = -np.inf
    x[0, 1, 4, 3], x[0, 2, 5, 5], x[0, 3, 0, 5] = np.nan, np.inf, np.nan
    net = Net("pool")
    net.MaxPool("x", "y", kernel=3, stride=1)
    want = interpret(net.Proto().op, {"x": x.astype(np.float64)})["y"]
    workspace = Workspace(threads=1)
    workspace.feed("x", x)
    workspace.run_net_once(net)
    np.testing.assert_array_equal(workspace.fetch("y"), want)
    assert np.isnan(want).any() and np.isneginf(want).any() and np.isposinf(want).any()


def test_threads_change_no_bit():
    found = [pooled(images(1, 40, 6, 6), threads=threads, kernel=3, pad=1)[0] for threads in (1, 2, 3)]
    assert all(np.array_equal(found[0], other) for other in found[1:])


def test_without_machine_code_the_library_serves():
    got, want, kernels = pooled(images(1, 16, 6, 6), engines=["ONEDNN"], kernel=3)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-6)
    assert not [each for each in kernels if "llvm" in each]
