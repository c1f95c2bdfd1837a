"""Gradients of Conv and ConvTranspose on oneDNN.

In bfloat16, images and their gradients are read and written in it, and the gradients of weights and biases are
float32. oneDNN 3.2 has threads wait for one another inside its kernels for the weights of windows beyond 1x1 in
bfloat16, which takes long where anything else runs on the cores. So these are measured, once a process, and where
they are slow both images are brought to float32 first, which loses nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from netbuilder.ops.contexts import PlanContext, Prepared
from netbuilder.ops.engines.onednn import declarations as c
from netbuilder.ops.engines.onednn.convolutions import (
    Views,
    backward_data,
    backward_weights,
    forward,
    free,
    serves,
    wish,
)
from netbuilder.ops.engines.onednn.layout import Desc, plain_in
from netbuilder.ops.engines.onednn.measuring import seconds, turned_off
from netbuilder.ops.engines.onednn.precision import types_for_products
from netbuilder.ops.engines.onednn.primitive import In, Out, Primitive, Scratch, Step, first_fast, prepared
from netbuilder.ops.engines.onednn.reorders import reorder_primitive
from netbuilder.ops.operator import TensorSpec

__all__ = ["conv_gradient", "conv_transpose_gradient"]


def conv_gradient(op: Any, ctx: PlanContext, x: TensorSpec, w: TensorSpec, dy: TensorSpec) -> Prepared | None:
    """Prepare ConvGradient: X, W, dY -> dW, [db], [dX]."""
    return _prepare_gradient(op, ctx, x, w, dy, transposed=False)


def conv_transpose_gradient(op: Any, ctx: PlanContext, x: TensorSpec, w: TensorSpec, dy: TensorSpec) -> Prepared | None:
    """Prepare ConvTransposeGradient: X, W, dY -> dW, [db], [dX]."""
    return _prepare_gradient(op, ctx, x, w, dy, transposed=True)


@dataclass(frozen=True)
class _Found:
    """The primitives of a convolution's gradient, as they take X and dY.

    ``wide``: the gradient of the weights on copies in float32, which the two reorders before it make.
    """

    dw: Primitive
    dx: Primitive | None
    wide: tuple[Primitive, Primitive, Primitive] | None = None

    @property
    def slow(self) -> bool:
        return self.dw.slow or (self.dx is not None and self.dx.slow)


def _prepare_gradient(
    op: Any, ctx: PlanContext, x: TensorSpec, w: TensorSpec, dy: TensorSpec, *, transposed: bool
) -> Prepared | None:
    if not serves(x, w, dy):
        return None
    v = Views(op, x, w, transposed=transposed)
    slow = None
    for code in types_for_products(ctx):
        found = _Search(op, ctx, v, code).find(x, dy)
        if found is not None and not found.slow:
            return _bound(op, v, found, x, w, dy)
        slow = slow or found
    return _bound(op, v, slow, x, w, dy) if slow is not None else None


class _Search:
    """Finds the primitives of a convolution's gradient for images of a type."""

    def __init__(self, op: Any, ctx: PlanContext, v: Views, code: int) -> None:
        self.op, self.ctx, self.v, self.code, self.threads = op, ctx, v, code, ctx.threads
        self.bias = plain_in(v.bias, c.F32) if op.computes_db else None
        self.x, self.y, self.weights = (free(view, code) for view in (v.x, v.y, v.weights))
        self.hint = forward(
            v.kind, self.x, self.weights, self.bias, self.y, v.window, False, (), threads=self.threads
        )  # fmt: skip

    def find(self, x: TensorSpec, dy: TensorSpec) -> _Found | None:
        """Return the primitives for X and dY as they lie or, if those are slow, as they could be put."""
        if self.hint is None:
            return None
        wish_x, wish_y = wish(x, self.v.x, self.code), wish(dy, self.v.y, self.code)
        dw = first_fast(self.make_dw, [(wish_x, wish_y), (wish_x, self.y), (self.x, self.y)])
        if dw is None:
            return None
        dx = None
        if self.op.computes_dx:
            # Both primitives read one dY, so the second has to take what the first has chosen.
            chosen_y = dw.desc(c.DIFF_DST, self.v.y)
            dx = first_fast(self._make_dx, [(wish_x, chosen_y), (self.x, chosen_y)])
            if dx is None:
                return None
        return _Found(dw, dx, self._faster(dw))

    def make_dw(self, src: Desc, dst: Desc) -> Primitive | None:
        v, weights = self.v, free(self.v.weights, c.F32)
        return backward_weights(v.kind, src, weights, self.bias, dst, v.window, self.hint, threads=self.threads)

    def _make_dx(self, src: Desc, dst: Desc) -> Primitive | None:
        v = self.v
        return backward_data(v.kind, src, self.weights, dst, v.window, self.hint, threads=self.threads)

    def _faster(self, dw: Primitive) -> tuple[Primitive, Primitive, Primitive] | None:
        """Return reorders and the primitive for dW in float32 if together they take less time than ``dw``."""
        if self.code == c.F32 or self.threads == 1 or self.v.is_pointwise or turned_off():
            return None
        search = _Search(self.op, self.ctx, self.v, c.F32)
        wide = search.make_dw(search.x, search.y) if search.hint is not None else None
        if wide is None or wide.slow:
            return None
        reorders = [
            reorder_primitive(dw.desc(number, view), wide.desc(number, view), threads=self.threads)
            for number, view in ((c.SRC, self.v.x), (c.DIFF_DST, self.v.y))
        ]
        first, second = reorders
        if first is None or second is None:
            return None
        of_dw = (c.SRC, c.DIFF_DST, c.DIFF_WEIGHTS) + ((c.DIFF_BIAS,) if self.bias is not None else ())
        time = seconds(wide, of_dw, self.threads)
        time += sum(seconds(reorder, (c.SRC, c.DST), self.threads) for reorder in (first, second))
        return (first, second, wide) if time < seconds(dw, of_dw, self.threads) else None


