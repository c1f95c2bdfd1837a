"""LRN on oneDNN: windows and channels of all kinds against the kernel over arrays; no slow kernels of the library."""

import numpy as np
import pytest

from netbuilder.engines import onednn
from netbuilder.graph import Net
from netbuilder.runtime import Workspace

pytestmark = pytest.mark.skipif(not onednn.available(), reason="needs oneDNN")


def distance(got, want):
    return np.linalg.norm(got - want) / np.linalg.norm(want)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("size", [1, 3, 5, 7, 15])
@pytest.mark.parametrize("channels", [1, 7, 16, 24, 48])
@pytest.mark.parametrize("order", ["NCHW", "NHWC"])
def test_lrn_takes_no_reference_kernel(order, channels, size):
    shape = (2, channels, 6, 5) if order == "NCHW" else (2, 6, 5, channels)
    net = Net("n")
    options = {"size": size, "alpha": 0.1, "beta": 0.75, "bias": 2.0, "order": order}
    net.LRN("x", ["y", "s"], **options)
    net.LRNGradient(["x", "y", "dy"], "dx", **options)
    found = []
    for engines in (None, ()):
        workspace = Workspace(threads=1, engines=engines)
        workspace.feed("x", np.random.default_rng(0).standard_normal(shape).astype(np.float32))
        workspace.feed("dy", np.random.default_rng(1).standard_normal(shape).astype(np.float32))
        name = workspace.create_net(net)
        workspace.run_net(name)
        found.append([workspace.fetch(blob) for blob in ("y", "s", "dx")])
        (plan,) = workspace.net(name).plans
        assert not any("ref" in step.prepared.name.split(":")[0] for step in plan.steps)
    for one, other in zip(*found):
        assert distance(one, other) < 1e-5
