"""The names of blobs in operators and nets, and renaming: inputs, outputs, arguments that name blobs, subgraphs.

What an operator's nets and arguments name is declared by its class, in ``blob_arguments`` and ``net_names``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from netbuilder.ops.core.operator import NetNames
from netbuilder.ops.core.registry import find, is_registered
from netbuilder.proto import NetDef, OperatorDef

__all__ = [
    "OBSERVABLE_BLOBS",
    "all_operators",
    "always_written",
    "arguments_with_blobs",
    "blob_names",
    "check_renamable",
    "mentioned_blobs",
    "names_in_net",
    "net_names",
    "rename_arguments",
    "rename_blobs",
    "rename_in_group",
    "rename_in_operator",
    "rename_in_subgraphs",
    "rename_output",
    "rename_reads_and_writes",
    "rename_written",
    "shares_names",
    "subgraphs",
    "written_blobs",
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


def all_operators(net: NetDef) -> Iterator[OperatorDef]:
    """Yield the operators of a net, each followed by those of its subgraphs."""
    for op in net.op:
        yield op
        for subgraph in subgraphs(op) if op.arg else ():
            yield from all_operators(subgraph)


def net_names(op: OperatorDef) -> NetNames:
    """Return how an operator's subgraphs name blobs (see ``Operator.net_names``)."""
    return find(op.type).net_names if is_registered(op.type) else "ends"


def shares_names(op: OperatorDef) -> bool:
    """Whether an operator's subgraphs use blobs by the names that these have around it, rather than by their own."""
    return net_names(op) == "around"


def arguments_with_blobs(op: OperatorDef) -> tuple[str, ...]:
    """Return the names of those arguments of an operator that contain names of blobs."""
    return find(op.type).blob_arguments if is_registered(op.type) else ()


def written_blobs(ops: Iterable[OperatorDef]) -> Iterator[str]:
    """Yield the blobs that operators write, and those that their subgraphs write by the names that they have around."""
    lists = [ops]
    for some in lists:
        for op in some:
            yield from op.output
            if op.arg and shares_names(op):
                lists += [net.op for net in subgraphs(op)]


def always_written(op: OperatorDef) -> set[str]:
    """Return the blobs that an operator whose nets share names writes in each run: those that all of them write.

    A net that may not run at all, the branch that is not given or the body of a loop, writes nothing for certain.
    """
    nets = {argument.name: set(written_blobs(argument.n.op)) for argument in op.arg if argument.HasField("n")}
    certain = find(op.type).certain_nets
    return set.intersection(*(nets.get(name, set()) for name in certain)) if certain else set()


def blob_names(op: OperatorDef) -> Iterator[str]:
    """Yield the names of blobs in an operator: in inputs, outputs, arguments and subgraphs."""
    nets: list[NetDef] = []
    yield from _names_around(op, nets)
    yield from _names_in(nets)


def names_in_net(net: NetDef) -> Iterator[str]:
    """Yield the names of blobs in a net: in its external lists and its operators, subgraphs included."""
    yield from _names_in([net])


def _names_in(nets: list[NetDef]) -> Iterator[str]:
    for net in nets:  # subgraphs are appended
        yield from net.external_input
        yield from net.external_output
        for op in net.op:
            yield from _names_around(op, nets)


def _names_around(op: OperatorDef, nets: list[NetDef]) -> Iterator[str]:
    """Yield the names of blobs in an operator without its subgraphs, which are appended to ``nets``."""
    yield from op.input
    yield from op.output
    if not op.arg:
        return
    named = arguments_with_blobs(op)
    for argument in op.arg:
        if argument.name in named:
            yield from (name.decode() for name in (*argument.strings, *([argument.s] if argument.s else [])))
    nets += subgraphs(op)


def mentioned_blobs(net: NetDef) -> Iterator[str]:
    """Yield the blobs that a net or its subgraphs read, write or declare, as often as they do."""
    nets = [net]
    for one in nets:
        yield from one.external_input
        yield from one.external_output
        for op in one.op:
            yield from op.input
            yield from op.output
            nets += subgraphs(op)


# -- all blobs of a name --------------------------------------------------------------------------


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


def check_renamable(net: NetDef, remedy: str) -> None:
    """Raise NotImplementedError if blobs in a subgraph cannot be renamed, as its operator is unknown."""
    for op in net.op:
        if not is_registered(op.type) and any(True for _ in subgraphs(op)):
            raise NotImplementedError(
                f"net {net.name!r}: operator {op.type!r} {list(op.input)} is unknown and has a subgraph, so blobs in "
                f"its arguments cannot be renamed; {remedy}"
            )


