"""Plan: the bound calls of a range of operators, for inputs of given shapes."""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from netbuilder.data.forking import loading
from netbuilder.data.gc_paused import collection_paused
from netbuilder.engines import blas
from netbuilder.engines.arrays import trim_heap
from netbuilder.engines.engine import find_engine, library_engines
from netbuilder.engines.layouts import HOST, Location, new_bytes, on_location
from netbuilder.engines.open_choice import OpenChoice
from netbuilder.graph.html_tables import folded, table
from netbuilder.graph.memory_budget import Shortfall
from netbuilder.ops.core.extensions import SplitKernel
from netbuilder.ops.core.instructions import describe, located, run_in_order
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.core.operator_event import OnOperator
from netbuilder.proto import ShapeError
from netbuilder.proto.errors import counted
from netbuilder.runtime.execute.lanes import LaneProgram
from netbuilder.runtime.execute.launched_graphs import (
    Captured,
    StepFailed,
    Unit,
    grouped,
    report,
)
from netbuilder.runtime.execute.measuring import measure_before_run
from netbuilder.runtime.plan.binding import after_clearing, bind_step, buffer_of, step_failed
from netbuilder.runtime.plan.buffers import Output, assign_buffers
from netbuilder.runtime.plan.compiler import Compilation, compile_again, compile_steps, infer_range
from netbuilder.runtime.plan.memory_plan import MemoryPlan
from netbuilder.runtime.plan.observed_calls import observed_call
from netbuilder.runtime.plan.options import PlanOptions
from netbuilder.runtime.plan.plain_kernels import on_gpu
from netbuilder.runtime.plan.runner import Runner
from netbuilder.runtime.plan.schedule import dependencies
from netbuilder.runtime.plan.split_kernels import SplitCall
from netbuilder.runtime.plan.subgraph import compile_subgraph
from netbuilder.runtime.plan.values import Step, StepKind
from netbuilder.runtime.values.arena import Arena
from netbuilder.runtime.values.blob import Blob, Generation
from netbuilder.runtime.values.buffer_ring import BufferRing, bind_each_buffer

__all__ = ["Plan", "Planned", "make_plan", "plan_buffers"]

_ATTEMPTS = 4  # compilations until the layouts of blobs that are read and written do not change; two are usual

Call = Callable[[], object]


class PlanOwner(Runner, Protocol):
    """The interface of a net to its plans."""

    def forget_plan(self, plan: Plan) -> None:
        """Drop a plan, if the net has it; a run of it in progress can finish."""


def _thread_setter(options: PlanOptions, lane: int) -> Call | None:
    """Return the call by which a lane's thread tells engines, before it runs kernels, how many threads it may use."""
    setters = [engine.thread_setter(options.threads_of(lane)) for engine in library_engines(options.uses_engine)]
    needed = [setter for setter in setters if setter is not None]
    if len(needed) < 2:
        return needed[0] if needed else None

    def set_all() -> None:
        for setter in needed:
            setter()

    return set_all


