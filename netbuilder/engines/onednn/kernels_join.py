"""Concat and Split on oneDNN, for parts in blocked channels if no block is cut; and copies in any layout.

Where a block would be cut, NumPy computes the operators in plain order for float32; for bfloat16, which NumPy does not
have, oneDNN does so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from netbuilder.engines.buffer_rows import is_row_of
from netbuilder.engines.onednn import declarations as c
from netbuilder.engines.onednn.arguments import In, Out
from netbuilder.engines.onednn.bfloat16 import types_as_given
from netbuilder.engines.onednn.blocked_layout import (
    BlockedLayout,
    Desc,
    channel_block,
    channel_blocked,
    desc_of,
    image_view,
    rounded,
)
from netbuilder.engines.onednn.library import check, dnnl
from netbuilder.engines.onednn.primitive import Primitive, Step, cached, compile_primitive, prepared
from netbuilder.ops.core.contexts import NOT_NEGATIVE, Call, PlanContext, Prepared
from netbuilder.ops.core.extensions import Joined
from netbuilder.ops.core.operator import TensorSpec

__all__ = ["concat", "copy", "split"]


@cached
def _concat(parts: tuple[Desc, ...], whole: Desc, axis: int) -> Primitive:
    sources = dnnl().ffi.new("md_t[]", [part.handle for part in parts])
    return compile_primitive("concat", whole.handle, len(parts), axis, sources)


@cached
def _cut(whole: Desc, part: Desc, offsets: tuple[int, ...]) -> Primitive:
    d = dnnl()
    out = d.ffi.new("md_t *")
    check(d.lib.dnnl_memory_desc_create_submemory(out, whole.handle, part.dims, offsets), "part of a value")
    return compile_primitive("reorder", d.ffi.gc(out[0], d.lib.dnnl_memory_desc_destroy), part.handle)


class _Blocks:
    """The common layout of a whole and its parts: channels in blocks of ``block``, or plain order if that is 0."""

    def __init__(self, specs: Sequence[TensorSpec], code: int, block: int, last: bool) -> None:
        self.last = last
        self.code = code
        self.block = block
        self.specs = [self._blocked(spec) for spec in specs]

    def _blocked(self, spec: TensorSpec) -> TensorSpec:
        view = image_view(spec.shape, self.last)
        layout = channel_blocked(view, self.code, self.block) if self.block else rounded(spec.size)
        return TensorSpec(spec.shape, spec.dtype, layout)

    def desc(self, spec: TensorSpec) -> Desc:
        return desc_of(spec, image_view(spec.shape, self.last))

    def dimension(self, axis: int, ndim: int) -> int:
        """Return oneDNN's dimension for an axis of the value."""
        if not self.last:
            return axis
        return 1 if axis == ndim - 1 else axis + 1 if axis else 0


def _blocks(
    given: Sequence[TensorSpec], whole: TensorSpec, parts: Sequence[TensorSpec], axis: int, code: int
) -> _Blocks | None:
    """Return the layout for Concat or Split, with the whole first; None if NumPy is faster."""
    if any(s.dtype != np.float32 or s.ndim != whole.ndim or s.size == 0 for s in (whole, *parts)):
        return None
    layouts = (s.layout for s in given if isinstance(s.layout, BlockedLayout))
    found = next((layout for layout in layouts if layout.view is not None), None)
    block = channel_block(found) if found is not None else 0
    if found is not None and block:
        blocks = _Blocks([whole, *parts], code, block, found.view != image_view(_shape_of(found, given)))
        if blocks.dimension(axis, whole.ndim) != 1 or not any(s.shape[axis] % block for s in parts[:-1]):
            return blocks
    return _Blocks([whole, *parts], code, 0, False) if code == c.BF16 else None


def _shape_of(layout: BlockedLayout, specs: Sequence[TensorSpec]) -> tuple[int, ...]:
    return next(s.shape for s in specs if s.layout is layout)


def concat(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    """Prepare Concat: parts -> whole, split_info."""
    if op.adds_axis or len(specs) < 2:
        return None
    whole, info = op.infer(*(s.plain for s in specs))
    axis = op.axis_in(whole.ndim, whole.shape)
    blocks = _blocks(specs, whole, specs, axis, types_as_given(ctx, *specs)[0])
    if blocks is None:
        return None
    whole, *parts = blocks.specs
    dimension = blocks.dimension(axis, whole.ndim)
    made = _concat(tuple(blocks.desc(s) for s in parts), blocks.desc(whole), dimension, threads=ctx.threads)
    if made is None:
        return None
    if all(ctx.published(i, NOT_NEGATIVE) for i in range(len(specs))):
        ctx.publish(0, NOT_NEGATIVE, True)
    sources: dict[int, Any] = {c.MULTIPLE_SRC + i: In(i) for i in range(len(parts))}
    extents = [_constant(1, np.array([s.shape[axis] for s in parts], np.int32))] if op.n_out > 1 else []
    made_of_parts = math.prod(blocks.desc(whole).dims[:dimension]) == 1
    found = prepared(parts, [whole, info][: op.n_out], [_Joins(made, {**sources, c.DST: Out(0)}), *extents])
    return found.extend(Joined()) if made_of_parts else found


class _Joins(Step):
    """A Step that does nothing where its inputs are its output."""

    def bind(self, ins: Sequence[Any], outs: Sequence[Any], scratch: Any, start: int) -> Call:
        return _nothing if is_row_of(ins, outs[0]) else super().bind(ins, outs, scratch, start)


def _constant(output: int, value: Any) -> Any:
    """Return the step that writes a constant to an output."""

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        target = outputs[output]
        return lambda: np.copyto(target, value)

    return bind


def split(op: Any, ctx: PlanContext, x: TensorSpec, *extents: TensorSpec) -> Prepared | None:
    """Prepare Split: whole -> parts; an input with the extents must be known at compile time, and is not read."""
    if op.adds_axis:
        return None
    parts = op.infer(x.plain, *extents)
    axis = op.axis_in(x.ndim, x.shape)
    blocks = _blocks([x], x.plain, parts, axis, types_as_given(ctx, x)[0])
    if blocks is None:
        return None
    whole, *parts = blocks.specs
    dimension = blocks.dimension(axis, x.ndim)
    steps, start = [], 0
    for i, part in enumerate(parts):
        offsets = tuple(start if d == dimension else 0 for d in range(x.ndim))
        made = _cut(blocks.desc(whole), blocks.desc(part), offsets, threads=ctx.threads)
        if made is None:
            return None
        steps.append(Step(made, {c.SRC: In(0), c.DST: Out(i)}))
        start += part.shape[axis]
    return prepared([whole, *(None for _ in extents)], parts, steps)


def copy(op: Any, ctx: PlanContext, x: TensorSpec, *like: TensorSpec) -> Prepared | None:
    """Prepare Copy and similar operators for a value with a layout: the bytes are copied, including padding."""
    if not isinstance(x.layout, BlockedLayout):
        return None
    if ctx.published(0, NOT_NEGATIVE):
        ctx.publish(0, NOT_NEGATIVE, True)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        source, target = inputs[0], outputs[0]
        if source.ctypes.data == target.ctypes.data:
            return _nothing
        return lambda: np.copyto(target, source)

    return Prepared([x, *(None for _ in like)], [x], bind, inplace=op.inplace or (), name="numpy copy")


def _nothing() -> None:
    """The call for a copy onto itself."""
