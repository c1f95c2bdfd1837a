"""Buffers of values, and conversions between layouts, dispatched to the engine of the layout."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from netbuilder.engines.arrays import aligned_empty, as_flat
from netbuilder.engines.described_gpu import described_gpu, unwritten_buffer
from netbuilder.engines.engine import HOST, Location, layout_engine
from netbuilder.engines.gpu import gpu
from netbuilder.ops.core.contexts import Call, Prepared
from netbuilder.ops.core.operator import TensorSpec

__all__ = [
    "HOST",
    "Location",
    "alignment_of",
    "convert",
    "in_turn",
    "new_buffer",
    "new_bytes",
    "on_location",
    "prepare_reorder",
]

_ALIGNMENT, _GPU_ALIGNMENT = 64, 256


def alignment_of(location: Location) -> int:
    """Return the alignment of buffers in bytes: a cache line on the host, that of CUDA's allocations on a GPU."""
    return _ALIGNMENT if location == HOST else _GPU_ALIGNMENT


def new_bytes(nbytes: int, location: Location = HOST) -> Any:
    """Return uninitialized memory, one-dimensional uint8, aligned for buffers."""
    if location == HOST:
        return aligned_empty(nbytes)
    if described_gpu() is not None:
        return unwritten_buffer(TensorSpec((nbytes,), np.dtype(np.uint8)))
    with gpu(location[1]) as there:
        memory = there.xp.empty(nbytes, np.uint8)
        if memory.data.ptr % _GPU_ALIGNMENT:
            memory = there.xp.empty(nbytes + _GPU_ALIGNMENT, np.uint8)
        start = -memory.data.ptr % _GPU_ALIGNMENT
        return memory[start : start + nbytes]


def on_location(location: Location) -> AbstractContextManager[object]:
    """Return a context in which this thread computes at a location: that of its GPU and stream, if it is on one."""
    return nullcontext() if location == HOST else gpu(location[1])


def new_buffer(spec: TensorSpec, location: Location = HOST) -> Any:
    """Return zeroed memory for a value: an array of its shape and dtype, or flat bytes if it has a layout.

    The padding of a blocked layout has to be zero, because kernels sum over it.
    """
    if location != HOST and described_gpu() is not None:
        return unwritten_buffer(spec)
    return layout_engine(spec, location).new_buffer(spec, location)


def prepare_reorder(ctx: Any, source: TensorSpec, target: TensorSpec, location: Location = HOST) -> Prepared:
    """Return the prepared copy of a value from one layout to another, at one location; shape and dtype are the same.

    An engine knows its own layouts and plain order only: between layouts of two engines there is plain order.
    """
    if source.layout is None or target.layout is None or source.layout.engine == target.layout.engine:
        of = source if source.layout is not None else target
        return layout_engine(of, location).prepare_reorder(ctx, source, target, location)
    plain = source.plain
    to_plain, from_plain = (prepare_reorder(ctx, *ends, location) for ends in ((source, plain), (plain, target)))
    return in_turn(to_plain, from_plain, location)


def in_turn(first: Prepared, second: Prepared, location: Location = HOST) -> Prepared:
    """Return the prepared copy that does one copy after another; the plain value between them is in scratch memory."""
    (middle,) = first.outputs
    assert middle is not None and middle.layout is None
    alignment = alignment_of(location)
    start = -(-middle.nbytes // alignment) * alignment

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        between = as_flat(scratch[: middle.nbytes], middle.dtype).reshape(middle.shape)
        make, finish = (
            part.bind(read, written, scratch[start:])
            for part, read, written in ((first, inputs, [between]), (second, [between], outputs))
        )

        def call() -> None:
            make()
            finish()

        return call

    return Prepared(
        first.inputs,
        second.outputs,
        bind,
        start + max(first.scratch, second.scratch),
        name=f"{first.name} + {second.name}",
        engine=first.engine or second.engine,
    )


def convert(
    buffer: Any, source: TensorSpec, target: TensorSpec, ctx: Any, out: Any = None, location: Location = HOST
) -> Any:
    """Return the value in ``buffer`` in another layout, written into ``out`` or a new buffer at the same location."""
    if out is None:
        out = new_buffer(target, location)
    if location != HOST and described_gpu() is not None:
        return out
    prepared = prepare_reorder(ctx, source, target, location)
    scratch = new_bytes(prepared.scratch, location) if prepared.scratch else None
    with on_location(location):
        prepared.bind([buffer], [out], scratch)()
    return out
