"""Prepared kernels as sequences of cuDNN's graphs and other calls, with references to the memory of their tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from netbuilder.ops.core.contexts import Call, PlanContext, Prepared
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.engines.cudnn.compiled import CompiledGraph, compiled
from netbuilder.ops.engines.cudnn.graphs import Recipe
from netbuilder.ops.engines.references import In, Out, Scratch, ScratchAllocator
from netbuilder.proto.arguments import arguments

__all__ = ["Extra", "Reference", "Step", "bind_steps", "graph_of", "in_order", "prepared", "scratch_memory"]

ALIGNMENT = 256
"""Bytes; what CUDA's allocations are aligned to, and the library's fastest kernels expect."""

Reference = In | Out | Scratch


@dataclass(frozen=True)
class Step:
    """A graph, and the memory of each of its tensors."""

    graph: CompiledGraph
    memory: Mapping[str, Reference]


@dataclass(frozen=True)
class Extra:
    """A step that is no graph: a call of cuBLAS, or one of netbuilder's kernels.

    Args:
        name: of the library or kernel.
        bind: ``bind(memory)`` returns the call.
        memory: of each of its tensors, by name.
    """

    name: str
    bind: Callable[[dict[str, Any]], Call]
    memory: Mapping[str, Reference]


def scratch_memory() -> ScratchAllocator:
    """Return the allocator for a kernel's scratch memory."""
    return ScratchAllocator(ALIGNMENT)


def graph_of(recipe: Recipe, ctx: PlanContext) -> CompiledGraph | None:
    """Return the compiled graph of a recipe for an operator; None if cuDNN has none.

    The operator's arguments ``exhaustive_search`` and ``ws_nbytes_limit`` are those of Caffe2.
    """
    given = arguments(ctx.op_def)
    limit = given.get("ws_nbytes_limit")
    return compiled(
        recipe,
        ctx.device_id,
        limit=limit if isinstance(limit, int) else None,
        exhaustive=bool(given.get("exhaustive_search", False)) and ctx.enabled("measured_choices"),
        deterministic=not ctx.enabled("atomic_sums"),
    )


def prepared(
    inputs: Sequence[TensorSpec | None],
    outputs: Sequence[TensorSpec | None],
    steps: Sequence[Step | Extra],
    memory: ScratchAllocator | None = None,
    *,
    inplace: Sequence[tuple[int, int]] = (),
) -> Prepared:
    """Return steps as a prepared kernel. The graphs' own scratch memory follows that of ``memory``."""
    begin = 0 if memory is None else memory.nbytes
    own = max((step.graph.workspace for step in steps if isinstance(step, Step)), default=0)

    def bind(ins: Sequence[Any], outs: Sequence[Any], scratch: Any) -> Call:
        return bind_steps(steps, ins, outs, scratch, scratch[begin:] if own else None)

    names = dict.fromkeys(step.graph.name if isinstance(step, Step) else step.name for step in steps)
    return Prepared(
        inputs, outputs, bind, scratch=begin + own, inplace=inplace, name=", ".join(names), capturable=True
    )  # fmt: skip


def bind_steps(
    steps: Iterable[Step | Extra], inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any, workspace: Any
) -> Call:
    """Return one call for all steps."""
    calls = []
    for step in steps:
        memory = {name: _resolve(ref, inputs, outputs, scratch) for name, ref in step.memory.items()}
        calls.append(step.graph.bind(memory, workspace) if isinstance(step, Step) else step.bind(memory))
    return in_order(calls)


def in_order(calls: Sequence[Call]) -> Call:
    """Return one call for several."""
    if len(calls) == 1:
        return calls[0]

    def run() -> None:
        for call in calls:
            call()

    return run


def _resolve(ref: Reference, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Any:
    if isinstance(ref, In):
        return inputs[ref.index]
    if isinstance(ref, Out):
        return outputs[ref.index]
    return scratch[ref.offset : ref.offset + ref.nbytes]
