"""Recomputation: values that are not kept from the forward to the backward pass, but computed again when they are read.

A value that is used early and late, and not in between, needs memory all that time. If it is dropped, its kernel runs a
second time before the late use (``StepKind.RECOMPUTE``), from inputs that are there, or that are computed again too. It
is the same kernel on the same numbers (or ``Again``, where a second run of it would have other effects), so
the results are equal to the bit.

Which values are dropped is decided by the bytes that they free at the peak for the work of computing them again, until
the plan fits into its budget; the peak is simulated after each decision. The work is estimated from operations and
bytes; where an engine has measured kernels, their times tell how the work of these is distributed among them.

Without a budget, values are dropped that take hardly any work to make again: outputs of kernels that have a cheaper way
to do so (``Again``: a normalization, whose statistics are kept), and copies in other layouts.
"""

from __future__ import annotations

import enum
import logging
import math
from collections.abc import Collection, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from netbuilder.engines.layouts import HOST
from netbuilder.graph.memory_budget import Shortfall
from netbuilder.ops.core.contexts import Prepared
from netbuilder.ops.core.extensions import Again, MeasuredTime, SplitKernel
from netbuilder.ops.core.instructions import Role
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.runtime.plan.checkpoints import CheckpointedPair, checkpointed_pairs, with_checkpoints
from netbuilder.runtime.plan.memory_plan import Place, arena_bytes, arena_load
from netbuilder.runtime.plan.values import Step, StepKind, Value

__all__ = ["Recomputed", "Search", "drop_cheap", "fit_into"]

_log = logging.getLogger("netbuilder")

_FLOPS_PER_BYTE = 14  # floating-point operations that take as long as a byte of memory: 410 GFLOP/s, 30 GB/s
_SMALL = 16  # an input that is so many times smaller than what is computed from it is kept, not computed again as well
_PATIENCE = 8  # dropped values that are kept after all, one after another, without a new lowest peak
_SIMULATED = 200_000  # steps of all plans that are simulated in a search; the time of a simulation grows with its steps
_LEAST_SIMULATIONS = 40
_TRIES = 8  # plans that are packed until one fits
_LITTLE = 0.0075  # of the work of a plan without a budget: so much may be done again


@dataclass
class Recomputed:
    """A plan in which values are computed again.

    Args:
        steps: in place of the plan's.
        values: in place of the plan's values in the arena.
        count: how many steps compute a value again.
        work: of the additional steps, as a fraction of that of all others; an estimate from their operations and bytes.
        total: the estimated work of all other steps.
        whole: the bytes that the plan would need if nothing were computed again; 0 without a budget.
        shortfall: the budget that even this plan, the smallest, does not keep to; None: it does, or there is none.
    """

    steps: list[Step]
    values: list[Value]
    count: int = 0
    work: float = 0.0
    total: float = 0.0
    whole: int = 0
    shortfall: Shortfall | None = None


def fit_into(
    net_name: str,
    steps: list[Step],
    values: list[Value],
    apart: Collection[Value],
    budget: int | float,
    fixed: int,
    cheap: Recomputed | None = None,
    largest: int = 0,
) -> Recomputed:
    """Return the plan with enough values dropped for the budget; with a shortfall, if none is small enough.

    Args:
        net_name: for messages.
        steps: of the plan.
        values: those that are in the arena.
        apart: ids of those that are read after the steps have run.
        budget: in bytes; a float: the fraction of what the plan would need, or ``largest`` if that is more, if there is
            anything to compute again.
        fixed: the bytes of it that the plan needs outside the arena: parameters, moments, inputs, observable blobs.
        cheap: the plan without a budget, see ``drop_cheap``; it is returned if it fits.
        largest: the most bytes that a plan of the net for other shapes would need: a fraction is one for all shapes, or
            the last batch of an epoch, which is smaller, could not keep to its own.
    """
    whole = arena_bytes(values, steps, apart) + fixed
    pairs = checkpointed_pairs(steps, values, apart)
    fraction, reference = None, max(whole, largest)
    if isinstance(budget, float):
        if not pairs and not Search(steps, values, apart).any_gaps:
            return Recomputed(steps, values, whole=whole)
        fraction, budget = budget, int(budget * reference)
    if cheap is not None and arena_bytes(cheap.values, cheap.steps, apart) + fixed <= budget:
        return replace(cheap, whole=whole)
    if whole <= budget:
        return Recomputed(steps, values, whole=whole)
    limit = budget - fixed
    found = _cheapest(steps, values, apart, limit, pairs)
    total = sum(_costs(steps).values())
    result = Recomputed(found.sequence.steps, found.sequence.values, found.count, found.work, total, whole)
    if found.nbytes > limit:
        share = None if fraction is None else (fraction, reference)
        result.shortfall = Shortfall(net_name, budget, found.nbytes + fixed, fixed, whole, share)
        return result
    _log.info(
        "net %r: %d values are computed again, some %.0f %% more work, so that a run needs %s bytes, not %s",
        net_name, result.count, 100 * result.work, f"{found.nbytes + fixed:,}", f"{whole:,}",
    )  # fmt: skip
    return result


