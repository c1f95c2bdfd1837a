"""SpatialBN and its gradient on cuDNN, alone and fused with the Relu, or the Sum and the Relu, after it.

Statistics are float32: the batch's mean and inverse deviation are those that cuDNN computes, the running averages are
computed from them as the operator defines them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from netbuilder.engines.cuda.gpu_layout import image_spec
from netbuilder.engines.cuda.gradient_pair import gradient_pair
from netbuilder.engines.cuda.many_tensors import joinable_program
from netbuilder.engines.cuda.steps import Reference, prepared, scratch_memory
from netbuilder.engines.cudnn.compiled import graph_of, searches
from netbuilder.engines.cudnn.convolutions import image_tensor
from netbuilder.engines.cudnn.element_types import serves, types_as_given
from netbuilder.engines.cudnn.faster import faster
from netbuilder.engines.cudnn.graphs import (
    BatchNormalization,
    BatchNormalizationGradient,
    Normalization,
)
from netbuilder.engines.references import In, Out
from netbuilder.engines.traced import ANY_SHAPE
from netbuilder.engines.tracing import Tracer
from netbuilder.ops.core.contexts import PlanContext, Prepared
from netbuilder.ops.core.extensions import Joinable, Rest
from netbuilder.ops.core.image_order import count_per_channel
from netbuilder.ops.core.operator import TensorSpec

__all__ = [
    "bn_serves",
    "fused_bn_relu",
    "fused_bn_relu_gradient",
    "fused_bn_sum",
    "fused_bn_sum_relu",
    "fused_shared_gradient",
    "gradient_serves",
    "limit_of",
    "running_statistics",
    "spatial_bn",
    "spatial_bn_gradient",
]


def spatial_bn(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    """Prepare SpatialBN: X, scale, bias, running mean, running variance -> Y, and in training four statistics."""
    return _forward(op, ctx, *specs)


def limit_of(activation: Any) -> float:
    """Return the largest result of a Relu or a ReluN, or of that whose gradient an operator computes; may be inf."""
    return float(getattr(activation, "n", math.inf))


def fused_bn_relu(op: Any, ctx: PlanContext, *specs: TensorSpec, limit: float = math.inf) -> Prepared | None:
    """Prepare a SpatialBN with the Relu that follows it; output 0 is the Relu's.

    Args:
        op: the SpatialBN.
        ctx: of the plan.
        specs: of its inputs.
        limit: the largest result of the Relu, which may be inf.
    """
    return _forward(op, ctx, *specs, limit=limit)


def fused_bn_sum(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    """Prepare a SpatialBN with the Sum that follows it; output 0 is the Sum's.

    Args:
        op: the SpatialBN.
        ctx: of the plan.
        specs: of its inputs, and of the other summand.
    """
    return _forward(op, ctx, *specs[:-1], addend=specs[-1])


def fused_bn_sum_relu(op: Any, ctx: PlanContext, *specs: TensorSpec, limit: float = math.inf) -> Prepared | None:
    """Prepare a SpatialBN with the Sum and the Relu that follow it; output 0 is the Relu's.

    Args:
        op, ctx, specs: as in ``fused_bn_sum``.
        limit: the largest result of the Relu, which may be inf.
    """
    return _forward(op, ctx, *specs[:-1], addend=specs[-1], limit=limit)


def bn_serves(x: TensorSpec, *statistics: TensorSpec) -> bool:
    """Whether cuDNN normalizes X with such numbers per channel."""
    return serves(x) and 2 <= x.ndim <= 5 and all(spec.dtype == np.float32 for spec in statistics)


def _forward(
    op: Any, ctx: PlanContext, x: TensorSpec, scale: TensorSpec, *others: TensorSpec,
    addend: TensorSpec | None = None, limit: float | None = None,
) -> Prepared | None:  # fmt: skip
    if not bn_serves(x, scale, *others) or len(others) != 3 or op.n_out != (1 if op.is_test else 5):
        return None  # with more inputs, X is a part of a batch
    if addend is not None and (addend.shape, addend.dtype) != (x.shape, x.dtype):
        return None
    for elements in types_as_given(ctx, x):
        make = _in_test if op.is_test else _in_training
        made = make(op, ctx, x.plain, scale, elements, add=addend is not None, limit=limit)
        if made is not None:
            return made
    return None


def _in_test(
    op: Any, ctx: PlanContext, x: TensorSpec, scale: TensorSpec, elements: str, *, add: bool, limit: float | None
) -> Prepared | None:
    images = image_tensor(x, op.order, elements)
    graph = graph_of(Normalization(images, float(op.epsilon), images if add else None, limit), ctx)
    if graph is None:
        return None
    names = ("x", "scale", "bias", "mean", "variance", *(["z"] if add else []))
    memory: dict[str, Reference] = {**{name: In(i) for i, name in enumerate(names)}, "y": Out(0)}
    spec, channels = image_spec(x, op.order, elements), scale.plain
    return prepared([spec, *(channels,) * 4, *([spec] if add else [])], [spec], [graph.step(memory)])


def _in_training(
    op: Any, ctx: PlanContext, x: TensorSpec, scale: TensorSpec, elements: str, *, add: bool, limit: float | None
) -> Prepared | None:
    images, epsilon = image_tensor(x, op.order, elements), float(op.epsilon)
    batch = graph_of(BatchNormalization(images, epsilon, images if add else None, limit), ctx)
    if batch is None:
        return None
    memory: dict[str, Reference] = {
        "x": In(0), "scale": In(1), "bias": In(2), "y": Out(0), "mean": Out(3), "inverse": Out(4),
        **({"z": In(5)} if add else {}),
    }  # fmt: skip
    spec, channels = image_spec(x, op.order, elements), scale.plain
    inputs = [spec, channels, channels, None, None, *([spec] if add else [])]
    # One pass over X computes the sums, and another one normalizes.
    made = prepared(inputs, [spec, None, None, channels, channels], [batch.step(memory)], again=images.nbytes)
    outputs = len(inputs)  # they follow the inputs
    work = running_statistics(op, count_per_channel(op.order, x), channels)
    return made.extend(Rest(work, (3, 4, outputs + 3, outputs + 4), (1, 2)))


def running_statistics(op: Any, count: int, channels: TensorSpec) -> Joinable:
    """Return the work that computes new running statistics: from the old ones, and the batch's mean and deviation.

    cuDNN's own are not used: its documents do not say which variance they average.

    Args:
        op: the SpatialBN.
        count: elements of each channel.
        channels: the spec of each statistic.
    """
    tracer = Tracer()
    symbols: list[Any] = [tracer.input(i, channels, ANY_SHAPE) for i in range(4)]
    old_mean, old_variance, mean, inverse = symbols
    precise = inverse.astype(np.float64)
    variance = tracer.xp.maximum(1.0 / (precise * precise) - float(op.epsilon), 0.0)
    old, new = float(op.momentum), 1.0 - float(op.momentum)
    unbiased = count / max(count - 1, 1) * variance
    running = old * old_mean + new * mean, (old * old_variance + new * unbiased).astype(np.float32)
    return joinable_program("running_statistics", tracer.program(running), [channels] * 4, [channels] * 2)


def gradient_serves(op: Any, images: Sequence[TensorSpec], *numbers: TensorSpec) -> bool:
    """Whether cuDNN, and our pair of kernels, have the gradient of a SpatialBN with these images and numbers."""
    x = images[0]
    alike = all((spec.shape, spec.dtype) == (x.shape, x.dtype) for spec in images)
    return alike and bn_serves(x, *numbers) and not op.is_test and op.num_batches <= 1


def spatial_bn_gradient(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    """Prepare SpatialBNGradient: X, scale, dY, saved mean, saved inverse deviation -> dX, dscale, dbias."""
    return _gradient(op, ctx, *specs) if len(specs) == 5 else None


def fused_bn_relu_gradient(
    op: Any, ctx: PlanContext, x: TensorSpec, scale: TensorSpec, dy: TensorSpec, mean: TensorSpec, inverse: TensorSpec,
    y: TensorSpec, *, limit: float = math.inf,
) -> Prepared | None:  # fmt: skip
    """Prepare the gradient of a SpatialBN with the Relu after it.

    Args:
        op: the SpatialBNGradient.
        ctx: of the plan.
        x, scale, mean, inverse: as in SpatialBNGradient.
        dy: gradient of the Relu's output.
        y: the Relu's output.
        limit: its largest value, which may be inf.
    """
    return _gradient(op, ctx, x, scale, dy, mean, inverse, y, limit=limit)


def fused_shared_gradient(op: Any, ctx: PlanContext, *specs: TensorSpec, limit: float = math.inf) -> Prepared | None:
    """Prepare the gradient of a SpatialBN with the gradient of a Relu before it, which is output 0.

    Args:
        op: the SpatialBNGradient.
        ctx: of the plan.
        specs: of X, scale, dY, mean, inverse deviation, and of the Relu's result; the gradient of that is dY, or the
            sum of dY and of a further input.
        limit: the largest result of the Relu, which may be inf.
    """
    return _gradient(op, ctx, *specs, limit=limit, shared=True) if len(specs) in (6, 7) else None


def _gradient(
    op: Any, ctx: PlanContext, x: TensorSpec, scale: TensorSpec, dy: TensorSpec, mean: TensorSpec, inverse: TensorSpec,
    *others: TensorSpec, limit: float | None = None, shared: bool = False,
) -> Prepared | None:  # fmt: skip
    """Prepare a gradient; ``others`` are the Relu's result and a further summand, ``shared`` as in the fused kernel."""
    if not gradient_serves(op, [x, dy, *others], scale, mean, inverse):
        return None
    for elements in types_as_given(ctx, x):
        images, spec, channels = image_tensor(x, op.order, elements), image_spec(x, op.order, elements), scale.plain
        graph = graph_of(BatchNormalizationGradient(images, limit, add=len(others) > 1), ctx)
        if graph is None:
            continue
        scratch = scratch_memory()
        memory: dict[str, Reference] = {"x": In(0), "scale": In(1), "dy": In(2), "mean": In(3), "inverse": In(4)}
        memory |= dict(zip(("y", "addend"), (In(5), In(6))[: len(others)]))
        written = ["dz", "dx", "dscale", "dbias"] if shared else ["dx", "dscale", "dbias"]
        memory |= {name: Out(j) for j, name in enumerate(written)}
        if others and not shared:
            memory["dz"] = scratch.allocate(images.nbytes)
        inputs = [spec, channels, spec, channels, channels, *(spec for _ in others)]
        outputs = [spec, channels, channels]
        again = images.nbytes * (2 + len(others))  # what the sums are computed from is read again for dX
        results = [spec, *outputs] if shared else outputs
        made = prepared(inputs, results, [graph.step(memory)], scratch, again=again)
        if limit is not None and searches(ctx):
            pair = gradient_pair(op, spec, channels, add=len(others) > 1, shared=shared, limit=limit)
            return faster(ctx, f"{graph.recipe} {shared=}", made, pair)
        return made
    return None
