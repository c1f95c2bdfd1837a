"""Elements copied to other places: Concat and Split, Transpose, ChannelShuffle, Slice, other shapes of the same."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from netbuilder.engines.cuda.code import with_prelude
from netbuilder.engines.cuda.gpu_layout import (
    ChannelsLast,
    array_dtype,
    elements_of,
    image_spec,
    order_of,
    row_major_spec,
)
from netbuilder.engines.cuda.kernel import THREADS, Kernel
from netbuilder.engines.cuda.steps import one_call
from netbuilder.engines.gpu import gpu
from netbuilder.ops.core.contexts import PlanContext, Prepared
from netbuilder.ops.core.extensions import CAPTURABLE
from netbuilder.ops.core.image_order import channel_axis
from netbuilder.ops.core.operator import STRING, TensorSpec

__all__ = [
    "ELEMENTS",
    "MOST_AXES",
    "channel_shuffle",
    "concat",
    "padded_kernel",
    "parts_kernel",
    "reshaped",
    "slice_",
    "slice_gradient",
    "split",
    "transpose",
    "transposed_kernel",
]

ELEMENTS = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "u64"}
"""The type of an element that is copied, by its size."""
MOST_AXES = 8
_MOST_BLOCKS = 1 << 16

_LOOP = f"for (i64 k = blockIdx.x * (i64){THREADS} + threadIdx.x; k < size; k += gridDim.x * (i64){THREADS}) {{"


def _blocks(elements: int) -> int:
    return min(-(-elements // THREADS), _MOST_BLOCKS)


def _serves(spec: TensorSpec) -> bool:
    return spec.dtype != STRING and spec.dtype.itemsize in ELEMENTS and spec.dtype.kind in "fiub"


@functools.cache
def parts_kernel(itemsize: int) -> Kernel:
    """Return the kernel that copies runs of elements, which begin at other places in X and in Y."""
    kind = ELEMENTS[itemsize]
    text = f"""
extern "C" __global__ void NAME(const {kind}* x, {kind}* y, i64 size, i64 run, i64 x_begin, i64 x_stride, i64 y_begin,
                                i64 y_stride) {{
{_LOOP}
    const i64 number = k / run, at = k % run;
    y[y_begin + number * y_stride + at] = x[x_begin + number * x_stride + at];
}}}}
"""
    return Kernel("parts_copied", with_prelude(text))


def _part(itemsize: int, x: Any, y: Any, size: int, *numbers: int) -> Callable[[], object]:
    """Return the call that copies one part, in the widest words into which it can be divided."""
    places = [x.data.ptr, y.data.ptr, *(number * itemsize for number in (size, *numbers))]
    width = max(width for width in ELEMENTS if width >= itemsize and not any(place % width for place in places))
    words = [number * itemsize // width for number in (size, *numbers)]
    kernel, arguments = parts_kernel(width), (x, y, *map(np.int64, words))
    return lambda: kernel(_blocks(words[0]), arguments)


def _constant(target: Any, value: Any) -> Callable[[], object]:
    """Return the call that copies numbers which are the same in each run."""
    with gpu(target.device.id) as there:
        source = there.xp.asarray(np.array(value, target.dtype))
    return lambda: target.data.copy_from_device_async(source.data, source.nbytes)


def _stored(spec: TensorSpec, elements: str, last: bool) -> TensorSpec:
    """Return the spec of a value whose channels are last, or that is in plain order, with elements of a type."""
    return image_spec(spec, "NCHW", elements) if last else row_major_spec(spec.plain, elements)


def _runs(whole: TensorSpec, parts: Sequence[TensorSpec], axis: int) -> tuple[list[int], int]:
    """Return how many elements each part has in a row of the whole, as they are stored, and how long that row is."""
    row = whole.shape[axis] * (1 if order_of(whole) else math.prod(whole.shape[axis + 1 :]))
    return [part.size * row // whole.size for part in parts], row


def concat(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    """Prepare Concat: a launch for each part. Channels of images stay last, and elements of 16 bits what they are."""
    plain = [spec.plain for spec in specs]
    outs = list(op.infer(*plain)[: op.n_out])
    y = outs[0]
    if any(not _serves(spec) or spec.dtype != y.dtype for spec in plain) or not y.size:
        return None
    axis = op.axis_in(y.ndim, y.shape)
    kinds = {elements_of(spec) for spec in specs if spec.size}
    elements = kinds.pop() if len(kinds) == 1 else y.dtype.name
    last = axis == 1 and not op.add_axis and any(order_of(spec) for spec in specs)
    given, outs[0] = [_stored(spec, elements, last) for spec in plain], _stored(y, elements, last)
    runs, stride = _runs(outs[0], given, axis)
    part = functools.partial(_part, array_dtype(elements).itemsize)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Callable[[], object]:
        calls, begin = [], 0
        for x, spec, run in zip(inputs, given, runs):
            if run:
                calls.append(part(x, outputs[0], spec.size, run, 0, run, begin, stride))
            begin += run
        calls += [_constant(info, op.infer(*plain)[1].known) for info in outputs[1:]]
        return one_call(calls)

    return Prepared(given, outs, bind, name=f"cuda {parts_kernel(y.dtype.itemsize).name}", extensions=CAPTURABLE)


def split(op: Any, ctx: PlanContext, x: TensorSpec, *extents: TensorSpec) -> Prepared | None:
    """Prepare Split: a launch for each part; the extents are known. Parts are stored as the whole is."""
    plain = list(op.infer(x.plain, *extents))
    if not _serves(x) or not x.size:
        return None
    axis, elements = op.axis_in(x.ndim, x.shape), elements_of(x)
    last = axis == 1 and not op.add_axis and order_of(x) is not None
    if order_of(x) and not last:
        elements = x.dtype.name
    given, outs = _stored(x, elements, last), [_stored(part, elements, last) for part in plain]
    runs, stride = _runs(given, outs, axis)
    part = functools.partial(_part, array_dtype(elements).itemsize)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Callable[[], object]:
        calls, begin = [], 0
        for y, spec, run in zip(outputs, outs, runs):
            if run:
                calls.append(part(inputs[0], y, spec.size, run, begin, stride, 0, run))
            begin += run
        return one_call(calls)

    name = f"cuda {parts_kernel(x.dtype.itemsize).name}"
    return Prepared([given, *(None for _ in extents)], outs, bind, name=name, extensions=CAPTURABLE)


@functools.cache
def transposed_kernel(itemsize: int, axes: int) -> Kernel:
    """Return the kernel that copies elements with the given strides along so many axes."""
    kind = ELEMENTS[itemsize]
    numbers = ", ".join([*(f"i64 n{a}" for a in range(axes)), *(f"i64 s{a}" for a in range(axes))])
    places = "\n".join(f"    from += rest % n{a} * s{a}; rest /= n{a};" for a in reversed(range(axes)))
    text = f"""
