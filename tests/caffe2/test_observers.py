"""Observers of created nets."""

import numpy as np
import pytest

from netbuilder.caffe2.python import core, rnn_cell, workspace
from netbuilder.caffe2.python.model_helper import ModelHelper


@pytest.fixture
def net():
    workspace.ResetWorkspace()
    net = core.Net("observed")
    net.Relu(net.Relu("x"), "y")
    workspace.FeedBlob("x", np.zeros(3, np.float32))
    workspace.CreateNet(net)
    return net


def test_times_of_runs(net):
    observer = net.AddObserver("TimeObserver")
    assert observer.average_time() == 0 and net.NumObservers() == 1
    workspace.RunNet(net, 3)
    assert 0 < observer.average_time() < 1e4 and "ms on average" in observer.debug_info()
    net.RemoveObserver(observer)
    assert net.NumObservers() == 0
    seen = observer.average_time()
    workspace.RunNet(net)
    assert observer.average_time() == seen


def count(observer):
    return int("".join(c for c in observer.debug_info() if c.isdigit()))


def test_operators_that_were_run(net):
    observer = net.AddObserver("RunCountObserver")
    workspace.RunNet(net, 3)
    assert count(observer) == 6


def test_operators_of_steps_count_once_a_step():
    counts = []
    for steps in (2, 3, 4):
        workspace.ResetWorkspace()
        model = ModelHelper("recurrent")
        state = model.net.AddExternalInputs(["h", "c"])
        rnn_cell.LSTM(model, "x", "lengths", state, 2, 2, "lstm", forward_only=True)
        workspace.FeedBlob("x", np.zeros((steps, 1, 2), np.float32))
        workspace.FeedBlob("lengths", np.int32([steps]))
        for blob in state:
            workspace.FeedBlob(blob, np.zeros((1, 1, 2), np.float32))
        workspace.RunNetOnce(model.param_init_net)
        workspace.CreateNet(model.net)
        observer = model.net.AddObserver("RunCountObserver")
        workspace.RunNet(model.net)
        counts.append(count(observer))
    step = [op for op in model.net.Proto().op if op.type == "RecurrentNetwork"][0]
    (held,) = [a.n for a in step.arg if a.name == "step_net"]
    assert np.diff(counts).tolist() == [len(held.op)] * 2


def test_a_failed_run_is_not_counted(net):
    observer = net.AddObserver("RunCountObserver")
    workspace.RemoveBlob("x")
    with pytest.raises(RuntimeError):
        workspace.RunNet(net)
    assert count(observer) == 0


def test_refusals(net):
    with pytest.raises(RuntimeError, match="must be one of RunCountObserver, TimeObserver, got 'ProfileObserver'"):
        net.AddObserver("ProfileObserver")
    observer = net.AddObserver("TimeObserver")
    net.RemoveObserver(observer)
    with pytest.raises(RuntimeError, match="is not an observer of it"):
        net.RemoveObserver(observer)
    with pytest.raises(RuntimeError, match="no net 'not_created'"):
        core.Net("not_created").AddObserver("TimeObserver")