def drop_cheap(steps: list[Step], values: list[Value], apart: Collection[Value]) -> Recomputed | None:
    """Return the plan without values that take hardly any work to make again; None if that frees nothing at the peak.

    Args:
        steps, values, apart: see ``fit_into``.
    """
    if not _waits(steps, {value for value in values if _is_cheap(value)}):
        return None
    search = Search(steps, values, apart)
    bound = search.sequence.peak
    search.drop_cheap(_LITTLE)
    if not search.dropped:
        return None
    found = search.sequence
    nbytes = arena_bytes(found.values, found.steps, apart)
    if nbytes >= bound and nbytes >= arena_bytes(values, steps, apart):
        return None
    return Recomputed(found.steps, found.values, found.count, found.work, search.total_cost)


def _waits(steps: Sequence[Step], values: Collection[Value]) -> bool:
    """Whether one of some values is used by two steps between which there are others that do not use it."""
    last: dict[Value, int] = {}
    for index, step in enumerate(steps):
        for value in (*step.inputs, *step.outputs):
            if value is None or value not in values:
                continue
            if index > last.get(value, index) + 1:
                return True
            last[value] = index
    return False


@dataclass
class _Found:
    """A plan that was searched for.

    Args:
        sequence: its steps and values.
        nbytes: of its arena.
        pairs: the numbers of the pairs that keep less.
        work: of the additional steps, and of gradients that compute again what an operator has not kept, as a fraction
            of that of all steps of the plan without them.
    """

    sequence: _Sequence
    nbytes: int
    pairs: frozenset[int]
    work: float

    @property
    def count(self) -> int:
        """How many steps compute a value again."""
        return self.sequence.count + len(self.pairs)


def _cheapest(
    steps: list[Step], values: list[Value], apart: Collection[Value], limit: int, pairs: Sequence[CheckpointedPair]
) -> _Found:
    """Return the plan with the least additional work that needs at most ``limit`` bytes, or the one with fewest bytes.

    Pairs that keep less are tried all together, and then without one after another of them.
    """

    costs = _costs(steps)
    total = sum(costs.values())

    def search(chosen: frozenset[int]) -> _Found:
        own_steps, own_values = with_checkpoints(steps, values, pairs, chosen)
        sequence, nbytes = _fitted(own_steps, own_values, apart, limit)
        again = sum(costs[pairs[number].forward] for number in chosen)
        return _Found(sequence, nbytes, chosen, (sequence.work * total + again) / max(total, 1.0))

    def better(a: _Found, b: _Found) -> bool:
        if a.nbytes <= limit and b.nbytes <= limit:
            return a.work < b.work
        return a.nbytes < b.nbytes

    best = search(frozenset())
    if pairs:
        chosen = frozenset(range(len(pairs)))
        with_all = search(chosen)
        best = with_all if better(with_all, best) else best
        for number in chosen if best.nbytes <= limit else ():
            without = search(chosen - {number}) if len(chosen) > 1 else best
            if without.nbytes <= limit:
                chosen -= {number}
                best = without if better(without, best) else best
    with_checkpoints(steps, values, pairs, best.pairs)
    return best


