"""The memory of a primitive's arguments: the operator's inputs and outputs, scratch memory, persistent memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from netbuilder.engines.arrays import as_flat
from netbuilder.engines.large_pages import lasting_zeros
from netbuilder.engines.references import In, Out, Scratch, ScratchAllocator
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "Constant",
    "Persistent",
    "In",
    "Out",
    "Part",
    "MemoryRef",
    "ScratchAllocator",
    "SavedCopy",
    "Scratch",
    "Workspace",
    "resolve",
]


class Persistent:
    """Memory that keeps its content from a forward operator to the gradient operator; allocated when first bound."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._buffer: Any = None

    @property
    def buffer(self) -> Any:
        if self._buffer is None:
            self._buffer = lasting_zeros(max(self.nbytes, 1))
        return self._buffer


class Workspace(Persistent):
    """What a primitive writes for that of its gradient, and nothing else reads: see ``KeptForGradient``."""

    def place(self, buffer: Any) -> None:
        """Use a buffer of the plan's."""
        self._buffer = buffer


class SavedCopy:
    """A copy of a value in its layout, see ``ops.core.extensions.Saved``."""

    def __init__(self, spec: TensorSpec) -> None:
        self.spec = spec
        self._memory = Persistent(spec.nbytes)

    @property
    def buffer(self) -> Any:
        if self.spec.layout is not None:
            return self._memory.buffer
        return as_flat(self._memory.buffer, self.spec.dtype).reshape(self.spec.shape)


class Constant(Persistent):
    """Memory whose content is the same in each run."""

    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        super().__init__(values.nbytes)
        as_flat(self.buffer[: values.nbytes], values.dtype)[:] = values.reshape(-1)


MemoryRef = In | Out | Scratch | Persistent
"""The memory of an argument."""


@dataclass(frozen=True)
class Part:
    """A part of other memory, from ``offset`` on, in bytes."""

    whole: MemoryRef
    offset: int
    nbytes: int


def resolve(ref: MemoryRef | Part, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Any:
    """Return the array that a reference stands for, given the buffers that a call is bound to."""
    if isinstance(ref, Part):
        whole = as_flat(resolve(ref.whole, inputs, outputs, scratch), np.uint8)
        return whole[ref.offset : ref.offset + ref.nbytes]
    if isinstance(ref, In):
        return inputs[ref.index]
    if isinstance(ref, Out):
        return outputs[ref.index]
    if isinstance(ref, Scratch):
        return scratch[ref.offset : ref.offset + ref.nbytes]
    return ref.buffer
