"""Renaming of blobs in nets and operators, subgraphs included."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from netbuilder.ops.core.registry import find, is_registered
from netbuilder.proto import NetDef, OperatorDef

__all__ = [
    "OBSERVABLE_BLOBS",
    "blob_names",
    "mentioned_blobs",
    "subgraphs",
    "names_in_net",
    "place_operators",
    "rename_arguments",
    "rename_blobs",
    "rename_in_subgraphs",
    "rename_in_group",
    "rename_in_operator",
    "rename_output",
    "shares_names",
]


OBSERVABLE_BLOBS = "observable_blobs"
"""Argument of a net that names blobs, see ``graph.observability``."""

Renaming = Callable[[str], str]


def subgraphs(op: OperatorDef) -> Iterator[NetDef]:
    """Yield the subgraphs of an operator: the nets among its arguments (those of If, While and recurrent operators)."""
    for argument in op.arg:
        if argument.HasField("n"):
            yield argument.n
        yield from argument.nets


def mentioned_blobs(net: NetDef) -> Iterator[str]:
    """Yield the blobs that a net or its subgraphs read, write or declare, as often as they do."""
    yield from net.external_input
    yield from net.external_output
    for op in net.op:
        yield from op.input
        yield from op.output
        for subgraph in subgraphs(op):
            yield from mentioned_blobs(subgraph)


def shares_names(op: OperatorDef) -> bool:
    """Whether an operator's subgraphs use blobs by the names that these have around it, rather than by their own."""
    return op.type in ("If", "While")


def _as_function(names: Mapping[str, str] | Renaming) -> Renaming:
    if callable(names):
        return names
    return lambda name: names.get(name, name)


def rename_blobs(net: NetDef, names: Mapping[str, str] | Renaming) -> None:
    """Rename blobs in ``net``: in inputs, outputs, control inputs, external lists, subgraphs, and as observable.

    Args:
        net: changed in place.
        names: old name -> new name, as a mapping or a function.
    """
    rename = _as_function(names)
    for op in net.op:
        rename_in_operator(op, rename)
    _rename_list(net.external_input, rename)
    _rename_list(net.external_output, rename)
    for argument in net.arg:
        if argument.name == OBSERVABLE_BLOBS:
            argument.strings[:] = [rename(name.decode()).encode() for name in list(argument.strings)]


def rename_in_operator(op: OperatorDef, names: Mapping[str, str] | Renaming) -> None:
    """Rename blobs in one operator, which is changed, and in its subgraphs."""
    rename = _as_function(names)
    _rename_list(op.input, rename)
    _rename_list(op.output, rename)
    if op.control_input:
        _rename_list(op.control_input, rename)
    rename_in_subgraphs(op, rename)


def rename_in_subgraphs(op: OperatorDef, names: Mapping[str, str] | Renaming) -> None:
    """Rename blobs in an operator's subgraphs, and in its arguments that name blobs of these; not in its own lists."""
    rename = _as_function(names)
    nets = list(subgraphs(op))
    for net in nets:
        rename_blobs(net, rename)
    if nets:
        rename_arguments(op, rename)


def blob_names(op: OperatorDef) -> Iterator[str]:
    """Yield the names of blobs in an operator: in inputs, outputs, arguments and subgraphs."""
    yield from op.input
    yield from op.output
    if not op.arg:
        return
    named = _blob_arguments(op)
    for argument in op.arg:
        if argument.name in named:
            yield from (name.decode() for name in (*argument.strings, *([argument.s] if argument.s else [])))
    for net in subgraphs(op):
        yield from names_in_net(net)


def names_in_net(net: NetDef) -> Iterator[str]:
    """Yield the names of blobs in a net: in its external lists and its operators."""
    yield from net.external_input
    yield from net.external_output
    for op in net.op:
        yield from blob_names(op)


def rename_arguments(op: OperatorDef, names: Mapping[str, str] | Renaming) -> None:
    """Rename blobs in those arguments of an operator that contain names of blobs, as in recurrent operators."""
    named = _blob_arguments(op)
    if not named:
        return
    rename = _as_function(names)
    for argument in op.arg:
        if argument.name in named:
            if argument.HasField("s"):
                argument.s = rename(argument.s.decode()).encode()
            old = [name.decode() for name in argument.strings]
            argument.strings[:] = [rename(name).encode() for name in old]


def _blob_arguments(op: OperatorDef) -> tuple[str, ...]:
    return find(op.type).blob_arguments if is_registered(op.type) else ()


def _rename_list(blobs: Any, rename: Renaming) -> None:
    old = list(blobs)
    new = [rename(name) for name in old]
    if new != old:
        blobs[:] = new


def rename_in_group(ops: Sequence[OperatorDef], old: str, new: str) -> None:
    """Rename a blob from the first operator that writes it on; before that, the name refers to another value."""
    written = False
    for op in ops:
        if written:
            rename_in_operator(op, {old: new})
            continue
        for slot, name in enumerate(op.output):
            if name == old:
                rename_output(op, slot, new)
                written = True


def rename_output(op: OperatorDef, slot: int, new: str) -> None:
    """Rename one output of an operator, also in a subgraph that writes it under the same name."""
    old = op.output[slot]
    op.output[slot] = new
    if _blob_arguments(op):
        return  # the subgraph has names of its own, which are mapped to the outputs by position
    for net in subgraphs(op):
        rename_in_group(net.op, old, new)
        net.external_output[:] = [new if name == old else name for name in net.external_output]


def place_operators(net: NetDef, device_option: Any) -> None:
    """Set the device of all operators of ``net``, those of subgraphs included."""
    for op in net.op:
        op.device_option.CopyFrom(device_option)
        for subgraph in subgraphs(op):
            place_operators(subgraph, device_option)
