"""3x3 filters as minimal filtering reads them: evaluated at 36 points."""

from __future__ import annotations

import functools
from typing import Any

from netbuilder.engines.onednn import declarations as c
from netbuilder.engines.onednn.arguments import In, Out, Scratch
from netbuilder.engines.onednn.blocked_layout import (
    BlockedLayout,
    DerivedLayout,
    Desc,
    View,
    desc_of,
    layout_of,
    plain_in,
)
from netbuilder.engines.onednn.primitive import Primitive, Step, prepared
from netbuilder.engines.onednn.products import product
from netbuilder.engines.onednn.reorders import reorder_primitive
from netbuilder.engines.onednn.winograd_matrices import AT, FLOAT, WINDOW, constant, plain
from netbuilder.ops.core.contexts import PlanContext, Prepared
from netbuilder.ops.core.operator import TensorSpec

__all__ = ["by_window_position", "derived_weights"]


class DerivedWeights(DerivedLayout):
    """Filters evaluated at the 36 points, (36, I, O); equal layouts are the same object.

    Args:
        view: the weights, O, I, 3, 3.
        flipped: whether filters are rotated by 180 degrees, for the gradient of images.
        order: in which they are stored; None: row-major.
    """

    __slots__ = ("flipped", "order")

    def __init__(self, view: View, flipped: bool, order: BlockedLayout | None) -> None:
        self.flipped, self.order = flipped, order
        text = f"filters at 36 points{', rotated' if flipped else ''}, of {'x'.join(map(str, view.dims))}"
        if order is None:
            super().__init__(view, view.dims[0] * view.dims[1] * AT * FLOAT, text)
        else:
            super().__init__(view, order.nbytes, f"{text}, {order.text}")

    def copy(self, ctx: PlanContext, source: TensorSpec, target: TensorSpec) -> Prepared:
        o, i = self.view.dims[:2]
        n = o * i
        multiply = product(plain(AT, WINDOW**2), plain(WINDOW**2, n), None, plain(AT, n), threads=ctx.threads)
        read: In | Scratch = In(0)
        steps, nbytes = [], 0
        if source.layout is not by_window_position(self.view):
            needed = plain_in(_positions_outermost(self.view), c.F32)
            made = reorder_primitive(desc_of(source, self.view), needed, threads=ctx.threads)
            nbytes = source.plain.nbytes
            read = Scratch(0, nbytes)
            steps.append(_step(made, {c.SRC: In(0), c.DST: read}))
        matrix = constant("flipped" if self.flipped else "window")
        written: Out | Scratch = Out(0) if self.order is None else Scratch(nbytes, AT * n * FLOAT)
        steps.append(_step(multiply, {c.SRC: matrix, c.WEIGHTS: read, c.DST: written}))
        if self.order is not None:
            stored = Desc((AT, i, o), c.F32, self.order)
            made = reorder_primitive(plain(AT, i, o), stored, threads=ctx.threads)
            steps.append(_step(made, {c.SRC: written, c.DST: Out(0)}))
            nbytes += AT * n * FLOAT
        return prepared([source], [target], steps, scratch=nbytes)


@functools.lru_cache(1024)
def derived_weights(view: View, flipped: bool, order: BlockedLayout | None = None) -> DerivedWeights:
    return DerivedWeights(view, flipped, order)


def _positions_outermost(view: View) -> View:
    """Return weights O, I, 3, 3 in the order 3, 3, I, O."""
    o, i = view.dims[:2]
    return View(view.dims, (1, o, WINDOW * i * o, i * o))


def by_window_position(view: View) -> BlockedLayout | None:
    """Return the layout of weights in that order."""
    return layout_of(plain_in(_positions_outermost(view), c.F32).handle, view)


def _step(made: Primitive | None, arguments: dict[int, Any]) -> Step:
    if made is None:
        raise RuntimeError("oneDNN lacks a product or reorder that it had when the convolution was compiled")
    return Step(made, arguments)
