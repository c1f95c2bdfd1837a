"""Conditional random fields: loss, gradients and best paths against all paths one by one; training; the net's form."""

import itertools

import numpy as np
import pytest

from netbuilder import ModelHelper
from netbuilder.caffe2.python import crf, crf_predict
from netbuilder.graph.scope import NameScope
from netbuilder.model.rnn.crf import CRFWithLoss, apply_crf, crf_update_predictions
from netbuilder.optimizers import build_sgd
from netbuilder.proto import ArgumentError
from netbuilder.runtime import Workspace

SCORES = np.float32(
    [[1.7640524, 0.4001572, 0.978738], [2.2408931, 1.867558, -0.9772779], [0.95008844, -0.1513572, -0.10321885]]
    + [[0.41059852, 0.14404356, 1.4542735]]
)
LABELS = np.array([0, 2, 1, 1])


def transitions():
    rng = np.random.RandomState(0)
    rng.randn(12)
    return rng.randn(5, 5).astype(np.float32)


def total(path, scores, table):
    """Return the score of a path, from the class before (3) to the class after it (4)."""
    full = [3, *path, 4]
    return scores[range(len(path)), list(path)].sum() + sum(table[a, b] for a, b in itertools.pairwise(full))


def reference_loss(scores, labels, table):
    scores, table = scores.astype(np.float64), table.astype(np.float64)
    every = [total(path, scores, table) for path in itertools.product(range(3), repeat=len(scores))]
    return np.logaddexp.reduce(every) - total(labels, scores, table)


def trainer():
    model = ModelHelper("crf")
    layer = CRFWithLoss(model, 3)
    gradients = model.AddGradientOperators([layer.crf_loss("scores", "labels")])
    ws = Workspace()
    ws.feed("scores", SCORES)
    ws.feed("labels", LABELS)
    ws.run_net_once(model.param_init_net)
    assert ws.fetch("crf_transitions").shape == (5, 5) and np.abs(ws.fetch("crf_transitions")).max() <= 1
    ws.feed("crf_transitions", transitions())
    return model, layer, gradients, ws


def test_loss_and_gradients():
    model, _, gradients, ws = trainer()
    ws.run_net_once(model.net)
    want = reference_loss(SCORES, LABELS, transitions())
    assert ws.fetch("crf_loss").shape == () and abs(ws.fetch("crf_loss") - want) < 1e-4
    assert abs(want - 10.554684) < 1e-5  # as Caffe2 computes it
    for name, array in (("scores", SCORES), ("crf_transitions", transitions())):
        slopes = np.zeros(array.shape)
        for place in np.ndindex(*array.shape):
            ends = []
            for step in (1e-5, -1e-5):
                moved = array.astype(np.float64)
                moved[place] += step
                both = {"scores": SCORES.astype(np.float64), "crf_transitions": transitions().astype(np.float64)}
                both[name] = moved
                ends.append(reference_loss(both["scores"], LABELS, both["crf_transitions"]))
            slopes[place] = (ends[0] - ends[1]) / 2e-5
        np.testing.assert_allclose(ws.fetch(str(gradients[name])), slopes, atol=2e-5, err_msg=name)


def test_best_path():
    model, layer, _, ws = trainer()
    table = transitions()
    best = max(itertools.product(range(3), repeat=4), key=lambda path: total(path, SCORES, table))
    want = SCORES.copy()
    for row, c in zip(want, best):
        top = row.argmax()
        row[top], row[c] = row[c], row[top]
    using = ModelHelper("using")
    layer.model = using
    found = [crf_update_predictions(using, layer, "scores"), layer.update_predictions("scores")]
    found.append(apply_crf(using.param_init_net, using.net, "crf_transitions", "scores", 3))
    assert str(found[1]) == "post_crf_classes"
    ws.run_net_once(using.param_init_net)
    ws.run_net_once(using.net)
    for blob in found:
        np.testing.assert_array_equal(ws.fetch(str(blob)), want)


def test_training_finds_the_rule():
    """Labels of which a 1 always follows a 0, and never else, with scores that say nothing: transitions learn it."""
    model = ModelHelper("rule")
    layer = CRFWithLoss(model, 2)
    model.AddGradientOperators([layer.crf_loss("scores", "labels")])
    build_sgd(model, 0.3)
    ws = Workspace()
    ws.feed("scores", np.zeros((6, 2), np.float32))
    ws.feed("labels", np.array([0, 1, 0, 1, 0, 1]))
    ws.run_net_once(model.param_init_net)
    ws.create_net(model.net)
    losses = []
    for _ in range(60):
        ws.run_net(model.net)
        losses.append(float(ws.fetch("crf_loss")))
    assert losses[-1] < 0.1 < 1 < losses[0]
    using = ModelHelper("using")
    found = apply_crf(using.param_init_net, using.net, layer.transitions, "given", 2)
    ws.feed("given", np.float32([[2, 0], [0, 0.1], [0.1, 0], [0, 0.1], [0, 0], [0, 0]]))
    ws.run_net_once(using.param_init_net)
    ws.run_net_once(using.net)
    assert ws.fetch(str(found))[1:4].argmax(axis=1).tolist() == [1, 0, 1]


def test_the_net_is_caffe2s():
    """The operators of Caffe2's loss, in order, and the step of its recurrent net."""
    model = ModelHelper("m")
    with NameScope("s"):
        CRFWithLoss(model, 3).crf_loss("pred", "labels")
    types = " ".join(op.type for op in model.net.Proto().op)
    assert types == (
        "Copy Cast OneHot FlattenToVec FlattenToVec DotProduct ReduceFrontSum ConstantFill Shape Gather Cast "
        "LengthsRangeFill ConstantFill ExpandDims Concat Concat Cast Concat RemovePadding RemovePadding ConstantFill "
        "Mul Add FlattenToVec Gather ReduceFrontSum Add Gather RemovePadding ExpandDims Copy RecurrentNetwork Reshape "
        "SortedSegmentRangeLogSumExp Reshape Sub"
    )
    recurrent = next(op for op in model.net.Proto().op if op.type == "RecurrentNetwork")
    assert list(recurrent.input) == [
        "s/rnn_input_data",
        "s/rnn_initial",
        "s/transitions_copy",
        "s/crf_net/zero_segment_id",
    ]
    step = next(a.n for a in recurrent.arg if a.name == "step_net")
    assert [op.type for op in step.op] == [
        *("Transpose", "Tile", "Tile", "Add", "Add", "Reshape"),
        "SortedSegmentRangeLogSumExp",
    ]
    assert [str(p) for p in model.GetParams()] == ["s/crf_transitions"]


def test_given_transitions_and_refusals():
    model = ModelHelper("m")
    layer = CRFWithLoss(model, 3, "given")
    assert [str(p) for p in model.GetParams()] == ["given"] and layer.num_classes_padded == 5
    with pytest.raises(ArgumentError, match="seq_lengths must be None"):
        layer.crf_loss("pred", "labels", "lengths")
    with pytest.raises(ArgumentError, match="num_classes must be at least 1, got 0"):
        CRFWithLoss(model, 0)
    assert crf.CRFWithLoss is CRFWithLoss and crf_predict.apply_crf is apply_crf
