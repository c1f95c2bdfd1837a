"""RuntimeNet: a created net, that is, a snapshot of a NetDef with its plans for the shapes seen so far."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import threading
import weakref
from collections.abc import Callable, Collection, Iterable
from contextlib import nullcontext
from functools import partial
from typing import Any, Protocol

import numpy as np

from netbuilder.data.forking import renew_after_fork
from netbuilder.data.waiting import Cancellation, check_run
from netbuilder.distributed.worlds.world import report_failure
from netbuilder.engines.engine import array_engine
from netbuilder.engines.gpu import gpu
from netbuilder.engines.layouts import HOST
from netbuilder.engines.random import stream_key
from netbuilder.graph.defuse import undefined_inputs
from netbuilder.graph.memory_budget import Shortfall
from netbuilder.graph.observability import ALL, set_stored
from netbuilder.graph.replicas import Replicas, has_record
from netbuilder.ops.core.contexts import LEFT_AS_IS
from netbuilder.ops.core.instructions import Instruction, Role, describe, located
from netbuilder.ops.core.operator import STRING, Exchange
from netbuilder.ops.core.operator_event import OnOperator, OperatorEvent, ReadValue
from netbuilder.ops.core.random_streams import stream_of
from netbuilder.ops.core.registry import plain_kernel
from netbuilder.ops.core.renaming import all_operators
from netbuilder.ops.core.replication import Replication
from netbuilder.passes.replicated_net import replicated_net
from netbuilder.proto import PROTO_CUDA, DeviceError, NetDef, NetError
from netbuilder.proto.depth import MOST_NESTED, deep_nets, nesting
from netbuilder.proto.errors import counted, unsaid_cause
from netbuilder.runtime.execute.executable import Plan, make_plan
from netbuilder.runtime.execute.measuring import MeasuringBetweenRuns
from netbuilder.runtime.execute.not_finite import NotFiniteFinder
from netbuilder.runtime.execute.parts import Part, PartsRun, parts_of
from netbuilder.runtime.execute.stored_precision import check_stored_precision
from netbuilder.runtime.plan.observable import Observable
from netbuilder.runtime.plan.options import FindNan, PlanOptions
from netbuilder.runtime.plan.program import read_program
from netbuilder.runtime.plan.run_context import KernelContext
from netbuilder.runtime.plan.static_range import missing
from netbuilder.runtime.values.arena import Arena
from netbuilder.runtime.values.blob import Blob
from netbuilder.runtime.values.uses import RUN, Uses, this_plan, this_thread

__all__ = ["NET_TYPES", "RunObserver", "RuntimeNet"]

ONE_LANE = ("", "simple", "simple_refcount", "async_simple")
MANY_LANES = ("dag", "prof_dag", "async_dag", "async_polling", "async_scheduling", "parallel", "async_net_executor")
NET_TYPES = tuple(t for t in ONE_LANE + MANY_LANES if t)

_log = logging.getLogger("netbuilder")

_SHALLOW = 50  # nets nested up to this depth fit into Python's default recursion limit
_KEPT_PLANS = 8  # plans cached per range, one per set of input shapes


class Clock:
    """Counts the runs of a net; random numbers depend on it.

    Args:
        earlier: how many nets of the workspace have drawn from its random streams before; 0 where they all draw the
            same numbers.
    """

    __slots__ = ("earlier", "iteration")

    def __init__(self, earlier: int = 0) -> None:
        self.earlier = earlier
        self.iteration = 0

    def seed(self, seed: int) -> int:
        """Return the net's seed in a workspace of this seed."""
        return stream_key(seed, "net", self.earlier) if self.earlier else seed


class RunObserver(Protocol):
    """Is notified of a net's runs; GPUs may still work when a run ends, see ``RuntimeNet.finish``."""

    def run_starts(self, net: RuntimeNet) -> None: ...

    def run_ends(self, net: RuntimeNet) -> None:
        """Called after a run that did not fail."""


