"""Tables of a classifier's metrics: of all classes together, of each class, and with which others it is confused."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence

import numpy as np

from netbuilder.metrics import Classification
from netbuilder.runtime.profile.text_table import TextTable

__all__ = ["class_csv", "hardest", "means_of", "results_table"]

_SHOWN = {
    "precision": "precision", "recall": "recall", "f1": "F1", "average_precision": "average precision", "auc": "AUC",
}  # fmt: skip
"""Metrics of classes -> how they are called in tables."""


def means_of(metrics: Classification) -> dict[str, float]:
    """Return the means over the classes that the files of metrics have, by name."""
    return {name: value for name, value in metrics.means().items() if name in _SHOWN}


def results_table(title: str, top1: float, top5: float | None, loss: float, means: Mapping[str, float]) -> TextTable:
    """Return a table of the results on held-out samples."""
    shares = {"accuracy": top1, **({} if top5 is None else {"accuracy (top-5)": top5})}
    shares |= {f"{_SHOWN[name]} (mean of classes)": value for name, value in means.items()}
    rows = [*((name, _share(value)) for name, value in shares.items()), ("loss", f"{loss:.4g}")]
    return TextTable(title, ("result", "value"), rows)


def class_csv(metrics: Classification, names: Sequence[str]) -> str:
    """Return a table in CSV: each class with its results, and how often each class was found for its samples."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    results = metrics.by_class()
    shares = [name for name in results if name in _SHOWN]
    writer.writerow(["class", "samples", *shares, *(f"found {name}" for name in names)])
    for row, name in enumerate(names):
        cells = [f"{results[key][row]:.4f}" for key in shares]
        writer.writerow([name, results["samples"][row], *cells, *metrics.confusion[row]])
    return text.getvalue()


def hardest(metrics: Classification, names: Sequence[str], count: int = 10) -> TextTable:
    """Return a table of the classes with the lowest recall, if it is less than 1."""
    results = metrics.by_class()
    shares = [name for name in results if name in _SHOWN]
    rows = []
    for row in np.argsort(results["recall"], kind="stable")[:count]:  # NaN is last
        if not results["recall"][row] < 1:
            continue
        others = metrics.confusion[row].copy()
        others[row] = 0
        taken = names[others.argmax()] if others.any() else ""
        rows.append((names[row], str(results["samples"][row]), *(_share(results[key][row]) for key in shares), taken))
    head = ("class", "samples", *(_SHOWN[name] for name in shares), "most often taken for")
    return TextTable("classes with the lowest recall", head, rows)


def _share(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.2%}"
