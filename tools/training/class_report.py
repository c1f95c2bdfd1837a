"""Results of each class: its precision and recall, and with which others it is confused."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["class_table", "classes_of", "hardest"]

Counts = np.ndarray[Any, np.dtype[np.int64]]


def classes_of(confusion: Counts) -> dict[str, np.ndarray[Any, Any]]:
    """Return samples, precision, recall and F1 of each class; NaN where nothing is of the class, or found to be.

    Args:
        confusion: number of samples of each class (row) that each class (column) was found for.
    """
    samples, found, right = confusion.sum(1), confusion.sum(0), np.diag(confusion)
    with np.errstate(invalid="ignore", divide="ignore"):
        return {
            "samples": samples,
            "precision": right / found,
            "recall": right / samples,
            "f1": 2 * right / (samples + found),
        }


def class_table(confusion: Counts, names: Sequence[str]) -> str:
    """Return a table in CSV: each class with its results, and how often each class was found for its samples."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    results = classes_of(confusion)
    writer.writerow(["class", *results, *(f"found {name}" for name in names)])
    for row, name in enumerate(names):
        shares = [results["samples"][row], *(f"{results[key][row]:.4f}" for key in ("precision", "recall", "f1"))]
        writer.writerow([name, *shares, *confusion[row]])
    return text.getvalue()


def hardest(confusion: Counts, names: Sequence[str], count: int = 3) -> list[str]:
    """Return a text for each of the classes of the least recall, if it is less than 1."""
    recall = classes_of(confusion)["recall"]
    texts = []
    for row in np.argsort(recall, kind="stable")[:count]:  # NaN is last
        if not recall[row] < 1:
            continue
        others = confusion[row].copy()
        others[row] = 0
        texts.append(f"{names[row]}: {recall[row]:.0%} of {confusion[row].sum()}, most often {names[others.argmax()]}")
    return texts
