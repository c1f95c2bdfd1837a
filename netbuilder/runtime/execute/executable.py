"""A plan: the bound calls of a run of operators, for inputs of given shapes."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from netbuilder.data.forking import loading
from netbuilder.graph.gc_paused import collection_paused
from netbuilder.ops.core.instructions import describe, located, run_in_order
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.engines import blas
from netbuilder.ops.engines.arrays import aligned_empty
from netbuilder.ops.engines.engine import find_engine, library_engines
from netbuilder.ops.engines.layouts import HOST, Location
from netbuilder.proto import ShapeError
from netbuilder.runtime.execute.lanes import LaneProgram
from netbuilder.runtime.plan.binding import bind_step, buffer_of, step_failed
from netbuilder.runtime.plan.buffers import Output, assign_buffers
from netbuilder.runtime.plan.compiler import Compilation, compile_steps
from netbuilder.runtime.plan.halves import Begun
from netbuilder.runtime.plan.options import Setting
from netbuilder.runtime.plan.plain_kernels import on_gpu
from netbuilder.runtime.plan.runner import Runner
from netbuilder.runtime.plan.subgraph_segment import compile_subgraph
from netbuilder.runtime.plan.values import Step
from netbuilder.runtime.values.blob import Blob, Generation
from netbuilder.runtime.values.buffer_ring import Turns, bind_turning

__all__ = ["Plan", "make_plan"]

_ATTEMPTS = 4  # compilations until layouts of blobs that are read and written have settled; two are usual

Call = Callable[[], object]


def _thread_setter(setting: Setting, lane: int) -> Call | None:
    """Return what a lane's thread calls before it runs kernels, so that engines know how many threads it may use."""
    setters = [engine.thread_setter(setting.threads_of(lane)) for engine in library_engines(setting.allows)]
    needed = [setter for setter in setters if setter is not None]
    if len(needed) < 2:
        return needed[0] if needed else None

    def set_all() -> None:
        for setter in needed:
            setter()

    return set_all


