"""The kernel of fused updates: a team of threads runs chains of elementwise operators piece by piece.

All operators of a chain run on one piece of its tensors before the next piece begins, so a piece is read from memory
once, and values between two operators stay in a core's cache.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import length_hint
from typing import Any

from netbuilder.ops.core.contexts import Call, Prepared
from netbuilder.ops.core.instructions import Instruction, PartFailed
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.engines import flat
from netbuilder.ops.engines.arrays import as_flat
from netbuilder.ops.engines.piecewise import Piecewise, maker_of
from netbuilder.runtime.plan.values import Node, Value
from netbuilder.runtime.values.workers import Team

__all__ = ["Chain", "prepare_chains", "make_piecewise"]

ONE_THREAD = 1 << 17
"""Up to about so many elements, one thread is done before several threads have synchronized."""


@dataclass(eq=False)
class Chain:
    """Operators over tensors of the same shape, in order.

    Args:
        nodes: the operators.
        made: the calls of each operator on pieces of plain tensors.
        tensors: the tensors that they read and do not make.
        outputs: the tensors that they make and that others need.
    """

    nodes: list[Node] = field(default_factory=list)
    made: list[Piecewise] = field(default_factory=list)
    tensors: list[Value] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)

    def numbers(self) -> Iterator[Value]:
        """Yield the inputs that are one number for all pieces, such as a learning rate."""
        for node, made in zip(self.nodes, self.made):
            yield from (node.inputs[i] for i in sorted(made.numbers))


def make_piecewise(node: Node, spec: TensorSpec | None = None) -> Piecewise | None:
    """Return a node's operator as calls on pieces of its tensors; None if it has no such form.

    Args:
        node: the node.
        spec: of its tensors; None: plain, as inferred.
    """
    make = maker_of(node.first.op_def.type)
    if make is None:
        return None
    specs = [value.spec.plain for value in node.inputs if value.spec is not None]
    made = make(node.first.op, *specs)
    if made is None or spec is None:
        return made
    return make(node.first.op, *(s if i in made.numbers else spec for i, s in enumerate(specs)))


def prepare_chains(
    chains: Sequence[Chain],
    inputs: Sequence[Value],
    outputs: Sequence[Value],
    specs: Sequence[TensorSpec],
    threads: int,
) -> Prepared | None:
    """Prepare the kernel of several chains.

    Args:
        chains: the chains, which do not depend on one another.
        inputs: the tensors of all chains, in order, then the numbers.
        outputs: the outputs of all chains, in order.
        specs: of ``inputs``, in their present layouts.
        threads: number of threads of the lane.

    Returns:
        The kernel; None if the operators of a chain have no layout in common.
    """
    place = {id(value): i for i, value in reversed([*enumerate(inputs)])}
    expected: list[TensorSpec] = [spec.plain for spec in specs]
    plans: list[_ChainPlan] = []
    first = 0
    for chain in chains:
        own = range(first, first + len(chain.tensors))
        plan = _plan_chain(chain, [specs[i] for i in own])
        if plan is None:
            return None
        for i in own:
            expected[i] = plan.spec
        plans.append(plan)
        first += len(chain.tensors)
    total = sum(plan.size for plan in plans)
    team = min(threads, max(1, sum(-(-plan.size // flat.PIECE) for plan in plans))) if total >= ONE_THREAD else 1
    thread_scratch = max(plan.scratch for plan in plans)

    def bind(ins: Sequence[Any], outs: Sequence[Any], scratch: Any) -> Call:
        memory = [
            scratch[i * thread_scratch : (i + 1) * thread_scratch] if thread_scratch else None for i in range(team)
        ]
        return _BoundChains(plans, ins, outs, place, memory).run

    made = [plan.spec for plan in plans for _ in plan.chain.outputs]
    pairs = _inplace(plans)
    for i, j in pairs:  # the plan shares buffers only between successive versions; those in between are not written
        outputs[j].version = inputs[i].version + 1
    name = "numpy" if team == 1 else f"numpy, {team} threads"
    return Prepared(expected, made, bind, scratch=team * thread_scratch, inplace=pairs, name=name)


@dataclass(eq=False)
class _Operator:
    """An operator of a chain, and the registers of its tensors.

    Args:
        node: the operator.
        made: its calls on pieces.
        sources: for each input the register of the tensor, or the value that is a number.
        targets: the registers of the outputs.
        needed: for each output whether it is read.
    """

    node: Node
    made: Piecewise
    sources: list[int | Value]
    targets: list[int]
    needed: list[bool]


@dataclass(eq=False)
class _ChainPlan:
    """A chain in one layout. Its registers are the tensors it reads, then those it writes, then temporaries."""

    chain: Chain
    spec: TensorSpec
    operators: list[_Operator]
    temporaries: int

    @property
    def size(self) -> int:
        return self.spec.nbytes // self.spec.dtype.itemsize

    @property
    def spare(self) -> int:
        """The largest number of temporaries that a call of one of the operators needs for itself."""
        return max(operator.made.temporaries for operator in self.operators)

    @property
    def scratch(self) -> int:
        nbytes = flat.scratch_bytes(self.spec, self.temporaries + self.spare)
        return -(-nbytes // 64) * 64  # keeps the next thread's scratch memory aligned


def _plan_chain(chain: Chain, specs: Sequence[TensorSpec]) -> _ChainPlan | None:
    old = [spec for value, spec in zip(chain.tensors, specs) if value.blob is not None]
    new = [spec for value, spec in zip(chain.tensors, specs) if value.blob is None]
    common = flat.common_spec([*old, *new])  # parameters and moments before gradients
    if common is None:
        return None
    for spec in (common, common.plain):
        made = [make_piecewise(node, spec) for node in chain.nodes]
        if all(each is not None and each.spec == spec for each in made):
            operators, temporaries = _registers(chain, made)  # type: ignore[arg-type]
            return _ChainPlan(chain, spec, operators, temporaries)
    return None


def _registers(chain: Chain, made: Sequence[Piecewise]) -> tuple[list[_Operator], int]:
    """Return the operators with the registers of their values, and how many temporaries there are."""
    register = {id(value): i for i, value in enumerate([*chain.tensors, *chain.outputs])}
    first = len(register)
    last = {id(value): k for k, node in enumerate(chain.nodes) for value in node.inputs}  # value -> its last reader
    free: list[int] = []
    count = 0
    operators = []
    for k, (node, each) in enumerate(zip(chain.nodes, made)):
        inplace = type(node.first.op).inplace
        sources: list[int | Value] = [
            value if i in each.numbers else register[id(value)] for i, value in enumerate(node.inputs)
        ]
        done = [s for s, value in zip(sources, node.inputs) if isinstance(s, int) and last[id(value)] == k]
        dying = {s for s in done if s >= first}
        targets = []
        for j, value in enumerate(node.outputs):
            if id(value) not in register:
                over = [s for i, s in enumerate(sources) if (i, j) in inplace and s in dying and sources.count(s) == 1]
                if over:
                    register[id(value)] = over[0]
                    dying.discard(over[0])
                elif free:
                    register[id(value)] = free.pop()
                else:
                    register[id(value)] = first + count
                    count += 1
                if id(value) not in last:
                    dying.add(register[id(value)])
            targets.append(register[id(value)])
        free += dying
        needed = [id(value) in last or value in chain.outputs for value in node.outputs]
        operators.append(_Operator(node, each, sources, targets, needed))
    return operators, count


def _inplace(plans: Sequence[_ChainPlan]) -> list[tuple[int, int]]:
    """Return the pairs of an input and an output of one name that may share a buffer."""
    pairs = []
    first_in = first_out = 0
    for plan in plans:
        ins, outs = plan.chain.tensors, plan.chain.outputs
        for j, out in enumerate(outs):
            pairs += [(first_in + i, first_out + j) for i, value in enumerate(ins)
                      if value.name == out.name and _may_overwrite(plan, i, len(ins) + j)]  # fmt: skip
        first_in += len(ins)
        first_out += len(outs)
    return pairs


def _may_overwrite(plan: _ChainPlan, source: int, target: int) -> bool:
    """Whether the last read of an input's register comes before the write of an output's, or is part of it."""
    written = next(k for k, operator in enumerate(plan.operators) if target in operator.targets)
    for k, operator in enumerate(plan.operators):
        reads = [i for i, register in enumerate(operator.sources) if register == source]
        if k > written and reads:
            return False
        if k == written:
            j = operator.targets.index(target)
            if any((i, j) not in type(operator.node.first.op).inplace for i in reads):
                return False
    return True


@dataclass(eq=False)
class _Job:
    """The calls of one thread, and which operator each belongs to."""

    steps: list[flat.Step] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    parts: list[Instruction] = field(default_factory=list)
    failure: tuple[Instruction, BaseException] | None = None

    def add(self, steps: Sequence[flat.Step], part: Instruction) -> None:
        self.starts.append(len(self.steps))
        self.parts.append(part)
        self.steps += steps

    def run(self) -> None:
        calls = iter(self.steps)
        try:
            for function, operands in calls:
                function(*operands)
        except BaseException as error:
            index = len(self.steps) - length_hint(calls) - 1
            self.failure = self.parts[bisect_right(self.starts, index) - 1], error


class _BoundChains:
    """The calls of fused updates, bound to buffers.

    Calls are specialized for numbers that equal 1. Each run checks which do; calls for a new combination are made when
    it first occurs.
    """

    def __init__(
        self,
        plans: Sequence[_ChainPlan],
        ins: Sequence[Any],
        outs: Sequence[Any],
        place: dict[int, int],
        memory: Sequence[Any],
    ) -> None:
        self._plans, self._ins, self._outs, self._memory = plans, ins, outs, memory
        self._numbers = {id(v): ins[place[id(v)]].reshape(()) for plan in plans for v in plan.chain.numbers()}
        operators = [operator for plan in plans for operator in plan.operators]
        self._units = sorted({id(operator.node.inputs[i]) for operator in operators for i in operator.made.units})
        self._unit_numbers = [self._numbers[key] for key in self._units]
        self._before: list[tuple[Instruction, Callable[[], object]]] = []
        for operator in operators:
            if operator.made.before is not None:
                given = [None if isinstance(s, int) else self._numbers[id(s)] for s in operator.sources]
                self._before.append((operator.node.first, operator.made.before(given)))
        self._teams: dict[tuple[bool, ...], tuple[list[_Job], Team]] = {}

    def run(self) -> None:
        ones = tuple([number.item() == 1 for number in self._unit_numbers])
        found = self._teams.get(ones)
        if found is None:
            jobs = self._jobs({key for key, one in zip(self._units, ones) if one})
            found = self._teams[ones] = jobs, Team([job.run for job in jobs])
        for part, before in self._before:
            try:
                before()
            except Exception as error:
                raise PartFailed(part) from error
        jobs, team = found
        team.run()
        for job in jobs:
            if job.failure is not None:
                (part, cause), job.failure = job.failure, None
                raise PartFailed(part) from cause

    def _jobs(self, ones: set[int]) -> list[_Job]:
        """Return the calls of each thread: consecutive pieces, about the same number of elements for each."""
        numbers = {key: None if key in ones else number for key, number in self._numbers.items()}
        jobs = [_Job() for _ in self._memory]
        total, done = sum(plan.size for plan in self._plans), 0
        first_in = first_out = 0
        for plan in self._plans:
            ins, outs = len(plan.chain.tensors), len(plan.chain.outputs)
            buffers = [*self._ins[first_in : first_in + ins], *self._outs[first_out : first_out + outs]]
            whole = [as_flat(buffer, plan.spec.dtype) for buffer in buffers]
            first_in, first_out = first_in + ins, first_out + outs
            for start in range(0, plan.size, flat.PIECE):
                stop = min(start + flat.PIECE, plan.size)
                thread = min(len(jobs) - 1, done * len(jobs) // total)
                registers = [part[start:stop] for part in whole]
                registers += _temporaries(plan, self._memory[thread], stop - start)
                _add_piece(jobs[thread], plan, registers, numbers, self._numbers)
                done += stop - start
        return jobs


def _temporaries(plan: _ChainPlan, memory: Any, size: int) -> list[Any]:
    count = plan.temporaries + plan.spare
    if not count:
        return []
    most = min(plan.size, flat.PIECE)
    space = as_flat(memory[: count * most * plan.spec.dtype.itemsize], plan.spec.dtype)
    return [space[i * most : i * most + size] for i in range(count)]


def _add_piece(
    job: _Job, plan: _ChainPlan, registers: Sequence[Any], numbers: dict[int, Any], exact: dict[int, Any]
) -> None:
    spare = registers[len(registers) - plan.spare :]
    for operator in plan.operators:
        made = operator.made
        ins = [registers[s] if isinstance(s, int) else (numbers if i in made.units else exact)[id(s)]
               for i, s in enumerate(operator.sources)]  # fmt: skip
        outs = [registers[target] for target in operator.targets]
        job.add(list(made.steps(ins, outs, spare[: made.temporaries], operator.needed)), operator.node.first)