class Plan:
    """Bound calls over fixed buffers; a run is a loop over the calls."""

    def __init__(
        self,
        net: PlanOwner,
        generation: Generation,
        compilation: Compilation,
        outputs: Sequence[Output],
        options: PlanOptions,
        make_blob: Callable[[str], Blob],
        memory: MemoryPlan,
        arena: Arena,
    ) -> None:
        self.memory = memory
        self.arena = arena
        arena.use(self, memory.arenas)
        self.end = compilation.end
        self.steps = compilation.steps
        self.options = options
        self.seen = -1
        self.open_choices: list[OpenChoice] = []
        self._net = net
        self._values = compilation.values
        self._generation = generation
        self._inputs: list[tuple[Blob, TensorSpec, Location, Any]] = []
        for value in compilation.graph.externals.values():
            blob = value.blob
            assert blob is not None
            spec = value.spec if blob.spec is not None else None
            self._inputs.append((blob, spec, blob.location, _owner(blob)))  # type: ignore[arg-type]
        self._outputs = [(o.blob, (o.value.lazy_from or o.value), o.value.lazy) for o in outputs]
        self._movable = [o.blob for o in outputs if not o.blob.fixed]
        self._guards = [
            (make_blob(read.name), o.blob)
            for o in outputs
            if o.value.guarded
            for read in o.value.lazy_reads
            if read.name != o.blob.name
        ]
        self._own = {id(blob) for _, blob in self._guards}
        self._hidden = [make_blob(name) for name in compilation.graph.hidden]
        self._new: set[int] = set()  # ids of output blobs: in another buffer since the last run that finished
        self._failed: int | None = None  # the step at which a run on one thread failed
        self._watched_outputs: list[Blob] = []  # outputs of which another plan holds a converted copy
        rings = {id(blob.buffer): blob.ring for blob, _, _, _ in self._inputs if blob.ring is not None}
        bound, self._split_calls = _bind(net, [*compilation.constant_steps, *self.steps], memory, rings)
        count = len(compilation.constant_steps)
        self.step_calls = [each.alone for each in bound[count:]]
        self.constant_copies = [
            _ConstantCopy(step, each.alone) for step, each in zip(compilation.constant_steps, bound)
        ]
        self._before = [_thread_setter(options, lane) for lane in range(options.lane_count)]
        self._has_run = not any(step.node.first.location != HOST for step in self.steps)
        self._units = self._grouped(bound[count:])
        self._unit_calls = [unit.call for unit in self._units]
        self._lanes = self._lane_program(self._units, LaneProgram) if options.lane_count > 1 else None
        used = {step.prepared.engine for step in self.steps if step.prepared.engine}
        in_library = any(find_engine(name).owns_threads for name in used)
        self._blas_threads = 1 if in_library else options.lane_threads
        for copied in self.constant_copies:
            copied.blob.notify_on_write()

    def _repr_html_(self) -> str:
        """A table of the steps, for notebooks."""
        rows = [
            [
                number, step.kind.name.lower(), "+".join(part.op_def.type for part in step.node.parts),
                ", ".join(value.name for value in step.outputs if value is not None), step.prepared.name, step.lane,
            ]
            for number, step in enumerate(self.steps)
        ]  # fmt: skip
        head = ["", "step", "operators", "makes", "kernel", "lane"]
        return folded(repr(self), table(head, rows), unfolded=True)

    def __repr__(self) -> str:
        lanes = len({step.lane for step in self.steps})
        memory = self.memory.nbytes / 2**20
        return f"Plan({counted(len(self.steps), 'step')} on {counted(lanes, 'lane')}, {memory:.1f} MiB)"

    def _after(self) -> list[set[int]]:
        """Return, for each step, the earlier ones that it has to wait for."""
        return dependencies(self.steps, lambda value: id(buffer_of(value)))

    def _grouped(self, bound: Sequence[_Bound]) -> list[Unit]:
        """Return what lanes call: the calls of steps, and ranges of them that can become CUDA graphs."""
        calls = [each.call for each in bound]
        if self._has_run or not self.options.enabled("cuda_graphs"):
            return [Unit(call, (index,), self.steps[index].lane) for index, call in enumerate(self.step_calls)]
        rings = [each.rings for each in bound]
        return grouped(self._net.name, self.steps, calls, self.step_calls, rings, self._after())

    def _lane_program(self, units: Sequence[Unit], program: Callable[..., LaneProgram]) -> LaneProgram:
        of_step = {index: number for number, unit in enumerate(units) for index in unit.indices}
        after = self._after()
        waits = [
            {of_step[source] for index in unit.indices for source in after[index]} - {number}
            for number, unit in enumerate(units)
        ]
        return program([unit.call for unit in units], [unit.lane for unit in units], waits, self._before)

    def captured(self, first: int = 0) -> list[Captured]:
        """Return, for each step, the CUDA graph that it is in, numbered from ``first`` on, or why it is in none."""
        if not self.options.enabled("cuda_graphs"):
            return [Captured(why="the optimization 'cuda_graphs' is off")] * len(self.steps)
        return report(self._units, self.steps, first)

    def with_calls(self, wrap: Callable[[int, Call], Call], program: Callable[..., LaneProgram] = LaneProgram) -> Plan:
        """Return a plan over the same buffers that runs ``wrap(index, call)`` in place of each call.

        This plan is unchanged. The new one is valid for as long as this one is.

        Args:
            wrap: is given the index of a step and its call.
            program: makes the lane program, from the arguments of ``LaneProgram``.
        """
        other = copy.copy(self)
        other.step_calls = [wrap(index, call) for index, call in enumerate(self.step_calls)]
        other._units = [Unit(call, (index,), self.steps[index].lane) for index, call in enumerate(other.step_calls)]
        other._unit_calls = other.step_calls
        if self._lanes is not None:
            other._lanes = self._lane_program(other._units, program)
        return other

    def observed(self, on_operator: OnOperator) -> Plan:
        """Return a plan over the same buffers that runs in the order of the net and calls ``on_operator``.

        This plan is unchanged. The new one is valid for as long as this one is.
        """
        name = self._net.name
        other = self.with_calls(lambda index, call: observed_call(name, self.steps[index], call, on_operator))
        other._lanes = None
        return other

    @property
    def input_blobs(self) -> list[Blob]:
        """The blobs that exist before a run and that the plan reads."""
        return [blob for blob, _, _, _ in self._inputs]

    @property
    def outputs(self) -> list[tuple[Blob, Any]]:
        """The blobs that the plan writes, with their buffers; not those that it computes when they are fetched."""
        return [(blob, value.buffer) for blob, value, lazy in self._outputs if lazy is None]

    @property
    def constant_steps(self) -> list[Step]:
        """The steps that copy constants, which run when the plan is made and when a constant changes."""
        return [copied.step for copied in self.constant_copies]

    def drop(self) -> None:
        """Release the plan's memory and break the reference cycles among its values.

        A run in progress can finish, and deferred values can still be computed; but the plan cannot be used for
        another run.
        """
        needed = {id(read) for value in self._values for read in value.lazy_reads}
        for value in self._values:
            if id(value) not in needed:
                value.buffer = None
            value.producer = value.shares = value.lazy = value.lazy_from = None
            value.lazy_reads = ()
            value.copies, value.published = {}, {}
        self.arena.leave(self)

    def arena_moved(self) -> None:
        """See ``netbuilder.runtime.values.arena.ArenaUser``: the net forgets the plan; a run of it can finish."""
        self._net.forget_plan(self)

    def matches_inputs(self) -> bool:
        """Whether the blobs that the plan reads have the plain specs and locations that it was compiled for."""
        for blob, spec, location, _ in self._inputs:
            current = blob.spec
            if (current is None) != (spec is None):
                return False
            if current is not None and (current.plain != spec.plain or blob.location != location):
                return False
        return True

    def bind_outputs(self) -> bool:
        """Bind the blobs that the plan writes to its buffers, renew its copies of constants, record the generation.

        Returns:
            False if an input is in another buffer or layout than the plan is bound to: it has to be compiled again.
        """
        for blob, _, _, _ in self._inputs:
            if blob.lazy is not None:
                blob.materialize()
        if self._is_stale():
            return False
        for blob, value, lazy in self._outputs:
            assert value.spec is not None
            if blob.read_by:
                blob.flush_readers(but=self._own)
            if blob.buffer is not value.buffer:
                self._new.add(id(blob))
            blob.bind(value.spec, value.buffer, value.location, lazy)
        for blob in self._hidden:
            blob.hide(self._net)
        for blob, reader in self._guards:
            if reader not in blob.read_by:
                blob.read_by.append(reader)
        self._watched_outputs = [blob for blob, _, _ in self._outputs if blob.watched]
        self._renew_constant_copies()
        # If the plan changes the shape of one of its inputs, the net has to look for a plan again before the next run.
        self.seen = -1 if self._is_stale() else self._generation.number
        return True

    def _renew_constant_copies(self) -> None:
        """Copy the constants that have changed since they were copied."""
        due = [copied for copied in self.constant_copies if copied.copy.writes != copied.blob.writes]
        if due and self._before[0] is not None:
            self._before[0]()
        for copied in due:
            step = copied.step
            with copied.copy.lock:
                if copied.copy.writes == copied.blob.writes:  # another plan has just made it
                    continue
                try:
                    copied.call()
                except Exception as error:
                    raise located(f"{describe(self._net.name, step.node.first)} ({step.what})", error) from error
                copied.copy.writes = copied.blob.writes

    def _is_stale(self) -> bool:
        if any(blob.fixed for blob in self._movable):
            return True  # the plan would write to the blob's former memory
        return any(_owner(blob) is not owner or blob.spec != spec for blob, spec, _, owner in self._inputs)

    def begin(self) -> bool:
        """Take the arena for a run; False if another run has it. ``end_run`` returns it."""
        return not self.memory.nbytes or self.arena.acquire()

    def end_run(self) -> None:
        """Return the arena."""
        if self.memory.nbytes:
            self.arena.release()

    def run(self) -> None:
        """Run every call once; the caller has the arena, see ``begin``.

        Raises:
            NetError, DeviceError, OperatorError: an operator failed; the message names the operator and the line of
                the user's code that added it.
        """
        for blob in self._watched_outputs:
            blob.mark_written()
        blas.limit_threads(self._blas_threads)
        try:
            self._run_calls()
            if self._new:
                self._new = set()
        except BaseException:
            self._wait_for_split_calls()
            self._empty_outputs()
            raise
        finally:
            blas.release_threads()

    def _empty_outputs(self) -> None:
        """Drop, after an error, the values of blobs that no run has computed: nobody shall take them for results."""
        written = {id(value) for step in self.steps[: self._failed or 0] for value in step.outputs}
        for blob, value, _ in self._outputs:
            if id(blob) in self._new and id(value) not in written:
                blob.empty()
        self._failed = None

    def _wait_for_split_calls(self) -> None:
        """Wait, after an error, for split kernels that have begun: they would write into buffers that are used next."""
        for call in self._split_calls:
            with contextlib.suppress(Exception):  # the caller gets the first error
                call.wait()

    def _run_calls(self) -> None:
        if self._lanes is not None and self._has_run:
            failure = self._lanes.run()
            if failure is not None:
                raise self._located(*failure)
            return
        if self._before[0] is not None:
            self._before[0]()
        if self._has_run:
            _run_quietly(self._unit_calls, self._located)
        else:  # one thread, since it allocates memory and compiles kernels, which collectives can wait for forever
            _run_quietly(self.step_calls, self._located_step)
            self._has_run = True

    def _located_step(self, index: int, error: BaseException) -> BaseException:
        self._failed = index
        return step_failed(self._net.name, self.steps[index], error)

    def _located(self, index: int, error: BaseException, thread: str = "") -> BaseException:
        extra = f", in thread {thread!r}" if thread not in ("", threading.main_thread().name) else ""
        self._failed = None if thread else self._units[index].indices[0]
        step = self.steps[self._units[index].indices[0]]
        if isinstance(error, StepFailed) and error.__cause__ is not None:
            step, error = self.steps[error.index], error.__cause__
        return step_failed(self._net.name, step, error, extra)


