"""Values in an engine's own layout: buffers for them, and the way from and to plain row-major order."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from netbuilder.ops.contexts import Prepared
from netbuilder.ops.engines.arrays import aligned_empty, aligned_zeros, as_flat
from netbuilder.ops.engines.gpu import gpu
from netbuilder.ops.operator import STRING, TensorSpec

__all__ = ["HOST", "Location", "convert", "new_buffer", "prepare_reorder"]

Location = tuple[int, int]
"""Where a buffer lies: (PROTO_CPU, 0) for the host's memory, (PROTO_CUDA, id) for a GPU's."""

HOST: Location = (0, 0)


def new_buffer(spec: TensorSpec, location: Location = HOST) -> Any:
    """Return zeroed memory for a value: an array of its shape and dtype, or flat bytes if it has a layout.

    Zeroes, because the padding of a blocked layout has to be zero before anything is summed over it.
    """
    if spec.dtype == STRING:
        return np.empty(spec.shape, object)
    if location[0] != 0:
        with gpu(location[1]) as there:
            return there.xp.zeros(spec.shape, spec.dtype)
    buffer = aligned_zeros(spec.nbytes)
    if spec.layout is not None:
        return buffer
    return as_flat(buffer, spec.dtype).reshape(spec.shape)


def prepare_reorder(ctx: Any, source: TensorSpec, target: TensorSpec) -> Prepared:
    """Return the prepared copy between two layouts of one value (shape and dtype are the same)."""
    layout = source.layout if source.layout is not None else target.layout
    if layout is None:
        return Prepared([source], [target], _bind_plain_copy, name="copy")
    engine = importlib.import_module(f"netbuilder.ops.engines.{layout.engine.lower()}")
    prepared: Prepared = engine.reorder(ctx, source, target)
    return prepared


def _bind_plain_copy(inputs: Any, outputs: Any, scratch: Any) -> Any:
    source, target = inputs[0], outputs[0]

    def call() -> None:
        target[...] = source

    return call


def convert(buffer: Any, source: TensorSpec, target: TensorSpec, ctx: Any, out: Any = None) -> Any:
    """Return the value in ``buffer`` in another layout, written into ``out`` or a new buffer."""
    if out is None:
        out = new_buffer(target)
    prepared = prepare_reorder(ctx, source, target)
    scratch = aligned_empty(prepared.scratch) if prepared.scratch else None
    prepared.bind([buffer], [out], scratch)()
    return out
