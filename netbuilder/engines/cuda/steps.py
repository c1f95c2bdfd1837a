"""Prepared kernels as sequences of calls of libraries and kernels, with references to the memory of their tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from netbuilder.engines.references import In, Out, Scratch, ScratchAllocator
from netbuilder.ops.core.contexts import Call, Prepared
from netbuilder.ops.core.extensions import CAPTURABLE, FurtherBytes
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Reference", "Step", "one_call", "prepared", "scratch_memory", "step_of"]

ALIGNMENT = 256
"""Bytes; what CUDA's allocations are aligned to, and the libraries' fastest kernels expect."""

Reference = In | Out | Scratch


@dataclass(frozen=True)
class Step:
    """A call of a library, or a kernel.

    Args:
        name: of the library or kernel.
        bind: ``bind(memory, workspace)`` returns the call.
        memory: of each of its tensors, by name.
        workspace: bytes of scratch memory that the call needs, and leaves to the next step.
    """

    name: str
    bind: Callable[[Mapping[str, Any], Any], Call]
    memory: Mapping[str, Reference]
    workspace: int = 0


def scratch_memory() -> ScratchAllocator:
    """Return the allocator for a kernel's scratch memory."""
    return ScratchAllocator(ALIGNMENT)


def prepared(
    inputs: Sequence[TensorSpec | None],
    outputs: Sequence[TensorSpec | None],
    steps: Sequence[Step],
    memory: ScratchAllocator | None = None,
    *,
    inplace: Sequence[tuple[int, int]] = (),
    again: int = 0,
) -> Prepared:
    """Return steps as a prepared kernel. The workspace that they share follows the scratch memory of ``memory``.

    Args:
        inputs, outputs, inplace: see ``Prepared``.
        steps: the steps, in order.
        memory: has allocated the scratch memory that they name.
        again: bytes that steps read a second time.
    """
    begin = 0 if memory is None else memory.nbytes
    shared = max((step.workspace for step in steps), default=0)

    def bind(ins: Sequence[Any], outs: Sequence[Any], scratch: Any) -> Call:
        workspace = scratch[begin:] if shared else None
        return one_call(
            [
                step.bind({name: _resolve(ref, ins, outs, scratch) for name, ref in step.memory.items()}, workspace)
                for step in steps
            ]
        )

    names = ", ".join(dict.fromkeys(step.name for step in steps))
    made = Prepared(inputs, outputs, bind, scratch=begin + shared, inplace=inplace, name=names, extensions=CAPTURABLE)
    further = again + _further(inputs, outputs, steps)
    return made.extend(FurtherBytes(further)) if further else made


def _further(inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None], steps: Sequence[Step]) -> int:
    """Return the bytes that steps read and write besides each input and output once."""

    def nbytes(ref: Reference) -> int:
        if isinstance(ref, Scratch):
            return ref.nbytes
        spec = inputs[ref.index] if isinstance(ref, In) else outputs[ref.index]
        return 0 if spec is None else spec.nbytes

    named = [ref for step in steps for ref in step.memory.values()]
    once = {ref for ref in named if not isinstance(ref, Scratch)}
    return sum(map(nbytes, named)) - sum(map(nbytes, once))


def step_of(made: Prepared, inputs: Sequence[Reference], outputs: Sequence[Reference]) -> Step:
    """Return a prepared kernel as a step.

    Args:
        made: the kernel.
        inputs, outputs: the memory of each of its values.
    """
    begin = len(inputs)

    def bind(memory: Mapping[str, Any], workspace: Any) -> Call:
        arrays = [memory[str(i)] for i in range(begin + len(outputs))]
        return made.bind(arrays[:begin], arrays[begin:], workspace)

    return Step(made.name, bind, {str(i): ref for i, ref in enumerate((*inputs, *outputs))}, made.scratch)


def one_call(calls: Sequence[Call]) -> Call:
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
