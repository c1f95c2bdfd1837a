"""WeightedSum and Scale of values in a layout: NumPy over the flat memory, where padding stays zero."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from netbuilder.ops.contexts import Call, PlanContext, Prepared
from netbuilder.ops.engines import flat
from netbuilder.ops.operator import TensorSpec

__all__ = ["scale", "weighted_sum"]


def weighted_sum(op: Any, ctx: PlanContext, *pairs: TensorSpec) -> Prepared | None:
    """Prepare WeightedSum: X0, w0, X1, w1, ... -> Y; where an X has a layout."""
    tensors, weights = pairs[::2], pairs[1::2]
    spec = flat.common_spec(tensors)
    if spec is None or spec.layout is None or any(w.dtype != spec.dtype or w.size != 1 for w in weights):
        return None

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        first, *others = (w.reshape(()) for w in inputs[1::2])
        steps: list[flat.Step] = []
        for y, x, *rest in flat.pieces(spec, [outputs[0], *inputs[::2]], scratch, temporaries=1):
            *more, term = rest
            steps.append((np.multiply, (x, first, y)))
            for other, weight in zip(more, others):
                steps += [(np.multiply, (other, weight, term)), (np.add, (y, term, y))]
        return flat.replay(steps)

    inputs = [s.plain if i % 2 else spec for i, s in enumerate(pairs)]
    return Prepared(
        inputs, [spec], bind, scratch=flat.scratch_bytes(spec, 1), inplace=((0, 0),), name="numpy in any layout"
    )


def scale(op: Any, ctx: PlanContext, x: TensorSpec) -> Prepared | None:
    """Prepare Scale of a value in a layout."""
    spec = flat.common_spec([x])
    if spec is None or spec.layout is None:
        return None

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        factor = flat.scalar(op.scale, spec.dtype)
        return flat.replay([(np.multiply, (x, factor, y)) for x, y in flat.pieces(spec, [inputs[0], outputs[0]])])

    return Prepared([spec], [spec], bind, inplace=((0, 0),), name="numpy in any layout")
