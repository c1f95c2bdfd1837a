"""All checks of a net, in one call."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from netbuilder.graph.blob import blob_name
from netbuilder.graph.checks.blobs import check_dangling, check_observable, check_races
from netbuilder.graph.checks.finding import Finding, Place, Rule
from netbuilder.graph.checks.operators import check_operators
from netbuilder.graph.checks.updates import check_updates
from netbuilder.graph.device_faults import device_faults
from netbuilder.graph.message import message_of
from netbuilder.graph.replicas import Replicas, has_record
from netbuilder.graph.shapes import shape_conflicts
from netbuilder.ops.core.renaming import subgraphs
from netbuilder.proto import NetDef, NetError

__all__ = ["check_net", "require_sound"]

_SHOWN = 5


def check_net(
    net: Any,
    *,
    init_net: Any = None,
    inputs: Mapping[Any, Any] | None = None,
    available: Collection[str] = (),
    replicas: Replicas | None = None,
) -> list[Finding]:
    """Return everything that the checks find in a net and its subgraphs; none for a sound net. Nothing runs.

    Args:
        net: a Net or NetDef; unchanged.
        init_net: the net that runs before it, which is checked too; its outputs have values.
        inputs: shapes of blobs that exist before the nets run (see ``infer_shapes``); shapes are inferred from them. If
            both ``init_net`` and ``inputs`` are given, all other external inputs are findings, as they have no value.
        available: blobs that exist, in addition to external inputs; their shapes need not be known.
        replicas: the record of the replicas, for a net that does not have it.

    Raises:
        NetError: the record of replicas in the net is damaged.
        TypeError: a value of ``inputs`` is not a shape.
    """
    main = message_of(net)
    first = None if init_net is None else message_of(init_net)
    record = Replicas.load(main) if has_record(main) else replicas
    given = {blob_name(name): spec for name, spec in (inputs or {}).items()}
    found: list[Finding] = []
    for proto in (first, main):
        if proto is not None:
            place = Place(proto)
            found += check_operators(place)
            found += check_dangling(place, {*available, *given})
            found += check_observable(place)
            found += check_races(place)
    found += _devices(main, first, record)
    if first is not None and given:
        found += _without_value(main, first, {*given, *available})
    found += _shapes([Place(proto) for proto in (first, main) if proto is not None], given)
    found += check_updates(Place(main), record)
    return found


def require_sound(net: Any, **options: Any) -> None:
    """Raise NetError with the first findings of ``check_net``, if there are any; see there for ``options``."""
    if found := check_net(net, **options):
        more = f"\n  and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        lines = "".join(f"\n  {finding}" for finding in found[:_SHOWN])
        raise NetError(f"net {message_of(net).name!r}: the check found{lines}{more}")


def _devices(main: NetDef, first: NetDef | None, record: Replicas | None) -> Iterator[Finding]:
    devices = record.devices if record is not None else None
    shared = record.shared_blobs if record is not None else ()
    for net, before in ((first, None), (main, first)):
        if net is not None:
            place = Place(net)
            for fault in device_faults(net, init_net=before, devices=devices, shared=shared):
                text = (
                    f"its {'output' if fault.written else 'input'} {fault.blob!r} is on {fault.blob_at}, but it runs "
                    f"on {fault.op_at}; {fault.remedy}"
                )
                at = place
                for index, subgraph in fault.inside:
                    at = at.of_subgraph(subgraph, index)
                yield at.finding(Rule.DEVICE, text, fault.index, blob=fault.blob)


def _without_value(main: NetDef, first: NetDef, given: Collection[str]) -> Iterator[Finding]:
    made = {blob for op in first.op for blob in op.output}
    for blob in main.external_input:
        if blob not in made and blob not in given:
            yield Place(main).finding(
                Rule.NO_VALUE,
                f"its external input {blob!r} is not made by the init net {first.name!r} and not given; feed it, or "
                "add an operator that makes it to the init net",
                blob=blob,
            )


def _shapes(places: Sequence[Place], given: Mapping[str, Any]) -> Iterator[Finding]:
    conflicts, inside = shape_conflicts([place.net for place in places], given)
    for conflict in conflicts:
        yield places[conflict.number].finding(Rule.SHAPE, conflict.reason, conflict.index)
    for number, index, known in inside:
        for subgraph in subgraphs(places[number].net.op[index]):
            yield from _shapes([places[number].of_subgraph(subgraph, index)], known)
