"""Convolutions by our own machine code, between images and with filters in the library's layouts.

For small images the library leaves the widest registers, or most threads, unused; of groups of few channels it copies
the images.
"""

from __future__ import annotations

from typing import Any

from netbuilder.engines.llvm import machine
from netbuilder.engines.llvm.convolutions import Window, blocked_convolution
from netbuilder.engines.onednn import declarations as c
from netbuilder.engines.onednn.blocked_layout import channel_blocked, filters_blocked, row_major
from netbuilder.engines.onednn.convolutions import Views
from netbuilder.ops.core.contexts import CHANNELS_LAST, PlanContext, Prepared
from netbuilder.ops.core.operator import TensorSpec

__all__ = ["by_machine_code", "channels_of_block"]

_MOST_POSITIONS, _MOST_OF_GROUPS = 1 << 8, 1 << 14
"""Of the result in all images together: with more, the library is as fast, except for groups of few channels."""


def channels_of_block() -> int:
    """Return how many channels a block has: those that a register holds."""
    return 16 if machine.has_wide_registers() else 8


def by_machine_code(
    op: Any,
    ctx: PlanContext,
    v: Views,
    specs: tuple[TensorSpec, TensorSpec, TensorSpec | None],
    *,
    add: bool,
    relu: bool,
) -> Prepared | None:
    """Prepare Y = relu(conv(X, W) + b + A) by machine code; the inputs are X, W, [b], [A].

    None: there is none, or it may not be used.

    Args:
        op, ctx: the operator in a plan.
        v: its views.
        specs: of X, W and the bias.
        add, relu: whether there is an addend A, and a Relu.
    """
    if not ctx.enabled("small_images") or not ctx.uses_engine("LLVM") or ctx.precision != "float32":
        return None
    if v.kind != "convolution" or len(v.x.dims) != 4 or op.order != "NCHW" or ctx.image_order == CHANNELS_LAST:
        return None
    if not ctx.is_constant(1):
        return None
    x, w, b = specs
    n, channels, height, width = v.x.dims
    outputs, rows, columns = v.y.dims[1:]
    strides, gaps, before, _ = v.window
    window = Window(
        (n, channels, height, width),
        (outputs, rows, columns),
        (w.shape[2], w.shape[3]),
        (strides[0], strides[1]),
        (gaps[0] + 1, gaps[1] + 1),
        (before[0], before[1]),
        op.group,
        channels_of_block(),
    )
    most = _MOST_OF_GROUPS if 1 < window.factors < window.block else _MOST_POSITIONS
    if not window.factors or window.positions > most:
        return None
    at_x, at_y = (channel_blocked(view, c.F32, window.block) for view in (v.x, v.y))  # None: that is plain order
    filters = w.with_layout(filters_blocked(row_major(w.shape), window.block, both=window.factors == window.block))
    y = TensorSpec(v.y_shape, x.dtype, at_y)
    return blocked_convolution(ctx, window, x.with_layout(at_x), filters, b, y, add=add, relu=relu)
