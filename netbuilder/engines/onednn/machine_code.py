"""Convolutions with constant filters by our own machine code, between images in the library's layout.

The library's kernels for AVX2 read the filters of small images in an order that keeps the processor waiting, divide
few positions among threads badly, and have none for groups of four channels, whose images they unroll.
"""

from __future__ import annotations

from typing import Any

from netbuilder.engines.llvm.convolutions import Window, blocked_convolution
from netbuilder.engines.onednn import declarations as c
from netbuilder.engines.onednn.blocked_layout import channel_blocked
from netbuilder.engines.onednn.convolutions import Views
from netbuilder.ops.core.contexts import CHANNELS_LAST, PlanContext, Prepared
from netbuilder.ops.core.operator import TensorSpec

__all__ = ["by_machine_code"]

_BLOCK = 8


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
    if not ctx.enabled("blocked_filters") or not ctx.uses_engine("LLVM") or ctx.precision != "float32":
        return None
    if v.kind != "convolution" or len(v.x.dims) != 4 or op.order != "NCHW" or ctx.image_order == CHANNELS_LAST:
        return None
    x, w, b = specs
    at_x, at_y = (channel_blocked(view, c.F32, _BLOCK) for view in (v.x, v.y))
    if at_x is None or at_y is None:
        return None
    n, channels, height, width = v.x.dims
    outputs, rows, columns = v.y.dims[1:]
    strides, gaps, before, _ = v.window
    window = Window(
        (n, channels, height, width),
        (outputs, rows, columns),
        (v.weights.dims[-2], v.weights.dims[-1]),
        (strides[0], strides[1]),
        (gaps[0] + 1, gaps[1] + 1),
        (before[0], before[1]),
        op.group,
    )
    y = TensorSpec(v.y_shape, x.dtype, at_y)
    return blocked_convolution(ctx, window, x.with_layout(at_x), w.plain, b, y, add=add, relu=relu)
