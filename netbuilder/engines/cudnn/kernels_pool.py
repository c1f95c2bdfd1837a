"""MaxPool and AveragePool on GPUs, forward and backward, over images with channels last.

cuDNN's frontend has no pooling in Python, so these are our own kernels. Each thread computes the result at one place
for as many consecutive channels as it reads at once, 16 bytes of them where it can, and neighboring threads have
neighboring channels. The gradient of a maximum goes to each element of the window that equals it, as the operator says:
each element of X sums over the windows that it is in, so nothing is added atomically.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from netbuilder.engines.cuda.channel_code import widest
from netbuilder.engines.cuda.code import c_type, stored, value_of, with_prelude
from netbuilder.engines.cuda.gpu_layout import array_dtype, image_spec
from netbuilder.engines.cuda.kernel import THREADS, Kernel
from netbuilder.engines.cudnn.element_types import serves, types_as_given
from netbuilder.ops.core.contexts import Call, PlanContext, Prepared
from netbuilder.ops.core.extensions import CAPTURABLE
from netbuilder.ops.core.image_order import channel_axis, image_extents
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Pool", "average_pool", "average_pool_gradient", "max_pool", "max_pool_gradient"]


@dataclass(frozen=True)
class Pool:
    """How windows slide over images with three axes, the last ones those of the operator.

    Args:
        images, channels: extents.
        x, y: extents of images and results.
        kernel, strides: of the windows.
        before: padding.
        whole: whether the mean is that of the whole window with its padding, not of its part inside the images.
        elements: the type of the stored elements.
        width: consecutive channels that a thread reads at once.
    """

    images: int
    channels: int
    x: tuple[int, int, int]
    y: tuple[int, int, int]
    kernel: tuple[int, int, int]
    strides: tuple[int, int, int]
    before: tuple[int, int, int]
    whole: bool
    elements: str
    width: int


def _three(numbers: Sequence[int], fill: int) -> Any:
    return (*(fill for _ in range(3 - len(numbers))), *numbers)


def _pool(op: Any, x: TensorSpec, elements: str) -> Pool:
    geometry, y = op.geometry(x), op.pooled(x)
    channels = x.shape[channel_axis(op.order, x.ndim)]
    return Pool(
        x.shape[0],
        channels,
        _three(image_extents(x.shape, op.order), 1),
        _three(image_extents(y.shape, op.order), 1),
        _three(geometry.kernel, 1),
        _three(geometry.strides, 1),
        _three(geometry.begin, 0),
        bool(getattr(op, "count_include_pad", False)),
        elements,
        widest(channels, array_dtype(elements).itemsize),
    )


_AXES = "dhw"


def _constants(pool: Pool) -> list[str]:
    """Return the extents as constants of the kernel: X<axis>, Y<axis>, K<axis>, S<axis>, P<axis>.

    C is the number of packs of channels.
    """
    lines = [f"const int C = {pool.channels // pool.width};"]
    for letter, numbers in zip("XYKSP", (pool.x, pool.y, pool.kernel, pool.strides, pool.before)):
        lines += [f"const int {letter}{axis} = {number};" for axis, number in zip(_AXES, numbers)]
    return lines


def _place(letter: str, size: int) -> list[str]:
    """Return the statements that find the place of pack ``i``: n, d, h, w and c; ``letter`` names its extents."""
    return [
        f"const i64 i = blockIdx.x * (i64){THREADS} + threadIdx.x;",
        f"if (i >= {size}LL) return;",
        "i64 rest = i;",
        "const int c = (int)(rest % C); rest /= C;",
        *(f"const int {axis} = (int)(rest % {letter}{axis}); rest /= {letter}{axis};" for axis in "whd"),
        "const i64 n = rest;",
    ]


def _loops(ranges: str, body: list[str]) -> list[str]:
    """Return loops over ``a``, ``b`` and ``e`` for the three axes, with their bounds in ``ranges``."""
    opened = [
        f"for (int {name} = {ranges.format(axis=axis, bound='first')}; "
        f"{name} < {ranges.format(axis=axis, bound='end')}; {name}++)"
        for name, axis in zip("abe", _AXES)
    ]
    return [*opened, "{", *body, "}"]


def _bounds_of_window(axis: str, at: str) -> str:
    """Return the statements that find the elements of X in the window at ``at``."""
    return (
        f"const int start_{axis} = {at} * S{axis} - P{axis}; "
        f"const int first_{axis} = start_{axis} > 0 ? start_{axis} : 0; "
        f"const int end_{axis} = start_{axis} + K{axis} < X{axis} ? start_{axis} + K{axis} : X{axis};"
    )


def _bounds_of_windows(axis: str) -> str:
    """Return the statements that find the windows which have the element of X at ``axis``."""
    return (
        f"const int low_{axis} = {axis} + P{axis} - K{axis} + 1; "
        f"const int first_{axis} = low_{axis} > 0 ? (low_{axis} + S{axis} - 1) / S{axis} : 0; "
        f"const int last_{axis} = ({axis} + P{axis}) / S{axis} + 1; "
        f"const int end_{axis} = last_{axis} < Y{axis} ? last_{axis} : Y{axis};"
    )


def _index(letter: str) -> str:
    return f"(((n * {letter}d + a) * {letter}h + b) * {letter}w + e) * C + c"


def _of_each(pool: Pool, *body: str) -> list[str]:
    """Return the loop over the channels ``j`` of a pack."""
    return ["#pragma unroll", f"for (int j = 0; j < {pool.width}; j++) {{", *body, "}"]


def _source(pool: Pool, inputs: Sequence[str], lines: Sequence[str], result: str) -> str:
    """Return a kernel's source: its statements, and then ``result`` for each channel as an element of ``out``."""
    kind = c_type(pool.elements)
    parameters = ", ".join([*(f"const Pack* {name}" for name in inputs), "Pack* out"])
    return with_prelude("\n".join([
        f"struct alignas({pool.width} * sizeof({kind})) Pack {{ {kind} v[{pool.width}]; }};",
        f'extern "C" __global__ void NAME({parameters}) {{',
        *_constants(pool),
        *lines,
        "Pack made;",
        *_of_each(pool, f"made.v[j] = {stored(result, pool.elements)};"),
        "out[i] = made;",
        "}",
        "",
    ]))  # fmt: skip


