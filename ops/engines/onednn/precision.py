"""Where kernels compute on bfloat16: in plans that ask for it, and what a machine lacks for it.

Values stay float32 to all who look at them; a layout says that one lies in memory as bfloat16, rounded once. Sums are
added up in float32 everywhere. Kernels whose time goes into products round their inputs, whatever these are. Kernels
whose time goes into memory take values as they lie. Parameters, their gradients, statistics and losses are float32.
"""

from __future__ import annotations

import warnings

from netbuilder.ops.core.contexts import PlanContext
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.engines.onednn import declarations as c
from netbuilder.ops.engines.onednn.layout import stored_as
from netbuilder.ops.engines.onednn.library import available, dnnl

__all__ = ["types_as_given", "types_for_products", "warn_without_bfloat16", "why_bfloat16_is_slow"]

_AVX512_BF16 = 0xE7  # the bits of this instruction set, which those that came after it have, too

_warned: list[str] = []


def types_for_products(ctx: PlanContext) -> tuple[int, ...]:
    """Return the types, best first, that a kernel whose time goes into products should compute on."""
    return (c.BF16, c.F32) if ctx.precision == "bfloat16" else (c.F32,)


def types_as_given(ctx: PlanContext, *specs: TensorSpec) -> tuple[int, ...]:
    """Return the types, best first, for a kernel whose time goes into memory: bfloat16 only where all inputs are."""
    if ctx.precision == "bfloat16" and all(stored_as(spec) == c.BF16 for spec in specs):
        return (c.BF16, c.F32)
    return (c.F32,)


def why_bfloat16_is_slow() -> str:
    """Return what this machine lacks to compute on bfloat16 faster than on float32; "" if nothing."""
    if not available():
        return "oneDNN is not available, so that all operators compute on float32"
    if dnnl().lib.dnnl_get_effective_cpu_isa() & _AVX512_BF16 != _AVX512_BF16:
        return "this CPU has no instructions for it (AVX512_BF16): it is emulated, or float32 serves in its place"
    return ""


def warn_without_bfloat16() -> None:
    """Warn, once per process, where bfloat16 is asked for and brings no speed."""
    reason = why_bfloat16_is_slow()
    if reason and not _warned:
        _warned.append(reason)
        warnings.warn(f"bfloat16 activations were asked for, but {reason}", RuntimeWarning, stacklevel=2)
