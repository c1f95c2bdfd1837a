"""Element types on GPUs: which kernels use them.

A value is float32 or float16 for its net; a plan may store float32 as bfloat16 or float16, which its layout says. All
sums are computed in float32. Kernels that multiply matrices round their inputs to the plan's precision; others use the
type in which their inputs are stored. Parameters and statistics keep their own type; gradients of filters are stored as
the product of 16 bits that they are.
"""

from __future__ import annotations

import numpy as np

from netbuilder.engines.cuda.gpu_layout import elements_of
from netbuilder.ops.core.contexts import PlanContext
from netbuilder.ops.core.operator import TensorSpec

__all__ = ["serves", "types_as_given", "types_for_products"]


def serves(*specs: TensorSpec) -> bool:
    """Whether all values are of one type that cuDNN multiplies, and none is empty."""
    dtype = specs[0].dtype
    return dtype in (np.float32, np.float16) and all(s.dtype == dtype and s.size > 0 for s in specs)


def types_for_products(ctx: PlanContext, x: TensorSpec) -> tuple[str, ...]:
    """Return the types of elements, best first, for a kernel that multiplies matrices."""
    if x.dtype != np.float32:
        return (x.dtype.name,)
    return tuple(dict.fromkeys((ctx.precision, "float32")))


def types_as_given(ctx: PlanContext, *specs: TensorSpec) -> tuple[str, ...]:
    """Return the types of elements, best first, for a kernel that waits for memory: 16 bits if all inputs have them."""
    if specs[0].dtype == np.float16:
        return ("float16",)
    as_planned = all(elements_of(spec) == ctx.precision for spec in specs)
    return types_for_products(ctx, specs[0]) if as_planned else ("float32",)