def _forward(pool: Pool, size: int, *, largest: bool) -> Kernel:
    """Return the kernel of X -> Y; ``size``: the packs of Y."""
    value = f"const float v = {value_of('read.v[j]', pool.elements)};"
    read = f"const Pack read = x[{_index('X')}];"
    if largest:  # the comparison keeps NaN
        title, start, result = "max_pool", "__uint_as_float(0xff800000u)", "kept[j]"
        body = _of_each(pool, value, "if (v > kept[j] || v != v) kept[j] = v;")
    else:
        inside = " * ".join(f"(end_{axis} - first_{axis})" for axis in _AXES)
        title, start = "average_pool", "0"
        result = f"kept[j] / (float)({math.prod(pool.kernel) if pool.whole else inside})"
        body = _of_each(pool, value, "kept[j] += v;")
    lines = [
        *_place("Y", size),
        *(_bounds_of_window(axis, axis) for axis in _AXES),
        f"float kept[{pool.width}];",
        *_of_each(pool, f"kept[j] = {start};"),
        *_loops("{bound}_{axis}", [read, *body]),
    ]
    return Kernel(title, _source(pool, ["x"], lines, result))


def _backward(pool: Pool, size: int, *, largest: bool) -> Kernel:
    """Return the kernel of the gradient: X, Y, dY -> dX for the maximum, dY -> dX for the mean.

    Args:
        pool: the windows.
        size: the packs of X.
        largest: the maximum.
    """
    d_y = value_of("d_read.v[j]", pool.elements)
    reads = [f"const Pack d_read = dy[{_index('Y')}];"]
    own = []
    if largest:
        own, reads = ["const Pack own = x[i];"], [*reads, f"const Pack y_read = y[{_index('Y')}];"]
        found, x = (value_of(f"{name}.v[j]", pool.elements) for name in ("y_read", "own"))
        body = f"if ({found} == {x}) total[j] += {d_y};"
    elif pool.whole:
        body = f"total[j] += {d_y} / {math.prod(pool.kernel)}.0f;"
    else:
        inside = " * ".join(f"(min({at} * S{axis} - P{axis} + K{axis}, X{axis}) - max({at} * S{axis} - P{axis}, 0))"
                            for at, axis in zip("abe", _AXES))  # fmt: skip
        reads.append(f"const float elements = (float)({inside});")
        body = f"total[j] += {d_y} / elements;"
    lines = [
        *_place("X", size),
        *map(_bounds_of_windows, _AXES),
        *own,
        f"float total[{pool.width}] = {{}};",
        *_loops("{bound}_{axis}", [*reads, *_of_each(pool, body)]),
    ]
    title = "max_pool_gradient" if largest else "average_pool_gradient"
    return Kernel(title, _source(pool, ["x", "y", "dy"] if largest else ["dy"], lines, "total[j]"))


