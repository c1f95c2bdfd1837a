"""Scale of values in a layout: NumPy over the flat memory, where padding stays zero."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import Call, PlanContext, Prepared
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.engines import flat

__all__ = ["scale"]


def scale(op: Any, ctx: PlanContext, x: TensorSpec) -> Prepared | None:
    """Prepare Scale of a value in a layout."""
    spec = flat.common_spec([x])
    if spec is None or spec.layout is None:
        return None

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        factor = flat.scalar(op.factor(spec.dtype), spec.dtype)
        return flat.replay([(np.multiply, (x, factor, y)) for x, y in flat.pieces(spec, [inputs[0], outputs[0]])])

    return Prepared([spec], [spec], bind, inplace=((0, 0),), name="numpy in any layout")
