"""The time of a net and of its operators."""

import numpy as np
import pytest

from netbuilder.graph import Net
from netbuilder.proto import NetError
from netbuilder.runtime import Workspace
from netbuilder.runtime.execute.benchmark import benchmark_net


@pytest.fixture
def workspace():
    workspace = Workspace()
    workspace.feed("x", np.ones((64, 64), np.float32))
    workspace.feed("n", np.zeros(1, np.int64))
    net = Net("timed")
    net.MatMul(["x", "x"], "y")
    net.Iter("n", "n")
    workspace.create_net(net.Proto(), overwrite=True)
    workspace.timed = net.Name()
    return workspace


def test_the_net_alone(workspace):
    times = benchmark_net(workspace, workspace.timed, 2, 3)
    assert times[0] > 0 and times[1:] == [0.0, 0.0]
    assert workspace.fetch("n") == 5


def test_each_operator(workspace):
    times = benchmark_net(workspace, workspace.timed, 0, 3, each_operator=True)
    assert len(times) == 3 and min(times) > 0
    assert workspace.fetch("n") == 6


@pytest.mark.parametrize("runs", [(-1, 1), (0, 0)])
def test_numbers_of_runs(workspace, runs):
    with pytest.raises(NetError, match="warmup_runs must be 0 or more and main_runs 1 or more, got"):
        benchmark_net(workspace, workspace.timed, *runs)


def test_unknown_net(workspace):
    with pytest.raises(NetError, match="no net 'untimed' in the workspace"):
        benchmark_net(workspace, "untimed", 1, 1)
