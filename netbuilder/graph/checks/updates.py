"""Checks of a training step: parameters are updated once, on all replicas, with the gradients of all of them."""

from __future__ import annotations

from collections.abc import Iterator

from netbuilder.graph.checks.finding import Finding, Place, Rule
from netbuilder.graph.devices import Devices
from netbuilder.graph.replicas import Replicas
from netbuilder.graph.versions import reads_of
from netbuilder.proto import NetDef, OperatorDef

__all__ = ["check_updates"]

_ONLY_READS_ROWS = frozenset({"EnsureClipped"})
"""Operators that change a parameter after its update and read the indices and shape of its gradient, not its value."""

Replica = int
Sources = frozenset[Replica]
"""The replicas from whose gradients a value is computed."""

_NONE: Sources = frozenset()


def check_updates(place: Place, record: Replicas | None) -> Iterator[Finding]:
    """Yield each parameter that is updated with gradients of some replicas only, not updated, or updated twice.

    Args:
        place: the net.
        record: its record of replicas. None: the net has none; then only double updates are found, since nothing says
            which gradient belongs to which parameter.
    """
    flow = _GradientFlow(place.net, record.devices if record is not None else None)
    if record is None:
        parameters = _trained_inputs(place.net)
    else:
        copies = (blob for name in record.parameters for blob in record.blobs(name))
        parameters = list(dict.fromkeys([*copies, *record.outside]))
    for blob in parameters:
        if len(flow.updates.get(blob, ())) > 1:
            yield _twice(place, blob, flow.updates[blob])
    if record is not None and record.gradients:
        yield from _of_replicas(place, record, flow)


def _trained_inputs(net: NetDef) -> list[str]:
    """Return the external inputs that operators before the backward pass read and that the net writes."""
    backward = next((index for index, op in enumerate(net.op) if op.is_gradient_op), len(net.op))
    written = {blob for op in net.op for blob in op.output}
    read = {blob for op in net.op[:backward] for blob in op.input}
    return [blob for blob in net.external_input if blob in written and blob in read]


def _twice(place: Place, blob: str, updates: list[int]) -> Finding:
    first, *_, last = updates
    before = place.net.op[first]
    made = f", made at {before.debug_info}" if before.debug_info else ""
    return place.finding(
        Rule.UPDATED_TWICE,
        f"it updates the parameter {blob!r} with its gradient, which operator {first} {before.type}{made} has done "
        "already in the same step; add one optimizer, once",
        last,
        blob=blob,
    )


def _of_replicas(place: Place, record: Replicas, flow: _GradientFlow) -> Iterator[Finding]:
    everyone = frozenset(range(len(record)))
    for group in record.gradients:
        for replica, blob in enumerate(dict.fromkeys(record.blobs(group.parameter))):
            gradient = record.devices.copies(group.values)[replica]
            maker = flow.makers.get(gradient)
            if blob not in flow.writers:
                yield place.finding(
                    Rule.NOT_UPDATED,
                    f"no operator updates the parameter {blob!r}, although it has the gradient {gradient!r}, so the "
                    "copy keeps its initial value; add it to the optimizer, or StopGradient after it if it is constant",
                    maker,
                    blob=blob,
                )
            elif missing := (everyone if record.block is None else {replica}) - flow.sources.get(blob, _NONE):
                known = [record.devices.scopes[i] for i in sorted(everyone - missing)]
                made = place.net.op[maker].debug_info if maker is not None else ""
                yield place.finding(
                    Rule.UNREDUCED_GRADIENT,
                    f"it updates the parameter {blob!r} with gradients of {', '.join(known) or 'no replica'} only"
                    f"{f' (made at {made})' if made else ''}; those of "
                    f"{', '.join(record.devices.scopes[i] for i in sorted(missing))} do not reach it, so the replicas' "
                    f"copies drift apart; reduce {gradient!r} over the replicas before the update (Allreduce)",
                    flow.writers[blob],
                    blob=gradient,
                )


class _GradientFlow:
    """Which replicas' gradients each value is computed from.

    Attributes:
        sources: blob -> replicas, for the last value.
        writers: blob -> the last operator that writes it.
        makers: blob -> the last operator of the backward pass that writes it.
        updates: blob -> the operators that change it, given a gradient.
    """

    def __init__(self, net: NetDef, devices: Devices | None) -> None:
        self.sources: dict[str, Sources] = {}
        self.writers: dict[str, int] = {}
        self.makers: dict[str, int] = {}
        self.updates: dict[str, list[int]] = {}
        for index, op in enumerate(net.op):
            self._add(index, op, devices)

    def _add(self, index: int, op: OperatorDef, devices: Devices | None) -> None:
        reads = list(reads_of(op))
        known = {blob: self.sources.get(blob, _NONE) for blob in reads}
        found = _NONE.union(*known.values())
        for blob in op.output:
            own = found
            if op.is_gradient_op:
                replica = devices.replica_of(blob) if devices is not None else 0
                own = found | {replica} if replica is not None else found
                self.makers[blob] = index
            elif (
                blob in known
                and op.type not in _ONLY_READS_ROWS
                and any(known[other] for other in known if other != blob)
            ):
                self.updates.setdefault(blob, []).append(index)
            self.writers[blob] = index
            self.sources[blob] = own
