"""Which blobs of a net can be fetched after a run: an argument of the net; the fewer, the less memory a run takes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from netbuilder.graph.blob import blob_name
from netbuilder.graph.gradient_shares import gradient_blobs, is_backward
from netbuilder.ops.core.renaming import OBSERVABLE_BLOBS
from netbuilder.proto import NetDef, NetError
from netbuilder.proto.arguments import arguments, set_argument

__all__ = [
    "ACTIVATIONS",
    "ALL",
    "KINDS",
    "OUTPUTS",
    "check_kind",
    "hidden_gradients",
    "results",
    "set_stored",
    "stored",
]

ALL = "all"
"""Every blob."""

ACTIVATIONS = "activations"
"""All blobs but the gradients that only other operators of the backward pass read, see ``hidden_gradients``."""

OUTPUTS = "outputs"
"""External inputs (parameters, moments, statistics) and outputs, losses, metrics and learning rates."""

KINDS = (ALL, ACTIVATIONS, OUTPUTS)

_KIND = "observable"  # argument of the net

_OF_LOSSES = frozenset({"Add", "Mul", "Scale", "Sum", "WeightedSum"})  # what a loss is weighted and summed by


def check_kind(value: Any, where: str) -> str:
    """Return a kind as a string.

    Args:
        value: one of ``KINDS``.
        where: who gives it, for the message.

    Raises:
        NetError: ``value`` is not one of ``KINDS``.
    """
    text = value.decode(errors="replace") if isinstance(value, bytes) else value
    if text not in KINDS:
        raise NetError(f"{where}: observable must be one of {', '.join(map(repr, KINDS))}, or a list of blobs; "
                       f"got {text!r}")  # fmt: skip
    return str(text)


def set_stored(net: NetDef, kind: str, blobs: Iterable[Any] = ()) -> None:
    """Store in a net which of its blobs are observable.

    Raises:
        NetError: ``kind`` is not one of ``KINDS``, or ``blobs`` is a single string.
    """
    if isinstance(blobs, (str, bytes)):
        raise NetError(f"net {net.name!r}: the blobs to keep must be a list, got the single string {blobs!r}")
    set_argument(net, _KIND, check_kind(kind, f"net {net.name!r}"))
    set_argument(net, OBSERVABLE_BLOBS, [blob_name(blob) for blob in blobs])


def stored(net: NetDef) -> tuple[str | None, list[str]]:
    """Return the kind that a net stores, None if it stores none, and the further blobs.

    Raises:
        NetError: the kind is not one of ``KINDS``.
    """
    found = arguments(net)
    if _KIND not in found:
        return None, []
    blobs = [blob.decode(errors="replace") for blob in found.get(OBSERVABLE_BLOBS) or ()]
    return check_kind(found[_KIND], f"net {net.name!r}"), blobs


def hidden_gradients(net: NetDef) -> set[str]:
    """Return the gradients that operators of the backward pass read, and no other operator.

    A gradient whose last value nobody reads is not among them (of a parameter that is not updated, of the net's input),
    nor is one from which such a gradient is computed: a plan may compute the latter only when it is fetched. What an
    update saves in case its gradients are not finite is among them, too.
    """
    saved = {name for op in net.op if op.type == "SaveBlobs" for name in op.output}
    return saved | _hidden_gradients(net)


def _hidden_gradients(net: NetDef) -> set[str]:
    hidden = _gradients_at_the_end(net)
    read: set[str] = set()  # after the operator
    written: set[str] = set()
    for op in reversed(net.op):
        unread = {name for name in op.output if name not in read and name not in written}
        hidden.difference_update(unread)
        if unread or not is_backward(op):
            hidden.difference_update([name for name in op.input if name not in written])  # which has its last value
        written.update(op.output)
        read.update(op.input)
    return hidden


def _gradients_at_the_end(net: NetDef) -> set[str]:
    """Return the blobs that hold a gradient after a run; where names are shared, activations may precede it."""
    holds: dict[str, bool] = {}
    for op in net.op:
        for name in op.output:
            if name not in op.input or name not in holds:
                holds[name] = is_backward(op) and name not in op.input
    return {name for name, gradient in holds.items() if gradient}


def results(net: NetDef) -> set[str]:
    """Return the losses, metrics and learning rates.

    The backward pass starts at a loss: a ``ConstantFill`` that reads its shape makes its gradient. What is weighted and
    summed to a loss is one, too. An operator of the forward pass computes a metric if none of its outputs is read, or
    an external output.
    """
    forward = [op for op in net.op if not is_backward(op)]
    read_forward = {name for op in forward for name in op.input if name not in op.output}
    read_backward = {name for op in net.op if is_backward(op) for name in op.input}
    losses: set[str] = set()
    for op in forward:
        if op.type == "ConstantFill" and read_forward.isdisjoint(op.output) and not read_backward.isdisjoint(op.output):
            losses.update(op.input)
    used = {*read_forward, *read_backward, *gradient_blobs(net.op), *net.external_output}
    found: set[str] = set()
    for op in reversed(forward):
        if op.type in _OF_LOSSES and not losses.isdisjoint(op.output):
            losses.update(op.input)
        elif op.type == "LearningRate" or used.isdisjoint(op.output):
            found.update(op.output)
    return losses | found
