"""MaxPool and AveragePool on GPUs, forward and backward, over images with channels last.

cuDNN's frontend has no pooling in Python, so these are our own kernels. Each thread computes one element of the
result, and neighboring threads neighboring channels. The gradient of a maximum goes to each element of the window that
equals it, as the operator says: each element of X sums over the windows that it is in, so nothing is added atomically.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from netbuilder.engines.cuda.code import c_type, stored, value_of, with_prelude
from netbuilder.engines.cuda.gpu_layout import image_spec
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


def _three(numbers: Sequence[int], fill: int) -> Any:
    return (*(fill for _ in range(3 - len(numbers))), *numbers)


def _pool(op: Any, x: TensorSpec, elements: str) -> Pool:
    geometry, y = op.geometry(x), op.pooled(x)
    return Pool(
        x.shape[0],
        x.shape[channel_axis(op.order, x.ndim)],
        _three(image_extents(x.shape, op.order), 1),
        _three(image_extents(y.shape, op.order), 1),
        _three(geometry.kernel, 1),
        _three(geometry.strides, 1),
        _three(geometry.begin, 0),
        bool(getattr(op, "count_include_pad", False)),
        elements,
    )


_AXES = "dhw"


def _constants(pool: Pool) -> list[str]:
    """Return the extents as constants of the kernel: X<axis>, Y<axis>, K<axis>, S<axis>, P<axis>."""
    lines = [f"const int C = {pool.channels};"]
    for letter, numbers in zip("XYKSP", (pool.x, pool.y, pool.kernel, pool.strides, pool.before)):
        lines += [f"const int {letter}{axis} = {number};" for axis, number in zip(_AXES, numbers)]
    return lines


def _place(letter: str, size: int) -> list[str]:
    """Return the statements that find the place of element ``i``: n, d, h, w and c; ``letter`` names its extents."""
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


def _source(pool: Pool, inputs: Sequence[str], size: int, lines: list[str]) -> str:
    kind = c_type(pool.elements)
    parameters = ", ".join([*(f"const {kind}* {name}" for name in inputs), f"{kind}* out"])
    head = f'extern "C" __global__ void NAME({parameters}) {{'
    return with_prelude("\n".join([head, *_constants(pool), *lines, "}", ""]))


def _forward(pool: Pool, size: int, *, largest: bool) -> Kernel:
    """Return the kernel of X -> Y."""
    load = value_of(f"x[{_index('X')}]", pool.elements)
    bounds = [_bounds_of_window(axis, axis) for axis in _AXES]
    if largest:  # the comparison keeps NaN
        lines = ["float found = __uint_as_float(0xff800000u);", *_loops("{bound}_{axis}", [
            f"const float v = {load};", "if (v > found || v != v) found = v;",
        ])]  # fmt: skip
        result = "found"
    else:
        lines = ["float total = 0;", *_loops("{bound}_{axis}", [f"total += {load};"])]
        inside = " * ".join(f"(end_{axis} - first_{axis})" for axis in _AXES)
        result = f"total / (float)({math.prod(pool.kernel) if pool.whole else inside})"
    lines.append(f"out[i] = {stored(result, pool.elements)};")
    title = "max_pool" if largest else "average_pool"
    return Kernel(title, _source(pool, ["x"], size, [*_place("Y", size), *bounds, *lines]))


def _backward(pool: Pool, size: int, *, largest: bool) -> Kernel:
    """Return the kernel of the gradient: X, Y, dY -> dX for the maximum, dY -> dX for the mean."""
    d_y = value_of(f"dy[{_index('Y')}]", pool.elements)
    bounds = [_bounds_of_windows(axis) for axis in _AXES]
    if largest:
        own = [f"const float v = {value_of('x[i]', pool.elements)};"]
        maximum = value_of(f"y[{_index('Y')}]", pool.elements)
        body = [f"if ({maximum} == v) total += {d_y};"]
    elif pool.whole:
        own, body = [], [f"total += {d_y} / {math.prod(pool.kernel)}.0f;"]
    else:
        inside = " * ".join(f"(min({at} * S{axis} - P{axis} + K{axis}, X{axis}) - max({at} * S{axis} - P{axis}, 0))"
                            for at, axis in zip("abe", _AXES))  # fmt: skip
        own, body = [], [f"total += {d_y} / (float)({inside});"]
    lines = [*own, "float total = 0;", *_loops("{bound}_{axis}", body), f"out[i] = {stored('total', pool.elements)};"]
    names = ["x", "y", "dy"] if largest else ["dy"]
    title = "max_pool_gradient" if largest else "average_pool_gradient"
    return Kernel(title, _source(pool, names, size, [*_place("X", size), *bounds, *lines]))


def _prepared(kernel: Kernel, size: int, inputs: Sequence[TensorSpec | None], output: TensorSpec) -> Prepared:
    def bind(ins: Sequence[Any], outs: Sequence[Any], scratch: Any) -> Call:
        given = [buffer for buffer, spec in zip(ins, inputs) if spec is not None]
        return partial(kernel, -(-size // THREADS), (*given, outs[0]))

    return Prepared(inputs, [output], bind, name=kernel.name, extensions=CAPTURABLE)


def _serves(op: Any, x: TensorSpec) -> bool:
    if not serves(x) or not 3 <= x.ndim <= 5:
        return False
    geometry = op.geometry(x)
    return all(before < k for before, k in zip(geometry.begin, geometry.kernel))


def _pooled(op: Any, ctx: PlanContext, x: TensorSpec, *, largest: bool) -> Prepared | None:
    if not _serves(op, x):
        return None
    elements, y = types_as_given(ctx, x)[0], op.pooled(x.plain)
    kernel = _forward(_pool(op, x.plain, elements), y.size, largest=largest)
    return _prepared(kernel, y.size, [image_spec(x, op.order, elements)], image_spec(y, op.order, elements))


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
    kernel = _backward(_pool(op, x.plain, elements), x.size, largest=True)
    return _prepared(kernel, x.size, [images, results, results], images)


def average_pool_gradient(op: Any, ctx: PlanContext, x: TensorSpec, y: TensorSpec, dy: TensorSpec) -> Prepared | None:
    """Prepare AveragePoolGradient: X, Y, dY -> dX; X and Y are not read."""
    if not _serves(op, x) or not serves(x, y, dy):
        return None
    elements = types_as_given(ctx, x)[0]
    kernel = _backward(_pool(op, x.plain, elements), x.size, largest=False)
    spec = image_spec(dy, op.order, elements)
    return _prepared(kernel, x.size, [None, None, spec], image_spec(x, op.order, elements))
