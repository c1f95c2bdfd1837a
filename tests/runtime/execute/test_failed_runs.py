"""Runs that fail: which values there are afterwards."""

import traceback

import numpy as np
import pytest

from netbuilder import ModelHelper, Workspace, brew
from netbuilder.graph import Net
from netbuilder.optimizers import build_sgd
from netbuilder.proto import BlobError, NetError, OperatorError, ShapeError
from netbuilder.runtime.profile.memory import planned_memory
from toy_models import softmax_loss


@pytest.mark.parametrize("threads", [1, 2])
def test_what_a_failed_first_run_has_not_computed_has_no_value(threads):
    """Values from before the error stay, and so do parameters; zeros of new memory are no results."""
    model = ModelHelper("failing")
    scores = brew.fc(model, "data", "scores", 4, 3)
    loss = softmax_loss(model, scores)
    model.net.Scale(loss, "scaled", scale=2.0)
    model.AddGradientOperators([loss])
    build_sgd(model, 0.1)
    workspace = Workspace(threads=threads)
    workspace.feed("data", np.ones((2, 4), np.float32))
    workspace.feed("label", np.int32([0, 3]))
    workspace.run_net_once(model.param_init_net)
    before = workspace.fetch("scores_w")
    name = workspace.create_net(model.net)
    for _ in range(2):
        with pytest.raises(ShapeError, match=r"labels must lie in \[0, 3\)"):
            workspace.run_net(name)
        for blob in ("loss", "scaled", "scores_w_grad"):
            with pytest.raises(BlobError, match="holds no value yet|not observable"):
                workspace.fetch(blob)
        np.testing.assert_array_equal(workspace.fetch("scores_w"), before)
        assert workspace.fetch("scores").any()
    workspace.feed("label", np.int32([0, 2]))
    workspace.run_net(name)
    assert workspace.fetch("scaled") == 2 * workspace.fetch("loss") > 0
    lost = workspace.fetch("loss")
    workspace.feed("label", np.int32([0, 3]))
    with pytest.raises(ShapeError):
        workspace.run_net(name)
    assert workspace.fetch("loss") == lost, "as in Caffe2, the value of the run before"


def test_errors_of_bad_input_come_without_the_planner_s_frames():
    """Their text has everything; what a function of the user raised keeps its frames."""
    net = Net("bad")
    net.Softmax("x", "y", axis=5)
    workspace = Workspace()
    workspace.feed("x", np.ones((2, 2), np.float32))
    with pytest.raises(ShapeError, match="net 'bad', operator 0: Softmax .* axis must lie in") as caught:
        workspace.run_net(workspace.create_net(net))
    assert caught.value.__cause__ is None and len(caught.traceback) <= 3
    assert len("".join(traceback.format_exception(caught.value)).splitlines()) < 16

    def fails(inputs, outputs):
        raise KeyError("mine")

    net = Net("worse")
    net.Python(fails)(["x"], ["y"])
    with pytest.raises(OperatorError, match="mine") as caught:
        workspace.run_net(workspace.create_net(net))
    assert isinstance(caught.value.__cause__, KeyError) and caught.value.__cause__.__traceback__ is not None


def test_a_budget_that_cannot_be_kept_is_said_without_the_planner_s_frames():
    net = Net("large")
    net.Relu("x", "y")
    workspace = Workspace()
    workspace.feed("x", np.ones((64, 64), np.float32))
    name = workspace.create_net(net, memory_budget="1 KB")
    for call in (lambda: workspace.run_net(name), lambda: planned_memory(workspace, name)):
        with pytest.raises(NetError, match="memory_budget=1,000 bytes is too small") as caught:
            call()
        assert len(caught.traceback) <= 4