def _located(net_name: str, instruction: Instruction, error: Exception) -> Exception:
    made = located(describe(net_name, instruction), error)
    assert isinstance(made, Exception)
    return made


class RuntimeNet:
    """A net in a workspace, ready to run.

    Args:
        net: the net; it is copied, so later edits have no effect.
        workspace: where its blobs are.
        options: see ``PlanOptions.of_net``; None: those of the workspace and what the net stores.
        inner: the net is a subgraph of an operator: its inputs are not checked before it runs.
        clock: of the net that this one belongs to; None: one of its own.
        on_operator: called after each operator, in the order of the net, with what it has read and written.

    Raises:
        NetError: the net is wrong (see ``read_program``), its type is unknown, it asks for float16 on the CPU, or it
            must be deterministic, and an operator is not.
        BlobError: the net has no blob of a name in ``options.observable``.
    """

    def __init__(
        self,
        net: NetDef,
        workspace: Any,
        options: PlanOptions | None = None,
        *,
        inner: bool = False,
        clock: Clock | None = None,
        on_operator: OnOperator | None = None,
    ) -> None:
        options = options or workspace.options.of_net(net)
        if net.type not in ONE_LANE + MANY_LANES:
            raise NetError(f"net {net.name!r}: unknown type {net.type!r}; the types are {', '.join(NET_TYPES)}")
        self.proto = NetDef()
        self.proto.CopyFrom(net)
        self.name = net.name
        self._uses: Uses = workspace.uses
        self._workspace = weakref.ref(workspace)  # weak: a reference cycle would keep the memory for long
        self.program = read_program(self.proto, None if inner else workspace.has)
        self.clock = clock or Clock(workspace.count_draws(self._streams()))
        self._finder = NotFiniteFinder(options.find_nan, self.clock) if options.find_nan else None
        self._on_operator = on_operator if self._finder is None else self._finder.on_operator
        self._observed: dict[int, tuple[Plan, Plan]] = {}  # by the id of the plan: the plan, and the observed one
        self._finding: dict[FindNan, RuntimeNet] = {}  # this net, with the finder of each kind
        self._replicas = Replicas.load(self.proto) if has_record(self.proto) else None
        devices = {instruction.device for instruction in self.program}
        self.gpus = tuple(sorted(number for kind, number in devices if kind == PROTO_CUDA))
        many = net.type in MANY_LANES
        lanes, exchange_lane = self._count_lanes(options.threads, len(devices)) if many else (1, False)
        self.options = dataclasses.replace(options, lanes=lanes, exchange_lane=exchange_lane)
        self._observable = Observable(self.proto, self.program, options.observable, options.observable_default)
        if options.deterministic:
            self._require_deterministic()
        if clock is None:  # a net of its own, not one that belongs to another
            check_stored_precision(self.proto, self.options, on_gpus=bool(self.gpus))
        concurrent = many and self.proto.num_workers != 1
        self._parts = parts_of(self.proto, self.program) if concurrent else ()
        loops = any(instruction.op.dynamic for instruction in self.program)  # operators that run subgraphs are dynamic
        self._depth = nesting(self.proto) if loops and not inner else 0
        if self._depth > MOST_NESTED:
            raise NetError(
                f"net {net.name!r}: its nets (of If, While) are nested {self._depth:,} deep, more than the "
                f"{MOST_NESTED:,} that can be run"
            )
        self._whole = Part(0, len(self.program), frozenset())
        self._arenas = [workspace.arena]  # and one more for each run at the same time as others
        self._plans: dict[int, list[Plan]] = {}
        self._current: dict[tuple[int, int], Plan | None] = {}  # by the first operator and the number of the arena
        self._dynamic: dict[int, int] = {}  # operators that run by themselves -> generation for which that is known
        self._single: Plan | None = None
        self._largest_plans: dict[int, int] = {}  # see ``PlanOptions.largest_plan``, by the first operator
        self._contexts: dict[int, KernelContext] = {}
        self.warned: set[str] = set()
        self._measuring: MeasuringBetweenRuns | None = None
        self.observers: list[RunObserver] = []  # notified of each run, in this order
        self._runs: list[Cancellation] = []  # the runs in progress, which `cancel` ends
        renew_after_fork(self)

    def __repr__(self) -> str:
        return (
            f"RuntimeNet({self.name!r}, {counted(len(self.program), 'operator')}, {counted(len(self.plans), 'plan')})"
        )

    def renew(self) -> None:
        """Forget the runs of other threads, which do not exist in a forked process."""
        self._runs = [run for run in self._runs if run.thread == threading.get_ident()]

    @property
    def workspace(self) -> Any:
        """The workspace that the net is in.

        Raises:
            NetError: it does not exist any more.
        """
        found = self._workspace()
        if found is None:
            raise NetError(f"net {self.name!r}: its workspace does not exist any more; keep a reference to it")
        return found

    def _require_deterministic(self) -> None:
        """Raise NetError if an operator adds the processes in an order that may change from run to run."""
        for instruction in self.program:
            if not getattr(instruction.op, "deterministic", True):
                raise NetError(
                    f"net {self.name!r} must be deterministic, but operator {instruction.index} "
                    f"{instruction.op_def.type} {list(instruction.op_def.input)} adds the processes in any order; give "
                    "it deterministic=1, or build the model with Parallelize(deterministic=True)"
                )

    def _count_lanes(self, threads: int, devices: int) -> tuple[int, bool]:
        """Return the number of compute lanes, and whether there is an exchange lane.

        On GPUs there is none: a GPU has a stream for exchanges, so the thread that computes can start them.
        """
        workers = self.proto.num_workers
        lanes = max(1, min(devices, workers or devices, threads))
        exchanges = any(instruction.role is Role.EXCHANGE for instruction in self.program)
        return lanes, exchanges and lanes > 1 and not self.gpus and not 0 < workers <= lanes

    # The compiler's interface (see ``runtime.plan.runner.Runner``).

    def find_blob(self, name: str) -> Blob | None:
        blob: Blob | None = self.workspace.find(name)
        return blob

    def filled_blobs(self) -> Iterable[str]:
        workspace = self.workspace
        return [name for name in workspace.blobs() if not workspace.get(name).is_empty]

    def hides(self, name: str, start: int, end: int) -> bool:
        return self._observable.hides(name, start, end)

    @property
    def not_kept(self) -> Collection[str]:
        return self._observable.not_kept

    def keep(self, name: str) -> bool:
        """Make a blob observable from the next run on; False if it is already, or if the net has no such blob."""
        found = self._observable.keep(name)
        if found:
            self.forget_plans()
        return found

    def observe(self, on_operator: OnOperator | None) -> None:
        """Call a function after each operator of the next runs, see ``on_operator`` of the constructor; None: end that.

        A run must not be in progress in another thread.
        """
        self._on_operator = on_operator
        self.forget_plans()

    def _streams(self) -> list[str]:
        """Return the random streams of the operators; "" if operators of subgraphs may draw, too."""
        streams = [stream_of(each.op_def) for each in self.program if each.op.draws]
        return [*streams, ""] if any(each.op.dynamic for each in self.program) else streams

    def last_end(self, start: int) -> int:
        return next((part.end for part in self._parts if part.end > start), len(self.program))

    def kernel_context(self, instruction: Instruction) -> KernelContext:
        context = self._contexts.get(instruction.index)
        if context is None:
            scope, replica = self._replica(instruction)
            context = self._contexts[instruction.index] = KernelContext(
                instruction.op_def,
                self.workspace,
                device=instruction.device,
                seed=self.clock.seed(self.workspace.seed),
                scope=scope,
                replica=replica,
                compile_net=self._compile_inner,
                clock=self.clock,
                on_operator=self._on_operator,
                located=partial(_located, self.name, instruction),
                atomic_sums=self.options.enabled("atomic_sums"),
            )
        return context

    def _replica(self, instruction: Instruction) -> tuple[str, int]:
        """Return the scope and the number of an operator's replica, for operators that do not name a random stream."""
        replicas, outputs = self._replicas, instruction.outputs
        local = replicas.devices.replica_of(outputs[0]) if replicas is not None and outputs else None
        if replicas is None or local is None:
            return "", 0
        return replicas.devices.scopes[local], replicas.world.first_replica + local

    def _compile_inner(self, net: NetDef, replication: Replication | None = None) -> Callable[[], None]:
        """Return a call that runs a subgraph; the outputs of a replicated one list what other operators read of it."""
        if replication is not None:
            net = replicated_net(net, replication)
            set_stored(net, self._observable.kind, self._observable.names)
        options = self.options.of_subgraph(ALL if replication is None else None)
        inner = RuntimeNet(net, self.workspace, options, inner=True, clock=self.clock, on_operator=self._on_operator)

        def run() -> None:
            check_run()
            inner.run_first()

        return run

    # Running.

    def run(self, iterations: int = 1, *, time_limit: float | None = None, find_nan: FindNan = False) -> None:
        """Run the net.

        Args:
            iterations: number of runs.
            find_nan: raise an error at the first operator whose result is NaN or infinite ("nan": only NaN), in these
                runs, see ``RuntimeNet``.
            time_limit: seconds after which the runs end with an error: at once if an operator waits for a queue, else
                before the next operator outside a plan, or the next run; None: no limit.

        Raises:
            NetError, DeviceError, OperatorError: an operator failed, or an input is missing.
            NotFiniteError: ``find_nan`` has found something; what comes after the operator has not run.
            CancelledError: ``cancel`` was called, or the time limit has passed.
        """
        if find_nan and self._finder is None:
            self._with_finder(find_nan).run(iterations, time_limit=time_limit)
            return
        use, now = (this_thread(), this_plan(), RUN, self), self._uses.now
        now.append(use)
        try:
            if now[0] is not use:
                self._uses.check(use)
            plan = self._single
            if iterations == 1 and time_limit is None and plan is not None and plan.seen == plan._generation.number:
                self._run_counted()  # one plan, in which nothing waits
            else:
                self._run_cancellable(iterations, time_limit)
        except (NetError, DeviceError) as error:
            raise error.with_traceback(None) from unsaid_cause(error)
        finally:
            now.remove(use)

    def _run_cancellable(self, iterations: int, time_limit: float | None) -> None:
        run = Cancellation(self.name, time_limit)
        self._runs.append(run)
        try:
            with run.current():
                for _ in range(iterations):
                    run.check()
                    self._run_counted()
        finally:
            self._runs.remove(run)

    def touched_blobs(self) -> tuple[Collection[Blob], Collection[Blob]]:
        """Return the blobs that a run reads, and those that it writes, those of subgraphs too."""
        ops = list(all_operators(self.proto))
        reads = {name for op in ops for name in op.input}
        writes = {name for op in ops for name in op.output}
        return [*filter(None, map(self.find_blob, reads))], [*filter(None, map(self.find_blob, writes))]

    def _with_finder(self, kinds: FindNan) -> RuntimeNet:
        """Return this net with a finder of NaN: over the same blobs and with the same counter of runs."""
        found = self._finding.get(kinds)
        if found is None:
            options = dataclasses.replace(self.options, find_nan=kinds, observable=None)
            found = RuntimeNet(self.proto, self.workspace, options, clock=self.clock)
            found._observable, found.observers, found._runs = self._observable, self.observers, self._runs
            self._finding[kinds] = found
        return found

    def cancel(self, error: BaseException | None = None) -> None:
        """End the runs of this net that are in progress in other threads; the net can be run again afterwards.

        An operator that waits (for a queue, or for another net whose operator does) ends at once. Other operators
        finish, and the run ends before the next operator outside a plan. If there is no run, nothing happens.

        Args:
            error: the reason; it becomes the cause of the CancelledError that the runs raise.
        """
        for run in list(self._runs):
            run.cancel(error)

    def _run_counted(self) -> None:
        measuring = self._measuring
        if measuring is not None:
            measuring.run_starts(self)
        for observer in self.observers:
            observer.run_starts(self)
        self.clock.iteration += 1
        try:
            self._run_once()
        except BaseException as error:
            self.clock.iteration -= 1  # a retry must draw the same random numbers
            self._tell_other_processes(error)
            raise
        if measuring is not None:
            measuring.run_ends()
        for observer in self.observers:
            observer.run_ends(self)

    def _tell_other_processes(self, error: BaseException) -> None:
        """Make the next collective of the other processes raise an error: they would wait for this one for ever."""
        collectives = [each for each in self.program if each.op.exchanges is Exchange.BETWEEN_PROCESSES]
        if collectives:
            blobs = [self.find_blob(name) for each in collectives for name in each.inputs[:1]]
            report_failure([blob.buffer for blob in blobs if blob is not None], error)

    def run_by(self, run_plan: Callable[[Plan], object], run_alone: Callable[[Instruction], object]) -> None:
        """Run the net once; functions of the caller run its plans and the operators between them (to time them).

        Args:
            run_plan: runs the plan that it is given, or one made by its ``with_calls``.
            run_alone: calls ``run_alone`` of this net.
        """
        self.clock.iteration += 1
        self._run_parts(run_plan, run_alone)

    def plan_ahead(self) -> list[Plan]:
        """Make the plans for the blobs as they are without running anything, and return them.

        The next run uses them. They end at the first operator whose output shapes depend on data: what follows it is
        planned when it has run. A run or ``plan_ahead`` must not be in progress in another thread.

        Raises:
            NetError, DeviceError, OperatorError: as ``run``.
        """
        found: list[Plan] = []
        try:
            for part in self._parts or (self._whole,):
                plan = self._plan_at(part.start, 0) if part.start < part.end else None
                found += [plan] if plan is not None else []
                if plan is None or plan.end < part.end:
                    break
        except (NetError, DeviceError) as error:
            raise error.with_traceback(None) from unsaid_cause(error)
        return found

    def measure_choices(self) -> None:
        """Make the plans, and measure, however long that takes, what they leave open between kernels.

        Otherwise that is measured bit by bit between runs. A run must not be in progress in another thread.

        Raises:
            NetError, DeviceError, OperatorError: as ``run``.
        """
        self.plan_ahead()
        while self._measuring is not None and self._measuring.measure_all(self):
            self.plan_ahead()  # which can leave others open

    def run_first(self) -> None:
        """Run a net that is not kept, as iteration 0: initial values do not depend on earlier runs."""
        try:
            self._run_once()
        except BaseException as error:
            self._tell_other_processes(error)
            raise

    def finish(self) -> None:
        """Wait until all GPUs have finished the work of earlier runs.

        Raises:
            OperatorError: a GPU reported an error; CUDA does not tell which operator caused it. Or the check of an
                operator on the GPU has found a wrong label or index.
        """
        for number in self.gpus:
            try:
                gpu(number).synchronize()
            except Exception as error:
                raise located(f"net {self.name!r}, one of its operators on GPU {number}", error) from error
            array_engine((PROTO_CUDA, number)).raise_noted(number)

    @property
    def plans(self) -> list[Plan]:
        """The plans that are kept: for each part of the net that was run, the latest last."""
        return [plan for plans in self._plans.values() for plan in plans]

    @property
    def single_plan(self) -> Plan | None:
        """The plan of the last run, if it is of the whole net."""
        return self._single

    def forget_plans(self) -> None:
        """Drop all plans and free their memory; the next run compiles again."""
        for found in self._finding.values():
            found.forget_plans()
        self._observed.clear()
        self._contexts.clear()
        for plans in self._plans.values():
            for plan in plans:
                plan.drop()
        self._plans.clear()
        self._current.clear()
        self._dynamic.clear()
        self._single = None
        del self._arenas[1:]

    def forget_plan(self, plan: Plan) -> None:
        """Drop one plan, if the net has it; the next run for its shapes compiles again."""
        for plans in self._plans.values():
            if plan in plans:
                plans.remove(plan)
                plan.drop()
        self._current = {key: other for key, other in self._current.items() if other is not plan}
        self._observed.pop(id(plan), None)
        if self._single is plan:
            self._single = None

    def _run_once(self) -> None:
        if self._finder is not None:
            self._finder.check_inputs(self.name, map(self.find_blob, undefined_inputs(self.proto.op)))
        if self._on_operator is not None:
            self._run_parts(partial(self._run_observed, self._on_operator), self.run_alone)
            return
        plan = self._single
        if plan is not None and plan.seen == plan._generation.number and plan.begin():
            try:
                plan.run()
            finally:
                plan.end_run()
            return
        self._run_parts(Plan.run, self.run_alone)

    def _run_observed(self, on_operator: OnOperator, plan: Plan) -> None:
        kept = self._observed.get(id(plan))
        if kept is None:
            if len(self._observed) > _KEPT_PLANS:
                self._observed.clear()
            kept = self._observed[id(plan)] = plan, plan.observed(on_operator)
        kept[1].run()

    def _run_parts(self, run_plan: Callable[[Plan], object], run_alone: Callable[[Instruction], object]) -> None:
        def run_part(part: Part) -> None:
            index = part.start
            while index < part.end:
                plan = self._begin_plan(index)
                if plan is not None:
                    try:
                        run_plan(plan)
                    finally:
                        plan.end_run()
                    if index == 0 and plan.end == len(self.program):
                        self._single = plan
                    index = plan.end
                if index < part.end:
                    run_alone(self.program[index])
                    index += 1

        if self._depth > _SHALLOW:
            self._run_deep(run_part)
        elif self._parts:
            PartsRun(self.name, self._parts, run_part).run()
        else:
            run_part(self._whole)

    def _run_deep(self, run_part: Callable[[Part], object]) -> None:
        """Run deeply nested nets with a higher recursion limit."""
        try:
            with deep_nets():
                if self._parts:
                    PartsRun(self.name, self._parts, run_part).run()
                else:
                    run_part(self._whole)
        except RecursionError as error:
            raise NetError(
                f"net {self.name!r}: its nets (of If, While) are nested {self._depth:,} deep, more than Python's "
                "stack holds"
            ) from error

    def _begin_plan(self, start: int) -> Plan | None:
        """Return the plan for the blobs as they are, with an arena that no other run has; None: run ``start`` alone.

        Runs at the same time are those of other threads, and those that an operator of a running plan begins.
        """
        for number in itertools.count():
            if number == len(self._arenas):
                self._arenas.append(Arena())
            plan = self._plan_at(start, number)
            if plan is None or plan.begin():
                return plan
        raise AssertionError("unreachable")

    def _plan_at(self, start: int, arena: int) -> Plan | None:
        """Return the plan for the blobs as they are, from the operator ``start`` on, in the arena of that number.

        None: the operator ``start`` runs alone.
        """
        key = start, arena
        current = self._current.get(key)
        generation = self.workspace.generation
        if current is not None and current.seen == generation.number:
            return current
        if self._dynamic.get(start) == generation.number:
            return None
        plans = self._plans.setdefault(start, [])
        for plan in plans:
            if plan.arena is self._arenas[arena] and plan.matches_inputs():
                if plan.bind_outputs():
                    self._current[key] = plan
                    return plan
                plans.remove(plan)
                plan.drop()
                break
        made = self._make_plan(start, arena)
        if made is not None:
            kept = _KEPT_PLANS if self.options.enabled("kept_plans") else 1
            while len(plans) >= kept:
                plans.pop(0).drop()
            plans.append(made)
            made.bind_outputs()
            if made.open_choices:
                self._measure_later(made)
        else:
            self._dynamic[start] = generation.number
        self._current[key] = made
        return made

    def _make_plan(self, start: int, arena: int) -> Plan | None:
        """Compile a plan; where blobs that were fetched do not fit into the memory budget, the last are not kept."""
        options, largest = self.options, self._largest_plans.get(start, 0)
        fetched = bool(self._observable.fetched)
        if isinstance(options.memory_budget, float) and largest and fetched:  # the fraction is of a run without them
            options = dataclasses.replace(options, memory_budget=f"{max(1, int(options.memory_budget * largest))} B")
        elif options.memory_budget is not None:
            options = dataclasses.replace(options, largest_plan=largest)
        generation, make = self.workspace.generation, self.workspace.make
        made = make_plan(self, generation, start, options, make, self._arenas[arena])
        if isinstance(made, Shortfall):
            name = self._observable.forget_fetched()
            if not name:
                raise made.error
            _log.warning("net %r: blob %r is not kept, although it was fetched: %s", self.name, name, made)
            return self._make_plan(start, arena)
        if made is not None and not fetched:
            self._largest_plans[start] = max(made.memory.whole, largest)
        return made

    def _measure_later(self, plan: Plan) -> None:
        if self._measuring is None:
            self._measuring = MeasuringBetweenRuns()
        self._measuring.add(plan.open_choices, plan.arena.lend)

    def run_alone(self, instruction: Instruction) -> None:
        """Run one operator outside a plan."""
        try:
            check_run()
            context = self.kernel_context(instruction)
            kernel = plain_kernel(instruction.op_def.type, instruction.device[0])
            if kernel is None:
                raise NetError(
                    f"operator {instruction.op_def.type!r} must run outside a plan here, and has no plain kernel for "
                    "that; register one (netbuilder.ops.core.registry.kernel)"
                )
            inputs = [self._value(name, i, instruction) for i, name in enumerate(instruction.inputs)]
            with np.errstate(all="ignore"), gpu(instruction.device[1]) if context.is_gpu else nullcontext():
                results = kernel(instruction.op, context, *inputs)
            for name, result in zip(instruction.outputs, results):
                blob = self.workspace.make(name)
                if result is LEFT_AS_IS:
                    continue
                if result is blob.buffer and blob.lazy is None:
                    continue
                host = instruction.op.outputs_on_host or instruction.location == HOST
                blob.store(result, HOST if host else instruction.location)
            if self._on_operator is not None:
                self._on_operator(self._event(instruction))
        except Exception as error:
            raise located(describe(self.name, instruction), error) from error

    def _event(self, instruction: Instruction) -> OperatorEvent:
        """Return the event of an operator that has run outside a plan."""

        def readers(names: Iterable[str]) -> list[tuple[str, ReadValue]]:
            blobs = ((name, self.find_blob(name)) for name in names)
            return [
                (name, blob.fetch)
                for name, blob in blobs
                if blob is not None and not blob.is_empty and blob.spec is not None and blob.spec.dtype != STRING
            ]

        kept = [name for name in instruction.inputs if name not in instruction.outputs]
        return OperatorEvent(self.name, (instruction,), readers(kept), readers(instruction.outputs))

    def _value(self, name: str, index: int, instruction: Instruction) -> Any:
        blob = self.find_blob(name)
        if blob is not None and blob.is_empty and index in instruction.op.may_be_empty:
            return np.zeros(0, np.float32)
        if blob is None or blob.is_empty:
            raise missing(name, self)
        if blob.spec is None or blob.spec.dtype == STRING:
            return blob.buffer
        where = instruction.op.input_location(index)
        return blob.plain() if where == "any" else blob.at(HOST if where == "host" else instruction.location)