# Infinities and NaN are legal results; EnforceFinite and friends detect them. The decorator is faster than a block.
_run_quietly = np.errstate(all="ignore")(run_in_order)


def _owner(blob: Blob) -> Any:
    """Return what a plan is bound to: the blob's buffer, or the ring that the buffer belongs to."""
    return blob.ring if blob.ring is not None else blob.buffer


class _ConstantCopy:
    """A copy of a constant: its step, its call, the constant, and the copy that plans share."""

    __slots__ = ("blob", "call", "copy", "step")

    def __init__(self, step: Step, call: Call) -> None:
        copied, made = step.inputs[0], step.outputs[0]
        assert copied is not None and copied.constant is not None and made is not None and made.copy is not None
        self.step, self.call, self.blob, self.copy = step, call, copied.constant, made.copy


_LARGE_PLAN = 32 << 20
"""Bytes of an arena from which memory that compilation has freed, such as parameters in their old layouts, matters."""


def make_plan(
    net: PlanOwner,
    generation: Generation,
    start: int,
    options: PlanOptions,
    make_blob: Callable[[str], Blob],
    arena: Arena,
) -> Plan | Shortfall | None:
    """Compile the longest static range of operators from ``start``.

    Returns:
        The plan; or by how much it exceeds its memory budget; or None if the first operator is dynamic.
    """
    with loading, collection_paused():
        made = _make_plan(net, generation, start, options, make_blob, arena)
    if isinstance(made, Plan) and made.memory.nbytes >= _LARGE_PLAN:
        trim_heap()
    return made


