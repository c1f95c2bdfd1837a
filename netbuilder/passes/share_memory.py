"""Blobs that are not needed at the same time get one name, so that they share memory; operators that free blobs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from netbuilder.graph.blob import GRADIENT_SUFFIX
from netbuilder.graph.rename import held_nets, rename_arguments
from netbuilder.graph.scope import SEPARATOR
from netbuilder.proto import NetDef, NetError, OperatorDef
from netbuilder.proto.arguments import make_op

__all__ = [
    "LiveBlob", "best_fit", "free_when_used", "live_blobs", "share_gradients", "share_memory",
    "shared_names", "shares_memory",
]  # fmt: skip

_PREFIX, _SUFFIX = "__m", "_shared"


@dataclass(frozen=True)
class LiveBlob:
    """A blob that a net makes.

    Args:
        name: its name.
        defined: number of the operator that writes it first.
        used: number of the operator that reads or writes it last.
        place: the device of the operators that touch it.
        size: bytes, 0 if that is not known.
    """

    name: str
    defined: int
    used: int
    place: tuple[int, int]
    size: int = 0


Pools = Callable[[Iterable[LiveBlob]], list[list[LiveBlob]]]


def live_blobs(ops: Sequence[OperatorDef], sizes: Mapping[str, int] | None = None) -> list[LiveBlob]:
    """Return the blobs that operators make, in the order in which they are made.

    Blobs that are read before they are written, that nets held by operators mention, that are written by an operator
    which may leave them as they were, or that operators of several devices touch, are not among them.

    Args:
        ops: in the order in which they run.
        sizes: bytes by name.
    """
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    places: dict[str, set[tuple[int, int]]] = {}
    taken: set[str] = set()
    for index, op in enumerate(ops):
        place = (op.device_option.device_type, op.device_option.device_id)
        for held in held_nets(op):
            taken.update(name for inner in held.op for name in (*inner.input, *inner.output))
            taken.update((*held.external_input, *held.external_output))
        taken.update(name for name in op.input if name not in first)
        for name in op.output:
            first.setdefault(name, index)
        for name in (*op.input, *op.output):
            last[name] = index
            places.setdefault(name, set()).add(place)
    return [
        LiveBlob(name, index, last[name], next(iter(places[name])), (sizes or {}).get(name, 0))
        for name, index in first.items()
        if name not in taken and len(places[name]) == 1
    ]


def best_fit(blobs: Iterable[LiveBlob]) -> list[list[LiveBlob]]:
    """Return blobs in pools that share memory.

    Blobs of one device share, if the operator that makes the second comes behind the last that touches the first. Of
    several that are free, the one of the nearest size is taken, or where sizes are not known, the one that most blobs
    share.

    Args:
        blobs: as of ``live_blobs``.
    """
    pools: list[list[LiveBlob]] = []
    for blob in sorted(blobs, key=lambda blob: blob.defined):
        free = [pool for pool in pools if pool[-1].used < blob.defined and pool[-1].place == blob.place]
        if not free:
            pools.append([blob])
            continue
        best = min(free, key=lambda pool: (abs(_size(pool) - blob.size), -len(pool)))
        best.append(blob)
    return pools


def shared_names(blobs: Iterable[LiveBlob], prefix: str = "", pools: Pools = best_fit) -> dict[str, str]:
    """Return new names for blobs, the same for those that share memory. One that shares with none keeps its name.

    Args:
        blobs: as of ``live_blobs``.
        prefix: in front of the new names.
        pools: puts them into pools.
    """
    several = [pool for pool in pools(blobs) if len(pool) > 1]
    return {
        blob.name: f"{prefix}{_PREFIX}{number}{_SUFFIX}" for number, pool in enumerate(several) for blob in pool
    }  # fmt: skip


def _size(pool: Sequence[LiveBlob]) -> int:
    return max(blob.size for blob in pool)


def share_memory(
    net: NetDef,
    may_share: Callable[[str], bool],
    *,
    keep: Collection[str] = (),
    sizes: Mapping[str, int] | None = None,
    prefix: str = "",
    pools: Pools = best_fit,
) -> tuple[NetDef, dict[str, str]]:
    """Return a copy of a net in which blobs that are not needed at the same time have one name.

    Its results are those of the net, to the bit; of blobs that share a name, the last one's value stays. Operators
    keep their order, in which all executors here respect names that are written again.

    Args:
        net: left unchanged.
        may_share: whether a blob may get another name.
        keep: blobs that keep theirs, besides external inputs and outputs.
        sizes: bytes by name, so that blobs of one size share.
        prefix: a name scope in front of the new names, without the last "/".
        pools: says which blobs share.

    Returns:
        The net, and the new names by the old ones.

    Raises:
        NetError: a blob has a new name already, because the net has been through this pass.
    """
    fixed = {*net.external_input, *net.external_output, *keep}
    blobs = [blob for blob in live_blobs(net.op, sizes) if blob.name not in fixed and may_share(blob.name)]
    names = shared_names(blobs, prefix + SEPARATOR if prefix else "", pools)
    result = NetDef()
    result.CopyFrom(net)
    there = {name for op in net.op for name in (*op.input, *op.output)}
    if clash := sorted(there & set(names.values())):
        raise NetError(f"net {net.name!r}: shares memory already, it has blobs {clash[:3]}")
    for op in result.op:
        for blobs_of_op in (op.input, op.output):
            blobs_of_op[:] = [names.get(name, name) for name in blobs_of_op]
        rename_arguments(op, names)
    return result, names


def share_gradients(
    net: NetDef,
    scopes: Iterable[str],
    *,
    keep: Collection[str] = (),
    sizes: Mapping[str, int] | None = None,
    activations: bool = False,
) -> tuple[NetDef, dict[str, str]]:
    """Return a copy of a net in which gradients that are not needed at the same time have one name.

    Args:
        net: left unchanged.
        scopes: only blobs under one of these name scopes share, each scope's among themselves; "": all.
        keep, sizes: as of ``share_memory``.
        activations: let activations that operators read share as well.

    Returns:
        The net, and the new names by the old ones.

    Raises:
        NetError: the net has been through this pass.
    """
    names: dict[str, str] = {}
    read = {name for op in net.op for name in op.input}
    for scope in scopes:
        prefix = scope.rstrip(SEPARATOR)

        def may_share(name: str, prefix: str = prefix) -> bool:
            inside = not prefix or name.startswith(prefix + SEPARATOR)
            return inside and (GRADIENT_SUFFIX in name or activations and name in read)

        net, found = share_memory(net, may_share, keep=keep, sizes=sizes, prefix=prefix)
        names.update(found)
    return net, names


def shares_memory(net: NetDef) -> bool:
    """Whether blobs of a net have got shared names."""
    names = (name.rpartition(SEPARATOR)[2] for op in net.op for name in op.output)
    return any(name.startswith(_PREFIX) and name.endswith(_SUFFIX) for name in names)


def free_when_used(net: NetDef, keep: Collection[str], selector: Callable[[str], bool] | None = None) -> NetDef:
    """Return a copy of a net with an operator Free after the last use of each blob that the net makes.

    External inputs and outputs stay, blobs that are not touched again once they are made, and those that have a second
    name (Alias), under which the same memory may be read.

    Args:
        net: left unchanged.
        keep: blobs that stay, too.
        selector: which of the others are freed; None: all.
    """
    fixed = {*net.external_input, *net.external_output, *map(str, keep)}
    fixed.update(name for op in net.op if op.type == "Alias" for name in (*op.input, *op.output))
    due: dict[int, list[LiveBlob]] = {}
    for blob in live_blobs(net.op):
        if blob.name not in fixed and blob.used > blob.defined and (selector is None or selector(blob.name)):
            due.setdefault(blob.used, []).append(blob)
    result = NetDef()
    result.CopyFrom(net)
    del result.op[:]
    for index, op in enumerate(net.op):
        result.op.add().CopyFrom(op)
        for blob in due.get(index, ()):
            free = make_op("Free", [blob.name], [blob.name])
            if op.HasField("device_option"):
                free.device_option.CopyFrom(op.device_option)
            result.op.append(free)
    return result