def _bound(op: Any, v: Views, found: _Found, x: TensorSpec, w: TensorSpec, dy: TensorSpec) -> Prepared:
    dw, dx = found.dw, found.dx
    inputs: list[TensorSpec | None] = [dw.spec(c.SRC, x, v.x), None, dw.spec(c.DIFF_DST, dy, v.y)]
    places: dict[int, Any] = {c.SRC: In(0), c.DIFF_DST: In(2), c.DIFF_WEIGHTS: Out(0)}
    steps, room = [], 0
    if found.wide is not None:
        first, second, dw = found.wide
        wide_x = Scratch(0, first.nbytes(c.DST))
        wide_y = Scratch(-(-wide_x.nbytes // 64) * 64, second.nbytes(c.DST))
        room = wide_y.offset + wide_y.nbytes
        steps = [Step(first, {c.SRC: In(0), c.DST: wide_x}), Step(second, {c.SRC: In(2), c.DST: wide_y})]
        places |= {c.SRC: wide_x, c.DIFF_DST: wide_y}
    outputs = [dw.spec(c.DIFF_WEIGHTS, w.plain, v.weights)]
    if op.computes_db:
        places[c.DIFF_BIAS] = Out(1)
        outputs.append(TensorSpec(v.bias.dims, x.dtype))
    steps.append(Step(dw, places))
    if dx is not None:
        inputs[1] = dx.spec(c.WEIGHTS, w, v.weights)
        outputs.append(dx.spec(c.DIFF_SRC, x.plain, v.x))
        steps.append(Step(dx, {c.DIFF_DST: In(2), c.WEIGHTS: In(1), c.DIFF_SRC: Out(len(outputs) - 1)}))
    return prepared(inputs, outputs, steps, scratch=room)
