"""Runs that fail: which values there are afterwards."""

import numpy as np
import pytest

from netbuilder import ModelHelper, Workspace, brew
from netbuilder.optimizers import build_sgd
from netbuilder.proto import BlobError, ShapeError
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
