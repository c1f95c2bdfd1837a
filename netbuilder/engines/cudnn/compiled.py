"""cuDNN's graphs compiled for a GPU: each recipe once, with the plan that the library's heuristics prefer.

With ``exhaustive`` the first ten plans are built and measured when the graph is first needed. The fastest one is kept
in the file of measured choices (see ``netbuilder.engines.choices``), for the GPU and the library's version.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from netbuilder.engines.arrays import array_module
from netbuilder.engines.choices import Choices, turned_off
from netbuilder.engines.cuda.steps import Reference, Step
from netbuilder.engines.cudnn import library
from netbuilder.engines.cudnn.graphs import Builder, Recipe
from netbuilder.engines.described_gpu import described_gpu
from netbuilder.engines.gpu import gpu
from netbuilder.ops.core.contexts import Call, PlanContext
from netbuilder.proto import PROTO_CUDA, DeviceError
from netbuilder.proto.arguments import arguments

__all__ = [
    "CompiledGraph",
    "PlannedGraph",
    "build_fastest",
    "built_graphs",
    "compile_graph",
    "compiled",
    "failures",
    "graph_of",
    "machine",
    "measured",
    "release_graphs",
    "searches",
    "seconds",
    "usual_limit",
]

_ROUNDS = 3
_ALIGNMENT = 16  # of addresses, in bytes, which the frontend promises to kernels
_SCRATCH_SHARE = 1 / 32
"""The part of a GPU's memory that the scratch memory of a graph may take, where a plan with so little exists.

cuDNN prefers plans for exact products of float32 that copy all images into another order: as scratch memory, the images
of a layer once more."""
_MEASURED = 10
"""Plans of a graph that are measured, the first ones by the heuristics: up to 44 for each graph of a net would take
minutes. PyTorch's ``cudnn.benchmark`` has the same limit."""


class PlannedGraph:
    """A graph in a plan for a described GPU, which is never bound.

    Args:
        recipe: what it computes.
    """

    workspace = 0

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.name = f"cudnn {type(recipe).__name__}"

    def step(self, memory: Mapping[str, Reference]) -> Step:
        """See ``CompiledGraph.step``."""
        return Step(self.name, _not_bound, memory)


def _not_bound(memory: Mapping[str, Any], workspace: Any) -> Call:
    raise DeviceError("a plan for a described GPU cannot run")


