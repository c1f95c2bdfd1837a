"""LogFatal."""

import pytest

from checks import run_plain
from netbuilder.ops.log_fatal import LogFatal
from netbuilder.proto import NetDef, OperatorError
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from suite import OperatorSuite


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
