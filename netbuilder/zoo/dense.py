"""The fully connected end of AlexNet and VGG: two hidden layers with dropout, and the scores."""

from __future__ import annotations

from netbuilder.graph.blob import BlobReference
from netbuilder.model import ModelHelper, brew

__all__ = ["add_dense", "add_dropout"]


def add_dropout(model: ModelHelper, blob: BlobReference, name: str, ratio: float, is_test: bool) -> BlobReference:
    """Add a Dropout of a share ``ratio``; return ``blob`` itself where nothing is dropped."""
    if is_test or ratio == 0:
        return blob
    return brew.dropout(model, blob, name, ratio=ratio, is_test=0)


def add_dense(
    model: ModelHelper, blob: BlobReference, dim_in: int, num_labels: int, *, hidden: int, dropout: float, is_test: bool
) -> BlobReference:
    """Add ``fc6`` and ``fc7`` with Relu and dropout, and ``fc8``; return the scores, (N, num_labels).

    Args:
        blob: what the images have become, (N, ...) with ``dim_in`` elements each.
        hidden: length of the two hidden vectors.
        dropout: share of them that is set to 0 in training, in [0, 1).
    """
    for number in (6, 7):
        blob = brew.fc(model, blob, f"fc{number}", dim_in, hidden)
        blob = brew.relu(model, blob, blob)
        blob = add_dropout(model, blob, f"drop{number}", dropout, is_test)
        dim_in = hidden
    return brew.fc(model, blob, "fc8", dim_in, num_labels)
