"""Def-use analysis: dependencies between operators, undefined blobs, paths through a net."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from netbuilder.graph.versions import EXTERNAL, Versions, number_versions, reads_of, writes_of
from netbuilder.ops.core.renaming import subgraphs
from netbuilder.proto import NetDef, OperatorDef

__all__ = [
    "dependencies",
    "get_op_ids_in_path",
    "get_output_producers",
    "get_ssa",
    "get_undefined_blobs",
    "operators_between",
    "undefined_inputs",
    "with_earlier",
]

Ssa = list[tuple[list[tuple[str, int]], list[tuple[str, int]]]]


def dependencies(net: NetDef | Sequence[OperatorDef]) -> list[set[int]]:
    """Return for each operator the indices of those that must finish before it starts.

    An operator depends on the last writer of each blob that it reads, control inputs and the inputs of its subgraphs
    included, and on the earlier readers and the last writer of each blob that it overwrites. The size of the result,
    and the cost, are linear in the number of reads and writes.

    >>> net = NetDef()
    >>> for read, written in (("x", "a"), ("x", "b"), ("b", "x")):
    ...     op = net.op.add(type="Relu", input=[read], output=[written])
    >>> dependencies(net)
    [set(), set(), {0, 1}]
    """
    ops = net.op if isinstance(net, NetDef) else net
    writer: dict[str, int] = {}
    readers: dict[str, list[int]] = {}  # since the last write
    waits: list[set[int]] = []
    for index, op in enumerate(ops):
        wait: set[int] = set()
        has_subgraph = any(True for _ in subgraphs(op)) if op.arg else False
        reads = list(reads_of(op)) if has_subgraph else list(op.input)
        writes = list(writes_of(op)) if has_subgraph else list(op.output)
        if op.control_input:
            reads.extend(op.control_input)
        for name in reads:
            made = writer.get(name)
            if made is not None:
                wait.add(made)
        for name in writes:
            since = readers.pop(name, None)
            if since:
                wait.update(since)
            made = writer.get(name)
            if made is not None:
                wait.add(made)
        for name in reads:
            readers.setdefault(name, []).append(index)
        for name in writes:
            readers.pop(name, None)  # the operator's own reads come before its writes
            writer[name] = index
        wait.discard(index)
        waits.append(wait)
    return waits


def undefined_inputs(ops: Iterable[OperatorDef]) -> list[str]:
    """Return the blobs that the operators read before any of them writes them, in order of first use."""
    defined: set[str] = set()
    undefined: dict[str, None] = {}
    for op in ops:
        for name in op.input[:]:  # slices: faster than iteration
            if name not in defined:
                undefined[name] = None
        defined.update(op.output[:])
    return list(undefined)


def operators_between(ops: Sequence[OperatorDef], inputs: Collection[str], outputs: Iterable[str]) -> list[int]:
    """Return the indices, ascending, of the operators that make ``outputs`` from ``inputs``.

    Args:
        inputs: blobs whose last versions are given, so that the operators that compute them are not needed.
        outputs: blobs whose last versions are to be computed.
    """
    versions = number_versions(ops)
    given = {versions.last[name] for name in inputs if name in versions.last}
    return _reaching(versions, given, (versions.last[name] for name in outputs if name in versions.last))


def with_earlier(waits: Sequence[set[int]], indices: Iterable[int]) -> set[int]:
    """Return operators and all that must finish before one of them starts; for ``waits`` see ``dependencies``."""
    found = set(indices)
    stack = list(found)
    while stack:
        new = waits[stack.pop()] - found
        found |= new
        stack += new
    return found


def _reaching(versions: Versions, given: set[int], requested: Iterable[int]) -> list[int]:
    stack = [value for value in requested if value not in given]
    seen_values = set(stack)
    found: set[int] = set()
    while stack:
        writer = versions.writers[stack.pop()]
        if writer == EXTERNAL or writer in found:
            continue
        found.add(writer)
        for value in versions.inputs[writer]:
            if value not in given and value not in seen_values:
                seen_values.add(value)
                stack.append(value)
    return sorted(found)


def get_ssa(net: NetDef, blob_versions: dict[str, int] | None = None) -> tuple[Ssa, dict[str, int]]:
    """Return (inputs, outputs) of each operator as (blob, version) pairs, and the last versions.

    The value that a blob has before the net runs has version 0, the first write makes version 1.

    Args:
        net: a net, or an object whose ``Proto()`` is one.
        blob_versions: versions to start from; it is updated.
    """
    proto = net if isinstance(net, NetDef) else net.Proto()
    current = {} if blob_versions is None else blob_versions
    for name in proto.external_input:
        current.setdefault(name, 0)
    ssa: Ssa = []
    for op in proto.op:
        reads = [(name, current.setdefault(name, 0)) for name in op.input]
        for name in op.output:
            current[name] = current.get(name, 0) + 1
        ssa.append((reads, [(name, current[name]) for name in op.output]))
    return ssa, current


def get_undefined_blobs(ssa: Ssa) -> set[str]:
    """Return the blobs of ``get_ssa`` that are read before they are written."""
    return {name for reads, _ in ssa for name, version in reads if version == 0}


def get_output_producers(ssa: Ssa) -> dict[tuple[str, int], int]:
    """Return for each (blob, version) of ``get_ssa`` the index of the operator that writes it."""
    return {output: index for index, (_, writes) in enumerate(ssa) for output in writes}


def get_op_ids_in_path(
    ssa: Ssa, blob_versions: dict[str, int], inputs: Iterable[object], outputs: Iterable[object]
) -> list[int]:
    """Return the indices, ascending, of the operators of ``get_ssa`` on the paths from ``inputs`` to ``outputs``."""
    producers = get_output_producers(ssa)
    given = {(str(name), blob_versions[str(name)]) for name in inputs if str(name) in blob_versions}
    stack = [(str(name), blob_versions[str(name)]) for name in outputs if str(name) in blob_versions]
    found: set[int] = set()
    while stack:
        value = stack.pop()
        producer = producers.get(value)
        if value in given or producer is None or producer in found:
            continue
        found.add(producer)
        stack.extend(ssa[producer][0])
    return sorted(found)
