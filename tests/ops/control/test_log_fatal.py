"""LogFatal, Fail, ThrowException."""

import numpy as np
import pytest

from checks import run_plain
from netbuilder.caffe2.python import workspace as caffe2_workspace
from netbuilder.ops.control.log_fatal import Fail, LogFatal, ThrowException
from netbuilder.proto import NetDef, OperatorError
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from suite import OperatorSuite


class TestFail(OperatorSuite):
    operator = Fail
    no_gradient = "it computes nothing"
    refuses_nothing = "it has no input and no argument"

    def draw(self, data):
        return Fail(), []

    def test_forward(self):
        with pytest.raises(OperatorError, match="Fail: the net came to an operator that ends the run"):
            run_plain(Fail(), [])


class TestThrowException(OperatorSuite):
    operator = ThrowException
    no_gradient = "it computes nothing"
    refuses_nothing = "it has no input and no argument"

    def draw(self, data):
        return ThrowException(), []

    def test_forward(self):
        net = NetDef(name="n", op=[make_op("ThrowException", [], [])])
        with pytest.raises(OperatorError, match="net 'n', operator 0: ThrowException .* that raises an exception"):
            Workspace().run_net_once(net)


@pytest.mark.parametrize("op_type", ["Fail", "ThrowException", "Gather"])
def test_what_allow_fail_lets_pass(op_type):
    """An operator that fails makes RunNet return False; an exception that an operator raises is still raised."""
    caffe2_workspace.ResetWorkspace()
    caffe2_workspace.FeedBlob("x", [0.0])
    caffe2_workspace.FeedBlob("i", np.int32([7]))
    net = NetDef(name="n", op=[make_op(op_type, *(([], []) if op_type != "Gather" else (["x", "i"], ["y"])))])
    caffe2_workspace.CreateNet(net)
    with pytest.raises(RuntimeError, match=op_type):
        caffe2_workspace.RunNet("n")
    if op_type == "Fail":
        assert caffe2_workspace.RunNet("n", allow_fail=True) is False
    else:
        with pytest.raises(RuntimeError, match=op_type):
            caffe2_workspace.RunNet("n", allow_fail=True)
    caffe2_workspace.ResetWorkspace()


class TestLogFatal(OperatorSuite):
    operator = LogFatal
    no_gradient = "it computes nothing"
    refuses_nothing = "it has no input and no argument"

    def draw(self, data):
        return LogFatal(), []

    def test_forward(self):
        with pytest.raises(OperatorError, match="LogFatal: the net came to an operator that ends the run"):
            run_plain(LogFatal(), [])

    def test_what_comes_before_has_run(self):
        net = NetDef(name="n", op=[make_op("ConstantFill", [], ["x"], shape=[1]), make_op("LogFatal", [], [])])
        net.op.append(make_op("Copy", ["x"], ["y"]))
        workspace = Workspace()
        with pytest.raises(OperatorError, match=r"net 'n', operator 1"):
            workspace.run_net_once(net)
        assert not workspace.get("x").is_empty and (not workspace.has("y") or workspace.get("y").is_empty)