class CompiledGraph:
    """A graph with an execution plan.

    Args:
        recipe: what it computes.
        builder: the builder that made it, after the plan was built.

    Attributes:
        workspace: bytes of scratch memory that a call needs.
        name: of the plan, as cuDNN calls it.
    """

    def __init__(self, recipe: Recipe, builder: Builder) -> None:
        self.recipe = recipe
        self.name = f"cudnn {type(recipe).__name__}"
        self._graph, self._uids = builder.graph, builder.uids
        self._scalars = {name: np.array([value], np.float32) for name, value in builder.scalars.items()}
        self._results = frozenset(builder.results)
        self.workspace = int(self._graph.get_workspace_size())

    def step(self, memory: Mapping[str, Reference]) -> Step:
        """Return the step of a prepared kernel that computes the graph, given the memory of each tensor."""
        return Step(self.name, self.bind, memory, self.workspace)

    def bind(self, memory: Mapping[str, Any], workspace: Any) -> Call:
        """Return the call that computes the graph on the current stream.

        Kernels may rely on addresses that are multiples of 16. Parts of an array may begin elsewhere, such as a step of
        a sequence: the call copies them to memory of their own, or results from there.

        Args:
            memory: the array of each tensor, by name.
            workspace: ``workspace`` bytes; None if that is 0.
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


def compile_graph(recipe: Recipe, *, deterministic: bool = False, **options: Any) -> Builder | None:
    """Build a graph and let cuDNN propose plans; None if no engine of the library computes it.

    Args:
        recipe: the graph.
        deterministic: without plans that add in an order which changes from run to run.
        options: further arguments of the frontend's graph: a handle, or the description of a GPU.
    """
    cudnn = library.cudnn()
    types = cudnn.data_type
    graph = cudnn.pygraph(intermediate_data_type=types.FLOAT, compute_data_type=types.FLOAT, **options)
    builder = Builder(cudnn, graph)
    recipe.build(builder)
    graph.validate()
    try:
        graph.build_operation_graph()
        graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        graph.deselect_numeric_notes(_refused(cudnn, recipe, deterministic))
        graph.check_support()
    except cudnn.cudnnGraphNotSupportedError:
        return None
    return builder


def _refused(cudnn: Any, recipe: Recipe, deterministic: bool) -> list[Any]:
    """Return the properties of kernels that must not be used, such as losing digits of float32."""
    notes = cudnn.numerical_note
    refused = [notes.NONDETERMINISTIC] if deterministic else []
    if recipe.io != "float32":
        return [*refused, notes.REDUCED_PRECISION_REDUCTION]
    return [*refused, notes.DOWN_CONVERT_INPUTS, *([notes.TENSOR_CORE] if recipe.exact else [])]


built_graphs: dict[tuple[int, Recipe, int | None, bool, bool], CompiledGraph | None] = {}
_lock = threading.RLock()


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
    key = (device, recipe, limit, exhaustive, deterministic)
    with _lock:
        if key not in built_graphs:
            with gpu(device):
                built_graphs[key] = _compile(*key[1:])
        return built_graphs[key]


def searches(ctx: PlanContext) -> bool:
    """Whether an operator's kernel is to be measured: its argument ``exhaustive_search`` says so.

    Helpers pass it as ``cudnn_exhaustive_search`` to operators for which Caffe2's measure nothing.
    """
    given = arguments(ctx.op_def)
    asked = any(given.get(name, False) for name in ("exhaustive_search", "cudnn_exhaustive_search"))
    return asked and ctx.enabled("measured_choices")


def graph_of(recipe: Recipe, ctx: PlanContext) -> CompiledGraph | PlannedGraph | None:
    """Return the compiled graph of a recipe for an operator; None if cuDNN has none.

    The operator's arguments ``exhaustive_search`` and ``ws_nbytes_limit`` are those of Caffe2. Without a limit, scratch
    memory is at most 1/32 of the GPU's where a plan with so little exists.
    """
    if described_gpu() is not None:
        return PlannedGraph(recipe)
    limit = arguments(ctx.op_def).get("ws_nbytes_limit")
    return compiled(
        recipe,
        ctx.device_id,
        limit=limit if isinstance(limit, int) else None,
        exhaustive=searches(ctx),
        deterministic=not ctx.enabled("atomic_sums"),
    )


def _compile(recipe: Recipe, limit: int | None, exhaustive: bool, deterministic: bool) -> CompiledGraph | None:
    cudnn = library.cudnn()
    for most in (usual_limit(), None) if limit is None else (limit,):
        builder = compile_graph(recipe, deterministic=deterministic, handle=library.handle())
        if builder is None:
            return None
        if most is not None:
            builder.graph.deselect_workspace_greater_than(most)
        try:
            if not (exhaustive and not turned_off() and build_fastest(builder, recipe, most, deterministic)):
                builder.graph.build_plans(cudnn.build_plan_policy.HEURISTICS_CHOICE)
        except cudnn.cudnnGraphNotSupportedError:
            continue
        return CompiledGraph(recipe, builder)
    return None


def usual_limit() -> int:
    """Return the bytes of scratch memory that a graph may need on the current GPU unless its operator says how many."""
    return int(array_module(PROTO_CUDA).cuda.Device().mem_info[1] * _SCRATCH_SHARE)


def build_fastest(builder: Builder, recipe: Recipe, limit: int | None, deterministic: bool) -> bool:
    """Build the plan that was measured to be the fastest; measure them first if that is not known.

    Returns:
        Whether there is one; False if no plan could be measured.
    """
    graph, choices = builder.graph, Choices.of(machine())
    names = [str(graph.get_plan_name_at_index(i)) for i in range(graph.get_execution_plan_count())]
    conditions = ["" if limit is None else f" in {limit} bytes", " deterministic" if deterministic else ""]
    key = f"cuDNN {recipe}{''.join(conditions)}"
    chosen = choices.get(key)
    if any(name == chosen and _built(builder, i) for i, name in enumerate(names)):
        return True
    found = ((i, measured(builder, i)) for i in range(len(names)))
    times = dict(itertools.islice(((i, time) for i, time in found if time is not None), _MEASURED))
    if not times:
        return False
    best = min(times, key=times.__getitem__)
    choices.put({key: names[best], f"time of {key}": times[best]})
    return _built(builder, best)


def failures() -> tuple[type[Exception], ...]:
    """Return what is raised where a plan cannot be built or run: its own type for those that are refused."""
    return (library.cudnn().cudnnGraphNotSupportedError, RuntimeError, MemoryError)


def _built(builder: Builder, index: int) -> bool:
    """Build a plan, which the graph then executes; return whether that was possible."""
    try:
        builder.graph.build_plan_at_index(index)
    except failures():
        return False
    return True


def measured(builder: Builder, index: int) -> float | None:
    """Return the seconds that a plan takes, the least of a few rounds; None if it cannot be built or run."""
    try:
        return _time(builder, index) if _built(builder, index) else None
    except failures():  # where scratch memory does not fit, too
        return None


def _time(builder: Builder, index: int) -> float:
    """Return the seconds that a plan takes which was built."""
    graph, xp = builder.graph, array_module(PROTO_CUDA)
    memory = {builder.uids[name]: xp.zeros(tensor.nbytes, np.uint8) for name, tensor in builder.tensors.items()}
    scalars = {builder.uids[name]: np.array([value], np.float32) for name, value in builder.scalars.items()}
    workspace = xp.zeros(max(int(graph.get_workspace_size_plan_at_index(index)), 1), np.uint8)
    pointers = {uid: array.data.ptr for uid, array in memory.items()}
    pointers |= {uid: array.ctypes.data for uid, array in scalars.items()}

    def run() -> None:
        graph.execute_plan_at_index(pointers, workspace.data.ptr, index, handle=library.handle())

    run()  # loads the kernel
    return min(seconds(run) for _ in range(_ROUNDS))


def seconds(call: Call) -> float:
    """Return how long the GPU takes for a call."""
    cuda = array_module(PROTO_CUDA).cuda
    start, end = cuda.Event(), cuda.Event()
    start.record()
    call()
    end.record()
    end.synchronize()
    return float(cuda.get_elapsed_time(start, end)) / 1000


def machine() -> str:
    """Return a description of all that the fastest plan depends on besides the graph."""
    cuda = array_module(PROTO_CUDA).cuda
    name = cuda.runtime.getDeviceProperties(cuda.get_device_id())["name"]
    return f"{name.decode() if isinstance(name, bytes) else name}; cuDNN {library.version()}"


def release_graphs() -> None:
    """Free compiled graphs that no bound kernel uses."""
    with _lock:
        built_graphs.clear()
