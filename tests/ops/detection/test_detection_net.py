"""A detector of two stages, as one net: proposals, boxes sampled from features, classes, and boxes without overlaps."""

from __future__ import annotations

import numpy as np
import pytest

from checks import interpret
from netbuilder.model import ModelHelper, brew
from netbuilder.runtime import Workspace

ANCHORS = np.float32([[-6, -6, 6, 6], [-10, -5, 10, 5], [-5, -10, 5, 10]])
CLASSES = 3


def add_features(model):
    """Add two convolutions of stride 2, and what a region proposal network says of their results."""
    brew.conv(model, "data", "half", 3, 4, kernel=3, stride=2, pad=1)
    brew.relu(model, "half", "half")
    brew.conv(model, "half", "features", 4, 6, kernel=3, stride=2, pad=1)
    brew.conv(model, "features", "logits", 6, len(ANCHORS), kernel=1)
    brew.conv(model, "features", "moves", 6, 4 * len(ANCHORS), kernel=1)
    model.net.Sigmoid("logits", "objectness")


def add_head(model):
    """Add proposals, and class scores and deltas of each."""
    model.net.GenerateProposals(
        ["objectness", "moves", "im_info", "anchors"], ["rois", "roi_scores"],
        spatial_scale=0.25, min_size=2.0, post_nms_topN=6, nms_thresh=0.5,
    )  # fmt: skip
    model.net.RoIAlign(["features", "rois"], "sampled", pooled_h=2, pooled_w=2, spatial_scale=0.25, sampling_ratio=2)
    brew.fc(model, "sampled", "class_logits", 24, CLASSES)
    brew.fc(model, "sampled", "deltas", 24, 4 * CLASSES)
    brew.softmax(model, "class_logits", "classes")


def filled(model):
    workspace = Workspace()
    workspace.run_net_once(model.param_init_net)
    rng = np.random.default_rng(0)
    workspace.feed("data", rng.normal(size=(2, 3, 32, 40)).astype(np.float32))
    workspace.feed("im_info", np.float32([[32, 40, 1], [30, 36, 1.5]]))
    workspace.feed("anchors", ANCHORS)
    return workspace


@pytest.fixture(name="model")
def _model():
    model = ModelHelper("detector")
    add_features(model)
    add_head(model)
    return model


def test_detections(model):
    """The plan, with and without engines, gives what the operators give one by one; boxes are inside their images."""
    model.net.BBoxTransform(["rois", "deltas", "im_info"], ["boxes", "splits"], weights=[10.0, 10.0, 5.0, 5.0])
    outputs = ["found_scores", "found", "found_classes", "found_splits", "kept", "kept_counts"]
    model.net.BoxWithNMSLimit(["classes", "boxes", "splits"], outputs, score_thresh=0.1, nms=0.4)
    workspace = filled(model)
    fed = {name: workspace.fetch(name) for name in [*map(str, model.params), "data", "im_info", "anchors"]}
    wanted = interpret(model.net.Proto().op, fed)
    for engines in ((), None):
        other = Workspace(engines=engines)
        for name, value in fed.items():
            other.feed(name, value)
        other.create_net(model.net)
        for _ in range(2):
            other.run_net(model.net)
        for name in ["rois", *outputs]:
            np.testing.assert_allclose(other.fetch(name), wanted[name], rtol=1e-3, atol=1e-3, err_msg=name)
    counts = wanted["found_splits"].astype(int)
    assert counts.min() > 0
    assert wanted["kept_counts"].sum(axis=1).tolist() == counts.tolist()
    for part, (height, width, _) in zip(np.split(wanted["found"], counts[:1]), fed["im_info"]):
        assert (part >= 0).all()
        assert (part <= [width - 1, height - 1] * 2).all()


def test_the_second_stage_trains_the_features(model):
    """The convolutions get gradients through the sampled boxes, for any number of boxes."""
    model.net.Sqr("deltas", "squares")
    model.AddGradientOperators([model.net.AveragedLoss("squares", "loss")])
    trained = ("half_w", "features_w", "deltas_w")
    for parameter in trained:
        model.net.WeightedSum([parameter, "one", model.param_to_grad[parameter], "rate"], parameter)
    workspace = filled(model)
    workspace.feed("one", np.ones(1, np.float32))
    workspace.feed("rate", np.float32([-0.05]))
    before, losses = {name: workspace.fetch(name) for name in trained}, []
    workspace.create_net(model.net)
    for _ in range(3):
        workspace.run_net(model.net)
        losses.append(float(workspace.fetch("loss")))
    assert all((workspace.fetch(name) != value).any() for name, value in before.items())
    assert losses[-1] < losses[0]
