"""Reorders: conversions between plain and blocked layouts, and to and from bfloat16."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.engines.layouts import in_turn
from netbuilder.engines.onednn import declarations as c
from netbuilder.engines.onednn.arguments import In, Out
from netbuilder.engines.onednn.blocked_layout import DerivedLayout, Desc, desc_of, row_major
from netbuilder.engines.onednn.primitive import (
    Primitive,
    Step,
    cached,
    compile_primitive,
    prepared,
    team_size,
    threads_after,
)
from netbuilder.ops.core.contexts import Call, PlanContext, Prepared
from netbuilder.ops.core.operator import TensorSpec

__all__ = ["reorder", "reorder_primitive"]


@cached
def reorder_primitive(source: Desc, target: Desc) -> Primitive:
    """Return the primitive that copies a value from one description to another."""
    return compile_primitive("reorder", source.handle, target.handle)


def reorder(ctx: PlanContext, source: TensorSpec, target: TensorSpec) -> Prepared:
    """Return the prepared copy of a value from one layout to another.

    Args:
        ctx: of the plan, for its number of threads.
        source, target: specs of the same shape and dtype; layouts are None or of this package. If elements of the
            target are narrower, values are rounded to nearest.

    Raises:
        ValueError: shapes or dtypes differ.
        RuntimeError: the library has no such reorder.
    """
    if source.shape != target.shape or source.dtype != target.dtype:
        raise ValueError(f"a reorder changes neither shape nor dtype: {source} cannot become {target}")
    if source.layout is target.layout:
        return _copy(source, target)
    layouts = [spec.layout for spec in (source, target) if spec.layout is not None]
    views = list(dict.fromkeys(layout.view for layout in layouts if layout.view is not None))
    if len(views) > 1:  # of the same value: both share plain order
        return in_turn(reorder(ctx, source, source.plain), reorder(ctx, source.plain, target))
    if isinstance(target.layout, DerivedLayout):
        return target.layout.copy(ctx, source, target)
    made = _between(ctx, source, target, views[0] if views else row_major((source.size,)))
    return prepared([source], [target], [Step(made, {c.SRC: In(0), c.DST: Out(0)}, threads_after(ctx, source.size))])


def _between(ctx: PlanContext, source: TensorSpec, target: TensorSpec, view: Any) -> Primitive:
    made = reorder_primitive(desc_of(source, view), desc_of(target, view), threads=team_size(ctx, source.size))
    if made is None:
        raise RuntimeError(f"oneDNN cannot reorder {source} to {target}")
    assert isinstance(made, Primitive)
    return made


def _copy(source: TensorSpec, target: TensorSpec) -> Prepared:
    def bind(inputs: Any, outputs: Any, scratch: Any) -> Call:
        read, written = inputs[0], outputs[0]
        return lambda: np.copyto(written, read)

    return Prepared([source], [target], bind, inplace=((0, 0),), name="copy")
