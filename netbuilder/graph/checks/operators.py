"""Checks of single operators: type, arguments, numbers of blobs, kernels for their devices."""

from __future__ import annotations

from collections.abc import Iterator

from netbuilder.graph.checks.finding import Finding, Place, Rule
from netbuilder.ops.core.instructions import check_kernel, device_of
from netbuilder.ops.core.operator import decode
from netbuilder.ops.core.registry import find, is_registered, operator_types
from netbuilder.ops.core.renaming import subgraphs
from netbuilder.ops.core.unsupported import instead_of
from netbuilder.ops.windows.fused import as_fused
from netbuilder.proto import DeviceError, NetError

__all__ = ["check_operators"]


def check_operators(place: Place) -> Iterator[Finding]:
    """Yield what is wrong with the operators of a net and of its subgraphs, each by itself."""
    default = place.net.device_option if place.net.HasField("device_option") else None
    for index, op in enumerate(place.net.op):
        inner = [
            finding for subgraph in subgraphs(op) for finding in check_operators(place.of_subgraph(subgraph, index))
        ]
        yield from inner
        if not is_registered(op.type):
            hint = instead_of(op.type, operator_types())
            yield place.finding(Rule.UNKNOWN_OPERATOR, f"there is no operator {op.type!r}{hint}", index)
            continue
        try:
            decode(find(op.type), as_fused(op))
        except (NetError, NotImplementedError) as error:
            if not inner:  # an operator also decodes its subgraph, whose finding is more precise
                yield place.finding(Rule.OPERATOR, str(error), index)
        try:
            check_kernel(op.type, device_of(op, default)[0])
        except DeviceError as error:
            yield place.finding(Rule.DEVICE, str(error), index)