def _fitted(steps: list[Step], values: list[Value], apart: Collection[Value], limit: int) -> tuple[_Sequence, int]:
    """Return the steps with enough values dropped for an arena of ``limit`` bytes, or of as few as possible."""
    search, target = Search(steps, values, apart), limit
    nbytes = arena_bytes(values, steps, apart)
    if nbytes <= limit:
        return search.sequence, nbytes
    for _ in range(_TRIES if limit >= search.most_read_at_once() else 0):
        if not search.reduce(target):
            break
        nbytes = arena_bytes(search.sequence.values, search.sequence.steps, apart)
        if nbytes <= limit:
            return search.sequence, nbytes
        target -= nbytes - limit
    least = Search(steps, values, apart).reduce_all()
    return least, arena_bytes(least.values, least.steps, apart)


class _Input(enum.Enum):
    """Where a step that computes a value again gets an input from."""

    THERE = enum.auto()  #: it is in its buffer, or may stay there
    AGAIN = enum.auto()  #: it has to be computed again, too
    GONE = enum.auto()  #: from nowhere: another value is in its buffer


@dataclass(slots=True)
class _Gap:
    """A value between two uses.

    Args:
        value: the value.
        last: the last step that uses it before the gap.
        resume: the first step that uses it after the gap.
        nbytes: its size.
    """

    value: Value
    last: int
    resume: int
    nbytes: int


