"""What is said when a backward pass cannot be built."""

from __future__ import annotations

from collections.abc import Sequence

from netbuilder.graph.versions import EXTERNAL, Versions, describe, history
from netbuilder.proto import GradientError, OperatorDef

__all__ = ["gradients_added_before", "no_gradient", "overwritten", "unknown_blob_in_gradient"]

_LONGEST_PATH = 12


def no_gradient(ops: Sequence[OperatorDef], index: int, path: Sequence[str], cause: Exception) -> GradientError:
    """The operator cannot be differentiated; ``path`` leads from it to the loss, types and blobs in turn."""
    if len(path) > _LONGEST_PATH:
        path = [*path[:6], "...", *path[-5:]]
    return GradientError(
        f"{describe(ops[index], index)}: {cause}. It is on the path to the loss: {' -> '.join(path)}. "
        "Put a StopGradient on that path, or leave the operator out of it"
    )


def overwritten(
    ops: Sequence[OperatorDef], versions: Versions, index: int, gradient_op: OperatorDef, blob: str
) -> GradientError:
    """The gradient operator reads a blob that was written again after the forward operator ran."""
    value = versions.last[blob]
    writer = versions.writers[value]
    needed = _version_at(versions, blob, index)
    return GradientError(
        f"{describe(ops[index], index)}: its gradient operator {gradient_op.type} needs version {needed} of blob "
        f"{blob!r}, and {describe(ops[writer], writer)} overwrites it with version {versions.versions[value]}; "
        f"let that operator write another blob. Versions of {blob!r}:\n{history(versions, blob, ops)}"
    )


def _version_at(versions: Versions, blob: str, index: int) -> int:
    for value in versions.outputs[index] + versions.inputs[index]:
        if versions.names[value] == blob:
            return versions.versions[value]
    return 0


def unknown_blob_in_gradient(
    ops: Sequence[OperatorDef], index: int, gradient_op: OperatorDef, blob: str
) -> GradientError:
    """The gradient operator reads a blob that neither the forward operators nor its own group know."""
    return GradientError(
        f"{describe(ops[index], index)}: its gradient operator {gradient_op.type} reads blob {blob!r}, which is no "
        "blob of the net, no gradient of an output, and not written by the gradient operators before it"
    )


def gradients_added_before(ops: Sequence[OperatorDef], versions: Versions, index: int, gradient: str) -> GradientError:
    """The name of a gradient is taken by a blob that the net writes."""
    value = versions.last.get(gradient)
    writer = EXTERNAL if value is None else versions.writers[value]
    by = "the net" if writer == EXTERNAL else describe(ops[writer], writer)
    return GradientError(
        f"{describe(ops[index], index)}: its gradient would overwrite blob {gradient!r}, which {by} writes. Gradients "
        "can be added once: give all losses in one call, or clone the net before its gradients are added"
    )
