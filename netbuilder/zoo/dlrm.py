"""DLRM: a recommendation model of embeddings, and products of all pairs of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from netbuilder.graph.blob import BlobReference
from netbuilder.model import Initializer, ModelHelper, ParameterTags, brew
from netbuilder.proto import ArgumentError
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.zoo.layers import Blob, chosen

__all__ = ["DLRM", "DLRMSize", "create_dlrm"]


@dataclass(frozen=True)
class DLRMSize:
    """A size of DLRM.

    Args:
        tables: number of rows of each table.
        dim: length of the rows.
        bottom: lengths of the vectors of numbers: those of the input, and of the layers before the last, whose results
            have ``dim`` elements.
        top: lengths of the hidden vectors after the products.
    """

    tables: Sequence[int]
    dim: int
    bottom: Sequence[int]
    top: Sequence[int]


DLRM: dict[str, DLRMSize] = {
    "small": DLRMSize((1000,) * 8, 16, (13, 64), (64,)),
    "kaggle": DLRMSize(
        (1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10, 5652,
         2173, 4, 7046547, 18, 15, 286181, 105, 142572), 16, (13, 512, 256, 64), (512, 256),
    ),
}  # fmt: skip
"""A small size, and that of the paper's implementation for the Criteo Kaggle data."""


def create_dlrm(
    model: ModelHelper,
    data: Blob,
    features: Sequence[tuple[Blob, Blob]],
    size: str | DLRMSize = "small",
    label: Blob | None = None,
    *,
    no_loss: bool = False,
) -> Any:
    """Add DLRM.

    Args:
        data: numbers, (N, ``bottom[0]``), float32.
        features: for each table the indices of its rows, concatenated for all samples, int32 or int64, and their
            numbers, (N,), int32; the rows of a sample are summed.
        size: one of ``DLRM``, or such a row.
        label: (N, 1), float32: whether a sample was clicked.
        no_loss: return the logits.

    Returns:
        The logits (N, 1) if ``no_loss``, (probability, loss) if there is a label, otherwise the probability.

    Raises:
        ArgumentError: ``size`` is unknown, or there are not as many features as tables.

    Source: Naumov et al., "Deep learning recommendation model for personalization and recommendation systems", 2019,
    arXiv:1906.00091.
    """
    table = chosen("create_dlrm", size, DLRM)
    if len(features) != len(table.tables):
        raise ArgumentError(
            f"create_dlrm: features must be indices and lengths for {len(table.tables)} tables, got {len(features)}"
        )
    rows = [
        brew.embedding(model, indices, f"table{number}", count, table.dim, lengths=lengths)
        for number, (count, (indices, lengths)) in enumerate(zip(table.tables, features), 1)
    ]
    dense = _add_layers(model, data, "bottom", [*table.bottom, table.dim], last="relu")
    products = _add_products(model, [dense, *rows], table.dim)
    count = len(rows) + 1
    x = brew.concat(model, [dense, products], "joined", axis=1)
    logits = _add_layers(model, x, "top", [table.dim + count * (count - 1) // 2, *table.top, 1])
    if no_loss:
        return logits
    probability = brew.sigmoid(model, logits, "probability")
    if label is None:
        return probability
    losses = model.net.SigmoidCrossEntropyWithLogits([logits, label], "losses")
    return probability, model.net.AveragedLoss(losses, "loss")


def _add_layers(model: ModelHelper, blob: Blob, name: str, sizes: Sequence[int], last: str = "") -> BlobReference:
    """Add fully connected layers with Relu between them and, if it is ``last``, after them."""
    for number, (dim_in, dim_out) in enumerate(zip(sizes, sizes[1:]), 1):
        blob = brew.fc(model, blob, f"{name}{number}", dim_in, dim_out)
        if last or number < len(sizes) - 1:
            blob = brew.relu(model, blob, blob)
    assert isinstance(blob, BlobReference)
    return blob


def _add_products(model: ModelHelper, vectors: Sequence[BlobReference], dim: int) -> BlobReference:
    """Add the products of each vector with those before it, (N, pairs)."""
    count = len(vectors)
    stacked = brew.reshape(model, brew.concat(model, vectors, "row", axis=1), "stacked", shape=[-1, count, dim])
    products = brew.batch_mat_mul(model, [stacked, stacked], "products", trans_b=1)
    flat = brew.reshape(model, products, "product_row", shape=[-1, count * count])
    below = [i * count + j for i in range(count) for j in range(i)]
    pairs = model.create_param(
        "pairs", [len(below)], Initializer("GivenTensorIntFill", values=below), ParameterTags.COMPUTED_PARAM
    )
    return brew.gather(model, [flat, pairs], "pair_products", axis=1)
