"""Checks of a training step: parameters are updated once, on all replicas, with the gradients of all of them."""

from __future__ import annotations

from collections.abc import Iterator

from netbuilder.graph.checks.finding import Finding, Place, Rule
from netbuilder.graph.replicas import Replicas
from netbuilder.graph.versions import reads_of, writes_of
from netbuilder.ops.core.renaming import shares_names, subgraphs
from netbuilder.proto import NetDef, OperatorDef
from netbuilder.proto.arguments import made_at

__all__ = ["check_updates"]

_BROADCASTS = frozenset({"Broadcast", "BroadcastBucket"})

_ONLY_READS_ROWS = frozenset({"EnsureClipped"})
"""Operators that change a parameter after its update and read the indices and shape of its gradient, not its value."""

Replica = int
Sources = frozenset[Replica]
"""The replicas from whose gradients a value is computed."""

_OTHERS: Replica = -1
"""Among the sources: the replicas of all other processes."""

_NONE: Sources = frozenset()


def check_updates(place: Place, record: Replicas | None) -> Iterator[Finding]:
    """Yield each parameter that is updated with gradients of some replicas only, not updated, or updated twice.

    Args:
        place: the net.
        record: its record of replicas. None: the net has none; then only double updates are found, since nothing says
            which gradient belongs to which parameter.
    """
    flow = _GradientFlow(place, record)
    if record is None:
        parameters = _trained_inputs(place.net)
    else:
        copies = (blob for name in record.parameters for blob in record.blobs(name))
        parameters = list(dict.fromkeys([*copies, *record.outside]))
    for blob in parameters:
        if len(flow.updates.get(blob, ())) > 1:
            yield _twice(blob, flow.updates[blob])
    if record is not None and record.gradients:
        yield from _of_replicas(place, record, flow)
    if record is not None:
        yield from _of_outside(record, flow)


def _trained_inputs(net: NetDef) -> list[str]:
    """Return the external inputs that operators before the backward pass read and that the net writes."""
    backward = next((index for index, op in enumerate(net.op) if op.is_gradient_op), len(net.op))
    written = {blob for op in net.op for blob in writes_of(op)}
    read = {blob for op in net.op[:backward] for blob in op.input}
    return [blob for blob in net.external_input if blob in written and blob in read]


def _twice(blob: str, updates: list[_Step]) -> Finding:
    (at, first), *_, (place, last) = updates
    before = at.net.op[first]
    return place.finding(
        Rule.UPDATED_TWICE,
        f"it updates the parameter {blob!r} with its gradient, which operator {first} {before.type}{made_at(before)} "
        "has done already in the same step; add one optimizer, once",
        last,
        blob=blob,
    )


def _of_replicas(place: Place, record: Replicas, flow: _GradientFlow) -> Iterator[Finding]:
    everyone = _all_sources(record)
    for group in record.gradients:
        for replica, blob in enumerate(dict.fromkeys(record.blobs(group.parameter))):
            gradient = record.devices.copies(group.values)[replica]
            maker = flow.makers.get(gradient)
            if blob not in flow.writers:
                at, index = (place, None) if maker is None else maker
                yield at.finding(
                    Rule.NOT_UPDATED,
                    f"no operator updates the parameter {blob!r}, although it has the gradient {gradient!r}, so the "
                    "copy keeps its initial value; add it to the optimizer, or StopGradient after it if it is constant",
                    index,
                    blob=blob,
                )
            elif missing := (everyone if record.block is None else {replica}) - flow.sources.get(blob, _NONE):
                made = maker[0].net.op[maker[1]].debug_info if maker is not None else ""
                yield _unreduced(record, flow, blob, frozenset(missing), gradient, made)


def _of_outside(record: Replicas, flow: _GradientFlow) -> Iterator[Finding]:
    """Yield parameters outside the replicas that are updated with the gradients of some replicas only."""
    for blob in record.outside:
        if flow.updates.get(blob) and (missing := _all_sources(record) - flow.sources.get(blob, _NONE)):
            yield _unreduced(record, flow, blob, missing)


def _all_sources(record: Replicas) -> Sources:
    of_others = {_OTHERS} if record.world.common else set()
    return frozenset({*range(len(record)), *of_others})


