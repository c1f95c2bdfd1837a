"""bfloat16 activations: which kernels use them, and whether the machine supports them.

Users always see float32; a layout tells that a value is stored as bfloat16, rounded once. All sums are computed in
float32. Compute-bound kernels round their inputs to bfloat16. Memory-bound kernels use the type in which their inputs
are stored. Parameters, their gradients, statistics and losses are float32.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

from netbuilder.engines.onednn import declarations as c
from netbuilder.engines.onednn.blocked_layout import Desc, View, orders_of, stored_as
from netbuilder.engines.onednn.library import AVX512_BF16, AVX512_CORE, available, dnnl
from netbuilder.ops.core.contexts import PlanContext
from netbuilder.ops.core.operator import TensorSpec

__all__ = [
    "orders_as_given",
    "sums_depend_on_extents",
    "types_as_given",
    "types_for_products",
    "warn_without_bfloat16",
    "why_bfloat16_is_slow",
]

_warned: list[str] = []


def types_for_products(ctx: PlanContext) -> tuple[int, ...]:
    """Return the types, best first, for a compute-bound kernel."""
    return (c.BF16, c.F32) if ctx.precision == "bfloat16" else (c.F32,)


def types_as_given(ctx: PlanContext, *specs: TensorSpec) -> tuple[int, ...]:
    """Return the types, best first, for a memory-bound kernel: bfloat16 only if all inputs are stored so."""
    if ctx.precision == "bfloat16" and all(stored_as(spec) == c.BF16 for spec in specs):
        return (c.BF16, c.F32)
    return (c.F32,)


def orders_as_given(ctx: PlanContext, view: View, x: TensorSpec, *others: TensorSpec) -> Iterator[Desc]:
    """Yield descriptions of an image for a memory-bound kernel, best first: its types, and the orders of each.

    Args:
        ctx: of the plan.
        view: of the image.
        x: the image; the layout that it has comes first.
        others: further inputs, stored in the same way.
    """
    for code in types_as_given(ctx, x, *others):
        yield from orders_of(x, view, code)


def sums_depend_on_extents(code: int) -> bool:
    """Whether an element of a matrix product may differ in the last bit if other rows are computed with it.

    The library's kernels for CPUs without AVX-512, and those that emulate bfloat16, add up the rows and columns that
    are left over at the edges of their blocks in another order than the others.

    Args:
        code: the type of the factors.
    """
    wanted = AVX512_CORE if code == c.F32 else AVX512_BF16
    return dnnl().lib.dnnl_get_effective_cpu_isa() & wanted != wanted


def why_bfloat16_is_slow() -> str:
    """Return why bfloat16 is not faster than float32 on this machine; "" if it is."""
    if not available():
        return "oneDNN is not available, so all operators compute in float32"
    if dnnl().lib.dnnl_get_effective_cpu_isa() & AVX512_BF16 != AVX512_BF16:
        return "this CPU has no instructions for it (AVX512_BF16): it is emulated, or float32 is used instead"
    return ""


def warn_without_bfloat16() -> None:
    """Warn, once per process, if bfloat16 is requested but not faster."""
    reason = why_bfloat16_is_slow()
    if reason and not _warned:
        _warned.append(reason)
        warnings.warn(f"bfloat16 activations were requested, but {reason}", RuntimeWarning, stacklevel=2)