class Plan:
    """Bound calls over fixed buffers; running it again costs a loop over the calls."""

    def __init__(
        self,
        net: Runner,
        generation: Generation,
        compilation: Compilation,
        outputs: Sequence[Output],
        setting: Setting,
        make_blob: Callable[[str], Blob],
    ) -> None:
        self.end = compilation.end
        self.steps = compilation.steps
        self.setting = setting
        self.seen = -1
        self._net = net
        self._values = compilation.values
        self._generation = generation
        self._inputs: list[tuple[Blob, TensorSpec, Location, Any]] = []
        for value in compilation.externals.values():
            blob = value.blob
            assert blob is not None
            spec = value.spec if blob.spec is not None else None
            self._inputs.append((blob, spec, blob.location, _holder(blob)))  # type: ignore[arg-type]
        self._outputs = [(o.blob, (o.value.lazy_from or o.value), o.value.lazy) for o in outputs]
        self._guards = [
            (make_blob(read.name), o.blob)
            for o in outputs
            if o.value.guarded
            for read in o.value.lazy_reads
            if read.name != o.blob.name
        ]
        self._own = {id(blob) for _, blob in self._guards}
        self._hidden = [make_blob(name) for name in compilation.hidden]
        self._shown: list[Blob] = []  # blobs that this plan writes and others hold copies of
        turning = {id(blob.buffer): blob.turns for blob, _, _, _ in self._inputs if blob.turns is not None}
        calls, self._begun = _bind(net, [*compilation.once, *self.steps], setting, turning)
        count = len(compilation.once)
        self._calls = calls[count:]
        self._once = [_Once(step, call) for step, call in zip(compilation.once, calls[:count])]
        self._before = [_thread_setter(setting, lane) for lane in range(setting.lane_count)]
        self._lanes = self._dealt(self._calls, LaneProgram) if setting.lane_count > 1 else None
        used = {step.prepared.engine for step in self.steps if step.prepared.engine}
        in_library = any(find_engine(name).owns_threads for name in used)
        self._blas_threads = 1 if in_library else setting.lane_threads
        for once in self._once:
            once.blob.watch()

    def _dealt(self, calls: Sequence[Call], program: Callable[..., LaneProgram]) -> LaneProgram:
        lanes = [step.lane for step in self.steps]
        return program(calls, lanes, _dependencies(self.steps), self._before)

    def with_calls(self, wrap: Callable[[int, Call], Call], program: Callable[..., LaneProgram] = LaneProgram) -> Plan:
        """Return a plan over the same buffers that runs ``wrap(index, call)`` in place of each call.

        This plan stays as it is. The other one is of use for as long as the net would run this one.

        Args:
            wrap: given the index of a step and its call.
            program: makes the lanes; it is called as ``LaneProgram`` is.
        """
        other = copy.copy(self)
        other._calls = [wrap(index, call) for index, call in enumerate(self._calls)]
        if self._lanes is not None:
            other._lanes = self._dealt(other._calls, program)
        return other

    def drop(self) -> None:
        """Let go of memory and cut the circles among values, so that all is free as soon as nobody has the plan.

        A run that has begun comes to its end, and what was left to be computed on demand still is; but the plan cannot
        be taken over again.
        """
        needed = {id(read) for value in self._values for read in value.lazy_reads}
        for value in self._values:
            if id(value) not in needed:
                value.buffer = None
            value.producer = value.shares = value.lazy = value.lazy_from = None
            value.lazy_reads = ()
            value.copies, value.published = {}, {}

    def fits(self) -> bool:
        """Whether the workspace's blobs are those that the plan was made for; false if one has another spec."""
        for blob, spec, location, _ in self._inputs:
            current = blob.spec
            if (current is None) != (spec is None):
                return False
            if current is not None and (current.plain != spec.plain or blob.location != location):
                return False
        return True

    def take_over(self) -> bool:
        """Bind the blobs that the plan writes to its buffers, renew its copies of constants, note the generation.

        Returns:
            False if an input lies in another buffer or layout than the plan was bound to: it has to be made again.
        """
        for blob, _, _, _ in self._inputs:
            if blob.lazy is not None:
                blob.materialize()
        if self._is_stale():
            return False
        for blob, value, lazy in self._outputs:
            assert value.spec is not None
            if blob.read_by:
                blob.settle(but=self._own)
            blob.bind(value.spec, value.buffer, value.location, lazy)
        for blob in self._hidden:
            blob.hide(self._net.name)
        for blob, reader in self._guards:
            if reader not in blob.read_by:
                blob.read_by.append(reader)
        self._shown = [blob for blob, _, _ in self._outputs if blob.watched]
        self._renew()
        # A plan that gives an input another shape has to be looked up again before it can run again.
        self.seen = -1 if self._is_stale() else self._generation.number
        return True

    def _renew(self) -> None:
        """Copy the constants that have changed since they were copied."""
        due = [once for once in self._once if once.writes != once.blob.writes]
        if due and self._before[0] is not None:
            self._before[0]()
        for once in due:
            try:
                once.call()
            except Exception as error:
                raise located(f"{describe(self._net.name, once.step.node.first)} ({once.step.what})", error) from error
            once.writes = once.blob.writes

    def _is_stale(self) -> bool:
        return any(_holder(blob) is not holder or blob.spec != spec for blob, spec, _, holder in self._inputs)

    def run(self) -> None:
        """Run every call once.

        Raises:
            NetError, DeviceError, OperatorError: an operator failed; the message says which, where, and who made it.
        """
        for blob in self._shown:
            blob.touch()
        blas.hold(self._blas_threads)
        try:
            self._run_calls()
        except BaseException:
            self._finish_begun()
            raise
        finally:
            blas.release()

    def _finish_begun(self) -> None:
        """Wait, after an error, for what kernels have begun: it would write into buffers that others use next."""
        for begun in self._begun:
            with contextlib.suppress(Exception):  # the first error is what the caller is told
                begun.wait()

    def _run_calls(self) -> None:
        if self._lanes is not None:
            failure = self._lanes.run()
            if failure is not None:
                raise self._located(*failure)
            return
        if self._before[0] is not None:
            self._before[0]()
        with np.errstate(all="ignore"):  # infinities and NaN are values; what is not wanted is found by checks
            run_in_order(self._calls, self._located)

    def _located(self, index: int, error: BaseException, thread: str = "") -> BaseException:
        extra = f", in thread {thread!r}" if thread else ""
        return step_failed(self._net.name, self.steps[index], error, extra)


def _holder(blob: Blob) -> Any:
    """Return what a plan is bound to: the blob's buffer, or the turns among whose buffers it is."""
    return blob.turns if blob.turns is not None else blob.buffer


class _Once:
    """A copy of a constant: its step, its call, and how often the blob had been written when it was made."""

    __slots__ = ("blob", "call", "step", "writes")

    def __init__(self, step: Step, call: Call) -> None:
        copied = step.inputs[0]
        assert copied is not None and copied.constant is not None
        self.step, self.call, self.blob, self.writes = step, call, copied.constant, -1


def make_plan(
    net: Runner,
    generation: Generation,
    start: int,
    setting: Setting,
    make_blob: Callable[[str], Blob],
) -> Plan | None:
    """Compile the longest static run of operators from ``start``; None if the first one is dynamic."""
    with loading, collection_paused():
        return _make_plan(net, generation, start, setting, make_blob)