def _too_large(net: Runner, compilation: Compilation, error: MemoryError) -> BaseException:
    """Return the error for values that do not fit into memory; it names the operator that makes the largest."""
    made = [value for value in compilation.values if value.producer is not None and value.spec is not None]
    largest = max(made, key=lambda value: value.spec.nbytes if value.spec is not None else 0)
    assert largest.spec is not None and largest.producer is not None
    text = (
        f"the values of the net do not fit into memory ({error}); the largest, {largest.name!r} of shape "
        f"{largest.spec.shape}, takes {largest.spec.nbytes:,} bytes"
    )
    return located(describe(net.name, largest.producer.node.first), ShapeError(text))


def _make_plan(
    net: PlanOwner,
    generation: Generation,
    start: int,
    options: PlanOptions,
    make_blob: Callable[[str], Blob],
    arena: Arena,
) -> Plan | Shortfall | None:
    planned = plan_buffers(net, start, options, make_blob, arena)
    if not isinstance(planned, Planned):
        return planned
    compilation = planned.compilation
    _pin_blobs(compilation, planned.outputs)
    options = compilation.graph.options
    plan = Plan(net, generation, compilation, planned.outputs, options, make_blob, planned.memory, arena)
    plan.open_choices = [choice for choice in compilation.open_choices if not choice.known]
    return plan


