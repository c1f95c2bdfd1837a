"""Accuracy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import DEVICES, check_forward, run_plain
from netbuilder.graph import Net
from netbuilder.ops.losses.accuracy import Accuracy, classes_before_label
from netbuilder.proto import ArgumentError
from netbuilder.runtime import Workspace
from suite import OperatorSuite, f32, floats, i32, refusal


class TestAccuracy(OperatorSuite):
    operator = Accuracy
    no_gradient = "it is a count"
    refusals = (
        refusal(Accuracy(), [f32(3), i32(3)], r"P must have shape \(N, C\)"),
        refusal(Accuracy(), [f32(3, 4), i32(4)], r"label must have shape \(3,\) or \(3, 1\) = \(N,\) or \(N, 1\)"),
        refusal(Accuracy(), [f32(3, 4), f32(3)], "label must have elements of type int"),
        refusal(Accuracy(top_k=0), [f32(3, 4), i32(3)], "top_k must be at least 1", ArgumentError),
    )

    def draw(self, data):
        p = np.round(data.draw(floats((1, 6), (1, 5))))  # rounded: many ties
        dtype = data.draw(st.sampled_from([np.int32, np.int64, np.uint8]))
        least = 0 if dtype is np.uint8 else -1
        labels = data.draw(st.lists(st.integers(least, p.shape[1]), min_size=len(p), max_size=len(p)))
        return Accuracy(top_k=data.draw(st.integers(1, 6))), [p, dtype(labels)]

    def reference(self, op, p, label):
        best = np.argsort(-p, axis=1, kind="stable")[:, : op.top_k]
        return [np.asarray(np.mean([k in row for k, row in zip(label, best.tolist())]))]


@pytest.mark.parametrize("top_k", [1, 2])
def test_no_rows(top_k):
    assert run_plain(Accuracy(top_k=top_k), [np.zeros((0, 3), np.float32), np.zeros(0, np.int32)])[0] == 0


def ranked_last(scores, labels, k):
    """The shares of right rows by a definition with loops: NaN anywhere, and labels that are no class, are wrong."""
    right = 0
    for row, label in zip(scores.tolist(), labels.tolist()):
        if not 0 <= label < len(row) or any(math.isnan(x) for x in row):
            continue
        before = [c for c, x in enumerate(row) if x > row[label] or (x == row[label] and c < label)]
        right += len(before) < k
    return right / max(len(scores), 1)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("top_k", [1, 2, 5])
@pytest.mark.parametrize("columns", [1, 3, 7])
def test_scores_of_a_diverged_net_are_never_right(device, top_k, columns):
    rng = np.random.default_rng(columns)
    values = np.float32([np.nan, np.inf, -np.inf, 0.0, 0.0, 1.0])
    scores = rng.choice(values, (64, columns), p=[0.1, 0.1, 0.1, 0.3, 0.2, 0.2])
    labels = rng.integers(-1, columns + 1, 64).astype(np.int32)
    want = [np.float64(ranked_last(scores, labels, top_k))]
    check_forward(Accuracy(top_k=top_k), [scores, labels], want, device)
    nothing = np.full((8, columns), np.nan, np.float32)
    check_forward(Accuracy(top_k=top_k), [nothing, np.zeros(8, np.int32)], [np.float64(0)], device)


def test_equal_scores_are_right_as_often_as_the_lowest_class_is():
    """A net whose outputs are all equal knows nothing, and is not right in all rows."""
    constant, labels = np.ones((10, 10), np.float32), np.arange(10, dtype=np.int32)
    assert run_plain(Accuracy(), [constant, labels])[0] == np.float32(0.1)
    assert run_plain(Accuracy(top_k=5), [constant, labels])[0] == 0.5
    assert (classes_before_label(np, constant, labels) == labels).all()


def test_no_rows_in_a_plan():
    workspace = Workspace(threads=1)
    workspace.feed("p", np.zeros((0, 3), np.float32))
    workspace.feed("label", np.zeros(0, np.int32))
    net = Net("no_rows")
    net.Accuracy(["p", "label"], "accuracy")
    workspace.create_net(net)
    workspace.run_net(net)
    assert workspace.fetch("accuracy") == 0