def _too_large(net: Runner, compilation: Compilation, error: MemoryError) -> BaseException:
    """Return the error that says which operator makes the largest of the values that do not fit into memory."""
    made = [value for value in compilation.values if value.producer is not None and value.spec is not None]
    largest = max(made, key=lambda value: value.spec.nbytes if value.spec is not None else 0)
    assert largest.spec is not None and largest.producer is not None
    text = (
        f"the values of the net do not fit into memory ({error}); the largest, {largest.name!r} of shape "
        f"{largest.spec.shape}, takes {largest.spec.nbytes:,} bytes"
    )
    return located(describe(net.name, largest.producer.node.first), ShapeError(text))


def _make_plan(
    net: Runner, generation: Generation, start: int, setting: Setting, make_blob: Callable[[str], Blob]
) -> Plan | None:
    attempts = _ATTEMPTS
    while (compilation := compile_steps(net, start, setting, compile_subgraph)) is not None:
        attempts -= 1

        def may_relayout(blob: Blob, attempts: int = attempts) -> bool:
            return attempts > 0 and setting.does("owned_layouts") and (blob.owner is None or blob.owner is net)

        try:
            outputs, wanted = assign_buffers(compilation, make_blob, may_relayout, setting.does)
        except MemoryError as error:
            raise _too_large(net, compilation, error) from error
        if not wanted:
            _fix_blobs(compilation, outputs)
            return Plan(net, generation, compilation, outputs, compilation.setting, make_blob)
        for name, layout in wanted.items():
            blob = compilation.externals[name].blob
            assert blob is not None
            blob.materialize()
            blob.relayout(layout)
            blob.owner = net
    return None


def _fix_blobs(compilation: Compilation, outputs: Sequence[Output]) -> None:
    """Let blobs stay where they are that the plan writes into, or that values computed on demand are read from."""
    written = {id(value.buffer) for step in compilation.steps for value in step.outputs if value is not None}
    late = {id(read) for value in compilation.values for read in value.lazy_reads}
    for output in outputs:
        output.blob.fix()
    for value in compilation.externals.values():
        blob = value.blob
        if blob is not None and blob.turns is not None and (id(blob.buffer) in written or id(value) in late):
            blob.fix()


def _bind(
    net: Runner, steps: Sequence[Step], setting: Setting, turning: Mapping[int, Turns]
) -> tuple[list[Call], list[Begun]]:
    """Return the calls of steps, and what those of kernels in two halves have begun."""
    scratch: list[Any] = [None] * setting.lane_count
    for lane in range(setting.lane_count):
        size = max((step.prepared.scratch for step in steps if step.lane == lane), default=0)
        if size:
            scratch[lane] = aligned_empty(size)
    calls: list[Call] = []
    begun: dict[int, Begun] = {}
    for step in steps:
        if step.begun is not None:
            calls.append(_there(step, begun[id(step.begun)].wait))
            continue
        try:
            ids = {id(buffer_of(value)) for value in step.inputs if value is not None}
            mine = {key: turns for key, turns in turning.items() if key in ids}
            call = bind_turning(mine, partial(bind_step, step, scratch[step.lane]))
            if step.prepared.split:
                begun[id(step)] = Begun(call)
                call = begun[id(step)].begin
            calls.append(_there(step, call))
        except Exception as error:
            raise located(describe(net.name, step.node.first), error) from error
    return calls, list(begun.values())


def _there(step: Step, call: Call) -> Call:
    """Return the call of a step as it runs on the step's device."""
    location = step.node.first.location
    return call if location == HOST or step.moves else on_gpu(call, location[1])


def _dependencies(steps: Sequence[Step]) -> list[set[int]]:
    """Return for each step the earlier ones it has to follow: by buffers read and written, and control inputs."""
    writer: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    named: dict[str, int] = {}
    result: list[set[int]] = []
    for index, step in enumerate(steps):
        after: set[int] = set()
        reads = {id(buffer_of(v)) for v in step.inputs if v is not None}
        writes = {id(v.buffer) for v in step.outputs if v is not None}
        for buffer in reads | writes:
            if buffer in writer:
                after.add(writer[buffer])
        for buffer in writes:
            after.update(readers.pop(buffer, ()))
        for part in step.node.parts:
            after.update(named[name] for name in part.control if name in named)
            for value in step.node.inputs:  # a kernel may use what its inputs' producer published
                if value.producer is not None and value.published:
                    after.add(named.get(value.name, index))
        for buffer in reads - writes:
            readers.setdefault(buffer, []).append(index)
        for buffer in writes:
            writer[buffer] = index
        for out in step.outputs:
            if out is not None:
                named[out.name] = index
        after.discard(index)
        result.append(after)
    return result
