"""The end of a classifier: scores, and on request their softmax and loss."""

from __future__ import annotations

from typing import Any

from netbuilder.graph.blob import BlobReference
from netbuilder.model import ModelHelper, brew

__all__ = ["add_head"]

Blob = str | BlobReference


def add_head(model: ModelHelper, scores: BlobReference, label: Blob | None, no_loss: bool) -> Any:
    """Return ``scores`` if ``no_loss``; (softmax, loss) of them and the labels if there are labels; else softmax."""
    if no_loss:
        return scores
    if label is not None:
        return model.net.SoftmaxWithLoss([scores, label], ["softmax", "loss"])
    return brew.softmax(model, scores, "softmax")
