"""Metrics of classifiers, segmentations and language models, from counts that batches and processes add up to."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from netbuilder.distributed import ProcessGroup
from netbuilder.graph.html_tables import folded, table
from netbuilder.ops.losses.accuracy import classes_before_label
from netbuilder.proto import ArgumentError, NetError, ShapeError
from netbuilder.proto.errors import counted
from netbuilder.proto.numbers import check_whole_numbers

__all__ = ["Classification", "average_precision", "roc_auc"]

Array = np.ndarray[Any, np.dtype[Any]]
Counts = np.ndarray[Any, np.dtype[np.int64]]

_TINY = 1e-20  # probabilities are clamped to this before log, as in SoftmaxWithLoss


class Classification:
    """Counts of a classifier's results, batch by batch, and the metrics that follow from them.

    A sample is whatever has one label: an image, a pixel of a segmentation, a token of a text. Of classes with equal
    scores the lower one is found; a sample whose scores have NaN counts as wrong, and no class is found for it.

    Args:
        classes: number of classes.
        top: of each number k, ``accuracy(k)`` is counted.
        ignored: label of samples that do not count, such as padding or 255 of a segmentation; None: all count.
        confusion: count which classes are taken for which: classes x classes numbers.
        rankings: keep all scores, from which average precision and AUC are computed.

    Attributes:
        samples: of each class.
        found: for each class, the samples that it was found for.
        right: for each class, those of its samples that it was found for.

    Raises:
        ArgumentError: ``classes`` or a number of ``top`` is not positive.

    >>> metrics = Classification(3, top=(1,))
    >>> metrics.add(np.array([[0.7, 0.2, 0.1], [0.5, 0.3, 0.2]]), np.array([0, 1]))
    >>> metrics.accuracy(), metrics.recall.tolist(), round(metrics.perplexity, 2)
    (0.5, [1.0, 0.0, nan], 2.18)
    """

    def __init__(
        self,
        classes: int,
        *,
        top: Sequence[int] = (1, 5),
        ignored: int | None = None,
        confusion: bool = False,
        rankings: bool = False,
    ) -> None:
        check_whole_numbers("Classification", 1, classes=classes, **{f"top[{i}]": k for i, k in enumerate(top)})
        self.classes, self._ignored = classes, ignored
        self.samples: Counts = np.zeros(classes, np.int64)
        self.found: Counts = np.zeros(classes, np.int64)
        self.right: Counts = np.zeros(classes, np.int64)
        self._in_top = dict.fromkeys(top, 0)
        self._log_sum = 0.0
        self._confusion: Counts | None = np.zeros((classes, classes), np.int64) if confusion else None
        self._kept: list[tuple[Array, Array]] | None = [] if rankings else None

    def __repr__(self) -> str:
        found = "".join(f", top-{k} {self.accuracy(k):.2%}" for k in self._in_top if self.count)
        return f"Classification({counted(self.classes, 'class', 'classes')}, {counted(self.count, 'sample')}{found})"

    def _repr_html_(self) -> str:
        """Return the metrics of each class for a notebook."""
        found = self.by_class()
        rows = [
            [each, *(f"{values[each]:.4g}" if not np.isnan(values[each]) else "" for values in found.values())]
            for each in range(self.classes)
        ]
        return folded(repr(self), table(["class", *found], rows), unfolded=True)

    def add(self, scores: Array, labels: Array, *, axis: int = 1) -> None:
        """Count a batch.

        Args:
            scores: probabilities of the classes, such as (N, classes) or (N, classes, H, W). Any other scores give the
                same metrics, except for ``loss`` and ``perplexity``.
            labels: integers, of the shape of ``scores`` without the axis of the classes.
            axis: that of the classes in ``scores``.

        Raises:
            ShapeError: the shapes do not fit.
            ArgumentError: a label is no class.
        """
        if scores.ndim < 1 or not -scores.ndim <= axis < scores.ndim or scores.shape[axis] != self.classes:
            raise ShapeError(f"metrics: axis {axis} of scores must be {self.classes} classes, got shape {scores.shape}")
        rows = np.moveaxis(scores, axis, -1)
        if labels.shape != rows.shape[:-1]:
            raise ShapeError(
                f"metrics: labels must have shape {rows.shape[:-1]}, as scores of shape {scores.shape} without their "
                f"axis {axis}, got {labels.shape}"
            )
        rows, labels = rows.reshape(-1, self.classes), labels.reshape(-1)
        if self._ignored is not None:
            rows, labels = rows[labels != self._ignored], labels[labels != self._ignored]
        if len(labels):
            self._add(rows, labels)

    def _add(self, rows: Array, labels: Array) -> None:
        if labels.min() < 0 or labels.max() >= self.classes:
            wrong = labels[(labels < 0) | (labels >= self.classes)][0]
            hint = "" if self._ignored is not None else "; ignored= names a label that does not count"
            raise ArgumentError(f"metrics: labels must be in [0, {self.classes}), got {wrong}{hint}")
        before = classes_before_label(np, rows, labels)
        for k in self._in_top:
            self._in_top[k] += int((before < k).sum())
        correct = np.take_along_axis(rows, labels[:, None].astype(np.intp), 1)
        self._log_sum -= float(np.log(np.maximum(correct, _TINY), dtype=np.float64).sum())
        self.samples += np.bincount(labels, minlength=self.classes)
        ranked = ~np.isnan(rows).any(1)
        truth, found = labels[ranked], rows[ranked].argmax(1)
        self.found += np.bincount(found, minlength=self.classes)
        self.right += np.bincount(truth[truth == found], minlength=self.classes)
        if self._confusion is not None:
            pairs = truth.astype(np.int64) * self.classes + found
            self._confusion += np.bincount(pairs, minlength=self.classes**2).reshape(self._confusion.shape)
        if self._kept is not None:
            self._kept.append((rows.copy(), labels.copy()))  # the arrays may be those that the next batch is written to

    def over(self, group: ProcessGroup) -> Classification:
        """Return the metrics of the batches of all processes; all of them call it."""
        if group.size == 1:
            return self
        whole = copy.copy(self)
        whole.samples, whole.found, whole.right = group.allreduce(np.stack([self.samples, self.found, self.right]))
        log_sum, *in_top = group.sum(self._log_sum, *self._in_top.values())
        whole._log_sum, whole._in_top = log_sum, dict(zip(self._in_top, map(int, in_top)))
        if self._confusion is not None:
            whole._confusion = group.allreduce(self._confusion)
        if self._kept is not None:
            whole._kept = [pair for each in group.gather(self._kept) for pair in each]
        return whole

    @property
    def count(self) -> int:
        """Number of samples."""
        return int(self.samples.sum())

    def accuracy(self, k: int = 1) -> float:
        """Return the share of samples whose label is among the ``k`` classes with the greatest scores.

        Raises:
            ArgumentError: ``k`` is not counted.
        """
        if k not in self._in_top:
            counted = [*self._in_top]
            raise ArgumentError(f"metrics: accuracy({k}) is not counted, only of k in {counted}; give top=({k},)")
        return self._in_top[k] / self.count if self.count else math.nan

    @property
    def loss(self) -> float:
        """The mean of -log of the probability of the label, in nats."""
        return self._log_sum / self.count if self.count else math.nan

    @property
    def perplexity(self) -> float:
        """The exponential of ``loss``: of a language model, the number of tokens between which it is undecided."""
        return float(np.exp(np.float64(self.loss)))

    @property
    def confusion(self) -> Counts:
        """How many samples of each class (row) each class (column) was found for.

        Raises:
            NetError: it was not asked for.
        """
        if self._confusion is None:
            raise NetError("metrics: the confusion matrix is not counted; give confusion=True")
        return self._confusion

    @property
    def precision(self) -> Array:
        """For each class, the share of the samples that it was found for that are its own; NaN: there are none."""
        return _ratio(self.right, self.found)

    @property
    def recall(self) -> Array:
        """For each class, the share of its samples that it was found for; NaN: it has none."""
        return _ratio(self.right, self.samples)

    @property
    def f1(self) -> Array:
        """For each class, the harmonic mean of precision and recall; NaN: it has no samples, and was never found."""
        return _ratio(2 * self.right, self.samples + self.found)

    @property
    def iou(self) -> Array:
        """For each class, its samples that it was found for, relative to all that it has or was found for.

        Of a segmentation this is the intersection over union, or Jaccard index.
        """
        return _ratio(self.right, self.samples + self.found - self.right)

    @property
    def average_precision(self) -> Array:
        """For each class against all others, see ``average_precision``.

        Raises:
            NetError: the scores were not kept.
        """
        return np.array([average_precision(*each) for each in self._rankings()])

    @property
    def auc(self) -> Array:
        """For each class against all others, see ``roc_auc``.

        Raises:
            NetError: the scores were not kept.
        """
        return np.array([roc_auc(*each) for each in self._rankings()])

    def _rankings(self) -> list[tuple[Array, Array]]:
        """Return for each class the scores that all samples have for it, and which of them are its own."""
        if self._kept is None:
            raise NetError("metrics: average precision and AUC need all scores; give rankings=True")
        rows = np.concatenate([np.empty((0, self.classes), np.float32), *(rows for rows, _ in self._kept)])
        labels = np.concatenate([np.empty(0, np.int64), *(labels for _, labels in self._kept)])
        return [(rows[:, each], labels == each) for each in range(self.classes)]

    def by_class(self) -> dict[str, Array]:
        """Return by name the metrics that each class has a value of."""
        found = {"samples": self.samples, "precision": self.precision, "recall": self.recall, "f1": self.f1}
        if self._kept is not None:
            found |= {"average_precision": self.average_precision, "auc": self.auc}
        return {**found, "iou": self.iou}

    def means(self) -> dict[str, float]:
        """Return the means over the classes of what ``by_class`` returns, except for the samples.

        Precision, recall, F1 and IoU are means over the classes that have samples or were found, where a share of
        nothing counts as 0; average precision and AUC are means over the classes that have one. NaN: there is none.
        """
        seen = self.samples + self.found > 0
        means = {}
        for name, values in self.by_class().items():
            ranked = name in ("average_precision", "auc")
            of = values[~np.isnan(values)] if ranked else np.nan_to_num(values[seen])
            means[name] = float(of.mean()) if of.size else math.nan
        means.pop("samples")
        return means


def average_precision(scores: Array, positive: Array) -> float:
    """Return the area under the steps of precision over recall: the sum of precision times the rise of recall.

    Args:
        scores: of the samples, (N,); NaN comes last.
        positive: which of them are of the class, (N,).

    Returns:
        NaN: none is.

    Raises:
        ShapeError: the shapes differ.

    >>> round(average_precision(np.array([0.9, 0.8, 0.7]), np.array([True, False, True])), 3)
    0.833
    """
    right, taken = _ranked(scores, positive)
    total = right[-1]
    return float((np.diff(right) * right[1:] / np.maximum(taken[1:], 1)).sum() / total) if total else math.nan


def roc_auc(scores: Array, positive: Array) -> float:
    """Return the probability that a sample of the class has a greater score than another one; equal scores count half.

    This is the area under the receiver operating characteristic (ROC).

    Args:
        scores: of the samples, (N,); NaN comes last.
        positive: which of them are of the class, (N,).

    Returns:
        NaN: all are, or none is.

    Raises:
        ShapeError: the shapes differ.

    >>> roc_auc(np.array([0.9, 0.8, 0.7]), np.array([True, False, True]))
    0.5
    """
    right, taken = _ranked(scores, positive)
    wrong = taken - right
    pairs = float(right[-1]) * float(wrong[-1])
    return float(np.trapezoid(right.astype(np.float64), wrong) / pairs) if pairs else math.nan


def _ranked(scores: Array, positive: Array) -> tuple[Counts, Counts]:
    """Return for each threshold, from the greatest score on, how many positives and samples reach it; 0 comes first."""
    if scores.ndim != 1 or positive.shape != scores.shape:
        raise ShapeError(f"metrics: scores and positive must have one shape (N,), got {scores.shape}, {positive.shape}")
    values = np.where(np.isnan(scores), -np.inf, scores)
    order = np.argsort(-values, kind="stable")
    values = values[order]
    last = np.flatnonzero(np.append(values[1:] != values[:-1], [True] * bool(len(values))))
    right = np.cumsum(positive[order].astype(bool), dtype=np.int64)[last]
    return np.append(0, right), np.append(0, last + 1)


def _ratio(part: Counts, whole: Counts) -> Array:
    with np.errstate(invalid="ignore"):
        return part / whole
