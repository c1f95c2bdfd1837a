"""The kernel of fused updates: a team of threads runs chains of elementwise operators piece by piece.

All operators of a chain run on one piece of its tensors before the next piece begins, so a piece is read from memory
once, and values between two operators stay in a core's cache.

A call on a small tensor takes longer than its work. So small tensors whose chains do the same with the same numbers are
processed together: the kernel asks the plan to store parameters, and other tensors that the chains read, in rows (see
``ops.engines.rows``), and each call processes a whole row. What is not in a row, such as a gradient that had memory
of its own before, is copied into one first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import length_hint
from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import Call, Prepared
from netbuilder.ops.core.instructions import Instruction, PartFailed
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.engines import flat
from netbuilder.ops.engines.arrays import as_flat
from netbuilder.ops.engines.engine import Engine, Location
from netbuilder.ops.engines.joined_updates import UpdateForm
from netbuilder.ops.engines.piecewise import Piecewise, maker_of
from netbuilder.ops.engines.rows import as_row, new_row, row_starts
from netbuilder.runtime.plan.values import Node, Value
from netbuilder.runtime.values.workers import Team

__all__ = ["Chain", "prepare_chains", "make_piecewise"]

ONE_THREAD = 1 << 17
"""Up to about so many elements, one thread is done before several threads have synchronized."""

_SMALL = 1 << 13
"""Tensors of at most so many elements are processed in rows: copying gradients is faster than more calls."""

_MOST_COPIED = 2
"""Tensors of a chain that may be copied to rows, or from rows, without losing what rows gain."""


@dataclass(eq=False)
class Chain:
    """Operators over tensors of the same shape, in order.

    Args:
        nodes: the operators.
        made: the form of each operator; on the host, its calls on pieces of plain tensors (``Piecewise``).
        tensors: the tensors that they read and do not make.
        outputs: the tensors that they make and that others need.
        engine: the engine whose kernel runs them; None: the kernel of this module.
    """

    nodes: list[Node] = field(default_factory=list)
    made: list[Piecewise | UpdateForm] = field(default_factory=list)
    tensors: list[Value] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)
    engine: Engine | None = None

    def numbers(self) -> Iterator[Value]:
        """Yield the inputs that are one number for all pieces, such as a learning rate."""
        return (value for _, value in self.numbers_read())

    def numbers_read(self) -> Iterator[tuple[tuple[int, Location], Value]]:
        """Yield them with a key for what the kernel reads: the value's id, and the location where it is read."""
        for node, made in zip(self.nodes, self.made):
            for i in sorted(made.numbers):
                yield (id(node.inputs[i]), node.input_location(i)), node.inputs[i]


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
        plan.first_in, plan.first_out = first, sum(len(other.chain.outputs) for other in plans)
        for i in own:
            expected[i] = plan.spec
        plans.append(plan)
        first += len(chain.tensors)
    units = _units(plans)
    total = sum(plan.size for plan in plans)
    team = min(threads, max(1, sum(-(-plan.size // flat.PIECE) for plan in plans))) if total >= ONE_THREAD else 1
    thread_scratch = max(unit.scratch for unit in (*plans, *units))

    def bind(ins: Sequence[Any], outs: Sequence[Any], scratch: Any) -> Call:
        memory = [
            scratch[i * thread_scratch : (i + 1) * thread_scratch] if thread_scratch else None for i in range(team)
        ]
        return _BoundChains(units, ins, outs, place, memory).run

    made = [plan.spec for plan in plans for _ in plan.chain.outputs]
    name = "numpy" if team == 1 else f"numpy, {team} threads"
    rows = [row for unit in units for row in _rows(unit, inputs)]
    return Prepared(expected, made, bind, scratch=team * thread_scratch, inplace=_inplace(plans), name=name, rows=rows)


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
    """A chain in one layout. Its registers are the tensors it reads, then those it writes, then temporaries.

    Args:
        chain: the chain.
        spec: of its tensors.
        operators: its operators.
        temporaries: how many it needs between operators.
        first_in, first_out: the indices of its first tensors among the inputs and outputs of the kernel.
        members: if this plan processes several chains in rows: their plans.
    """

    chain: Chain
    spec: TensorSpec
    operators: list[_Operator]
    temporaries: int
    first_in: int = 0
    first_out: int = 0
    members: list[_ChainPlan] = field(default_factory=list)

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


def _units(plans: Sequence[_ChainPlan]) -> list[_ChainPlan]:
    """Return the plans, those of small tensors that do the same replaced by one over rows of all their tensors."""
    alike: dict[Any, list[_ChainPlan]] = {}
    for plan in plans:
        key: Any = _what_it_does(plan) if 0 < plan.size <= _SMALL else id(plan)
        alike.setdefault(key, []).append(plan)
    units: list[_ChainPlan] = []
    for same in alike.values():
        members: list[_ChainPlan] = []
        for plan in same:
            if members and _row_size([*members, plan]) > flat.PIECE:
                units += _joined(members)
                members = []
            members.append(plan)
        units += _joined(members)
    return units


def _joined(members: list[_ChainPlan]) -> list[_ChainPlan]:
    """Return one plan over rows in place of several, if there is one."""
    row = _row_plan(members) if len(members) > 1 else None
    return members if row is None else [row]


def _what_it_does(plan: _ChainPlan) -> tuple[Any, ...]:
    operators = tuple(
        (
            operator.node.first.op_def.type,
            repr(operator.node.first.op),
            tuple(source if isinstance(source, int) else (id(source),) for source in operator.sources),
            tuple(operator.targets),
            tuple(operator.needed),
        )
        for operator in plan.operators
    )
    return plan.spec.dtype, len(plan.chain.tensors), len(plan.chain.outputs), operators


def _row_size(plans: Sequence[_ChainPlan]) -> int:
    return row_starts([plan.spec.nbytes for plan in plans])[-1] // plans[0].spec.dtype.itemsize


def _row_plan(members: list[_ChainPlan]) -> _ChainPlan | None:
    """Return the plan that processes several chains in rows; None if an operator cannot process rows."""
    first = members[0]
    spec = TensorSpec((_row_size(members),), first.spec.dtype)
    made = [make_piecewise(node, spec) for node in first.chain.nodes]
    operators = [
        replace(old, made=new) for old, new in zip(first.operators, made) if new is not None and new.spec == spec
    ]
    return replace(first, spec=spec, operators=operators, members=members) if len(operators) == len(made) else None


def _rows(unit: _ChainPlan, inputs: Sequence[Value]) -> Iterator[list[int]]:
    """Yield the inputs that the plan should store in a row: each time, one tensor of every member."""
    for i in range(len(unit.chain.tensors)):
        row = [plan.first_in + i for plan in unit.members]
        if row and len({inputs[each].blob is None for each in row}) == 1:
            yield row


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
class _BoundPlan:
    """A plan with the memory of its tensors.

    Args:
        plan: the plan.
        tensors: its inputs and outputs, one-dimensional.
        before: the calls that copy inputs into rows.
        after: the calls that copy outputs out of rows.
    """

    plan: _ChainPlan
    tensors: list[Any]
    before: list[flat.Step] = field(default_factory=list)
    after: list[flat.Step] = field(default_factory=list)


def _bound_plans(units: Sequence[_ChainPlan], ins: Sequence[Any], outs: Sequence[Any]) -> Iterator[_BoundPlan]:
    """Yield the plans with their memory; in place of one over rows, its members if too much would have to be copied."""
    for unit in units:
        row = _bound_row(unit, ins, outs) if unit.members else None
        if row is not None:
            yield row
            continue
        for plan in unit.members or [unit]:
            dtype = plan.spec.dtype
            tensors = [
                *ins[plan.first_in :][: len(plan.chain.tensors)],
                *outs[plan.first_out :][: len(plan.chain.outputs)],
            ]
            yield _BoundPlan(plan, [as_flat(buffer, dtype) for buffer in tensors])


def _bound_row(unit: _ChainPlan, ins: Sequence[Any], outs: Sequence[Any]) -> _BoundPlan | None:
    """Return a plan over rows with its memory; None if too many of its tensors are not in rows."""
    bound = _BoundPlan(unit, [])
    groups = [(True, [ins[plan.first_in + i] for plan in unit.members]) for i in range(len(unit.chain.tensors))]
    groups += [(False, [outs[plan.first_out + j] for plan in unit.members]) for j in range(len(unit.chain.outputs))]
    copied = 0
    for is_input, buffers in groups:
        row = as_row(buffers)
        if row is None:
            copied += 1
            row, parts = new_row([buffer.nbytes for buffer in buffers])
            if is_input:
                bound.before.append(_gather(buffers, row, unit.spec.dtype))
            else:
                bound.after += [(np.copyto, (as_flat(b, np.uint8), part)) for b, part in zip(buffers, parts)]
        bound.tensors.append(as_flat(row, unit.spec.dtype))
    return bound if copied <= _MOST_COPIED else None


def _gather(buffers: Sequence[Any], row: Any, dtype: Any) -> flat.Step:
    """Return the call that copies buffers into a row."""
    *starts, end = row_starts([buffer.nbytes for buffer in buffers])
    sources: list[Any] = []
    for buffer, start, following in zip(buffers, starts, [*starts[1:], end]):
        sources.append(as_flat(buffer, dtype))
        if gap := (following - start - buffer.nbytes) // dtype.itemsize:
            sources.append(np.zeros(gap, dtype))
    return np.concatenate, (sources, 0, as_flat(row, dtype))


@dataclass(eq=False)
class _Part:
    """The calls of an operator on a piece.

    Args:
        plan: that of its chain, or of a row.
        operator: of the plan.
        registers: the pieces of the plan's registers; none for copies into and out of a row.
        numbers: by the ids of their values.
        units: the same, None for those that are 1.
    """

    plan: _ChainPlan
    operator: _Operator
    registers: Sequence[Any] = ()
    numbers: Mapping[int, Any] = field(default_factory=dict)
    units: Mapping[int, Any] = field(default_factory=dict)

    def steps(self) -> list[flat.Step]:
        """Return the calls; the last registers are the temporaries of an operator."""
        operator, made, registers = self.operator, self.operator.made, self.registers
        ins = [registers[s] if isinstance(s, int) else (self.units if i in made.units else self.numbers)[id(s)]
               for i, s in enumerate(operator.sources)]  # fmt: skip
        outs = [registers[target] for target in operator.targets]
        spare = registers[len(registers) - self.plan.spare :][: made.temporaries]
        return list(made.steps(ins, outs, spare, operator.needed))

    def failed(self) -> Instruction:
        """Return the operator at fault after one of the calls has failed.

        A row has several operators at once. The one at fault is found by their own calls, on copies of their parts.
        """
        plan, index = self.plan, self.plan.operators.index(self.operator)
        if self.registers:
            starts = row_starts([member.spec.nbytes for member in plan.members])
            for member, start in zip(plan.members, starts):
                first = start // plan.spec.dtype.itemsize
                own = [register[first : first + member.size].copy() for register in self.registers]
                alone = replace(self, plan=member, operator=member.operators[index], registers=own)
                try:
                    for function, operands in alone.steps():
                        function(*operands)
                except Exception:
                    return alone.operator.node.first
        return self.operator.node.first


@dataclass(eq=False)
class _Job:
    """The calls of one thread, and which operator each belongs to."""

    steps: list[flat.Step] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    parts: list[_Part] = field(default_factory=list)
    failure: tuple[_Part, BaseException] | None = None

    def add(self, steps: Sequence[flat.Step], part: _Part) -> None:
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
        units: Sequence[_ChainPlan],
        ins: Sequence[Any],
        outs: Sequence[Any],
        place: dict[int, int],
        memory: Sequence[Any],
    ) -> None:
        self._bound, self._memory = [*_bound_plans(units, ins, outs)], memory
        plans = [bound.plan for bound in self._bound]
        self._numbers = {id(v): ins[place[id(v)]].reshape(()) for plan in plans for v in plan.chain.numbers()}
        operators = [operator for plan in plans for operator in plan.operators]
        self._units = sorted({id(operator.node.inputs[i]) for operator in operators for i in operator.made.units})
        self._unit_numbers = [self._numbers[key] for key in self._units]
        self._before: list[tuple[Instruction, Callable[[], object]]] = []
        for operator in operators:
            if operator.made.before is not None:
                given = [None if isinstance(s, int) else self._numbers[id(s)] for s in operator.sources]
                self._before.append((operator.node.first, operator.made.before(given)))
        self._teams: dict[tuple[bool, ...], tuple[list[_Job], Call]] = {}

    def run(self) -> None:
        ones = tuple([number.item() == 1 for number in self._unit_numbers])
        found = self._teams.get(ones)
        if found is None:
            jobs = self._jobs({key for key, one in zip(self._units, ones) if one})
            found = self._teams[ones] = jobs, Team([job.run for job in jobs]).run if len(jobs) > 1 else jobs[0].run
        for instruction, before in self._before:
            try:
                before()
            except Exception as error:
                raise PartFailed(instruction) from error
        jobs, run = found
        run()
        for job in jobs:
            if job.failure is not None:
                (part, cause), job.failure = job.failure, None
                raise PartFailed(part.failed()) from cause

    def _jobs(self, ones: set[int]) -> list[_Job]:
        """Return the calls of each thread: consecutive pieces, about the same number of elements for each."""
        units = {key: None if key in ones else number for key, number in self._numbers.items()}
        jobs = [_Job() for _ in self._memory]
        total, done = sum(bound.plan.size for bound in self._bound), 0
        for bound in self._bound:
            plan = bound.plan
            for start in range(0, plan.size, flat.PIECE):
                stop = min(start + flat.PIECE, plan.size)
                thread = min(len(jobs) - 1, done * len(jobs) // total)
                registers = [tensor[start:stop] for tensor in bound.tensors]
                registers += _temporaries(plan, self._memory[thread], stop - start)
                if start == 0:
                    jobs[thread].add(bound.before, _Part(plan, plan.operators[0]))
                for operator in plan.operators:
                    part = _Part(plan, operator, registers, self._numbers, units)
                    jobs[thread].add(part.steps(), part)
                done += stop - start
            if bound.after:
                jobs[thread].add(bound.after, _Part(plan, plan.operators[-1]))
        return jobs


def _temporaries(plan: _ChainPlan, memory: Any, size: int) -> list[Any]:
    count = plan.temporaries + plan.spare
    if not count:
        return []
    most = min(plan.size, flat.PIECE)
    space = as_flat(memory[: count * most * plan.spec.dtype.itemsize], plan.spec.dtype)
    return [space[i * most : i * most + size] for i in range(count)]
