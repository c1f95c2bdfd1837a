"""The gradients of GroupNorm and InstanceNorm for NumPy, a few images at a time, so that these stay in the cache.

The gradients need only two sums over positions per channel, of dY and of dY * X. From the sums of a group's channels
follow two numbers for the group, slope and shift, and dX = inverse * scale * dY + slope * X + shift.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import PlanContext, Prepared
from netbuilder.ops.core.half import one_float_type
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.core.registry import CPU, prepare
from netbuilder.ops.normalization.group_norm import GroupNormGradient, ImageNorm, InstanceNormGradient

__all__: list[str] = []

_BLOCK = 1 << 18  # elements of X per block: its parts of dY, X and dX take 3 MiB in float32


@prepare(GroupNormGradient, device=CPU)
def _prepare_group_norm_gradient(op: GroupNormGradient, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    return _prepare(op, specs, (0, 1, 2, 4, 5))


@prepare(InstanceNormGradient, device=CPU)
def _prepare_instance_norm_gradient(op: InstanceNormGradient, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    return _prepare(op, specs, (3, 0, 1, 4, 5)) if len(specs) == 6 else None


def _prepare(op: ImageNorm, specs: Sequence[TensorSpec], read: tuple[int, ...]) -> Prepared | None:
    """Prepare a gradient; ``read`` are the indices of the inputs dY, X, scale, mean and inverse deviation."""
    if op.order != "NCHW" or not one_float_type(*(specs[i] for i in read)):
        return None
    x, scale = specs[read[1]], specs[read[2]]
    parts = op.parts(x.shape)
    images = max(1, _BLOCK * x.shape[0] // x.size)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Callable[[], None]:
        dy, values, weights, mean, inverse = (inputs[i] for i in read)
        shape = (parts[0], parts[1] * parts[2], parts[3])
        arrays = [a.reshape(shape) for a in (dy, values, outputs[0])]
        stats = [a.reshape(parts[0], parts[1], 1) for a in (mean, inverse)]
        block = _Block(min(images, parts[0]), parts, weights)
        calls = []
        for start in range(0, parts[0], images):
            piece = slice(start, min(start + images, parts[0]))
            calls.append(block.bind([a[piece] for a in (*arrays, *stats)], outputs[1], outputs[2]))

        def call() -> None:
            outputs[1].fill(0)
            outputs[2].fill(0)
            for run in calls:
                run()

        return call

    expected = [spec.plain if i in read else None for i, spec in enumerate(specs)]
    return Prepared(expected, [x.plain, scale.plain, scale.plain], bind, name="numpy in blocks of images")


class _Block:
    """Buffers for the intermediate results of a block of images, shared by the calls of all blocks.

    Args:
        images: the largest number of images in a block.
        parts: the numbers of images, groups, channels per group, and positions.
        weights: the scale, one number per channel.
    """

    def __init__(self, images: int, parts: tuple[int, int, int, int], weights: Any) -> None:
        _, groups, width, positions = parts
        kind = weights.dtype
        self._grouped = (groups, width)
        self._count = kind.type(1 / (width * positions))
        self._weights = weights.reshape(groups, width)
        self._ones = np.ones(positions, kind)
        self._channels = [np.empty((images, groups, width), kind) for _ in range(5)]
        self._groups = [np.empty((images, groups, 1), kind) for _ in range(3)]
        self._term = np.empty((images, groups * width, positions), kind)

    def bind(self, arrays: Sequence[Any], dscale: Any, dbias: Any) -> Callable[[], None]:
        """Return a call that writes dX of a block of images, and adds to the gradients of scale and bias.

        Args:
            arrays: dY, X, dX, mean and inverse deviation of the images.
        """
        dy, x, dx, mean, inverse = arrays
        n = dy.shape[0]
        first, second, along, factor, shift = (a[:n] for a in self._channels)
        total, slope, spare = (a[:n] for a in self._groups)
        flat = [a.reshape(n, -1) for a in (first, second, along)]
        term, weights, count, ones = self._term[:n], self._weights, self._count, self._ones
        wide = [a.reshape(n, -1, 1) for a in (factor, along, shift)]
        multiply, add, subtract, add_up = np.multiply, np.add, np.subtract, np.add.reduce

        def of_groups() -> None:
            multiply(first, weights, along)
            add_up(along, axis=2, out=total, keepdims=True)
            multiply(total, count, total)  # the mean of scale * dY
            subtract(second, multiply(first, mean, along), along)
            multiply(along, inverse, along)  # the sums of dY * X normalized
            add(dscale, add_up(flat[2], 0), dscale)
            add(dbias, add_up(flat[0], 0), dbias)
            multiply(along, weights, along)
            add_up(along, axis=2, out=slope, keepdims=True)
            multiply(multiply(slope, count, slope), multiply(inverse, inverse, spare), slope)
            np.negative(slope, slope)
            multiply(slope, mean, spare)
            add(spare, multiply(total, inverse, total), spare)
            np.negative(spare, spare)
            multiply(weights, inverse, factor)
            along[...] = slope
            shift[...] = spare

        def call() -> None:
            np.matmul(dy, ones, flat[0])
            np.einsum("ncs,ncs->nc", dy, x, out=flat[1])
            of_groups()
            multiply(dy, wide[0], dx)
            multiply(x, wide[1], term)
            add(dx, term, dx)
            add(dx, wide[2], dx)

        return call