def _prepared(
    make: Callable[..., Kernel], pool: Pool, size: int, inputs: Sequence[TensorSpec | None], output: TensorSpec, *,
    largest: bool,
) -> Prepared:  # fmt: skip
    """Prepare a kernel that writes ``size`` elements; at addresses that are not aligned it reads them one by one."""
    wide = make(pool, size // pool.width, largest=largest)
    alignment = pool.width * array_dtype(pool.elements).itemsize

    def bind(ins: Sequence[Any], outs: Sequence[Any], scratch: Any) -> Call:
        arrays = [*(buffer for buffer, spec in zip(ins, inputs) if spec is not None), outs[0]]
        kernel, packs = wide, size // pool.width
        if any(array.data.ptr % alignment for array in arrays):
            kernel, packs = make(dataclasses.replace(pool, width=1), size, largest=largest), size
        return partial(kernel, -(-packs // THREADS), arrays)

    return Prepared(inputs, [output], bind, name=wide.name, extensions=CAPTURABLE)


def _serves(op: Any, x: TensorSpec) -> bool:
    if not serves(x) or not 3 <= x.ndim <= 5:
        return False
    geometry = op.geometry(x)
    return all(before < k for before, k in zip(geometry.begin, geometry.kernel))


def _pooled(op: Any, ctx: PlanContext, x: TensorSpec, *, largest: bool) -> Prepared | None:
    if not _serves(op, x):
        return None
    elements, y = types_as_given(ctx, x)[0], op.pooled(x.plain)
    images, results = image_spec(x, op.order, elements), image_spec(y, op.order, elements)
    return _prepared(_forward, _pool(op, x.plain, elements), y.size, [images], results, largest=largest)


def max_pool(op: Any, ctx: PlanContext, x: TensorSpec) -> Prepared | None:
    """Prepare MaxPool: X -> Y."""
    return _pooled(op, ctx, x, largest=True)


def average_pool(op: Any, ctx: PlanContext, x: TensorSpec) -> Prepared | None:
    """Prepare AveragePool: X -> Y."""
    return _pooled(op, ctx, x, largest=False)


def max_pool_gradient(op: Any, ctx: PlanContext, x: TensorSpec, y: TensorSpec, dy: TensorSpec) -> Prepared | None:
    """Prepare MaxPoolGradient: X, Y, dY -> dX."""
    if not _serves(op, x) or not serves(x, y, dy):
        return None
    elements = types_as_given(ctx, x)[0]
    images, results = image_spec(x, op.order, elements), image_spec(y, op.order, elements)
    pool = _pool(op, x.plain, elements)
    return _prepared(_backward, pool, x.size, [images, results, results], images, largest=True)


def average_pool_gradient(op: Any, ctx: PlanContext, x: TensorSpec, y: TensorSpec, dy: TensorSpec) -> Prepared | None:
    """Prepare AveragePoolGradient: X, Y, dY -> dX; X and Y are not read."""
    if not _serves(op, x) or not serves(x, y, dy):
        return None
    elements = types_as_given(ctx, x)[0]
    images, results = image_spec(x, op.order, elements), image_spec(dy, op.order, elements)
    pool = _pool(op, x.plain, elements)
    return _prepared(_backward, pool, x.size, [None, None, results], images, largest=False)
