"""NormalizeImages as one kernel: pixels are read as they were decoded, and written as the net reads them.

A thread has some neighboring pixels with all their channels: it reads them at once, and writes each channel, or with
channels last all of them, at once.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from netbuilder.engines.cuda.channel_code import widest
from netbuilder.engines.cuda.code import c_type, stored, with_prelude
from netbuilder.engines.cuda.gpu_layout import array_dtype, elements_of, order_of
from netbuilder.engines.cuda.kernel import THREADS, Kernel
from netbuilder.engines.gpu import gpu
from netbuilder.ops.core.contexts import PlanContext, Prepared
from netbuilder.ops.core.extensions import CAPTURABLE
from netbuilder.ops.core.operator import TensorSpec

__all__ = ["MOST_CHANNELS", "normalize_images", "normalized_images", "pixels_kernel", "prepared_images"]

MOST_CHANNELS = 4
"""Channels are written out in the kernel."""

_MOST_BYTES = 16  # of one load


def _pack(name: str, kind: str, count: int, itemsize: int) -> str:
    """Return the struct of neighboring elements that are read or written at once, as far as that is possible."""
    return f"struct alignas({math.gcd(count * itemsize, _MOST_BYTES)}) {name} {{ {kind} v[{count}]; }};"


@functools.cache
def pixels_kernel(given: str, channels: int, last: bool, elements: str, width: int) -> Kernel:
    """Return the kernel: X (images, pixels, channels) -> Y.

    Args:
        given: the type of X: uint8 or float32.
        channels: of both, at most ``MOST_CHANNELS``.
        last: Y has its channels last; else first.
        elements: the type in which Y's elements are stored.
        width: pixels of a thread: they divide those of an image, or with channels last those of all images.
    """
    kind, result, each = c_type(given), c_type(elements), range(channels)
    numbers = ", ".join(f"float factor{c}, float shift{c}" for c in each)
    at = "(float)read.v[k * CHANNELS + {c}] * factor{c} + shift{c}"
    target = "made.v[k * CHANNELS + {c}]" if last else "made{c}.v[k]"
    values = "\n".join(f"    {target.format(c=c)} = {stored('(' + at.format(c=c) + ')', elements)};" for c in each)
    if last:
        declared, writes = "Made made;", "((Made*)y)[i] = made;"
    else:
        declared = f"Made {', '.join(f'made{c}' for c in each)};"
        writes = "\n".join(f"((Made*)y)[(image * CHANNELS + {c}) * packs + i % packs] = made{c};" for c in each)
        declared += "\nconst i64 image = i / packs;"
    text = f"""
#define CHANNELS {channels}
{_pack("Given", kind, width * channels, np.dtype(given).itemsize)}
{_pack("Made", result, width * (channels if last else 1), array_dtype(elements).itemsize)}
extern "C" __global__ void NAME(const {kind}* x, {result}* y, i64 size, i64 packs, {numbers}) {{
const i64 i = blockIdx.x * (i64){THREADS} + threadIdx.x;
if (i >= size) return;
const Given read = ((const Given*)x)[i];
{declared}
#pragma unroll
for (int k = 0; k < {width}; k++) {{
{values}
}}
{writes}
}}
"""
    return Kernel("pixels", with_prelude(text))


def _call(op: Any, x: Any, y: Any, *, last: bool, elements: str) -> Callable[[], object]:
    """Return the call of the kernel for arrays, Y being stored with elements of a type."""
    images, height, width, channels = x.shape
    pixels = height * width
    at_once = widest(images * pixels if last else pixels, array_dtype(elements).itemsize)
    if (x.data.ptr | y.data.ptr) % _MOST_BYTES:
        at_once = 1
    kernel = pixels_kernel(x.dtype.name, channels, last, elements, at_once)
    size = images * pixels // at_once
    scales = [number for scale in zip(*op.scales(channels)) for number in scale]
    arguments = (x, y, np.int64(size), np.int64(pixels // at_once), *scales)
    return lambda: kernel(-(-size // THREADS), arguments)


def prepared_images(op: Any, x: TensorSpec, y: TensorSpec) -> Prepared | None:
    """Prepare NormalizeImages, whose result is stored as the spec Y says."""
    if not x.size or x.shape[-1] > MOST_CHANNELS:
        return None
    last, elements = op.order == "NHWC" or order_of(y) is not None, elements_of(y)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Callable[[], object]:
        return _call(op, inputs[0], outputs[0], last=last, elements=elements)

    return Prepared([x.plain], [y], bind, name="cuda nb_pixels", extensions=CAPTURABLE)


def normalize_images(op: Any, ctx: PlanContext, x: TensorSpec) -> Prepared | None:
    """Prepare NormalizeImages: X -> Y, in plain order."""
    return prepared_images(op, x, op.infer(x.plain)[0])


def normalized_images(op: Any, x: Any, elements: str) -> Any:
    """Return Y of NormalizeImages for an array X on a GPU, computed at once, with elements of a type."""
    with gpu(x.device.id) as there:
        (y,) = op.infer(TensorSpec(x.shape, x.dtype))
        result = there.xp.empty(y.shape, elements)
        if x.size:
            _call(op, x, result, last=op.order == "NHWC", elements=elements)()
    return result