def _unreduced(
    record: Replicas, flow: _GradientFlow, blob: str, missing: Sources, gradient: str = "", made: str = ""
) -> Finding:
    """Return the finding of a parameter that the gradients of some replicas, or processes, do not reach."""
    what, scopes = repr(gradient) if gradient else "its gradient", record.devices.scopes
    place, index = flow.writers[blob]
    if of_replicas := missing - {_OTHERS}:
        known = ", ".join(scopes[i] for i in range(len(record)) if i not in missing) or "no replica"
        absent, copies = ", ".join(scopes[i] for i in sorted(of_replicas)), "the replicas'"
        remedy = f"reduce {what} over the replicas before the update (Allreduce)"
    else:
        known, absent, copies = "the replicas of this process", "other processes", "the processes'"
        remedy = f"sum {what} over the processes before the update (AllreduceBucket on a common world)"
    return place.finding(
        Rule.UNREDUCED_GRADIENT,
        f"it updates the parameter {blob!r} with gradients of {known} only{f' (made at {made})' if made else ''}; "
        f"those of {absent} do not reach it, so {copies} copies drift apart; {remedy}",
        index,
        blob=gradient or blob,
    )


_Step = tuple[Place, int]
"""An operator: the net, or the subgraph, and the position in it."""


class _GradientFlow:
    """Which replicas' gradients each value is computed from.

    Operators of subgraphs that use blobs by the names that they have around them (If, While) count where they are; of
    several branches, only the one with the most updates of a parameter does.

    Attributes:
        sources: blob -> replicas, for the last value.
        writers: blob -> the last operator that writes it.
        makers: blob -> the last operator of the backward pass that writes it.
        updates: blob -> the operators that change it, given a gradient.
    """

    def __init__(self, place: Place, record: Replicas | None) -> None:
        self.sources: dict[str, Sources] = {}
        self.writers: dict[str, _Step] = {}
        self.makers: dict[str, _Step] = {}
        self.updates: dict[str, list[_Step]] = {}
        self._devices = record.devices if record is not None else None
        self._worlds = frozenset(record.world.common) if record is not None else frozenset()
        self._walk(place)

    def _walk(self, place: Place) -> None:
        for index, op in enumerate(place.net.op):
            inside = list(subgraphs(op))
            if inside and shares_names(op):
                self._branches([place.of_subgraph(subgraph, index) for subgraph in inside])
            elif op.input and op.input[0] in self._worlds:
                self._exchange((place, index), op)
            else:
                self._add((place, index), op)

    def _branches(self, places: list[Place]) -> None:
        before, most = self.updates, dict[str, list[_Step]]()
        for place in places:
            self.updates = {}
            self._walk(place)
            for blob, found in self.updates.items():
                most[blob] = max(most.get(blob, []), found, key=len)
        for blob, found in most.items():
            before.setdefault(blob, []).extend(found)
        self.updates = before

    def _exchange(self, step: _Step, op: OperatorDef) -> None:
        """Note an operator that exchanges values with other processes: output i is made from input i.

        Only Allreduce adds all of its inputs. Broadcasts have the values of one process, whichever gradients they have.
        """
        found = [self.sources.get(blob, _NONE) for blob in op.input[1:]]
        if op.type == "Allreduce":
            found = [_NONE.union(*found)] * len(found)
        for blob, sources in zip(op.output, found):
            self.writers[blob] = step
            self.sources[blob] = sources if op.type in _BROADCASTS else sources | {_OTHERS}

    def _add(self, step: _Step, op: OperatorDef) -> None:
        reads = list(reads_of(op))
        known = {blob: self.sources.get(blob, _NONE) for blob in reads}
        found = _NONE.union(*known.values())
        for blob in op.output:
            own = found
            if op.is_gradient_op:
                replica = self._devices.replica_of(blob) if self._devices is not None else 0
                own = found | {replica} if replica is not None else found
                self.makers[blob] = step
            elif (
                blob in known
                and op.type not in _ONLY_READS_ROWS
                and any(known[other] for other in known if other != blob)
            ):
                self.updates.setdefault(blob, []).append(step)
            self.writers[blob] = step
            self.sources[blob] = own
