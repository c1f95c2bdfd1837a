"""The flag that lets runs fail which make infinities or NaN."""

import numpy as np
import pytest

from netbuilder.caffe2 import flags
from netbuilder.caffe2.python import core, workspace

FLAG = "--caffe2_operator_throw_if_fp_exceptions"


@pytest.fixture(autouse=True)
def _flags(monkeypatch):
    monkeypatch.setattr(flags, "_arguments", [])
    workspace.ResetWorkspace()
    workspace.FeedBlob("zero", np.zeros(2, np.float32))


@pytest.fixture
def net():
    net = core.Net("dividing")
    net.Log("zero", "minus_infinity")
    net.Relu("minus_infinity", "y")
    return net


def runs(net):
    op = net.Proto().op[0]
    workspace.CreateNet(net, True)
    yield lambda: workspace.RunNetOnce(net)
    yield lambda: workspace.RunNet(net)
    yield lambda: workspace.RunOperatorOnce(op)


@pytest.mark.parametrize("which", range(3))
def test_a_run_fails_while_the_flag_is_on(net, which):
    run = list(runs(net))[which]
    run()
    core.GlobalInit(["caffe2", f"{FLAG}=1"])
    with pytest.raises(RuntimeError, match=r"operator 0 Log \['zero'\] .*made infinities or NaN"):
        run()
    core.GlobalInit(["caffe2", f"{FLAG}=0"])
    run()


def test_what_came_with_infinities_is_not_to_blame():
    core.GlobalInit(["caffe2", FLAG])
    workspace.FeedBlob("x", np.float32([np.inf]))
    net = core.Net("passing_on")
    net.Sqr("x", "y")
    net.Relu("zero", "z")
    assert workspace.RunNetOnce(net)


def test_flags():
    core.GlobalInit(["caffe2", "--a=true", "--b", "--c=false", "--a=0"])
    assert [flags.flag(name) for name in "abcd"] == [False, True, False, False]
