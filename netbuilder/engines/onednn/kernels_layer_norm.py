"""LayerNorm, its gradient, GroupNorm and InstanceNorm on oneDNN's layer normalization.

In NCHW order, a group of channels of an image is contiguous, so it is a row. The library has no primitive for a scale
and bias per channel; NumPy applies them, image by image, while an image is in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from netbuilder.engines.onednn import declarations as c
from netbuilder.engines.onednn.arguments import In, Out, Persistent
from netbuilder.engines.onednn.layout import Desc, plain_desc, row_major
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

__all__ = ["group_norm", "layer_norm", "layer_norm_gradient"]

_AFFINE = c.USE_SCALE | c.USE_SHIFT


@cached
def _forward(data: Desc, stats: Desc, epsilon: float, flags: int) -> Primitive:
    return compile_primitive(
        "layer_normalization_forward",
        c.FORWARD_TRAINING, data.handle, data.handle, stats.handle, epsilon, flags,
    )  # fmt: skip


@cached
def _backward(data: Desc, stats: Desc, epsilon: float, flags: int, hint: Primitive) -> Primitive:
    return compile_primitive(
        "layer_normalization_backward",
        c.BACKWARD, data.handle, data.handle, data.handle, stats.handle, epsilon, flags,
        hint=hint,
    )  # fmt: skip


def _primitives(ctx: PlanContext, rows: int, columns: int, epsilon: float, flags: int, *, back: bool) -> Any:
    """Return the primitive that normalizes rows, or its gradient; None if the library has no fast one."""
    data, stats = (plain_desc(row_major(shape), np.float32) for shape in ((rows, columns), (rows,)))
    n = team_size(ctx, rows * columns)
    made = _forward(data, stats, epsilon, flags, threads=n)
    if made is not None and back:
        made = _backward(data, stats, epsilon, flags, made, threads=n)
    return None if made is None or made.slow else made


def _serves(*specs: TensorSpec) -> bool:
    return all(s.dtype == np.float32 and s.size > 0 for s in specs)


def layer_norm(op: Any, ctx: PlanContext, x: TensorSpec, *affine: TensorSpec) -> Prepared | None:
    """Prepare LayerNorm: X, [gamma, beta] -> Y, mean, standard deviation."""
    scaled = affine[:2] if op.elementwise_affine else ()
    if not _serves(x, *scaled):
        return None
    rows, columns = op.extents(x)
    made = _primitives(ctx, rows, columns, float(op.epsilon), _AFFINE if scaled else 0, back=False)
    if made is None:
        return None
    arguments: dict[int, Any] = {c.SRC: In(0), c.DST: Out(0), c.MEAN: Out(1), c.VARIANCE: Out(2)}
    if scaled:
        arguments |= {c.SCALE: In(1), c.SHIFT: In(2)}
    inputs = [x.plain, *([s.plain for s in affine] if scaled else [None] * len(affine))]
    outputs = op.infer(x.plain, *(s.plain for s in affine))
    return prepared(inputs, outputs, [Step(made, arguments, threads_after(ctx, x.size)), _root(op.epsilon)])


def _root(epsilon: float) -> Any:
    """Return the step that converts output 2 from a variance to the standard deviation."""
    small = np.float32(epsilon)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        std, add, sqrt = outputs[2], np.add, np.sqrt

        def call() -> None:
            add(std, small, std)
            sqrt(std, std)

        return call

    return bind


def layer_norm_gradient(
    op: Any, ctx: PlanContext, dy: TensorSpec, y: TensorSpec, mean: TensorSpec, std: TensorSpec, x: TensorSpec,
    *gamma: TensorSpec,
) -> Prepared | None:  # fmt: skip
    """Prepare LayerNormGradient: dY, Y (not read), mean, standard deviation, X, [gamma] -> dX, [dgamma, dbeta]."""
    if not _serves(dy, mean, std, x, *gamma):
        return None
    rows, columns = op.extents(x)
    made = _primitives(ctx, rows, columns, float(op.epsilon), _AFFINE if gamma else 0, back=True)
    if made is None:
        return None
    variance = Persistent(4 * rows)
    arguments: dict[int, Any] = {
        c.SRC: In(4), c.DIFF_DST: In(0), c.MEAN: In(2), c.VARIANCE: variance, c.DIFF_SRC: Out(0),
    }  # fmt: skip
    if gamma:
        # oneDNN 3.2 requires the shift as well, though it does not read it.
        arguments |= {c.SCALE: In(5), c.SHIFT: In(5), c.DIFF_SCALE: Out(1), c.DIFF_SHIFT: Out(2)}
    steps = [_variance(op.epsilon, variance), Step(made, arguments, threads_after(ctx, x.size))]
    outputs = [x.plain, *([gamma[0].plain] * 2 if gamma else [])]
    return prepared([dy.plain, None, mean.plain, std.plain, x.plain, *(g.plain for g in gamma)], outputs, steps)


def _variance(epsilon: float, variance: Persistent) -> Any:
    """Return the step that computes the variances from the standard deviations, input 3."""

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        std, found = inputs[3].reshape(-1), variance.buffer.view(np.float32)
        multiply, subtract, maximum = np.multiply, np.subtract, np.maximum
        small, zero = np.float32(epsilon), np.float32(0)

        def call() -> None:
            multiply(std, std, found)
            subtract(found, small, found)
            maximum(found, zero, out=found)

        return call

    return bind


def _image_parts(op: Any, x: TensorSpec) -> tuple[int, int, int, int] | None:
    """Return the numbers of images, groups, channels and pixels; None if groups are not contiguous."""
    if str(op.order) != "NCHW":
        return None
    n, groups, width, pixels = op.parts(x.shape)
    return n, groups, groups * width, pixels


def group_norm(op: Any, ctx: PlanContext, x: TensorSpec, scale: TensorSpec, bias: TensorSpec) -> Prepared | None:
    """Prepare GroupNorm and InstanceNorm: X, scale, bias -> Y, [mean, inverse standard deviation]."""
    parts = _image_parts(op, x) if _serves(x, scale, bias) else None
    if parts is None:
        return None
    n, groups, channels, pixels = parts
    rows = n * groups
    made = _primitives(ctx, rows, channels // groups * pixels, float(op.epsilon), 0, back=False)
    if made is None:
        return None
    stats: list[Any] = [
        Out(1) if op.n_out > 1 else Persistent(4 * rows),
        Out(2) if op.n_out > 2 else Persistent(4 * rows),
    ]
    step = Step(made, {c.SRC: In(0), c.DST: Out(0), c.MEAN: stats[0], c.VARIANCE: stats[1]}, threads_after(ctx, x.size))
    steps: list[Any] = [step, _per_channel((n, channels, pixels))]
    if op.n_out > 2:
        steps.append(_inverse_root(op.epsilon))
    outputs = op.infer(x.plain, scale.plain, bias.plain)
    return prepared([x.plain, scale.plain, bias.plain], outputs, steps)


def _per_channel(shape: tuple[int, int, int]) -> Any:
    """Return the step that multiplies output 0 by input 1 and adds input 2, channel by channel."""

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        images = list(outputs[0].reshape(shape))
        scale, bias = (inputs[i].reshape(-1, 1) for i in (1, 2))
        multiply, add = np.multiply, np.add

        def call() -> None:
            for image in images:
                multiply(image, scale, image)
                add(image, bias, image)

        return call

    return bind


def _inverse_root(epsilon: float) -> Any:
    """Return the step that converts output 2 from a variance to the inverse standard deviation."""
    small, one = np.float32(epsilon), np.float32(1)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        inverse, add, sqrt, divide = outputs[2], np.add, np.sqrt, np.divide

        def call() -> None:
            add(inverse, small, inverse)
            sqrt(inverse, inverse)
            divide(one, inverse, inverse)

        return call

    return bind
