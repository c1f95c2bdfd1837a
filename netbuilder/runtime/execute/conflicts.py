"""Checks for nets of one workspace that would corrupt each other's blobs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from netbuilder.proto import NetDef, NetError

__all__ = ["init_conflict", "require_own_counters"]

_COUNTERS = frozenset({"AtomicIter", "Iter"})


def require_own_counters(net: NetDef, others: Iterable[NetDef]) -> None:
    """Raise NetError if ``net`` and a net that trains other parameters count iterations in the same blob.

    The counter, and with it both learning rates, would follow the sum of their iterations. Nets that update a common
    blob train the same model, and may share a counter.
    """
    counted = {op.output[0] for op in net.op if op.type in _COUNTERS}
    if not counted:
        return
    own = _updated(net)
    for other in others:
        common = [op.output[0] for op in other.op if op.type in _COUNTERS and op.output[0] in counted]
        theirs = _updated(other)
        if common and own - counted and theirs - counted and not own & theirs - counted:
            raise NetError(
                f"net {net.name!r} counts iterations in {common[0]!r}, which the created net {other.name!r} counts up "
                "too, though they train different parameters: both learning rates would follow the sum of their "
                "steps; build one of the models in a NameScope, use a Workspace for each, or give create_net "
                "shares_counter=True if they are meant to share the counter"
            )


def init_conflict(net: Any, holding: Iterable[str], created: Sequence[NetDef]) -> str:
    """Return why ``net`` must not run, or "": an init net of a model for evaluation must not overwrite trained blobs.

    Args:
        net: a Net or message; only init nets made by a model (``Net.initializes``) are checked.
        holding: the blobs of the workspace that hold a value.
        created: the nets of the workspace.
    """
    main = getattr(net, "initializes", None)
    if main is None or any(op.is_gradient_op for op in main.Proto().op):
        return ""
    made = {blob for op in net.Proto().op for blob in op.output}
    if net.protects_all:
        what, overwritten = "which hold values already", sorted(made.intersection(holding))
    else:
        trained = set().union(*(_updated(proto) for proto in created if any(op.is_gradient_op for op in proto.op)))
        what, overwritten = "which a created net of the workspace trains", sorted(made & trained)
    if not overwritten:
        return ""
    more = " and more" if len(overwritten) > 4 else ""
    return (
        f"net {net.Name()!r} initializes net {main.Name()!r}, which has no backward pass and so is for evaluation, and "
        f"would overwrite {overwritten[:4]}{more}, {what}; make the model with ModelHelper(init_params=False), or give "
        "overwrite=True"
    )


def _updated(net: NetDef) -> set[str]:
    """Return the blobs that a net reads from outside and writes."""
    return {blob for op in net.op for blob in op.output}.intersection(net.external_input)
