"""The primitive for matrix products, also of stacks of matrices."""

from __future__ import annotations

import math

from netbuilder.engines.onednn.blocked_layout import Desc
from netbuilder.engines.onednn.library import dnnl
from netbuilder.engines.onednn.primitive import PostOp, Primitive, cached, compile_primitive

__all__ = ["product"]


@cached
def product(a: Desc, b: Desc, bias: Desc | None, y: Desc, post: tuple[PostOp, ...] = ()) -> Primitive:
    """Return the primitive for Y = A B, with a bias and the fused operations ``post``."""
    null = dnnl().ffi.NULL
    given = (a.handle, b.handle, null if bias is None else bias.handle, y.handle)
    return compile_primitive("matmul", *given, post=post, flops=2 * math.prod(y.dims) * a.dims[-1])
