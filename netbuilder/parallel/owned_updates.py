"""Updates that one process makes for all: each parameter has an owner, and so has what its optimizer keeps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from netbuilder.graph.blob import GradientSlice
from netbuilder.graph.net import Net
from netbuilder.model import ModelHelper
from netbuilder.ops.core.renaming import subgraphs
from netbuilder.parallel.builders import initial_shapes
from netbuilder.passes.processes import ProcessLink
from netbuilder.proto import NetDef, NetError, OperatorDef
from netbuilder.proto.arguments import arguments, made_at, set_argument
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Owners", "deal", "divide_update", "initialize_owned_last", "own_part", "owned_state", "owners_of"]

OWNER = "owner"
"""Argument of an operator that only this rank runs."""

_SUMS = "ReduceToOwners"
_TO_ONE_NUMBER = frozenset({"EnsureCPUOutput", "SumSqrElements"})
"""Operators of norms of gradients: each process computes them, and gets those of the others from the owners."""


@dataclass(frozen=True)
class Owners:
    """Which rank owns which parameters.

    Args:
        of_gradients: gradient that is exchanged, that of the first device -> rank.
        of_parameters: parameter -> rank.
        parameters: such a gradient -> its parameters.
        buckets: the gradients, as they are exchanged together.
    """

    of_gradients: dict[str, int]
    of_parameters: dict[str, int]
    parameters: dict[str, list[str]]
    buckets: list[list[str]]


def owners_of(model: ModelHelper, gradients: Sequence[str], link: ProcessLink) -> Owners:
    """Return the owners of the parameters with these gradients; ``buckets`` is filled by the exchange."""
    params: dict[str, list[str]] = {gradient: [] for gradient in gradients}
    for param, gradient in model.param_to_grad.items():
        if not isinstance(gradient, GradientSlice) and str(gradient) in params:
            params[str(gradient)].append(str(param))
    shapes = initial_shapes(model.param_init_net.Proto())
    sizes = {
        gradient: sum(4 * math.prod(shapes.get(param, ())) for param in of_gradient)
        for gradient, of_gradient in params.items()
    }
    ranks = deal(sizes, link.processes)
    return Owners(ranks, {param: ranks[gradient] for gradient, found in params.items() for param in found}, params, [])


def deal(sizes: Mapping[str, int], processes: int) -> dict[str, int]:
    """Return a rank for each value, so that the ranks own about as many bytes.

    Args:
        sizes: name -> bytes.
        processes: number of ranks.

    >>> deal({"a": 4, "b": 10, "c": 5, "d": 1}, 2)
    {'a': 1, 'b': 0, 'c': 1, 'd': 1}
    """
    filled, found = [0] * processes, dict.fromkeys(sizes, 0)
    for name in sorted(sizes, key=lambda name: -sizes[name]):
        rank = filled.index(min(filled))
        found[name] = rank
        filled[rank] += sizes[name]
    return found


def divide_update(model: ModelHelper, owners: Owners, link: ProcessLink, start: tuple[int, int]) -> None:
    """Mark the operators of an update by their owner, and append copies of the owners' parameters to the others.

    Args:
        model: with its update.
        owners: of the parameters.
        link: how processes are reached.
        start: how many operators main net and init net had before the update.

    Raises:
        NetError: an operator needs gradients, or what optimizers keep, of several owners.
    """
    main, init_net = model.net, model.param_init_net
    ops = list(main.Proto().op)
    end = _end_of_update(ops, start[0], owners)
    if end == start[0]:
        return
    update = ops[start[0] : end]
    division = _Division(model.name, owners, link)
    made = division.divided(update)
    division.require_own(ops[: start[0]], made, ops[end:])
    written = {blob for op in update for blob in op.output}
    for bucket in owners.buckets:
        if blobs := [param for gradient in bucket for param in owners.parameters[gradient] if param in written]:
            made += link.gather_from_owners(blobs, owners.of_parameters)
    result = NetDef()
    result.CopyFrom(main.Proto())
    del result.op[start[0] :]
    result.op.extend([*made, *ops[end:]])
    main.replace_message(result)
    _mark_state(init_net, start[1], main.Proto().op)


def _end_of_update(ops: Sequence[OperatorDef], start: int, owners: Owners) -> int:
    """Return the index after the last operator that writes a parameter, or what such ones read a step later."""
    ends = [i + 1 for i in range(start, len(ops)) if not owners.of_parameters.keys().isdisjoint(ops[i].output)]
    if not ends:
        return start
    state = {blob for op in ops[start : ends[-1]] for blob in _reads(op)}
    ends += [i + 1 for i in range(ends[-1], len(ops)) if not state.isdisjoint(ops[i].output)]
    return ends[-1]


class _Division:
    """Finds out which operators of an update an owner runs alone: those that read its gradients, or what follows."""

    def __init__(self, name: str, owners: Owners, link: ProcessLink) -> None:
        self._name, self._owners, self._link = name, owners, link
        self._of: dict[str, int] = dict(owners.of_gradients)  # values that only the owner has
        self._marked: dict[str, OperatorDef] = {}  # what operators of one owner write, besides gradients

    def divided(self, update: Sequence[OperatorDef]) -> list[OperatorDef]:
        """Return the operators, those of one owner marked by it."""
        made = list[OperatorDef]()
        for given in update:
            op = OperatorDef()
            op.CopyFrom(given)
            found = self._ranks(op)
            if len(found) > 1:
                made += self._shared(op)
                found = set()
            if len(found) == 1 and not self._everywhere(op):
                set_argument(op, OWNER, min(found))
                self._marked |= dict.fromkeys(op.output, op)
            for blob in op.output:
                if found:
                    self._of[blob] = min(found)
                else:
                    self._of.pop(blob, None)
            made.append(op)
        return made

    def _ranks(self, op: OperatorDef) -> set[int]:
        read = {self._of[blob] for blob in _reads(op) if blob in self._of}
        return read | {self._owners.of_parameters[blob] for blob in op.output if blob in self._owners.of_parameters}

    def _everywhere(self, op: OperatorDef) -> bool:
        """Whether all processes run an operator, whose result is right in its owner: it is one number."""
        return op.type in _TO_ONE_NUMBER and all(
            self._marked.get(blob) is None or blob in self._owners.of_gradients for blob in op.input
        )

    def _shared(self, op: OperatorDef) -> list[OperatorDef]:
        """Return the operators that give an operator of several owners what it reads, if that is numbers.

        Raises:
            NetError: it reads more.
        """
        blobs = [blob for blob in dict.fromkeys(_reads(op)) if blob in self._of]
        numbers = [blob for blob in blobs if blob not in self._owners.of_gradients and blob not in self._marked]
        if numbers != blobs or any(blob in self._owners.of_parameters for blob in op.output):
            listed = ", ".join(f"{blob!r} of rank {self._of[blob]}" for blob in blobs if blob not in numbers)
            raise NetError(
                f"model {self._name!r}: strategy zero: {op.type} of {list(op.output)}{made_at(op)} reads {listed}, "
                "which no process has all; it can be combined with updates of each parameter for itself, and with "
                "max_gradient_norm; use another strategy"
            )
        ranks = {blob: self._of.pop(blob) for blob in blobs}
        return self._link.gather_from_owners(blobs, ranks)

    def require_own(
        self, before: Iterable[OperatorDef], update: Iterable[OperatorDef], after: Iterable[OperatorDef]
    ) -> None:
        """Raise NetError if all processes read what only an owner writes: in the update, after it, or a step later."""
        written = {blob for op in before for blob in op.output}
        alone = {blob for blob in self._marked if blob not in written and blob not in self._owners.of_parameters}
        checked = [(op, alone) for op in (*before, *update) if OWNER not in arguments(op)]
        checked += [(op, alone.union(self._owners.of_gradients)) for op in after]
        for op, not_here in checked:
            if found := [blob for blob in _reads(op) if blob in not_here]:
                raise NetError(
                    f"model {self._name!r}: strategy zero: {op.type} of {list(op.output)}{made_at(op)} reads "
                    f"{found[0]!r}, which only rank {self._of.get(found[0], 0)} has, as it follows from the gradients "
                    "of its parameters; use another strategy, or omit this operator"
                )


def _reads(op: OperatorDef) -> list[str]:
    return [*op.input, *(blob for net in subgraphs(op) for inner in net.op for blob in _reads(inner))]


def _mark_state(init_net: Net, start: int, main: Iterable[OperatorDef]) -> None:
    """Mark the operators that an update has added to the init net if only operators of one owner need them."""
    readers: dict[str, set[Any]] = {}

    def note(op: OperatorDef, owner: Any) -> None:
        for blob in (*_reads(op), *op.output):
            readers.setdefault(blob, set()).add(owner)

    for op in main:
        note(op, arguments(op).get(OWNER))
    ops = init_net.Proto().op
    for op in ops[:start]:
        note(op, None)
    for index in range(len(ops) - 1, start - 1, -1):
        owners = set[Any]().union(*(readers.get(blob, {None}) for blob in ops[index].output))
        owner = owners.pop() if len(owners) == 1 else None
        if owner is not None:
            set_argument(ops[index], OWNER, owner)
        note(ops[index], owner)


def initialize_owned_last(init_net: Net) -> None:
    """Move the operators of an owner that read something to the end of an init net: what they read may be copied."""
    proto, result = init_net.Proto(), NetDef()
    late = [op for op in proto.op if op.input and OWNER in arguments(op)]
    if not late:
        return
    result.CopyFrom(proto)
    del result.op[:]
    result.op.extend([*(op for op in proto.op if not (op.input and OWNER in arguments(op))), *late])
    init_net.replace_message(result)


def owned_state(init_net: NetDef) -> dict[str, int]:
    """Return the blobs that an init net fills in one process only, each with its rank."""
    ranks = ((op, arguments(op).get(OWNER)) for op in init_net.op)
    return {blob: int(rank) for op, rank in ranks if rank is not None for blob in op.output}


def own_part(net: NetDef, rank: int) -> NetDef:
    """Return what a process runs of a net: all operators but those of other owners.

    Raises:
        NetError: an operator without an owner, added after ``Parallelize``, reads a gradient that only its owner has.
    """
    owners = [arguments(op).get(OWNER) for op in net.op]
    if not any(owner is not None for owner in owners):
        return net
    _require_known_updates(net)
    result = NetDef()
    result.CopyFrom(net)
    del result.op[:]
    for op, owner in zip(net.op, owners):
        if owner in (None, rank):
            added = result.op.add()
            added.CopyFrom(op)
            others = [argument for argument in op.arg if argument.name != OWNER]
            del added.arg[:]
            added.arg.extend(others)
    read = {blob for op in result.op for blob in (*_reads(op), *op.control_input)}
    made = {blob for op in result.op for blob in op.output}
    gone = {blob for op in net.op for blob in (*_reads(op), *op.output)} - read - made
    for names in (result.external_input, result.external_output):
        kept = [blob for blob in names if blob not in gone]
        del names[:]
        names.extend(kept)
    return result


def _require_known_updates(net: NetDef) -> None:
    summed = set[str]()
    for op in net.op:
        if op.type == _SUMS:
            summed.update(op.output[:])
        elif OWNER not in arguments(op) and op.type not in _TO_ONE_NUMBER and not op.type.startswith("Copy"):
            if found := summed.intersection(_reads(op)):
                raise NetError(
                    f"net {net.name!r}: strategy zero: {op.type} of {list(op.output)}{made_at(op)} reads "
                    f"{min(found)!r}, of which only the owner has the sum; add updates in optimizer_builder_fun, where "
                    "Parallelize finds their owners"
                )
            summed.difference_update(op.output)