@dataclass
class _Sequence:
    """Steps with recomputation, and what they need.

    Args:
        steps, values: see ``Recomputed``.
        origin: for each step, the number of the original step that it is, or before which it has been inserted.
        work: of the inserted steps, as a fraction of that of the others.
        load: for each block of the arena, the bytes needed at each step.
    """

    steps: list[Step] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    origin: list[int] = field(default_factory=list)
    work: float = 0.0
    load: dict[Place, np.ndarray[Any, Any]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many steps compute a value again."""
        return sum(step.kind is StepKind.RECOMPUTE for step in self.steps)

    @property
    def peak(self) -> int:
        """The bytes that the arena needs at least."""
        return sum(int(load.max(initial=0)) for load in self.load.values())

    @property
    def height(self) -> tuple[int, int]:
        """The peak, and how many steps are at it."""
        return self.peak, sum(int((load == load.max()).sum()) for load in self.load.values() if load.size)

    def release(self) -> None:
        """Free what it alone has: a value and the step that makes it refer to each other, so nothing else frees them.

        A search makes hundreds of sequences while the garbage collector is paused.
        """
        for step in self.steps:
            for value in step.outputs if step.kind is StepKind.RECOMPUTE else ():
                if value is not None:
                    value.producer = None


class Search:
    """Drops values, one after another, where that frees most at the peak for the least work."""

    def __init__(self, steps: list[Step], values: list[Value], apart: Collection[Value]) -> None:
        self._steps, self._values, self._apart = steps, values, apart
        self._own = set(values)
        self._uses: dict[Value, list[int]] = {}
        self._overwritten: dict[Value, int] = {}  # by the step that writes another value into the same buffer
        self._written: dict[tuple[str, int], int] = {}  # name and version -> the step that writes it
        for index, step in enumerate(steps):
            for value in (*step.inputs, *step.outputs):
                if value is not None:
                    uses = self._uses.setdefault(value, [])
                    if not uses or uses[-1] != index:
                        uses.append(index)
            for value in step.outputs:
                if value is not None and not value.intermediate:
                    self._written.setdefault((value.name, value.version), index)
                    if value.shares is not None:
                        self._overwritten[value.shares] = index
        self._costs = _costs(steps)
        self.total_cost = sum(self._costs.values())
        self._gaps = self._find_gaps()
        self.dropped: set[Value] = set()
        self._refused: set[Value] = set()  # values that do not help at present
        self._patience = _PATIENCE
        self._kept: set[Value] = set()  # values that were dropped once and are not to be dropped again
        self._simulations = max(_LEAST_SIMULATIONS, _SIMULATED // max(len(steps), 1))  # that are left
        self.sequence = self._measured(_Sequence([*steps], [*values], [*range(len(steps))]))
        self._least = self.sequence

    def _find_gaps(self) -> dict[Value, _Gap]:
        gaps = {}
        for value in self._values:
            uses = self._uses.get(value, [])
            if len(uses) < 2 or value in self._apart or _kernel(value) is None:
                continue
            last, resume = max(zip(uses, uses[1:]), key=lambda pair: pair[1] - pair[0])
            if resume - last > 1 and value.spec is not None:
                gaps[value] = _Gap(value, last, resume, value.spec.nbytes)
        return gaps

    @property
    def any_gaps(self) -> bool:
        """Whether any value could be dropped."""
        return bool(self._gaps)

    def most_read_at_once(self) -> int:
        """Return the bytes in the arena that some step reads: whatever is dropped, they are needed at the same time."""
        read = (dict.fromkeys(x for x in step.inputs if x in self._own) for step in self._steps)
        return max((_nbytes([*values]) for values in read), default=0)

    def drop_cheap(self, share: float) -> None:
        """Drop values that are cheap to make again, for at most this share of the work, where that lowers the peak."""
        left, chosen = share * self.total_cost, []
        for place, load in self.sequence.load.items():
            load = load.copy()
            for gap in self._ranked(place, int(load.argmax())) if place.location == HOST else ():
                work = self._work(gap.value, gap.resume, set())
                if _is_cheap(gap.value) and work <= left and gap.last < load.argmax() < gap.resume:
                    load[gap.last + 1 : gap.resume] -= gap.nbytes
                    left -= work
                    chosen.append(gap.value)
        if chosen:
            self._drop(chosen)

    def reduce(self, limit: int) -> bool:
        """Drop values until the peak is at most ``limit`` bytes; False if there are none left that help."""
        while self.sequence.peak > limit and self._simulations > 0:
            chosen = self._choose(self.sequence.peak - limit)
            if chosen:
                self._drop(chosen)
            elif not self._restore():
                return False
        return self.sequence.peak <= limit

    def _restore(self) -> bool:
        """Keep a dropped value after all, the one without which the peak is lowest; False if no more are to be tried.

        Values that are computed again stay until their last use, so a long chain of them needs more memory than its
        beginning. The peak may rise at first: other values can then be dropped instead.
        """
        if self._patience == 0 or self._simulations <= 0:
            return False
        self._patience -= 1
        best: tuple[_Sequence, Value] | None = None
        dropped = [key for key in reversed(self._gaps) if key in self.dropped]  # of equal sizes, the last comes first
        for key in sorted(dropped, key=lambda key: -self._gaps[key].nbytes)[: self._simulations]:
            built = self._build(self.dropped - {key})
            if built is None:
                continue
            found = self._measured(built)
            if best is not None and found.height >= best[0].height:
                found.release()
                continue
            if best is not None:
                best[0].release()
            best = found, key
        if best is None:
            return False
        sequence, key = best
        self.dropped.discard(key)
        self._accept(sequence)
        self._kept.add(key)
        self._refused = {*self._kept}
        return True

    def _accept(self, sequence: _Sequence) -> None:
        before = {id(each): each for each in (self.sequence, self._least)}
        self.sequence = sequence
        if sequence.peak < self._least.peak:
            self._least, self._patience = sequence, _PATIENCE
        for each in before.values():
            if each is not self._least:
                each.release()

    def reduce_all(self) -> _Sequence:
        """Drop all values that help; return the steps that need the least memory."""
        self.reduce(0)
        return self._least

    def _drop(self, chosen: list[Value]) -> None:
        """Drop values, or fewer of them, if that lowers the peak; else refuse the first of them from now on."""
        while True:
            built = self._build(self.dropped.union(chosen))
            if built is not None:
                found = self._measured(built)
                if found.height < self.sequence.height:
                    self.dropped.update(chosen)
                    self._accept(found)
                    return
                found.release()
            if len(chosen) == 1:
                self._refused.update(chosen)
                return
            chosen = chosen[: len(chosen) // 2]

    def _choose(self, excess: int) -> list[Value]:
        """Return the values to drop next: of each block, those that free about half of its share of the excess."""
        chosen: list[Value] = []
        loads = {place: load for place, load in self.sequence.load.items() if load.size}
        total = self.sequence.peak
        for place, load in loads.items():
            at = int(load.argmax())
            index = self.sequence.origin[at]
            wanted, freed = excess * int(load[at]) / total / 2, 0
            for gap in self._ranked(place, index):
                if freed and freed + gap.nbytes > wanted:
                    break
                chosen.append(gap.value)
                freed += gap.nbytes
        return chosen

    def _ranked(self, place: Place, index: int) -> list[_Gap]:
        """Return what could be dropped in a block of the arena while a step runs, the best first."""
        found = []
        for key, gap in self._gaps.items():
            if key in self.dropped or key in self._refused or not gap.last < index < gap.resume:
                continue
            if gap.value.producer is not None and place == (gap.value.location, gap.value.producer.lane):
                work = self._work(gap.value, gap.resume, set())
                if work < math.inf:
                    found.append((gap.nbytes / max(work, 1.0), gap))
        found.sort(key=lambda pair: -pair[0])
        return [gap for _, gap in found]

    def _work(self, value: Value, index: int, seen: set[Value]) -> float:
        """Return the cost of computing a value again before a step, with the inputs that are not there then.

        It is infinite if that is impossible.
        """
        if value in seen or value not in self._own:
            return 0.0
        seen.add(value)
        recipe = self._recipe(value)
        if recipe is None:
            return math.inf
        prepared, inputs = recipe
        assert value.producer is not None
        work = self._costs[value.producer] if prepared is value.producer.prepared else _cost_again(value, inputs)
        for each in inputs:
            source = _Input.THERE if each is None else self._source(each, index, value)
            if source is _Input.GONE:
                return math.inf
            if each is not None and source is _Input.AGAIN:
                work += self._work(each, index, seen)
        return work

    def _recipe(self, value: Value) -> tuple[Prepared, list[Value | None]] | None:
        """Return the kernel that computes a value again, and its inputs; None if there is none."""
        prepared, step = _kernel(value), value.producer
        if prepared is None or step is None:
            return None
        inputs = [*step.inputs] if prepared is step.prepared else [*step.inputs, *step.outputs]
        return prepared, [x if spec is not None else None for x, spec in zip(inputs, prepared.inputs)]

    def _source(self, value: Value, index: int, wanted: Value) -> _Input:
        """Return where a value comes from before a step, if ``wanted`` is computed from it there."""
        own = value in self._own
        if own and value not in self.dropped:
            if self._uses[value][-1] >= index:
                return _Input.THERE
            small = _SMALL * _nbytes([value]) <= _nbytes([wanted])
            if not small and _kernel(value) is not None:
                return _Input.AGAIN
        elif own:
            return _Input.AGAIN
        if not own and self._written.get((value.name, value.version + 1), index) < index:
            return _Input.GONE  # the next version of the blob is in the same buffer
        return _Input.GONE if self._overwritten.get(value, index) < index else _Input.THERE

    def _build(self, dropped: Collection[Value]) -> _Sequence | None:
        """Return the steps in which these values are computed again; None if one of them cannot be."""
        kept, self.dropped = self.dropped, set(dropped)
        try:
            return _Builder(self).build()
        finally:
            self.dropped = kept

    def _measured(self, sequence: _Sequence) -> _Sequence:
        self._simulations -= 1
        sequence.load = arena_load(sequence.values, sequence.steps, self._apart)
        return sequence


class _Builder:
    """Makes the sequence of steps for the dropped values of a search."""

    def __init__(self, search: Search) -> None:
        self._search = search
        self._made: dict[Value, Value] = {}  # what takes the place of a value from here on
        self._replaced: dict[Step, Step] = {}  # steps that read other values, by the original ones
        self._result = _Sequence(values=[*search._values])
        self._work = 0.0
        self._possible = True

    def build(self) -> _Sequence | None:
        """Return the sequence; None if a value cannot be computed again where it is read."""
        search, result = self._search, self._result
        for index, step in enumerate(search._steps):
            inputs = [value if value is None else self._current(value, index) for value in step.inputs]
            if not self._possible:
                result.release()
                return None
            waits_for = step.waits_for and self._replaced.get(step.waits_for, step.waits_for)
            if inputs != step.inputs or waits_for is not step.waits_for:
                made = Step(step.node, step.prepared, inputs, step.outputs, step.lane, step.kind, waits_for, step.at)
                step = self._replaced[step] = made
            result.steps.append(step)
            result.origin.append(index)
        result.work = self._work / max(search.total_cost, 1.0)
        return result

    def _current(self, value: Value, index: int) -> Value:
        """Return what a step of the plan reads in place of a value."""
        gap = self._search._gaps.get(value) if value in self._search.dropped else None
        return value if gap is None or index <= gap.last else self._again(value, index)

    def _input(self, value: Value | None, index: int, wanted: Value) -> Value | None:
        """Return what ``wanted`` is computed from before step ``index``, in place of ``value``."""
        source = _Input.THERE if value is None else self._search._source(value, index, wanted)
        self._possible &= source is not _Input.GONE
        return self._again(value, index) if value is not None and source is _Input.AGAIN else value

    def _again(self, value: Value, index: int) -> Value:
        """Return the value that takes the place of a dropped one; it is computed before step ``index``."""
        found = self._made.get(value)
        if found is not None:
            return found
        search, step = self._search, value.producer
        recipe = search._recipe(value)
        if recipe is None or step is None:
            self._possible = False
            return value
        prepared, wanted = recipe
        inputs = [self._input(x, index, value) for x in wanted]
        if not self._possible:
            return value
        outputs: list[Value | None] = []
        for old in step.outputs if prepared is step.prepared else [value]:
            if old is None:
                outputs.append(None)
                continue
            made = Value(old.name, old.version, old.spec, None, old.location, intermediate=True)
            made.published = old.published
            outputs.append(made)
            self._result.values.append(made)
            if old is value or old in search.dropped:
                self._made[old] = made
        again = Step(step.node, prepared, inputs, outputs, step.lane, StepKind.RECOMPUTE, at=step.location)
        for made_value in outputs:
            if made_value is not None:
                made_value.producer = again
        self._result.steps.append(again)
        self._result.origin.append(index)
        self._work += search._costs[step] if prepared is step.prepared else _cost_again(value, inputs)
        return self._made[value]


def _kernel(value: Value) -> Prepared | None:
    """Return the kernel that computes a value again, None if it cannot be."""
    step = value.producer
    if (
        step is None
        or step.prepared.get(SplitKernel)
        or step.kind not in (StepKind.COMPUTE, StepKind.REORDER, StepKind.RESTORE)
    ):
        return None
    if step.kind is not StepKind.COMPUTE:
        return step.prepared
    node = step.node
    if node.role is Role.EXCHANGE or any(part.op_def.is_gradient_op for part in node.parts):
        return None
    again = step.prepared.get(Again)
    if again is not None:
        return again.kernel if step.outputs[0] is value else None
    if any(part.op.must_inplace or part.op.has_side_effects for part in node.parts):
        return None
    return step.prepared


def _is_cheap(value: Value) -> bool:
    """Whether a value is a copy, or its kernel has a cheaper way to compute it again."""
    step = value.producer
    return step is not None and (step.moves or (step.prepared.get(Again) is not None and step.outputs[0] is value))


def _nbytes(values: Sequence[Value | None]) -> int:
    return sum(value.spec.nbytes for value in values if value is not None and value.spec is not None)


def _costs(steps: Sequence[Step]) -> dict[Step, float]:
    """Return the cost of each step, by its id: measured times where they are known, on the scale of the estimates."""
    costs = {step: _estimate(step) for step in steps}
    known = [(step, step.prepared.get(MeasuredTime)) for step in steps if step.kind is StepKind.COMPUTE]
    times = {step: time.seconds for step, time in known if time is not None}
    measured = sum(times.values())
    if measured > 0:
        scale = sum(costs[key] for key in times) / measured
        costs.update((key, scale * seconds) for key, seconds in times.items())
    return costs


def _estimate(step: Step) -> float:
    """Return the estimated time of a step, as the bytes that are read or written in that time."""
    nbytes = float(_nbytes([*step.inputs, *step.outputs]))
    if step.kind is not StepKind.COMPUTE:
        return nbytes
    first = step.node.first
    try:
        flops = float(first.op.flops(*[value.spec.plain for value in step.node.inputs if value.spec is not None]))
    except Exception:  # the formula needs shapes that are known only when the net runs
        flops = 0.0
    return max(nbytes, flops / _FLOPS_PER_BYTE)


def _cost_again(value: Value, inputs: Sequence[Value | None]) -> float:
    return float(_nbytes([value, *inputs]))
