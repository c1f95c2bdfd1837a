"""cuDNN's graphs compiled for a GPU: each recipe once, with the plan that the library's heuristics prefer.

With ``exhaustive`` the first ten plans are built and measured when the graph is first needed. The fastest one is kept
in the file of measured choices (see ``netbuilder.engines.choices``), for the GPU and the library's version.

cuDNN compiles the kernels of most plans when they are built, which takes some second each. So plans are kept on file
(``kept_plans``), and those that are missing for a net are built by several processes (``plan_processes``): what the
net needs is known when its kernels have been chosen once, with graphs that have no plan yet (``UnbuiltGraph``).
Threads would build them one after another, since cuDNN's frontend keeps Python's lock meanwhile.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from netbuilder.engines.arrays import array_module
from netbuilder.engines.choices import cache_folder, turned_off
from netbuilder.engines.cuda.capture import between_captures
from netbuilder.engines.cuda.steps import Reference, Step
from netbuilder.engines.cudnn import library, plan_processes
from netbuilder.engines.cudnn.graphs import Builder, Recipe
from netbuilder.engines.cudnn.kept_plans import KeptPlan, kept_plan
from netbuilder.engines.cudnn.plans import Wanted, build_plan, machine, new_graph, proposals, usual_limit
from netbuilder.engines.described_gpu import described_gpu
from netbuilder.engines.gpu import gpu
from netbuilder.ops.core.contexts import Call, PlanContext
from netbuilder.proto import PROTO_CUDA, DeviceError
from netbuilder.proto.arguments import arguments

__all__ = [
    "CompiledGraph",
    "PlannedGraph",
    "UnbuiltGraph",
    "built_graphs",
    "compiled",
    "finish_graphs",
    "graph_of",
    "release_graphs",
    "searches",
]

_ALIGNMENT = 16  # of addresses, in bytes, which the frontend promises to kernels


class _Graph:
    """A graph for which kernels are chosen.

    Args:
        recipe: what it computes.

    Attributes:
        workspace: bytes of scratch memory that a call needs.
        name: of its calls.
    """

    workspace = 0

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.name = f"cudnn {type(recipe).__name__}"

    def step(self, memory: Mapping[str, Reference]) -> Step:
        """Return the step of a prepared kernel that computes the graph, given the memory of each tensor."""
        return Step(self.name, self.bind, memory, self.workspace)

    def bind(self, memory: Mapping[str, Any], workspace: Any) -> Call:
        """Return the call that computes the graph on the current stream.

        Args:
            memory: the array of each tensor, by name.
            workspace: ``workspace`` bytes; None if that is 0.
        """
        raise NotImplementedError


class PlannedGraph(_Graph):
    """A graph in a plan for a described GPU, which is never bound."""

    def bind(self, memory: Mapping[str, Any], workspace: Any) -> Call:
        raise DeviceError("a plan for a described GPU cannot run")


class UnbuiltGraph(_Graph):
    """A graph that cuDNN has a plan for, which is not built yet: kernels with it are chosen, but cannot be bound."""

    def bind(self, memory: Mapping[str, Any], workspace: Any) -> Call:
        raise AssertionError(f"{self.recipe}: the kernel was chosen before its plan was built, and not again after it")


class CompiledGraph(_Graph):
    """A graph with an execution plan.

    Args:
        recipe: what it computes.
        builder: the builder that made it, after the plan was built.
    """

    def __init__(self, recipe: Recipe, builder: Builder) -> None:
        super().__init__(recipe)
        self._graph, self._uids = builder.graph, builder.uids
        self._scalars = {name: np.array([value], np.float32) for name, value in builder.scalars.items()}
        self._results = frozenset(builder.results)
        self.workspace = int(self._graph.get_workspace_size())

    def bind(self, memory: Mapping[str, Any], workspace: Any) -> Call:
        """See the base class.

        Kernels may rely on addresses that are multiples of 16. Parts of an array may begin elsewhere, such as a step of
        a sequence: the call copies them to memory of their own, or results from there.
        """
        staged = {name: _aligned(array) for name, array in memory.items() if array.data.ptr % _ALIGNMENT}
        pointers = {self._uids[name]: staged.get(name, array).data.ptr for name, array in memory.items()}
        pointers |= {self._uids[name]: scalar.ctypes.data for name, scalar in self._scalars.items()}
        missing = self._uids.keys() - memory.keys() - self._scalars.keys()
        assert not missing, f"{self.name}: nothing is bound to {sorted(missing)}"
        scratch = workspace.data.ptr if self.workspace else 0
        execute, handle = self._graph.execute, library.handle

        def call(kept: Any = (memory, workspace, self._scalars)) -> None:  # pointers refer to all of them
            execute(pointers, scratch, handle=handle())

        if not staged:
            return call
        results = [(memory[name], copy) for name, copy in staged.items() if name in self._results]
        inputs = [(copy, memory[name]) for name, copy in staged.items() if name not in self._results]

        def call_staged() -> None:
            for target, source in inputs:
                target.data.copy_from_device_async(source.data, source.nbytes)
            call()
            for target, source in results:
                target.data.copy_from_device_async(source.data, source.nbytes)

        return call_staged


def _aligned(array: Any) -> Any:
    """Return new memory on an array's GPU, as large as the array."""
    with gpu(array.device.id) as there:
        return there.xp.empty(array.nbytes, np.uint8)