extern "C" __global__ void NAME(const {kind}* x, {kind}* y, i64 size, {numbers}) {{
{_LOOP}
    i64 rest = k, from = 0;
{places}
    y[k] = x[from];
}}}}
"""
    return Kernel("transposed", with_prelude(text))


def _strides(shape: Sequence[int]) -> list[int]:
    """Return how many elements apart neighbors along each axis are."""
    return [math.prod(shape[a + 1 :]) for a in range(len(shape))]


def _order(op: Any, ndim: int) -> tuple[int, ...]:
    if op.type == "NCHW2NHWC":
        return (0, *range(2, ndim), 1)
    if op.type == "NHWC2NCHW":
        return (0, ndim - 1, *range(1, ndim - 1))
    return tuple(op.order(ndim))


def transpose(op: Any, ctx: PlanContext, x: TensorSpec) -> Prepared | None:
    """Prepare Transpose, NCHW2NHWC and NHWC2NCHW."""
    (y,) = op.infer(x.plain)
    if not _serves(x) or not x.size or not 0 < x.ndim <= MOST_AXES:
        return None
    strides = [_strides(x.shape)[a] for a in _order(op, x.ndim)]
    kernel = transposed_kernel(x.dtype.itemsize, x.ndim)
    numbers = [np.int64(n) for n in (x.size, *y.shape, *strides)]

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Callable[[], object]:
        arguments = (inputs[0], outputs[0], *numbers)
        return lambda: kernel(_blocks(x.size), arguments)

    return Prepared([x.plain], [y], bind, name=f"cuda {kernel.name}", extensions=CAPTURABLE)


def channel_shuffle(op: Any, ctx: PlanContext, x: TensorSpec) -> Prepared | None:
    """Prepare ChannelShuffle and its gradient; images stay in the order in which they are stored."""
    if not _serves(x) or not x.size:
        return None
    given = x if isinstance(x.layout, ChannelsLast) and op.order == "NCHW" else x.plain
    axis = channel_axis(op.order, x.ndim)
    channels, pixels = x.shape[axis], math.prod(x.shape[axis + 1 :])
    inner = 1 if order_of(given) is not None else pixels
    rows = max(1, channels // op.group) if op.type == "ChannelShuffleGradient" else op.group
    columns = channels // rows
    kernel = transposed_kernel(array_dtype(elements_of(given)).itemsize, 4)
    extents = (x.size // (channels * inner), columns, rows, inner)
    numbers = [np.int64(n) for n in (x.size, *extents, channels * inner, inner, columns * inner, 1)]

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Callable[[], object]:
        arguments = (inputs[0], outputs[0], *numbers)
        return lambda: kernel(_blocks(x.size), arguments)

    return Prepared([given], [given], bind, name=f"cuda {kernel.name}", extensions=CAPTURABLE)


def _box(op: Any, shape: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """Return where the slice of an array of this shape begins along each axis, and its extents."""
    box = op.box(shape, op.starts, op.ends)
    box = [*box, *(slice(0, extent) for extent in shape[len(box) :])]
    return [part.start for part in box], [part.stop - part.start for part in box]


def slice_(op: Any, ctx: PlanContext, x: TensorSpec, *bounds: TensorSpec) -> Prepared | None:
    """Prepare Slice whose bounds are arguments, with steps of 1."""
    if bounds or op.steps or not _serves(x) or not 0 < x.ndim <= MOST_AXES:
        return None
    (y,) = op.infer(x.plain)
    kernel, strides = transposed_kernel(x.dtype.itemsize, x.ndim), _strides(x.shape)
    begins, extents = _box(op, x.shape)
    first = sum(begin * stride for begin, stride in zip(begins, strides))
    numbers = [np.int64(n) for n in (y.size, *extents, *strides)]

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Callable[[], object]:
        arguments = (inputs[0].reshape(-1)[first:], outputs[0], *numbers)
        return lambda: kernel(_blocks(y.size), arguments)

    return Prepared([x.plain], [y], bind, name=f"cuda {kernel.name}", extensions=CAPTURABLE)


@functools.cache
def padded_kernel(itemsize: int, axes: int) -> Kernel:
    """Return the kernel that copies an array of so many axes into a part of Y, whose other elements become 0."""
    kind, each = ELEMENTS[itemsize], range(axes)
    numbers = ", ".join(f"i64 {name}{a}" for name in "nbes" for a in each)
    places = "\n".join(
        f"    const i64 c{a} = rest % n{a} - b{a}; rest /= n{a}; inside = inside && c{a} >= 0 && c{a} < e{a};"
        f" from += c{a} * s{a};"
        for a in reversed(each)
    )
    text = f"""
