"""Accuracy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.losses.accuracy import Accuracy
from netbuilder.proto import ArgumentError
from suite import OperatorSuite, f32, floats, i32, refusal


class TestAccuracy(OperatorSuite):
    operator = Accuracy
    no_gradient = "it is a count"
    refusals = (
        refusal(Accuracy(), [f32(3), i32(3)], r"P must be \(rows, classes\)"),
        refusal(Accuracy(), [f32(3, 4), i32(4)], "one label per row, 3 in all"),
        refusal(Accuracy(), [f32(3, 4), f32(3)], "labels must be integers"),
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
