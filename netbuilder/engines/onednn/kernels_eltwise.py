"""Elementwise functions, sums and products of values of the same shape, on oneDNN, in any layout.

With bfloat16 activations, the result is stored as bfloat16 if all inputs are, and a gradient like the value that it
belongs to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from netbuilder.engines.onednn import declarations as c
from netbuilder.engines.onednn.arguments import In, Out
from netbuilder.engines.onednn.layout import BlockedLayout, Desc, desc_of, elements, rounded, row_major
from netbuilder.engines.onednn.library import dnnl
from netbuilder.engines.onednn.precision import types_as_given
from netbuilder.engines.onednn.primitive import (
    NOT_NEGATIVE,
    RELU,
    PostOp,
    Primitive,
    Step,
    cached,
    compile_primitive,
    prepared,
    team_size,
    threads_after,
)
from netbuilder.ops.core.contexts import PlanContext, Prepared
from netbuilder.ops.core.operator import TensorSpec

__all__ = ["binary", "common_layout", "fused_sum_relu", "relu_primitive"]


@cached
def _forward(algorithm: int, data: Desc, alpha: float, beta: float) -> Primitive:
    return compile_primitive("eltwise_forward", c.FORWARD_TRAINING, algorithm, data.handle, data.handle, alpha, beta)


def relu_primitive(data: Desc, *, threads: int) -> Primitive | None:
    """Return a Relu that keeps NaN, for values of one description; it may work in place."""
    algorithm, alpha = RELU
    made: Primitive | None = _forward(algorithm, data, alpha, 0.0, threads=threads)
    return made


@cached
def _backward(algorithm: int, data: Desc, alpha: float, beta: float) -> Primitive:
    forward = compile_primitive("eltwise_forward", c.FORWARD_TRAINING, algorithm, data.handle, data.handle, alpha, beta)
    return compile_primitive(
        "eltwise_backward", algorithm, data.handle, data.handle, data.handle, alpha, beta, hint=forward
    )


@cached
def binary(algorithm: int, data: Desc, other: Desc, post: tuple[PostOp, ...]) -> Primitive:
    """Return the primitive that combines a value and another one, which may be broadcast, into one like the first."""
    return compile_primitive("binary", algorithm, data.handle, other.handle, data.handle, post=post)


@cached
def _sum(data: Desc, count: int) -> Primitive:
    ffi = dnnl().ffi
    scales, sources = ffi.new("float[]", [1.0] * count), ffi.new("md_t[]", [data.handle] * count)
    return compile_primitive("sum", data.handle, count, scales, sources)


def common_layout(specs: Sequence[TensorSpec], code: int = c.F32) -> tuple[TensorSpec, Desc]:
    """Return a common spec for values, in the layout of the first blocked one, and its description.

    A plain value is described with one dimension, which is fastest with all implementations.

    Args:
        specs: of values of the same shape and dtype.
        code: the type of their elements in memory.
    """
    blocked = (s.layout for s in specs if isinstance(s.layout, BlockedLayout) and s.layout.view is not None)
    layout = next((layout for layout in blocked if layout.code == code), None)
    first = specs[0]
    view = row_major((first.size,)) if layout is None or layout.view is None else layout.view
    if layout is None and code == c.BF16:
        layout = rounded(first.size)
    spec = TensorSpec(first.shape, first.dtype, layout)
    return spec, desc_of(spec, view)


def _in_common(
    ctx: PlanContext, specs: Sequence[TensorSpec], types: Sequence[int], make: Callable[[Desc, int], Primitive | None]
) -> tuple[TensorSpec, Primitive, int] | None:
    """Make a primitive for values in a common layout.

    Args:
        ctx: of the plan.
        specs: of values of the same shape and dtype.
        types: element types to try, best first.
        make: makes the primitive from the layout's description and a number of threads.

    Returns:
        The common spec, the primitive, and ``Step.threads_after``; None if there is no primitive.
    """
    slow = None
    for code in types:
        spec, desc = common_layout(specs, code)
        made = make(desc, team_size(ctx, elements(spec)))
        if made is not None:
            found = (spec, made, threads_after(ctx, elements(spec)))
            if not made.slow:
                return found
            slow = slow or found
    return slow


def _serves(*specs: TensorSpec) -> bool:
    first = specs[0]
    return all(s.dtype == np.float32 and s.shape == first.shape for s in specs) and first.size > 0


def relu(op: Any, ctx: PlanContext, x: TensorSpec) -> Prepared | None:
    if not _serves(x):
        return None
    ctx.publish(0, NOT_NEGATIVE, True)
    return _unary(ctx, x, *RELU)


def leaky_relu(op: Any, ctx: PlanContext, x: TensorSpec) -> Prepared | None:
    if op.alpha == 0:
        return relu(op, ctx, x)
    return _unary(ctx, x, c.RELU, float(op.alpha)) if _serves(x) else None


def elu(op: Any, ctx: PlanContext, x: TensorSpec) -> Prepared | None:
    return _unary(ctx, x, c.ELU, float(op.alpha)) if _serves(x) else None


def sigmoid(op: Any, ctx: PlanContext, x: TensorSpec) -> Prepared | None:
    return _unary(ctx, x, c.LOGISTIC, 0.0) if _serves(x) else None


def tanh(op: Any, ctx: PlanContext, x: TensorSpec) -> Prepared | None:
    return _unary(ctx, x, c.TANH, 0.0) if _serves(x) else None


def _unary(ctx: PlanContext, x: TensorSpec, algorithm: int, alpha: float) -> Prepared | None:
    def make(desc: Desc, threads: int) -> Primitive | None:
        return _forward(algorithm, desc, alpha, 0.0, threads=threads)

    found = _in_common(ctx, [x], types_as_given(ctx, x), make)
    if found is not None and found[1].slow and x.layout is not None:
        # Where f(0) is not 0, padding must still stay 0. For that the library has only its reference kernel, which is
        # slow and returns 0 for the Sigmoid of NaN.
        found = _in_common(ctx, [x.plain], (c.F32,), make)
    if found is None:
        return None
    spec, made, after = found
    return prepared([spec], [spec], [Step(made, {c.SRC: In(0), c.DST: Out(0)}, after)], inplace=[(0, 0)])


def relu_gradient(op: Any, ctx: PlanContext, y: TensorSpec, dy: TensorSpec) -> Prepared | None:
    return _unary_gradient(ctx, y, dy, c.RELU_FROM_DST, 0.0)


def sigmoid_gradient(op: Any, ctx: PlanContext, y: TensorSpec, dy: TensorSpec) -> Prepared | None:
    return _unary_gradient(ctx, y, dy, c.LOGISTIC_FROM_DST, 0.0)


def tanh_gradient(op: Any, ctx: PlanContext, y: TensorSpec, dy: TensorSpec) -> Prepared | None:
    return _unary_gradient(ctx, y, dy, c.TANH_FROM_DST, 0.0)


def _unary_gradient(ctx: PlanContext, y: TensorSpec, dy: TensorSpec, algorithm: int, alpha: float) -> Prepared | None:
    if not _serves(y, dy):
        return None

    def make(desc: Desc, threads: int) -> Primitive | None:
        return _backward(algorithm, desc, alpha, 0.0, threads=threads)

    found = _in_common(ctx, [y, dy], types_as_given(ctx, y), make)
    if found is None:
        return None
    spec, made, after = found
    step = Step(made, {c.DST: In(0), c.DIFF_DST: In(1), c.DIFF_SRC: Out(0)}, after)
    return prepared([spec, spec], [spec], [step], inplace=[(1, 0)])


def add(op: Any, ctx: PlanContext, a: TensorSpec, b: TensorSpec) -> Prepared | None:
    return _binary_kernel(ctx, a, b, c.BINARY_ADD)


def subtract(op: Any, ctx: PlanContext, a: TensorSpec, b: TensorSpec) -> Prepared | None:
    return _binary_kernel(ctx, a, b, c.BINARY_SUB)


def multiply(op: Any, ctx: PlanContext, a: TensorSpec, b: TensorSpec) -> Prepared | None:
    return _binary_kernel(ctx, a, b, c.BINARY_MUL)


def _binary_kernel(
    ctx: PlanContext, a: TensorSpec, b: TensorSpec, algorithm: int, post: tuple[PostOp, ...] = ()
) -> Prepared | None:
    def make(desc: Desc, threads: int) -> Primitive | None:
        made: Primitive | None = binary(algorithm, desc, desc, post, threads=threads)
        return made

    found = _in_common(ctx, [a, b], types_as_given(ctx, a, b), make) if _serves(a, b) else None
    if found is None:
        return None
    spec, made, after = found
    step = Step(made, {c.SRC: In(0), c.SRC_1: In(1), c.DST: Out(0)}, after)
    # The library's reference gives wrong numbers when it overwrites its second source.
    inplace = [(0, 0)] if made.slow else [(0, 0), (1, 0)]
    return prepared([spec, spec], [spec], [step], inplace=inplace)


def sum_kernel(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    """Prepare Sum of any number of values of the same shape."""
    if len(specs) == 2:
        return add(op, ctx, *specs)
    if not _serves(*specs) or len(specs) < 2:
        return None

    def make(desc: Desc, threads: int) -> Primitive | None:
        return _sum(desc, len(specs), threads=threads)

    found = _in_common(ctx, specs, types_as_given(ctx, *specs), make)
    if found is None:
        return None
    spec, made, after = found
    sources: dict[int, Any] = {c.MULTIPLE_SRC + i: In(i) for i in range(len(specs))}
    return prepared([spec] * len(specs), [spec], [Step(made, {**sources, c.DST: Out(0)}, after)], inplace=[(0, 0)])


def fused_sum_relu(op: Any, ctx: PlanContext, a: TensorSpec, b: TensorSpec) -> Prepared | None:
    """Prepare relu(A + B) in one pass: a Sum (or Add) of two values and the Relu that follows it.

    Args:
        op: the Sum or Add.
        ctx: of the plan.
        a, b: values of the same shape, float32.
    """
    made = _binary_kernel(ctx, a, b, c.BINARY_ADD, (PostOp("relu"),))
    if made is not None:
        ctx.publish(0, NOT_NEGATIVE, True)
    return made