extern "C" __global__ void NAME(const {kind}* x, {kind}* y, i64 size, {numbers}) {{
{_LOOP}
    i64 rest = k, from = 0;
    bool inside = true;
{places}
    y[k] = inside ? x[from] : 0;
}}}}
"""
    return Kernel("padded", with_prelude(text))


def slice_gradient(op: Any, ctx: PlanContext, x: TensorSpec, *given: TensorSpec) -> Prepared | None:
    """Prepare the gradient of a Slice whose bounds are arguments: X, dY -> dX. X is not read."""
    dy = given[-1].plain
    if len(given) > 1 or op.steps or not _serves(dy) or dy.dtype != x.dtype or not 0 < x.ndim <= MOST_AXES:
        return None
    (dx,) = op.infer(x.plain, dy)
    kernel = padded_kernel(dx.dtype.itemsize, dx.ndim)
    begins, extents = _box(op, dx.shape)
    numbers = [np.int64(n) for n in (dx.size, *dx.shape, *begins, *extents, *_strides(extents))]

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Callable[[], object]:
        arguments = (inputs[1], outputs[0], *numbers)
        return lambda: kernel(_blocks(dx.size), arguments)

    return Prepared([None, dy], [dx], bind, name=f"cuda {kernel.name}", extensions=CAPTURABLE)


def reshaped(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    """Prepare an operator whose result has the elements of its first input, in their order."""
    x = specs[0].plain
    if x.dtype == STRING:
        return None
    (y,) = op.infer(x, *specs[1:])

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Callable[[], object]:
        source, target = inputs[0].data, outputs[0].data
        if source.ptr == target.ptr or not x.nbytes:
            return lambda: None
        return lambda: target.copy_from_device_async(source, x.nbytes)

    inputs = [x, *(None for _ in specs[1:])]
    return Prepared(inputs, [y], bind, inplace=((0, 0),), name="copy", extensions=CAPTURABLE)