def rename_in_operator(op: OperatorDef, names: Mapping[str, str] | Renaming) -> None:
    """Rename blobs in one operator, which is changed, and in its subgraphs."""
    rename = _as_function(names)
    _rename_list(op.input, rename)
    _rename_list(op.output, rename)
    if op.control_input:
        _rename_list(op.control_input, rename)
    rename_in_subgraphs(op, rename)


def rename_in_subgraphs(op: OperatorDef, names: Mapping[str, str] | Renaming) -> None:
    """Rename blobs in an operator's subgraphs, and in its arguments that name blobs; not in its own lists."""
    if not op.arg or net_names(op) == "scoped":
        return
    rename = _as_function(names)
    for net in subgraphs(op):
        rename_blobs(net, rename)
    rename_arguments(op, rename)


def rename_arguments(op: OperatorDef, names: Mapping[str, str] | Renaming) -> None:
    """Rename blobs in those arguments of an operator that contain names of blobs, as in recurrent operators."""
    named = arguments_with_blobs(op)
    if not named:
        return
    rename = _as_function(names)
    for argument in op.arg:
        if argument.name in named:
            if argument.HasField("s"):
                argument.s = rename(argument.s.decode()).encode()
            old = [name.decode() for name in argument.strings]
            argument.strings[:] = [rename(name).encode() for name in old]


def _rename_list(blobs: Any, rename: Renaming) -> None:
    old = list(blobs)
    new = [rename(name) for name in old]
    if new != old:
        blobs[:] = new


# -- some of the values of a name ------------------------------------------------------------------


def rename_in_group(ops: Sequence[OperatorDef], old: str, new: str) -> None:
    """Rename a blob from the first operator that writes it on; before that, the name refers to another value."""
    rename_written(ops, lambda name: new if name == old else name)


def rename_written(ops: Iterable[OperatorDef], rename: Renaming) -> dict[str, str]:
    """Rename the values that operators write, where they are written and where they are read.

    A value that is read before the operators write its blob keeps its name.

    Returns:
        For each blob that they write and that has a new name, this name.
    """
    return _follow(ops, {}, rename)


def rename_output(op: OperatorDef, slot: int, new: str) -> None:
    """Rename one output of an operator, also in a subgraph that writes it under the same name."""
    old = op.output[slot]
    if shares_names(op):
        _follow_nets(op, {}, lambda name: new if name == old else name)
    op.output[slot] = new


def rename_reads_and_writes(op: OperatorDef, reads: Mapping[str, str], writes: Mapping[str, str]) -> None:
    """Rename an operator's inputs by ``reads`` and its outputs by ``writes``.

    Its nets and arguments follow if they name inputs and outputs as the operator does; if its nets have names of their
    own only, these stay. For operators whose nets write blobs around them see ``rename_written``.
    """
    kind = net_names(op) if op.arg else "own"
    if kind in ("ends", "inputs"):
        named = find(op.type).named_inputs(op) if is_registered(op.type) else op.input
        new = {name: reads[name] for name in named if name in reads}
        if kind == "ends":
            new.update((name, writes[name]) for name in op.output if name in writes)
        if any(name != other for name, other in new.items()):
            rename_in_subgraphs(op, new)
    for blobs in (op.input, op.control_input):
        if blobs:
            _rename_list(blobs, _as_function(reads))
    _rename_list(op.output, _as_function(writes))


def _follow(ops: Iterable[OperatorDef], present: dict[str, str], rename: Renaming) -> dict[str, str]:
    """Rename in operators that run in this order; return the new names of the blobs that they write.

    Args:
        present: for each blob with a new name, this name; it is updated.
    """
    written: dict[str, str] = {}
    for op in ops:
        reads = present
        if op.arg and shares_names(op):
            reads = dict(present)
            written.update(inner := _follow_nets(op, reads, rename))
            present.update(inner)
        writes = _changed(op.output, rename)
        rename_reads_and_writes(op, reads, writes)
        written.update(writes)
        present.update(writes)
    return written


def _follow_nets(op: OperatorDef, reads: Mapping[str, str], rename: Renaming) -> dict[str, str]:
    """Rename in the nets of an operator that shares names; return the new names of the blobs that they write."""
    nets, written = list(subgraphs(op)), dict[str, str]()
    repeats = find(op.type).repeats_nets
    if repeats:  # what a loop writes, its next iteration reads
        written = _changed((blob for net in nets for blob in written_blobs(net.op)), rename)
    for net in nets:
        inside = {**reads, **written} if repeats else dict(reads)
        _rename_list(net.external_input, _as_function(inside))
        written.update(_follow(net.op, inside, rename))
    around = {**reads, **written}
    for net in nets:
        _rename_list(net.external_output, _as_function(around))
    rename_arguments(op, around)
    return written


def _changed(blobs: Iterable[str], rename: Renaming) -> dict[str, str]:
    return {name: new for name in blobs if (new := rename(name)) != name}