_Key = tuple[int, Wanted]  # the number of the GPU, and the graph
built_graphs: dict[_Key, CompiledGraph | None] = {}
_lock = threading.RLock()


class _OfThread(threading.local):
    """What each thread has in its compilation of a net: the graphs whose plans are missing."""

    def __init__(self) -> None:
        self.missing: dict[_Key, KeptPlan] = {}


_of_thread = _OfThread()


def compiled(
    recipe: Recipe,
    device: int,
    *,
    limit: int | None = None,
    exhaustive: bool = False,
    deterministic: bool = False,
) -> CompiledGraph | None:
    """Return the compiled graph of a recipe; None if no engine of cuDNN computes it.

    Args:
        recipe: the graph.
        device: the number of the GPU.
        limit: bytes of scratch memory that it may need; None: a small part of the GPU's, or as many as it takes.
        exhaustive: measure the first ten plans that can be built, and take the fastest one.
        deterministic: without plans that add in an order which changes from run to run.
    """
    with gpu(device):
        key = device, _wanted(recipe, limit, exhaustive, deterministic)
        found = _found(key, later=False)
        assert not isinstance(found, UnbuiltGraph)
        return found


def searches(ctx: PlanContext) -> bool:
    """Whether an operator's kernel is to be measured: its argument ``exhaustive_search`` says so.

    Helpers pass it as ``cudnn_exhaustive_search`` to operators for which Caffe2's measure nothing.
    """
    given = arguments(ctx.op_def)
    asked = any(given.get(name, False) for name in ("exhaustive_search", "cudnn_exhaustive_search"))
    return asked and ctx.enabled("measured_choices")


def graph_of(recipe: Recipe, ctx: PlanContext) -> CompiledGraph | PlannedGraph | UnbuiltGraph | None:
    """Return the compiled graph of a recipe for an operator; None if cuDNN has none.

    The operator's arguments ``exhaustive_search`` and ``ws_nbytes_limit`` are those of Caffe2. Without a limit, scratch
    memory is at most 1/32 of the GPU's where a plan with so little exists.
    """
    if described_gpu() is not None:
        return PlannedGraph(recipe)
    limit = arguments(ctx.op_def).get("ws_nbytes_limit")
    with gpu(ctx.device_id):
        wanted = _wanted(
            recipe, limit if isinstance(limit, int) else None, searches(ctx), not ctx.enabled("atomic_sums")
        )
        return _found((ctx.device_id, wanted), later=ctx.builds_later)


