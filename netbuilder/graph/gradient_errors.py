"""Errors raised when a backward pass cannot be built."""

from __future__ import annotations

from collections.abc import Sequence

from netbuilder.graph.versions import EXTERNAL, Versions, describe, history
from netbuilder.proto import GradientError, OperatorDef

__all__ = [
    "gradients_added_before",
    "may_keep_its_value",
    "no_gradient",
    "overwritten",
    "overwritten_local",
    "unknown_blob_in_gradient",
    "writes_local",
]

_LONGEST_PATH = 12


def no_gradient(ops: Sequence[OperatorDef], index: int, path: Sequence[str], cause: Exception) -> GradientError:
    """Return the error for an operator without gradient.

    Args:
        path: from the operator to the loss, alternating between types and blobs.
    """
    if len(path) > _LONGEST_PATH:
        path = [*path[:6], "...", *path[-5:]]
    return GradientError(
        f"{describe(ops[index], index)}: {cause}. It is on the path to the loss: {' -> '.join(path)}. "
        "Put a StopGradient on that path, or remove the operator from it"
    )


def overwritten(
    ops: Sequence[OperatorDef], versions: Versions, index: int, gradient_op: OperatorDef, blob: str
) -> GradientError:
    """Return the error for a gradient operator that reads a blob overwritten after the forward operator ran."""
    value = versions.last[blob]
    writer = versions.writers[value]
    needed = _version_at(versions, blob, index)
    return GradientError(
        f"{describe(ops[index], index)}: its gradient operator {gradient_op.type} needs version {needed} of blob "
        f"{blob!r}, but {describe(ops[writer], writer)} overwrites it with version {versions.versions[value]}; "
        f"let that operator write another blob. Versions of {blob!r}:\n{history(versions, blob, ops)}"
    )


def may_keep_its_value(ops: Sequence[OperatorDef], index: int, blob: str) -> GradientError:
    """Return the error for an output of a branch or loop that does not always write it, and that is not an input."""
    return GradientError(
        f"{describe(ops[index], index)}: its nets do not always write its output {blob!r}, which then keeps its "
        "earlier value, so that this value has a gradient, too; add the blob to the operator's inputs, as brew.cond "
        "and brew.loop do"
    )


def overwritten_local(ops: Sequence[OperatorDef], index: int, writer: int, blob: str) -> GradientError:
    """Return the error for a local blob of a branch that another operator, or a net in it, writes too."""
    return GradientError(
        f"{describe(ops[index], index)}: its gradient reads {blob!r}, a local blob of its nets, which "
        f"{describe(ops[writer], writer)} overwrites; give local blobs that differ names that differ, as brew.cond and "
        "brew.loop do"
    )


def writes_local(ops: Sequence[OperatorDef], index: int, blob: str) -> GradientError:
    """Return the error for a gradient that would be stored in a local blob of a branch or loop."""
    return GradientError(
        f"{describe(ops[index], index)}: its gradient {blob!r} would overwrite a local blob of a branch or loop, which "
        "has the same name; give the local blob another name, as brew.cond and brew.loop do"
    )


def _version_at(versions: Versions, blob: str, index: int) -> int:
    for value in versions.outputs[index] + versions.inputs[index]:
        if versions.names[value] == blob:
            return versions.versions[value]
    return 0


def unknown_blob_in_gradient(
    ops: Sequence[OperatorDef], index: int, gradient_op: OperatorDef, blob: str
) -> GradientError:
    """Return the error for a gradient operator that reads a blob which neither the net nor its own group defines."""
    return GradientError(
        f"{describe(ops[index], index)}: its gradient operator {gradient_op.type} reads blob {blob!r}, which is "
        "neither a blob of the net, nor the gradient of an output, nor written by the gradient operators before it"
    )


def gradients_added_before(ops: Sequence[OperatorDef], versions: Versions, index: int, gradient: str) -> GradientError:
    """Return the error for a gradient that has the name of a blob which the net writes."""
    value = versions.last.get(gradient)
    writer = EXTERNAL if value is None else versions.writers[value]
    by = "the net" if writer == EXTERNAL else describe(ops[writer], writer)
    return GradientError(
        f"{describe(ops[index], index)}: its gradient would overwrite blob {gradient!r}, which {by} writes. Gradients "
        "can be added only once: give all losses in one call, or clone the net before adding its gradients"
    )
