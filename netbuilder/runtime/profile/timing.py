"""Runs of a net with every call timed: calls of its plans, operators between them, and waits of lanes.

The net's own plans are unchanged: the timed plans have the same buffers, and calls that read the clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import field
from functools import partial

from netbuilder.engines.gpu import gpu
from netbuilder.engines.layouts import HOST
from netbuilder.ops.core.instructions import Instruction
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.runtime.execute.executable import Plan
from netbuilder.runtime.execute.lanes import LaneProgram
from netbuilder.runtime.execute.net import RuntimeNet
from netbuilder.runtime.plan.values import Step

__all__ = ["Recorder", "Span", "TimedCall", "TimedPlan", "TimedWait", "clock"]

clock = time.perf_counter_ns
Call = Callable[[], object]

Span = tuple[int, int, int]
"""(number of the run, begin, end), the times in nanoseconds of ``clock``."""


@dataclass(eq=False)
class Spans:
    """The times at which something ran."""

    spans: list[Span] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)  # in the present run: began, ended, began, ended, ...

    def end_run(self, run: int, keep: bool) -> None:
        if keep:
            self.spans += [(run, began, ended) for began, ended in zip(self.marks[::2], self.marks[1::2])]
        self.marks.clear()


@dataclass(eq=False)
class TimedCall(Spans):
    """A call of a step of a plan, or of an operator outside plans (then ``step`` is None)."""

    instruction: Instruction = field(kw_only=True)
    step: Step | None = None


@dataclass(eq=False)
class TimedWait(Spans):
    """The wait of a lane before one of its calls (``before``), for a call of another lane (``after``)."""

    before: Step = field(kw_only=True)
    after: Step = field(kw_only=True)


class TimedPlan:
    """A copy of one of the net's plans, with calls that read the clock.

    Attributes:
        plan: the net's own plan.
        calls: one for each of its steps.
        waits: the waits of lanes for one another.
        lanes: the times at which each lane worked.
        whole: the times of the plan.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.calls = [TimedCall(instruction=step.node.first, step=step) for step in plan.steps]
        self.waits: list[TimedWait] = []
        self.lanes = [Spans() for _ in range(plan.options.lane_count)]
        self.whole = Spans()
        self._copy = plan.with_calls(self._wrap, partial(_TimedLanes, self))

    def _wrap(self, index: int, call: Call) -> Call:
        timed = self.calls[index]
        assert timed.step is not None
        return _timed(call, timed.marks, _gpus_of(timed.step))

    def wrap_wait(self, source: int, index: int, wait: Call) -> Call:
        timed = TimedWait(before=self.plan.steps[index], after=self.plan.steps[source])
        self.waits.append(timed)
        return _timed(wait, timed.marks)

    def run(self) -> None:
        began = clock()
        self._copy.run()
        self.whole.marks += (began, clock())

    def everything(self) -> list[Spans]:
        return [*self.calls, *self.waits, *self.lanes, self.whole]


class _TimedLanes(LaneProgram):
    """Lanes that record the times of their work and of their waits."""

    def __init__(
        self,
        timed: TimedPlan,
        calls: Sequence[Call],
        lanes: Sequence[int],
        after: Sequence[Collection[int]],
        before: Sequence[Call | None],
    ) -> None:
        self._timed = timed
        super().__init__(calls, lanes, after, before)

    def _edge(self, source: int, index: int) -> tuple[Call, Call]:
        wait, signal = super()._edge(source, index)
        return self._timed.wrap_wait(source, index, wait), signal

    def _run_lane(self, lane: int) -> None:
        began = clock()
        super()._run_lane(lane)
        self._timed.lanes[lane].marks += (began, clock())


class Recorder:
    """Runs a net and records the times of its calls.

    Attributes:
        plans: the plans that have run, in order of their first run.
        alone: the operators that ran outside plans.
        runs: when each recorded run began and ended.
    """

    def __init__(self, net: RuntimeNet) -> None:
        self.runs: list[Span] = []
        self._net = net
        self._plans: dict[int, TimedPlan] = {}
        self._alone: dict[int, TimedCall] = {}

    @property
    def plans(self) -> list[TimedPlan]:
        return list(self._plans.values())

    @property
    def alone(self) -> list[TimedCall]:
        return list(self._alone.values())

    def run(self, keep: bool = True) -> None:
        """Run the net once.

        Args:
            keep: record the times; not useful for a first run, which makes the timed plans.

        Raises:
            NetError, DeviceError, OperatorError: as ``RuntimeNet.run``.
        """
        number, began = len(self.runs), clock()
        try:
            self._net.run_by(self._run_plan, self._run_alone)
            self._net.finish()
            ended = clock()
        except BaseException:
            keep = False
            raise
        finally:
            for timed in self._plans.values():
                for spans in timed.everything():
                    spans.end_run(number, keep)
            for call in self._alone.values():
                call.end_run(number, keep)
        if keep:
            self.runs.append((number, began, ended))

    def _run_plan(self, plan: Plan) -> None:
        timed = self._plans.get(id(plan))
        if timed is None:
            timed = self._plans[id(plan)] = TimedPlan(plan)
        timed.run()

    def _run_alone(self, instruction: Instruction) -> None:
        call = self._alone.get(instruction.index)
        if call is None:
            call = self._alone[instruction.index] = TimedCall(instruction=instruction)
        numbers = () if instruction.location == HOST else (instruction.location[1],)
        _timed(partial(self._net.run_alone, instruction), call.marks, numbers)()


def _timed(call: Call, marks: list[int], gpus: Collection[int] = ()) -> Call:
    """Return a call that makes ``call``, waits for the GPUs that it uses, and records the times before and after."""
    waits = [gpu(number).synchronize for number in gpus]

    def run() -> None:
        began = clock()
        call()
        for wait in waits:
            wait()
        ended = clock()
        marks.append(began)
        marks.append(ended)

    return run


def _gpus_of(step: Step) -> list[int]:
    locations = {step.node.first.location}
    locations.update(value.location for value in (*step.inputs, *step.outputs) if value is not None)
    return sorted(number for kind, number in locations - {HOST})
