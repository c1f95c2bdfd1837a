"""Copies of nets: of a whole net, of some operators, of the part between two sets of blobs, or under a scope."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from netbuilder.graph.defuse import operators_between, undefined_inputs
from netbuilder.graph.scope import SEPARATOR
from netbuilder.ops.core.renaming import rename_blobs
from netbuilder.proto import NetDef, NetError, OperatorDef
from netbuilder.proto.depth import deep_nets

__all__ = ["copy_net", "copy_operators", "copy_part", "join_parts", "prefixed"]

RemapFunction = Callable[[OperatorDef, str, Mapping[str, str]], Any]
"""Called with a copied operator, the prefix of the blobs that the copy writes, and the mapping of names."""


def copy_net(
    net: NetDef,
    *,
    names: Mapping[str, str] | None = None,
    op_ids: Iterable[int] | None = None,
    remap_funcs: Mapping[str, RemapFunction] | None = None,
    prefix: str = "",
    update_external: bool = False,
) -> NetDef:
    """Return a copy of ``net``.

    Args:
        names: old name -> new name of blobs, applied to control inputs and subgraphs too.
        op_ids: the operators to copy; None: all.
        remap_funcs: operator type -> function called with each copied operator of this type.
        prefix: passed to these functions.
        update_external: compute the external lists anew. External inputs become the blobs that the copied operators
            need; external outputs those that they write and that were outputs before, or that none of them reads.

    Raises:
        NetError: an index in ``op_ids`` is out of range.
    """
    copy = NetDef()
    if op_ids is None:
        copy.CopyFrom(net)
    else:
        chosen = list(op_ids)
        if wrong := [i for i in chosen if not -len(net.op) <= i < len(net.op)]:
            raise NetError(f"net {net.name!r}: cannot copy operators {wrong}; it has operators 0 to {len(net.op) - 1}")
        for field, value in net.ListFields():
            if field.name != "op":
                _copy_field(copy, field.name, value)
        with deep_nets():
            copy.op.extend([net.op[i] for i in chosen])
    renaming = dict(names or {})
    if renaming:
        rename_blobs(copy, renaming)
    if remap_funcs:
        for op in copy.op:
            if op.type in remap_funcs:
                remap_funcs[op.type](op, prefix, renaming)
    if update_external:
        _update_external(copy)
    return copy


def _copy_field(target: NetDef, name: str, value: Any) -> None:
    if hasattr(value, "CopyFrom"):
        getattr(target, name).CopyFrom(value)
    elif hasattr(value, "extend"):
        getattr(target, name).extend(value)
    else:
        setattr(target, name, value)


def _update_external(net: NetDef) -> None:
    needed = dict.fromkeys(undefined_inputs(net.op))
    declared = [name for name in net.external_input if name in needed]
    net.external_input[:] = list(dict.fromkeys(declared + list(needed)))
    unread: dict[str, bool] = {}  # blob -> whether its last version is not read
    for op in net.op:
        unread.update((name, False) for name in op.input if name in unread)
        unread.update((name, True) for name in op.output)
    declared = [name for name in net.external_output if name in unread]
    net.external_output[:] = list(dict.fromkeys(declared + [name for name, last in unread.items() if last]))


def copy_part(
    net: NetDef,
    inputs: Mapping[str, str],
    outputs: Mapping[str, str],
    *,
    prefix: str,
    remap_funcs: Mapping[str, RemapFunction] | None = None,
) -> NetDef:
    """Return a net of the operators that make ``outputs`` from ``inputs``.

    Blobs that these operators write get ``prefix``. Blobs that they read from outside and that are not in
    ``inputs``, such as parameters, keep their names and become external inputs after ``inputs``.

    Args:
        inputs, outputs: name in ``net`` -> name in the copy; "" for an output means its name with ``prefix``.

    Raises:
        NetError: an output is not in ``net``.
    """
    known = {name for op in net.op for name in op.output}.union(net.external_input, inputs)
    if missing := [name for name in outputs if name not in known]:
        raise NetError(
            f"net {net.name!r}: cannot compute {missing}: no operator writes these blobs, and they are not inputs"
        )
    chosen = operators_between(net.op, inputs, outputs)
    made = {name for i in chosen for name in net.op[i].output}
    names = {name: prefix + name for name in made if name not in inputs}
    names.update((old, new) for old, new in outputs.items() if new)
    names.update(inputs)
    part = copy_net(net, names=names, op_ids=chosen, remap_funcs=remap_funcs, prefix=prefix)
    present = made.union(inputs)
    renamed_present = {names.get(name, name) for name in present}
    for op in part.op:
        if op.control_input:
            op.control_input[:] = [name for name in op.control_input if name in renamed_present]
    heads = [names.get(name, name) for name in inputs]
    part.external_input[:] = list(dict.fromkeys(heads + undefined_inputs(part.op)))
    part.external_output[:] = [names.get(name, name) for name in outputs]
    return part


def prefixed(net: NetDef, scope: str) -> NetDef:
    """Return a copy of ``net`` whose blobs are all under ``scope``; blobs that are already keep their names.

    >>> prefixed(NetDef(external_input=["x", "cpu_0/y"]), "cpu_0").external_input
    ['cpu_0/x', 'cpu_0/y']
    """
    scope = scope.rstrip(SEPARATOR) + SEPARATOR
    copy = NetDef()
    copy.CopyFrom(net)
    rename_blobs(copy, lambda name: name if name.startswith(scope) else scope + name)
    return copy


def copy_operators(net: NetDef, name: str, indices: Iterable[int]) -> NetDef:
    """Return a net of some of a net's operators, in this order, under another name.

    What they read and do not write before becomes external inputs; there are no external outputs (see ``join_parts``).
    Control inputs that other operators write are removed, because these run in another part.
    """
    part = NetDef()
    part.CopyFrom(net)
    del part.op[:], part.external_input[:], part.external_output[:]
    part.name = name
    made: set[str] = set()
    read: dict[str, None] = {}
    for index in indices:
        op = net.op[index]
        read.update((blob, None) for blob in op.input if blob not in made)
        copy = part.op.add()
        copy.CopyFrom(op)
        if op.control_input:
            copy.control_input[:] = [blob for blob in op.control_input if blob in made]
        made.update(op.output)
    part.external_input.extend(read)
    return part


def join_parts(net: NetDef, parts: Sequence[NetDef]) -> None:
    """Declare as external outputs of each part what other parts read, and the outputs of the whole net."""
    for part in parts:
        wanted = {
            *net.external_output,
            *(blob for other in parts if other is not part for blob in other.external_input),
        }
        part.external_output.extend(sorted(wanted.intersection(blob for op in part.op for blob in op.output)))
