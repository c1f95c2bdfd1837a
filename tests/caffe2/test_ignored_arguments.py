"""Arguments of optimizers that Caffe2 took and did nothing with; nets that begin with what reads data."""

import numpy as np
import pytest

from netbuilder.caffe2 import lenient
from netbuilder.caffe2.python import brew, core, model_helper, optimizer, workspace
from netbuilder.proto import ArgumentError, GradientError


def model_with_loss():
    model = model_helper.ModelHelper("ignored")
    loss = model.net.AveragedLoss(brew.fc(model, "x", "y", 2, 1), "loss")
    model.AddGradientOperators([loss])
    return model


def test_what_nothing_reads_is_ignored(monkeypatch):
    """As in Caffe2's tutorial on CIFAR-10; one warning for each builder and argument."""
    monkeypatch.setattr(lenient, "warned", set())
    model = model_with_loss()
    text = (
        r"build_sgd: ignored argument 'weight_decay'; it has no effect; call add_weight_decay\(model, 0.004\) before it"
    )
    with pytest.warns(lenient.IgnoredArgumentWarning, match=text):
        optimizer.build_sgd(model, base_learning_rate=0.01, policy="fixed", momentum=0.9, weight_decay=0.004)
    optimizer.build_sgd(model_with_loss(), base_learning_rate=0.01, weight_decay=0.004)
    workspace.FeedBlob("x", np.ones((3, 2), np.float32))
    workspace.RunNetOnce(model.param_init_net)
    workspace.RunNetOnce(model.net)


def test_what_is_nearly_an_argument_is_refused():
    with pytest.raises(ArgumentError, match="unknown argument 'momentun'; did you mean 'momentum'"):
        optimizer.build_sgd(model_with_loss(), 0.1, momentun=0.9)


@pytest.mark.parametrize(
    "kind", ["TensorProtosDBInput", "DequeueBlobs", "SafeDequeueBlobs", "TextFileReaderRead", "Load"]
)
def test_gradients_end_at_what_reads_data(kind):
    net = core.Net("reads")
    arguments = {"TensorProtosDBInput": {"batch_size": 2}, "Load": {"db": "x", "db_type": "minidb"}}.get(kind, {})
    outputs = ["x", "status"] if kind == "SafeDequeueBlobs" else ["x"]
    net.Proto().op.append(core.CreateOperator(kind, [] if kind == "Load" else ["source"], outputs, **arguments))
    loss = net.AveragedLoss(net.FC(["x", "w", "b"], "y"), "loss")
    gradients = net.AddGradientOperators([loss])
    assert sorted(map(str, gradients)) == ["b", "loss", "w", "x", "y"]


def test_images_want_a_stop():
    """In Caffe2, too, ImageInput has no gradient."""
    net = core.Net("images")
    net.Proto().op.append(core.CreateOperator("ImageInput", ["source"], ["x", "label"], batch_size=2, scale=4, crop=4))
    loss = net.AveragedLoss(net.FC(["x", "w", "b"], "y"), "loss")
    with pytest.raises(GradientError, match="ImageInput.*has no gradient"):
        net.AddGradientOperators([loss])
