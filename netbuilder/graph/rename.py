"""Renaming of blobs in nets and operators, subgraphs included (see ``netbuilder.ops.core.renaming``)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from netbuilder.ops.core.renaming import (
    OBSERVABLE_BLOBS,
    always_written,
    blob_names,
    names_in_net,
    rename_arguments,
    rename_blobs,
    rename_in_group,
    rename_in_operator,
    rename_in_subgraphs,
    rename_output,
    shares_names,
    subgraphs,
    written_blobs,
)
from netbuilder.proto import NetDef, OperatorDef

__all__ = [
    "OBSERVABLE_BLOBS",
    "all_operators",
    "always_written",
    "blob_names",
    "mentioned_blobs",
    "names_in_net",
    "place_operators",
    "rename_arguments",
    "rename_blobs",
    "rename_in_group",
    "rename_in_operator",
    "rename_in_subgraphs",
    "rename_output",
    "shares_names",
    "subgraphs",
    "written_blobs",
]


def all_operators(net: NetDef) -> Iterator[OperatorDef]:
    """Yield the operators of a net, each followed by those of its subgraphs."""
    for op in net.op:
        yield op
        for subgraph in subgraphs(op) if op.arg else ():
            yield from all_operators(subgraph)


def mentioned_blobs(net: NetDef) -> Iterator[str]:
    """Yield the blobs that a net or its subgraphs read, write or declare, as often as they do."""
    yield from net.external_input
    yield from net.external_output
    for op in net.op:
        yield from op.input
        yield from op.output
        for subgraph in subgraphs(op):
            yield from mentioned_blobs(subgraph)


def place_operators(net: NetDef, device_option: Any) -> None:
    """Set the device of all operators of ``net``, those of subgraphs included."""
    for op in net.op:
        op.device_option.CopyFrom(device_option)
        for subgraph in subgraphs(op):
            place_operators(subgraph, device_option)
