"""Plans of cuDNN's graphs: those that cuDNN proposes, of which one is built; by its heuristics, or by measuring."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from netbuilder.engines.arrays import array_module
from netbuilder.engines.choices import Choices
from netbuilder.engines.cudnn import library
from netbuilder.engines.cudnn.graphs import Builder, Recipe
from netbuilder.ops.core.contexts import Call
from netbuilder.proto import PROTO_CUDA
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "Wanted",
    "build_fastest",
    "build_plan",
    "compile_graph",
    "failures",
    "machine",
    "measured",
    "new_graph",
    "proposals",
    "seconds",
    "usual_limit",
]

_ROUNDS = 3
_SCRATCH_SHARE = 1 / 32
"""The part of a GPU's memory that the scratch memory of a graph may take, where a plan with so little exists.

cuDNN prefers plans for exact products of float32 that copy all images into another order: as scratch memory, the images
of a layer once more."""
_MEASURED = 10
"""Plans of a graph that are measured, the first ones by the heuristics: up to 44 for each graph of a net would take
minutes. PyTorch's ``cudnn.benchmark`` has the same limit."""


@dataclass(frozen=True)
class Wanted:
    """A graph and which of its plans may be used.

    Args:
        recipe: the graph.
        limits: bytes of scratch memory that a plan may need, None: any number; a later limit is for graphs that have
            no plan within the earlier ones.
        measured: whether plans are measured, and the fastest one is used.
        deterministic: without plans that add in an order which changes from run to run.
    """

    recipe: Recipe
    limits: tuple[int | None, ...] = (None,)
    measured: bool = False
    deterministic: bool = False

    def describe(self, graph: Any) -> str:
        """Return what its plan depends on, besides the machine.

        Args:
            graph: of the frontend, with the operations of the recipe; its text has them, the numbers of its tensors,
                and the versions of the library and its frontend.
        """
        refused = sorted(note.name for note in _refused(library.cudnn(), self.recipe, self.deterministic))
        how = "the fastest plan" if self.measured else "the first plan"
        return f"{how} in {self.limits} bytes, without {refused}, of {graph!r}"


def new_graph(recipe: Recipe, **options: Any) -> Builder:
    """Return a graph with the operations of a recipe.

    Args:
        recipe: the graph.
        options: further arguments of the frontend's graph: a handle, or the description of a GPU.
    """
    cudnn = library.cudnn()
    types = cudnn.data_type
    graph = cudnn.pygraph(intermediate_data_type=types.FLOAT, compute_data_type=types.FLOAT, **options)
    builder = Builder(cudnn, graph)
    recipe.build(builder)
    return builder


def compile_graph(recipe: Recipe, *, deterministic: bool = False, **options: Any) -> Builder | None:
    """Build a graph and let cuDNN propose plans; None if no engine of the library computes it.

    Args:
        recipe: the graph.
        deterministic: without plans that add in an order which changes from run to run.
        options: further arguments of the frontend's graph: a handle, or the description of a GPU.
    """
    cudnn, builder = library.cudnn(), new_graph(recipe, **options)
    graph = builder.graph
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


def proposals(wanted: Wanted, **options: Any) -> Iterator[tuple[Builder, int | None]]:
    """Yield a graph with the plans that cuDNN proposes, and the limit that they keep, for each limit that some keep.

    Args:
        wanted: the graph.
        options: see ``compile_graph``.
    """
    for limit in wanted.limits:
        builder = compile_graph(wanted.recipe, deterministic=wanted.deterministic, **options)
        if builder is None:
            return
        if limit is not None:
            builder.graph.deselect_workspace_greater_than(limit)
            try:
                builder.graph.check_support()
            except library.cudnn().cudnnGraphNotSupportedError:
                continue
        yield builder, limit


def build_plan(wanted: Wanted, **options: Any) -> Builder | None:
    """Build a plan of a graph; None if cuDNN has none.

    Args:
        wanted: the graph.
        options: see ``compile_graph``.
    """
    cudnn = library.cudnn()
    for builder, limit in proposals(wanted, **options):
        try:
            if not (wanted.measured and build_fastest(builder, wanted.recipe, limit, wanted.deterministic)):
                builder.graph.build_plans(cudnn.build_plan_policy.HEURISTICS_CHOICE)
        except cudnn.cudnnGraphNotSupportedError:
            continue
        return builder
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
