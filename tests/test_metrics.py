"""Metrics: against scikit-learn's results, pair by pair, over batches and processes, and their errors."""

import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden_data import GOLDEN
from netbuilder.distributed import ProcessGroup
from netbuilder.metrics import Classification, average_precision, roc_auc
from netbuilder.proto import ArgumentError, NetError, ShapeError
from thread_ranks import on_ranks, thread_worlds


def drawn(seed, count=30, classes=6):
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.ones(classes), count).astype(np.float32), rng.integers(0, classes, count)


def test_scikit_learn_has_the_same():
    stored = json.loads((GOLDEN / "metrics.json").read_text())
    scores, labels = np.array(stored["scores"]), np.array(stored["labels"])
    metrics = Classification(5, confusion=True, rankings=True)
    for rows in (slice(0, 17), slice(17, 17), slice(17, None)):
        metrics.add(scores[rows], labels[rows])
    found = metrics.by_class()
    assert found.keys() == stored["results"].keys()
    for name, values in stored["results"].items():
        np.testing.assert_allclose(np.nan_to_num(found[name]), values, rtol=1e-12, err_msg=name)
        if name != "samples":
            assert metrics.means()[name] == pytest.approx(np.mean(values), rel=1e-12)
    np.testing.assert_array_equal(metrics.confusion, stored["confusion"])
    assert metrics.accuracy() == stored["accuracy"] and metrics.accuracy(5) == 1


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=20))
def test_rankings_pair_by_pair(pairs):
    scores, positive = np.array([float(score) for score, _ in pairs]), np.array([of for _, of in pairs])
    own, others = scores[positive], scores[~positive]
    auc, precision = roc_auc(scores, positive), average_precision(scores, positive)
    if not own.size:
        assert np.isnan(precision) and np.isnan(auc)
        return
    shares = [(own >= each).sum() / (scores >= each).sum() for each in own]  # precision where each one is found
    assert precision == pytest.approx(np.mean(shares))
    if others.size:
        wins = (own[:, None] > others).sum() + 0.5 * (own[:, None] == others).sum()
        assert auc == pytest.approx(wins / own.size / others.size)
    else:
        assert np.isnan(auc)


def test_a_segmentation_counts_pixels():
    rng = np.random.default_rng(0)
    scores, labels = rng.random((2, 4, 3, 5)), rng.integers(0, 4, (2, 3, 5))
    labels[0, 0] = 255
    metrics = Classification(4, ignored=255)
    metrics.add(scores, labels)
    found, known = scores.argmax(1), labels != 255
    for each in range(4):
        of, taken = known & (labels == each), known & (found == each)
        assert metrics.iou[each] == (of & taken).sum() / (of | taken).sum()
    assert metrics.count == known.sum() and metrics.accuracy() == (found == labels)[known].mean()


def test_perplexity_of_tokens_along_another_axis():
    rng = np.random.default_rng(1)
    p = rng.dirichlet(np.ones(9), (4, 7)).astype(np.float64)
    tokens = rng.integers(1, 9, (4, 7))
    tokens[2, 3:] = 0  # padding
    metrics = Classification(9, ignored=0)
    metrics.add(p, tokens, axis=-1)
    of = np.take_along_axis(p, tokens[..., None], -1)[..., 0][tokens != 0]
    assert metrics.perplexity == pytest.approx(float(np.prod(1 / of) ** (1 / of.size)))


def test_nan_is_wrong_and_finds_nothing():
    metrics = Classification(3, confusion=True, rankings=True)
    metrics.add(np.array([[np.nan, 0.5, 0.5], [0.6, 0.4, 0.0]]), np.array([0, 0]))
    assert metrics.accuracy() == 0.5 and metrics.confusion.tolist() == [[1, 0, 0], [0, 0, 0], [0, 0, 0]]
    assert metrics.recall[0] == 0.5 and metrics.precision[0] == 1 and np.isnan(metrics.loss)


def test_processes_together_have_the_metrics_of_all_batches():
    batches = [drawn(seed, count) for seed, count in ((0, 20), (1, 0), (2, 31))]

    def of(batches):
        metrics = Classification(6, top=(1, 3), confusion=True, rankings=True)
        for each in batches:
            metrics.add(*each)
        return metrics

    whole = of(batches)
    worlds = thread_worlds(3)
    for each in on_ranks(3, lambda rank: of([batches[rank]]).over(ProcessGroup.over(worlds[rank]))):
        assert each.count == 51 and each.accuracy(3) == whole.accuracy(3)
        assert each.loss == pytest.approx(whole.loss, rel=1e-12)
        np.testing.assert_array_equal(each.confusion, whole.confusion)
        np.testing.assert_equal(each.by_class(), whole.by_class())


def test_what_notebooks_show():
    metrics = Classification(3, top=(1, 2))
    metrics.add(np.array([[0.7, 0.2, 0.1], [0.5, 0.3, 0.2]]), np.array([0, 1]))
    assert repr(metrics) == "Classification(3 classes, 2 samples, top-1 50.00%, top-2 100.00%)"
    rows = re.findall("<tr>(.*?)</tr>", metrics._repr_html_())
    cells = [re.findall("<t[dh][^>]*>(.*?)</t[dh]>", row) for row in rows]
    assert cells[:2] == [
        ["class", "samples", "precision", "recall", "f1", "iou"],
        ["0", "1", "0.5", "1", "0.6667", "0.5"],
    ]
    assert cells[3] == ["2", "0", "", "", "", ""]


def test_no_samples():
    metrics = Classification(2, rankings=True)
    assert all(np.isnan(value) for value in (metrics.accuracy(), metrics.loss, *metrics.means().values()))


def test_kept_scores_do_not_change_with_the_arrays():
    scores, labels = drawn(3)
    metrics = Classification(6, rankings=True)
    metrics.add(scores, labels)
    before = metrics.auc
    scores[:], labels[:] = 0, 0
    np.testing.assert_array_equal(metrics.auc, before)


def test_errors():
    metrics = Classification(3)
    with pytest.raises(ShapeError, match=r"axis 1 of scores must be 3 classes, got shape \(2, 4\)"):
        metrics.add(np.zeros((2, 4)), np.zeros(2, int))
    with pytest.raises(ShapeError, match=r"labels must have shape \(2, 5\), .* got \(2,\)"):
        metrics.add(np.zeros((2, 3, 5)), np.zeros(2, int))
    for label in (-1, 3):
        with pytest.raises(ArgumentError, match=rf"labels must be in \[0, 3\), got {label}; ignored="):
            metrics.add(np.zeros((2, 3)), np.array([0, label]))
    assert metrics.count == 0
    with pytest.raises(NetError, match="give confusion=True"):
        _ = metrics.confusion
    with pytest.raises(NetError, match="give rankings=True"):
        _ = metrics.auc
    with pytest.raises(ArgumentError, match=r"accuracy\(2\) is not counted, only of k in \[1, 5\]"):
        metrics.accuracy(2)
    with pytest.raises(ArgumentError, match=r"top\[1\] must be a whole number of at least 1, got 0"):
        Classification(3, top=(1, 0))
    with pytest.raises(ShapeError, match="one shape"):
        roc_auc(np.zeros(3), np.zeros(2, bool))
