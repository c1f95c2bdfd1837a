"""Primitives of convolutions and transposed convolutions, and the tensors as oneDNN sees them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from netbuilder.engines.onednn import declarations as c
from netbuilder.engines.onednn.autotune import may_measure
from netbuilder.engines.onednn.blocked_layout import Desc, View, desc_of, grouped, image_view, plain_in, row_major
from netbuilder.engines.onednn.geometry import channels_last, window_arguments
from netbuilder.engines.onednn.library import dnnl
from netbuilder.engines.onednn.primitive import PostOp, Primitive, cached, compile_primitive
from netbuilder.ops.core.contexts import PlanContext
from netbuilder.ops.core.operator import TensorSpec

__all__ = [
    "WORTH_MEASURING",
    "Views",
    "backward_data",
    "backward_weights",
    "description_of",
    "forward",
    "any_order",
    "serves",
    "own_order",
    "worth_measuring",
]

WORTH_MEASURING = 10_000_000  # operations from which on it is worth measuring which kernel is fastest


@cached
def forward(
    kind: str, src: Desc, weights: Desc, bias: Desc | None, dst: Desc, window: Any, inference: bool,
    post: tuple[PostOp, ...],
) -> Primitive:  # fmt: skip
    """Return the primitive for Y, with the fused operations ``post``; ``kind`` is a key of ``_ALGORITHM``."""
    prop = c.FORWARD_INFERENCE if inference else c.FORWARD_TRAINING
    return compile_primitive(
        f"{kind}_forward", prop, _ALGORITHM[kind], src.handle, weights.handle, _or_null(bias), dst.handle, *window,
        post=post, flops=_flops(kind, src, weights, dst),
    )  # fmt: skip


@cached
def backward_weights(
    kind: str, src: Desc, weights: Desc, bias: Desc | None, dst: Desc, window: Any, hint: Primitive
) -> Primitive:
    """Return the primitive for the gradients of the filter and, if ``bias`` is given, of the bias."""
    return compile_primitive(
        f"{kind}_backward_weights", _ALGORITHM[kind], src.handle, weights.handle, _or_null(bias), dst.handle, *window,
        hint=hint, flops=_flops(kind, src, weights, dst),
    )  # fmt: skip


@cached
def backward_data(kind: str, src: Desc, weights: Desc, dst: Desc, window: Any, hint: Primitive) -> Primitive:
    """Return the primitive for the gradient of X; ``hint`` is the forward primitive, ``src`` describes dX."""
    return compile_primitive(
        f"{kind}_backward_data", _ALGORITHM[kind], src.handle, weights.handle, dst.handle, *window,
        hint=hint, flops=_flops(kind, src, weights, dst),
    )  # fmt: skip


def _flops(kind: str, src: Desc, weights: Desc, dst: Desc) -> int:
    """Return the floating-point operations: each element of the smaller image takes part in all of a filter."""
    image = dst if kind == "convolution" else src
    return 2 * math.prod(image.dims) * math.prod(weights.dims) // max(1, image.dims[1])


_ALGORITHM = {"convolution": c.CONVOLUTION_DIRECT, "deconvolution": c.DECONVOLUTION_DIRECT}


def _or_null(desc: Desc | None) -> Any:
    return dnnl().ffi.NULL if desc is None else desc.handle


class Views:
    """The tensors of a convolution or transposed convolution, as oneDNN sees them."""

    def __init__(self, op: Any, x: TensorSpec, w: TensorSpec, *, transposed: bool) -> None:
        last = channels_last(op)
        group = op.group
        self.kind = "deconvolution" if transposed else "convolution"
        self.x = image_view(x.shape, last)
        weights = image_view(w.shape, last)
        geometry = op.geometry(x, w)
        if transposed:
            self.weights = _transposed_weights(weights, group)
            channels = op.channels_out(w)
        else:
            self.weights = grouped(weights, group)
            channels = weights.dims[0]
        n, spatial = x.shape[0], geometry.out
        self.window = window_arguments(geometry)
        self.is_pointwise = all(extent == 1 for extent in geometry.kernel)
        self.y_shape = (n, *spatial, channels) if last else (n, channels, *spatial)
        self.y = image_view(self.y_shape, last)
        self.bias = row_major((channels,))


def _transposed_weights(view: View, group: int) -> View:
    """Return weights stored I, O/G, ... as O, I, ..., or as G, O/G, I/G, ..."""
    (i, o, *kernel), (si, so, *strides) = view.dims, view.strides
    if group == 1:
        return View((o, i, *kernel), (so, si, *strides))
    return View((group, o, i // group, *kernel), (i // group * si, so, si, *strides))


def serves(*specs: TensorSpec) -> bool:
    """Whether oneDNN supports values of these shapes and types."""
    return all(s.dtype == np.float32 and s.size > 0 for s in specs) and 3 <= specs[0].ndim <= 5


def any_order(view: View, code: int) -> Desc:
    """Describe a value with elements of the type ``code``, in an order that the primitive chooses."""
    return plain_in(view, code).any_order


def own_order(spec: TensorSpec, view: View, code: int) -> Desc:
    """Describe a blocked value of the type ``code`` in its layout, any other in an order that the primitive chooses."""
    desc = desc_of(spec, view)
    return any_order(view, code) if isinstance(desc.order, tuple) or desc.code != code else desc


def worth_measuring(op: Any, ctx: PlanContext, v: Views, x: TensorSpec, w: TensorSpec) -> bool:
    """Whether the library has several kinds of kernels whose speed may differ much, and the convolution is not tiny."""
    return not v.is_pointwise and 2 * op.products(x, w) >= WORTH_MEASURING and may_measure(ctx)


def description_of(v: Views, code: int) -> str:
    """Return a description of a convolution, as a key of ``autotune``."""
    images, weights = ("x".join(map(str, view.dims)) for view in (v.x, v.weights))
    window = " ".join(map(str, v.window))
    return f"{v.kind} of {images} by {weights}, window {window}, {'bfloat16' if code == c.BF16 else 'float32'}"
