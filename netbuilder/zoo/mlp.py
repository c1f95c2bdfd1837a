"""Multi-layer perceptrons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from netbuilder.graph.blob import BlobReference
from netbuilder.model import ModelHelper, brew
from netbuilder.proto import ArgumentError
from netbuilder.zoo.layers import Blob, add_head

__all__ = ["create_mlp"]


def create_mlp(
    model: ModelHelper, data: Blob, dims: Sequence[int], label: Blob | None = None, no_loss: bool = False
) -> Any:
    """Add fully connected layers with Relu between them; layer ``i`` is ``fc<i>``.

    Args:
        data: vectors of ``dims[0]`` elements, (N, ...).
        dims: lengths of the input, the hidden vectors and the scores.
        label: classes, (N,), int32.
        no_loss: return the scores.

    Returns:
        The scores (N, classes) if ``no_loss``, (softmax, loss) if there is a label, otherwise the softmax.

    Raises:
        ArgumentError: ``dims`` has fewer than two lengths.

    >>> model = ModelHelper("example_mlp")
    >>> create_mlp(model, "data", [64, 32, 10], no_loss=True)
    BlobReference("fc1")
    """
    if len(dims) < 2:
        raise ArgumentError(f"create_mlp: dims must have at least two lengths, input and output, got {list(dims)}")
    blob: Blob = data
    for i, (dim_in, dim_out) in enumerate(zip(dims, dims[1:])):
        blob = brew.fc(model, blob, f"fc{i}", dim_in, dim_out)
        if i < len(dims) - 2:
            blob = brew.relu(model, blob, f"relu{i}")
    assert isinstance(blob, BlobReference)
    return add_head(model, blob, label, no_loss)