class Planned(NamedTuple):
    """The steps of a plan, whose values have buffers, before kernels are bound to them."""

    compilation: Compilation
    outputs: Sequence[Output]
    memory: MemoryPlan


def plan_buffers(
    net: Runner, start: int, options: PlanOptions, make_blob: Callable[[str], Blob], arena: Arena
) -> Planned | Shortfall | None:
    """Compile a plan as far as its buffers, in the layouts in which blobs stay; see ``make_plan``."""
    inferred = infer_range(net, start, options)
    if inferred is None:
        return None
    compilation = compile_steps(net, start, inferred, options, compile_subgraph)
    for left in reversed(range(_ATTEMPTS)):
        choices = compilation.open_choices
        if choices and measure_before_run(choices, arena.lend):
            compilation = compile_again(net, compilation, compile_subgraph)

        def may_relayout(blob: Blob, left: int = left) -> bool:
            return left > 0 and options.enabled("owned_layouts") and (blob.owner is None or blob.owner is net)

        try:
            outputs, layouts, memory = assign_buffers(
                compilation, make_blob, may_relayout, options.enabled, arena.memory
            )
        except MemoryError as error:
            raise _too_large(net, compilation, error) from error
        if memory.shortfall is not None:
            return memory.shortfall
        if not layouts:
            return Planned(compilation, outputs, memory)
        for name, layout in layouts.items():
            blob = compilation.graph.externals[name].blob
            assert blob is not None
            blob.materialize()
            blob.relayout(layout, threads=options.threads)
            blob.owner = net
        compilation = compile_again(net, compilation, compile_subgraph)
    raise AssertionError("the last compilation requests no layouts")


def _pin_blobs(compilation: Compilation, outputs: Sequence[Output]) -> None:
    """Pin the blobs whose buffers the plan writes, or deferred values read."""
    written = {id(value.buffer) for step in compilation.steps for value in step.outputs if value is not None}
    read_later = {id(read) for value in compilation.values for read in value.lazy_reads}
    for output in outputs:
        output.blob.pin()
    for value in compilation.graph.externals.values():
        blob = value.blob
        if blob is not None and blob.ring is not None and (id(blob.buffer) in written or id(value) in read_later):
            blob.pin()


class _Bound(NamedTuple):
    """The call of a step: as it runs on the current stream, and by itself on its device; and the rings it reads."""

    call: Call
    alone: Call
    rings: Collection[BufferRing]


def _bind(
    net: Runner, steps: Sequence[Step], memory: MemoryPlan, rings: Mapping[int, BufferRing]
) -> tuple[list[_Bound], list[SplitCall]]:
    """Return the calls of steps, and the split calls among them."""
    apart = _shared_scratch(step for step in steps if step not in memory.scratch)  # they copy constants
    calls: list[_Bound] = []
    split: dict[int, SplitCall] = {}
    for step in steps:
        if step.waits_for is not None:
            wait = split[id(step.waits_for)].wait
            calls.append(_Bound(wait, _on_device(step, wait), ()))
            continue
        try:
            ids = {id(buffer_of(value)) for value in step.inputs if value is not None}
            own_rings = {key: ring for key, ring in rings.items() if key in ids}
            scratch = memory.scratch.get(step)
            if scratch is None and step.prepared.scratch:
                scratch = apart[step.location][: step.prepared.scratch]
            with on_location(step.location):
                call = bind_each_buffer(own_rings, partial(bind_step, step, scratch))
            if step in memory.cleared:
                call = after_clearing(memory.cleared[step], call)
            if step.prepared.get(SplitKernel):
                split[id(step)] = SplitCall(call)
                call = split[id(step)].begin
            calls.append(_Bound(call, _on_device(step, call), own_rings.values()))
        except Exception as error:
            raise located(describe(net.name, step.node.first), error) from error
    return calls, list(split.values())


def _shared_scratch(steps: Iterable[Step]) -> dict[Location, Any]:
    """Return scratch memory at each location for steps that run one after another."""
    most: dict[Location, int] = {}
    for step in steps:
        most[step.location] = max(most.get(step.location, 0), step.prepared.scratch)
    return {location: new_bytes(nbytes, location) for location, nbytes in most.items() if nbytes}


def _on_device(step: Step, call: Call) -> Call:
    """Return the call of a step as it runs on the step's device; copies between locations use both of theirs."""
    return call if step.location == HOST or step.kind is StepKind.TRANSFER else on_gpu(call, step.location[1])
