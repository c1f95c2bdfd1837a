"""What errors about the shapes and types of inputs advise; a traceback says it once."""

import traceback

import numpy as np
import pytest

from netbuilder import ModelHelper, Workspace, brew
from netbuilder.graph.shapes import infer_shapes
from netbuilder.proto import ShapeError

CLASSES = 5


def classifier(model):
    scores = brew.fc(model, "data", "scores", 6, CLASSES)
    model.net.SoftmaxWithLoss([scores, "label"], ["softmax", "loss"])


def tagger(model):
    scores = brew.fc(model, "words", "scores", 6, CLASSES, axis=2)
    model.net.SoftmaxWithLoss([scores, "label"], ["softmax", "loss"], axis=1)


def embedding(model):
    brew.positions(model, brew.embedding(model, "label", "vectors", 9, 6), "places", 6, 4)


def normalized(model):
    brew.layer_norm(model, "words", "y", 4)


def rms_normalized(model):
    brew.rms_norm(model, "words", "y", 6, bias=True)


def of_words(model):
    brew.fc(model, "words", "scores", 6, CLASSES)


def cross_entropy(model):
    model.net.CrossEntropy(["data", "label"], "loss")


WORDS = np.zeros((3, 7, 6), np.float32)
MISTAKES = {
    "one-hot labels": (
        classifier,
        np.eye(CLASSES, dtype=np.int32)[:3],
        r"give the class numbers, such as labels.argmax",
    ),
    "labels of words, rows of samples": (tagger, np.zeros((3, 7), np.int32), r"with axis=2 the rows of X \(3, 7, 5\)"),
    "tokens as numbers": (
        embedding,
        np.zeros((3, 4), np.float32),
        r"indices .* got float32; .*\.astype\(np.int32\)",
    ),
    "more positions than there are": (
        embedding,
        np.zeros((3, 7), np.int32),
        "the last axis but 1, A has 7 .*B 4;",
    ),
    "another dim": (normalized, np.zeros(1), r"gamma must have 42 elements, got shape \(4,\); that is the size of X"),
    "axis of a norm": (rms_normalized, np.zeros(1), r"gamma must have 42 elements, .*\(axis=-1: each row of the last"),
    "axis of a layer": (of_words, np.zeros(1), "takes rows of 6; axis=2 gives X such rows"),
    "class numbers": (cross_entropy, np.zeros(3, np.float32), "of class numbers compute LabelCrossEntropy"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_what_an_error_advises(name):
    build, label, advice = MISTAKES[name]
    model, workspace = ModelHelper("mistaken"), Workspace()
    build(model)
    fed = {"data": np.zeros((3, 6), np.float32), "words": WORDS, "label": label}
    for blob, value in fed.items():
        workspace.feed(blob, value)
    workspace.run_net_once(model.param_init_net)
    parameters = {str(blob): workspace.fetch(blob) for blob in model.GetParams()}
    for call in (
        lambda: workspace.run_net_once(model.net),
        lambda: infer_shapes([model.net], {**fed, **parameters}),
    ):
        with pytest.raises(ShapeError, match=advice) as found:
            call()
        said = "".join(traceback.format_exception(found.value))
        assert said.count(str(found.value).rpartition("] ")[2]) == 1 and said.count("Traceback") == 1
