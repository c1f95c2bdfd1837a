"""An operator that asks for an engine, and gets a kernel of another one, says so once."""

import numpy as np
import pytest

from netbuilder import Net, Workspace
from netbuilder.engines.engine import find_engine
from netbuilder.runtime.plan import kernel_choice

pytestmark = pytest.mark.skipif(not find_engine("ONEDNN").available(), reason="needs oneDNN")


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch):
    monkeypatch.setattr(kernel_choice, "said", set())


def run(dtype, *, engine="ONEDNN", outputs=("y",), **options):
    net = Net("asking")
    for output in outputs:
        net.AveragePool("x", output, kernel=1, engine=engine)
    workspace = Workspace(**options)
    workspace.feed("x", np.array([[[[-1, 2]]]], dtype))
    workspace.create_net(net)
    workspace.run_net(net.Name())
    for output in outputs:
        np.testing.assert_array_equal(workspace.fetch(output), [[[[-1, 2]]]])


def test_an_engine_without_a_kernel_is_said_once():
    with pytest.warns(RuntimeWarning) as said:
        run(np.float64, outputs=("y", "z"))
    [text] = [str(each.message) for each in said]
    assert text.startswith(
        "operator AveragePool with output 'y' asks for the engine 'ONEDNN', which has no kernel for its arguments and "
        "inputs (float64 with 4 axes)"
    )
    run(np.float64)


def test_an_engine_that_is_missing_is_said_once(monkeypatch):
    monkeypatch.setattr(type(find_engine("ONEDNN")), "available", lambda self: False)
    monkeypatch.setattr(type(find_engine("ONEDNN")), "why_unavailable", lambda self: "install it")
    with pytest.warns(RuntimeWarning, match="'y' asks for the engine 'ONEDNN', which cannot be used here: install it"):
        run(np.float32)
    run(np.float64)


@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        (np.float32, {}),
        (np.float64, {"engines": ()}),  # the user forbids it
        (np.float64, {"engine": "CUDNN"}),  # for GPUs
        (np.float64, {"engine": "NNPACK"}),  # one of Caffe2's
        (np.float64, {"engine": ""}),
    ],
)
def test_nothing_is_said(dtype, options):
    run(dtype, **options)
