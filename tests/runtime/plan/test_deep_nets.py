"""Nets of If nested 100 deep: made, differentiated, copied, written, read, created and run."""

import sys

import numpy as np
import pytest

from netbuilder import Net, Workspace
from netbuilder.graph.plan import Plan
from netbuilder.graph.plan import execution_step as step
from netbuilder.proto import GradientError, NetDef, NetError
from netbuilder.proto.arguments import make_op
from netbuilder.proto.files import load, save

DEPTH = 100


def nested(depth):
    """Return a net that squares "x" into "y" within ``depth`` operators If, whose condition is "c"."""
    inner = Net("innermost")
    inner.Mul(["x", "x"], "y")
    message = inner.Proto()
    for level in range(depth):
        outer = NetDef(name=f"level_{level}", external_input=["c", "x"], external_output=["y"])
        outer.op.add().CopyFrom(make_op("If", ["c", "x"], ["y"], then_net=message))
        message = outer
    return Net(message)


@pytest.fixture
def workspace():
    workspace = Workspace()
    workspace.feed("c", np.array(True))
    workspace.feed("x", np.array([1.0, 2.0, 3.0], np.float32))
    return workspace


def test_they_are_differentiated_written_read_and_run(workspace, tmp_path):
    limit = sys.getrecursionlimit()
    net = nested(DEPTH)
    gradients = net.AddGradientOperators([net.SumElements("y", "loss")])
    save(tmp_path / "net.pb", net.Proto())
    message = load(tmp_path / "net.pb", NetDef)
    assert message == net.Proto()
    workspace.run_net(workspace.create_net(message))
    np.testing.assert_array_equal(workspace.fetch("y"), [1, 4, 9])
    np.testing.assert_array_equal(workspace.fetch(str(gradients["x"])), [2, 4, 6])
    assert sys.getrecursionlimit() == limit


@pytest.mark.slow
def test_they_run_as_deep_as_files_hold_them(workspace, tmp_path):
    limit = sys.getrecursionlimit()
    net = nested(998)
    save(tmp_path / "net.pb", net.Proto())
    assert load(tmp_path / "net.pb", NetDef) == net.Proto()
    workspace.create_net(net)
    for _ in range(2):
        workspace.run_net(net)
        np.testing.assert_array_equal(workspace.fetch("y"), [1, 4, 9])
    assert sys.getrecursionlimit() == limit


def test_deeper_ones_are_refused_with_their_depth(workspace, monkeypatch):
    with pytest.raises(NetError, match="net 'level_1000': its nets .* are nested 1,001 deep, more than the 1,000"):
        workspace.create_net(nested(1001))
    monkeypatch.setattr("netbuilder.proto.depth.FRAMES", 1500)
    net = nested(300)
    with pytest.raises(GradientError, match=r"^net 'level_299\w*': its subgraphs .* are nested 300 deep, too deep"):
        net.AddGradientOperators([net.SumElements("y", "loss")])
    workspace.create_net(net)
    with pytest.raises(
        NetError, match=r"^net 'level_299\w*': its nets .* are nested 300 deep, more than Python's stack"
    ):
        workspace.run_net(net)


def test_300_are_differentiated():
    net = nested(300)
    assert "x" in net.AddGradientOperators([net.SumElements("y", "loss")])


def test_they_are_copied_and_run_once_and_in_plans(workspace):
    net = nested(DEPTH)
    workspace.run_net_once(net.Clone("copy"))
    plan = Plan("plan")
    plan.AddStep(step("step", [net]))
    workspace.feed("x", np.array([3.0], np.float32))
    workspace.run_plan(plan)
    np.testing.assert_array_equal(workspace.fetch("y"), [9])