def _wanted(recipe: Recipe, limit: int | None, exhaustive: bool, deterministic: bool) -> Wanted:
    limits = (usual_limit(), None) if limit is None else (limit,)
    return Wanted(recipe, limits, exhaustive and not turned_off(), deterministic)


def _found(key: _Key, *, later: bool) -> CompiledGraph | UnbuiltGraph | None:
    """Return a graph for the current GPU.

    Args:
        key: of the graph.
        later: its plan may be built later, by ``finish_graphs``; what is measured is not built elsewhere.
    """
    with _lock:
        if key not in built_graphs:
            wanted = key[1]
            kept = _kept(wanted)
            found = _restored(wanted, kept)
            if found is None and later and not wanted.measured:
                if next(proposals(wanted, handle=library.handle()), None) is not None:
                    _of_thread.missing[key] = kept
                    return UnbuiltGraph(wanted.recipe)
            built_graphs[key] = found or _built(wanted, kept)
        return built_graphs[key]


def _kept(wanted: Wanted) -> KeptPlan:
    """Return the file of a graph's plan."""
    if cache_folder() is None:
        return KeptPlan(None, "")
    graph = new_graph(wanted.recipe, handle=library.handle()).graph
    return kept_plan(f"{machine()}: {wanted.describe(graph)}")


def _restored(wanted: Wanted, kept: KeptPlan) -> CompiledGraph | None:
    """Return the graph with the plan that is kept; None if there is none, or if cuDNN does not take it."""
    plan = kept.read()
    if plan is None:
        return None
    cudnn, handle = library.cudnn(), library.handle()
    builder = new_graph(wanted.recipe, handle=handle)  # which knows the tensors' numbers
    builder.graph = cudnn.pygraph(handle=handle)
    # The frontend captures a call, and frees memory.
    with between_captures(gpu(array_module(PROTO_CUDA).cuda.get_device_id()), wait=True):
        try:
            builder.graph.deserialize(handle, list(plan))
        except (cudnn.cudnnGraphNotSupportedError, RuntimeError, ValueError):
            return None
    return CompiledGraph(wanted.recipe, builder)


def _built(wanted: Wanted, kept: KeptPlan) -> CompiledGraph | None:
    """Return the graph with a plan that is built here, and kept; None if there is none."""
    builder = build_plan(wanted, handle=library.handle())
    if builder is None:
        return None
    if kept.path is not None:
        with contextlib.suppress(RuntimeError):  # a plan that cuDNN cannot serialize
            kept.write(bytes(builder.graph.serialize()))
    return CompiledGraph(wanted.recipe, builder)


def finish_graphs() -> bool:
    """Build the plans that are missing for the net that this thread compiles.

    Returns:
        Whether there were any: then kernels with ``UnbuiltGraph`` are to be made again.
    """
    missing, _of_thread.missing = _of_thread.missing, {}
    with _lock:
        _build_elsewhere(missing)
        for (device, wanted), kept in missing.items():
            with gpu(device):
                built_graphs[device, wanted] = _restored(wanted, kept) or _built(wanted, kept)
    return bool(missing)


def _build_elsewhere(missing: Mapping[_Key, KeptPlan]) -> None:
    """Have processes build plans, where they can be kept; another GPU of the same kind finds them."""
    for device in {device for device, _ in missing}:
        plans = {kept: wanted for (number, wanted), kept in missing.items() if number == device and kept.path}
        plans = {kept: wanted for kept, wanted in plans.items() if kept.read() is None}
        if len(plans) >= plan_processes.FEWEST:
            with gpu(device):
                properties = library.cudnn().create_device_properties(device).serialize()
                plan_processes.build_in_processes(properties, machine(), plans)


def release_graphs() -> None:
    """Free compiled graphs that no bound kernel uses."""
    with _lock:
        built_graphs.clear()
