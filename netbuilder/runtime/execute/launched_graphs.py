"""CUDA graphs in a plan: consecutive calls of one GPU are captured when they have run, and then repeated by one launch.

A range of steps is captured once for each combination of buffers that input is prefetched into: its calls read another
buffer in each turn of the ring. When a blob gets another buffer, the plan is bound again, with new ranges. Numbers that
the host computes for each run are uploaded before a graph is launched.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from netbuilder.engines.captures import CapturedCalls, CaptureError
from netbuilder.engines.engine import array_engine
from netbuilder.engines.gpu import gpu
from netbuilder.engines.layouts import HOST, Location
from netbuilder.graph.source import warn_user
from netbuilder.ops.core.extensions import SplitKernel
from netbuilder.ops.core.instructions import describe, run_in_order
from netbuilder.proto import PROTO_CUDA
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.runtime.plan.capturable import why_not_captured
from netbuilder.runtime.plan.plain_kernels import PLAIN
from netbuilder.runtime.plan.values import Step
from netbuilder.runtime.values.buffer_ring import BufferRing

__all__ = ["Captured", "LaunchedGraph", "StepFailed", "Unit", "grouped", "report"]

Call = Callable[[], object]

_TURNS = 4  # graphs of a range: combinations of the buffers that it reads
_SHORTEST = 2  # calls; a launch of a graph takes the host as long as one call


class StepFailed(Exception):
    """A call of a range failed; the cause is its error.

    Attributes:
        index: of the step.
    """

    def __init__(self, index: int) -> None:
        super().__init__(f"step {index} failed")
        self.index = index


@dataclass(frozen=True)
class Captured:
    """What became of a step of a plan.

    Args:
        graph: the number of the CUDA graph; -1: it is in none.
        why: why it is in none.
    """

    graph: int = -1
    why: str = ""


@dataclass(frozen=True)
class Unit:
    """What a lane calls: the call of one step, or a graph.

    Args:
        call: the call.
        indices: the steps.
        lane: the lane.
        graph: the calls, if they can be captured.
    """

    call: Call
    indices: tuple[int, ...]
    lane: int
    graph: LaunchedGraph | None = None


class _OfThread(threading.local):
    """What tells threads apart; their numbers are used again."""

    def __init__(self) -> None:
        self.token = object()


_of_thread = _OfThread()


@dataclass(frozen=True)
class _Ran:
    """A run of the calls without a graph, after which they are bound.

    Args:
        thread: that of the run. Libraries make a handle for each thread, which they refuse during a capture.
        numbers: what the host computes for each run.
    """

    thread: object
    numbers: Sequence[Any]


class LaunchedGraph:
    """Consecutive calls of one GPU.

    Args:
        net: the name of the net, for warnings.
        number: the GPU.
        calls: the calls, in order; they run on the current stream.
        steps: their steps.
        indices: the numbers of the steps in the plan.
        rings: the rings of the buffers that they read.
    """

    def __init__(
        self,
        net: str,
        number: int,
        calls: Sequence[Call],
        steps: Sequence[Step],
        indices: Sequence[int],
        rings: Sequence[BufferRing] = (),
    ) -> None:
        self.indices = tuple(indices)
        self._net, self._number, self._calls, self._steps, self._rings = net, number, calls, steps, rings
        self._engine = array_engine((PROTO_CUDA, number))
        self._graphs: dict[tuple[int, ...], CapturedCalls] = {}  # by turn: the combination of buffers
        self._ran: dict[tuple[int, ...], _Ran] = {}  # the last runs without a graph, by turn
        self._parts: list[LaunchedGraph] = []  # what it was divided into by a call that cannot be captured
        self._why = "" if len(calls) >= _SHORTEST else "a graph of one call would gain nothing"
        self._broken = False  # whether a capture was, as by another thread

    def __call__(self) -> None:
        """Run the calls.

        Raises:
            StepFailed: one of them failed.
        """
        turn = tuple([ring.index for ring in self._rings])
        todo = [self]  # no recursion: hundreds of calls may be such that they cannot be captured
        while todo:
            graph = todo.pop()
            captured = graph._graphs.get(turn)
            if captured is not None:
                graph._launch(turn, captured)
            elif graph._parts:
                todo += reversed(graph._parts)
            elif graph._why or not graph._has_run(turn) or len(graph._graphs) >= _TURNS:
                graph._run(turn)
            elif not graph._capture(turn):
                todo.append(graph)

    def _run(self, turn: tuple[int, ...]) -> None:
        with gpu(self._number), self._engine.noting_numbers() as numbers:
            run_in_order(self._calls, lambda index, error: StepFailed(self.indices[index]))
        self._ran[turn] = _Ran(_of_thread.token, numbers)

    def _has_run(self, turn: tuple[int, ...]) -> bool:
        """Whether the calls have run for this turn, the last time in this thread."""
        return turn in self._ran and self._ran[turn].thread is _of_thread.token

    def _capture(self, turn: tuple[int, ...]) -> bool:
        """Capture the calls and run them; return False, and run nothing, if that is not possible.

        After a capture that may have been broken by another thread, they are captured once more in their next run.
        """
        try:
            graph = self._engine.capture(self._number, self._calls, self._ran[turn].numbers)
        except CaptureError as error:
            if self._broken or not error.broken:
                self._give_up(error)
                return False
            self._broken, graph = True, None
        if graph is None:  # or another thread captures for this GPU, or waits for all of it
            self._run(turn)
            return True
        self._graphs[turn] = graph
        self._launch(turn, graph)
        return True

    def _launch(self, turn: tuple[int, ...], captured: CapturedCalls) -> None:
        try:
            captured.upload()
        except Exception:
            self._run(turn)  # it raises the error, too, from the call that reads the number
            return
        captured.launch()

    def _give_up(self, error: CaptureError) -> None:
        """Go on without a graph, or with those before and after the call that cannot be captured."""
        count = len(self._calls)
        if error.index is None or error.index == count:
            self._why = f"the GPU cannot capture it: {error}"
            what = f"net {self._net!r}, operators {self._range}" if error.index == count else f"GPU {self._number}"
            warn_user(f"{what}: no CUDA graph is used: {error}", RuntimeWarning)
            return
        part = self._steps[error.index].node.first
        warn_user(
            f"{describe(self._net, part)} cannot be captured into a CUDA graph, although its kernel "
            f"{self._steps[error.index].what!r} is marked as capturable: {error}; it runs without one",
            RuntimeWarning,
        )
        self._graphs.clear()
        for start, end in ((0, error.index), (error.index, error.index + 1), (error.index + 1, count)):
            if start < end:
                self._parts.append(self._part(start, end))
        self._parts[bool(error.index)]._why = f"it cannot be captured: {error}"

    def _part(self, start: int, end: int) -> LaunchedGraph:
        made = LaunchedGraph(
            self._net,
            self._number,
            self._calls[start:end],
            self._steps[start:end],
            self.indices[start:end],
            self._rings,
        )
        made._ran = dict(self._ran)
        return made

    @property
    def _range(self) -> str:
        first, last = self._steps[0].node.first.index, self._steps[-1].node.first.index
        return f"{first} to {last}"

    def leaves(self) -> Iterator[LaunchedGraph]:
        """Yield the ranges that it was divided into; itself if it was not."""
        todo = [self]
        while todo:
            graph = todo.pop()
            if not graph._parts:
                yield graph
            todo += reversed(graph._parts)

    @property
    def why(self) -> str:
        """Why there is no graph; "" if there is one."""
        if self._graphs:
            return ""
        return self._why or "it is captured when its step has run twice"


def grouped(
    net: str,
    steps: Sequence[Step],
    calls: Sequence[Call],
    alone: Sequence[Call],
    rings: Sequence[Collection[BufferRing]],
    after: Sequence[Collection[int]],
) -> list[Unit]:
    """Return the calls of a plan with those joined that can be in one graph: those of a lane on one GPU, see below.

    They are consecutive but for steps between them that touch nothing of this GPU: those of other GPUs that the lane
    drives.

    Args:
        net: the name of the net.
        steps: the steps of the plan.
        calls: their calls, which run on the current stream.
        alone: the same calls, each on its device.
        rings: the rings of the buffers that each reads.
        after: for each, the earlier ones that it has to wait for. A step that waits for another lane ends the lane's
            ranges.
    """
    units: list[Unit] = []
    for members in _ranges(steps, after):
        if why_not_captured(steps[members[0]]):
            units += [Unit(alone[index], (index,), steps[index].lane) for index in members]
            continue
        read = {id(ring): ring for index in members for ring in rings[index]}
        part = [steps[index] for index in members]
        number = part[0].location[1]
        graph = LaunchedGraph(net, number, [calls[i] for i in members], part, members, list(read.values()))
        units.append(Unit(graph, graph.indices, part[0].lane, graph))
    return sorted(units, key=lambda unit: unit.indices[0])


def _ranges(steps: Sequence[Step], after: Sequence[Collection[int]]) -> list[list[int]]:
    """Return the steps of each lane, in order, divided into those that can be in one graph and single other ones.

    A step that joins a range runs before the steps between them, none of which may matter to it.
    """
    found: list[list[int]] = []
    opened: dict[int, dict[Location, list[int]]] = defaultdict(dict)  # by lane
    seen: dict[tuple[int, int], int] = {}  # (lane, other lane) -> the last step of the other that the lane waits for
    for index, step in enumerate(steps):
        lane, alone = step.lane, bool(why_not_captured(step))
        waits = [(steps[source].lane, source) for source in after[index] if steps[source].lane != lane]
        new = [source for other, source in waits if seen.get((lane, other), -1) < source]
        for other, source in waits:
            seen[lane, other] = max(source, seen.get((lane, other), -1))
        if new:
            opened[lane].clear()
        present = None if alone else opened[lane].get(step.location)
        between = [s for s in after[index] if steps[s].lane == lane and steps[s].location != step.location]
        if present is None or any(source > present[0] for source in between):
            present = []
            found.append(present)
        present.append(index)
        if alone:
            touched = _touched(step)
            for location in opened[lane].keys() & touched if HOST not in touched else list(opened[lane]):
                del opened[lane][location]
        else:
            opened[lane][step.location] = present
    return [part for members in found for part in _with_waits(members, steps)]


def _touched(step: Step) -> set[Location]:
    """Return where a step that is in no graph reads and writes; a plain kernel may do so on the host."""
    values = [value.location for value in (*step.inputs, *step.outputs) if value is not None]
    return {step.location, *values, *([HOST] if step.prepared.name == PLAIN else [])}


def _with_waits(members: list[int], steps: Sequence[Step]) -> list[list[int]]:
    """Return a range without split kernels that are waited for outside of it: a graph must end all that it begins."""
    begun = {id(steps[index]) for index in members}
    ended = {id(steps[index].waits_for) for index in members}
    for at, index in enumerate(members) if len(members) > 1 else ():
        step = steps[index]
        whole = id(step.waits_for) in begun if step.waits_for is not None else id(step) in ended
        if step.prepared.get(SplitKernel) and not whole:
            parts = (members[:at], members[at : at + 1], members[at + 1 :])
            return [made for part in parts if part for made in _with_waits(part, steps)]
    return [members]


def report(units: Sequence[Unit], steps: Sequence[Step], first: int = 0) -> list[Captured]:
    """Return, for each step of a plan, what became of it; graphs have numbers from ``first`` on."""
    found = [Captured()] * len(steps)
    graphs = first
    for unit in units:
        for graph in unit.graph.leaves() if unit.graph is not None else ():
            for index in graph.indices:
                found[index] = Captured(-1, graph.why) if graph.why else Captured(graphs)
            graphs += not graph.why
        if unit.graph is None:
            for index in unit.indices:
                found[index] = Captured(-1, why_not_captured(steps[index]))
    return found
