"""MaxPool and AveragePool, forward and backward, on oneDNN.

If several elements of a window equal the maximum, oneDNN gives the gradient to the first of them, while Caffe2 gives it
to each. So oneDNN's MaxPoolGradient is used only if X comes from a Relu: there nearly all ties are between zeros, for
which the gradient of the Relu is 0. Otherwise the plain kernel is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from netbuilder.engines.arrays import as_flat
from netbuilder.engines.layouts import convert
from netbuilder.engines.llvm.pooling import blocked_max_pool
from netbuilder.engines.onednn import declarations as c
from netbuilder.engines.onednn.arguments import Constant, In, Out, Scratch, Workspace
from netbuilder.engines.onednn.bfloat16 import orders_as_given
from netbuilder.engines.onednn.blocked_layout import (
    BlockedLayout,
    Desc,
    channel_block,
    channel_blocked,
    elements,
    image_view,
    plain_in,
    row_major,
    stored_as,
)
from netbuilder.engines.onednn.geometry import channels_last, window_arguments
from netbuilder.engines.onednn.primitive import (
    SMALL,
    Primitive,
    Step,
    cached,
    compile_primitive,
    first_fast,
    prepared,
)
from netbuilder.engines.onednn.products import product
from netbuilder.ops.core.contexts import NOT_NEGATIVE, Call, PlanContext, Prepared
from netbuilder.ops.core.conv_geometry import Geometry
from netbuilder.ops.core.operator import TensorSpec, decode
from netbuilder.ops.core.registry import CPU, find, plain_kernel
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["average_pool", "average_pool_gradient", "max_pool", "max_pool_gradient", "mean_of_images"]

_WORKSPACE = "onednn max pool"
_PLAIN = "simple_nchw"  # in the name of a primitive
_INFINITY = 0x7F80  # the bits of +inf in bfloat16; those of NaN are larger
_MINUS_INFINITY = 0xFF80

# The extents of the matrices whose columns are summed: few for matrix products, and small enough for many of them.
_COLUMNS, _LEAST_ROWS, _MOST_ROWS = 64, 64, 2048


@cached
def _forward(algorithm: int, prop: int, src: Desc, dst: Desc, w: Geometry) -> Primitive:
    return compile_primitive("pooling_forward", prop, algorithm, src.handle, dst.handle, *_geometry(w))


@cached
def _backward(algorithm: int, src: Desc, dst: Desc, w: Geometry, hint: Primitive) -> Primitive:
    return compile_primitive("pooling_backward", algorithm, src.handle, dst.handle, *_geometry(w), hint=hint)


def _geometry(w: Geometry) -> tuple[Any, ...]:
    strides, dilates, begin, end = window_arguments(w)
    return strides, w.kernel, dilates, begin, end


def _window(op: Any, x: TensorSpec) -> Geometry | None:
    """Return the geometry of the operator's windows on X, or None if oneDNN does not support it."""
    if x.dtype != np.float32 or not 3 <= x.ndim <= 5 or x.size == 0:
        return None
    w: Geometry = op.geometry(x)
    return None if any(pad >= k for pad, k in zip(w.begin, w.kernel)) else w


def _out_shape(op: Any, x: TensorSpec) -> tuple[int, ...]:
    shape: tuple[int, ...] = op.pooled(x).shape
    return shape


class _Pool:
    """The forward primitive of a pooling operator on X, and its views of X and Y.

    Args:
        op, ctx, x, w, algorithm: the operator on X, in a plan, with the geometry of its windows.
        prop: whether the gradient needs what the primitive can keep, the positions of maxima.
    """

    def __init__(
        self, op: Any, ctx: PlanContext, x: TensorSpec, w: Geometry, algorithm: int, prop: int = c.FORWARD_TRAINING
    ) -> None:
        last = channels_last(op)
        self.x, self.y = x, TensorSpec(_out_shape(op, x), x.dtype)
        self.view, self.y_view = image_view(x.shape, last), image_view(self.y.shape, last)

        def make(source: Desc) -> Primitive | None:
            # A blocked input gives a blocked output, a plain input a plain one.
            plain = plain_in(self.y_view, source.code)
            target = plain if isinstance(source.order, tuple) else plain.any_order
            return _forward(algorithm, prop, source, target, w, threads=ctx.threads)

        self.primitive = _first_vectorized(make, list(orders_as_given(ctx, self.view, x)))

    @property
    def specs(self) -> tuple[TensorSpec, TensorSpec]:
        """The specs of X and Y that the primitive reads and writes."""
        assert self.primitive is not None
        return (
            self.primitive.spec(c.SRC, self.x.plain, self.view),
            self.primitive.spec(c.DST, self.y, self.y_view),
        )

    def backward(self, ctx: PlanContext, w: Geometry, algorithm: int) -> Primitive | None:
        """Return the backward primitive, in exactly the layouts of the forward one."""
        forward = self.primitive
        if forward is None:
            return None
        source = forward.desc(c.SRC, self.view)
        target = forward.desc(c.DST, self.y_view)
        return _backward(algorithm, source, target, w, forward, threads=ctx.threads)


def _first_vectorized(make: Callable[[Desc], Primitive | None], orders: Sequence[Desc]) -> Primitive | None:
    """Return the first primitive with vectors of channels, else that of ``first_fast``.

    The library's kernels for plain images go from element to element: on small images they take some 50 times as long
    as those for blocks of channels, and much longer than a copy there and back.
    """
    made = (make(order) for order in orders)
    vectorized = next((each for each in made if each is not None and not each.slow and _PLAIN not in each.name), None)
    return vectorized or first_fast(make, ((order,) for order in orders))


def max_pool(op: Any, ctx: PlanContext, x: TensorSpec) -> Prepared | None:
    """Prepare MaxPool; after a Relu, the positions of the maxima are published for the gradient."""
    w = _window(op, x)
    if w is None:
        return None
    not_negative = ctx.published(0, NOT_NEGATIVE)
    kept = not_negative and ctx.enabled("kept_maxima") and ctx.may_be_read_by(0, f"{op.type}Gradient")
    pool = _Pool(op, ctx, x, w, c.POOLING_MAX, c.FORWARD_TRAINING if kept else c.FORWARD_INFERENCE)
    if pool.primitive is None:
        return None
    arguments: dict[int, Any] = {c.SRC: In(0), c.DST: Out(0)}
    if not_negative:
        ctx.publish(0, NOT_NEGATIVE, True)
    if kept and pool.primitive.workspace:
        arguments[c.WORKSPACE] = Workspace(pool.primitive.workspace)
        ctx.publish(0, _WORKSPACE, (pool, w, arguments[c.WORKSPACE]))
    x_spec, y_spec = pool.specs
    own = None if kept else _by_machine_code(ctx, w, x_spec, y_spec)
    if own is not None:
        return own
    sums = _Sums.of(x_spec, ctx.threads)
    steps = [Step(pool.primitive, arguments), *sums.steps, _with_nan(op, ctx, x_spec, y_spec, sums.result)]
    return prepared([x_spec], [y_spec], steps, scratch=sums.result.nbytes if sums.result else 0)


def _by_machine_code(ctx: PlanContext, w: Geometry, x: TensorSpec, y: TensorSpec) -> Prepared | None:
    """Prepare MaxPool of float32 images with channels in blocks; None: that is not their layout.

    It is one pass, where the library needs a second one for NaN.
    """
    if not ctx.uses_engine("LLVM") or x.ndim != 4 or not isinstance(x.layout, BlockedLayout):
        return None
    block = channel_block(x.layout)
    if not block or any(channel_blocked(image_view(each.shape), c.F32, block) is not each.layout for each in (x, y)):
        return None
    return blocked_max_pool(ctx, w, x, y, block)


@dataclass(frozen=True)
class _Sums:
    """Sums of parts of a large value, which are finite only if all elements are; made by all threads of the lane.

    Args:
        steps: compute them.
        result: where they are; None: there are none.
    """

    steps: tuple[Step, ...] = ()
    result: Scratch | None = None

    @staticmethod
    def of(spec: TensorSpec, threads: int) -> _Sums:
        rows, rest = divmod(elements(spec), _COLUMNS)
        if stored_as(spec) != c.F32 or elements(spec) <= SMALL or rest:
            return _Sums()
        fitting = (n for n in range(_MOST_ROWS, 0, -1) if rows % n == 0 and rows // n % threads == 0)
        inner = next(fitting, 0)
        if inner < _LEAST_ROWS:
            return _Sums()
        parts = rows // inner
        shapes = (1, 1, inner), (parts, inner, _COLUMNS), (parts, 1, _COLUMNS)
        row, matrices, sums = (plain_in(row_major(shape), c.F32) for shape in shapes)
        made = product(row, matrices, None, sums, threads=threads)
        if made is None or made.slow:
            return _Sums()
        result, ones = Scratch(0, made.nbytes(c.DST)), Constant(np.ones(inner, np.float32))
        return _Sums((Step(made, {c.SRC: ones, c.WEIGHTS: In(0), c.DST: result}),), result)


def _with_nan(op: Any, ctx: PlanContext, x_spec: TensorSpec, y_spec: TensorSpec, sums: Scratch | None) -> Any:
    """Return the step that computes MaxPool again by the plain kernel if X has NaN or infinities.

    oneDNN ignores NaN, and returns the smallest float as the maximum of a window of only NaN and -inf.

    Args:
        op, ctx: the operator in a plan.
        x_spec, y_spec: of X and Y.
        sums: of X; None: X itself is looked at.
    """
    plain_pool = plain_kernel(op.type, CPU)
    assert plain_pool is not None

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        if sums is None:
            is_finite = _finite_check(inputs[0], stored_as(x_spec))
        else:
            is_finite = _finite_check(scratch[: sums.nbytes], c.F32)

        def call() -> None:
            if not is_finite():
                (y, *_) = plain_pool(op, ctx.run, convert(inputs[0], x_spec, x_spec.plain, ctx))
                convert(y, y_spec.plain, y_spec, ctx, outputs[0])

        return call

    return bind


def _finite_check(buffer: Any, code: int | None) -> Callable[[], bool]:
    """Return a function that tells whether all elements of a buffer, including padding, are finite.

    In float32 it may also return False if the sum of squares overflows.

    Args:
        buffer: of float32 or bfloat16, in any layout.
        code: oneDNN's number for the type.
    """
    if code == c.BF16:
        signed, unsigned = as_flat(buffer, np.int16), as_flat(buffer, np.uint16)
        greatest = np.maximum.reduce
        # As signed integers, positive floats are in order; as unsigned ones, negative floats follow them, in order.
        return lambda: bool(greatest(signed) < _INFINITY and greatest(unsigned) < _MINUS_INFINITY)
    flat, dot = as_flat(buffer, np.float32), np.dot
    return lambda: math.isfinite(dot(flat, flat))


def max_pool_gradient(op: Any, ctx: PlanContext, x: TensorSpec, y: TensorSpec, dy: TensorSpec) -> Prepared | None:
    """Prepare MaxPoolGradient: X, Y, dY -> dX, from the published positions of the maxima; X and Y are not read.

    If several elements of a window equal the maximum, the first one gets the gradient; with the plain kernel each does.
    """
    found = ctx.published(1, _WORKSPACE)
    if found is None or dy.dtype != np.float32 or dy.shape != y.shape:
        return None
    pool, w, workspace = found
    made = pool.backward(ctx, w, c.POOLING_MAX)
    if made is None or workspace is None or pool.x.plain != x.plain:
        return None
    x_spec, y_spec = pool.specs
    step = Step(made, {c.DIFF_DST: In(2), c.WORKSPACE: workspace, c.DIFF_SRC: Out(0)})
    return prepared([None, None, y_spec], [x_spec], [step])


def average_pool(op: Any, ctx: PlanContext, x: TensorSpec) -> Prepared | None:
    """Prepare AveragePool."""
    w = _window(op, x)
    if w is None:
        return None
    pool = _Pool(op, ctx, x, w, _average(op))
    if pool.primitive is None:
        return None
    x_spec, y_spec = pool.specs
    return prepared([x_spec], [y_spec], [Step(pool.primitive, {c.SRC: In(0), c.DST: Out(0)})])


def mean_of_images(op: Any, ctx: PlanContext, x: TensorSpec) -> Prepared | None:
    """Prepare ReduceMean over all axes of the images, in one of the library's layouts, as an AveragePool."""
    if x.layout is None or x.layout.view != image_view(x.shape) or x.ndim < 3:
        return None
    if tuple(op.reduced_axes(x.shape)) != tuple(range(2, x.ndim)):
        return None
    pool = decode(find("AveragePool"), make_op("AveragePool", ["X"], ["Y"], global_pooling=1))
    made = average_pool(pool, ctx, x)
    if made is None or op.keepdims:
        return made
    (y,) = made.outputs
    return None if y is None or y.layout is not None else replace(made, outputs=op.infer(x.plain))


def average_pool_gradient(op: Any, ctx: PlanContext, x: TensorSpec, y: TensorSpec, dy: TensorSpec) -> Prepared | None:
    """Prepare AveragePoolGradient: X, Y, dY -> dX, in the layout of X; X and Y are not read."""
    w = _window(op, x)
    if w is None or dy.dtype != np.float32 or dy.shape != _out_shape(op, x):
        return None
    pool = _Pool(op, ctx, x, w, _average(op))
    made = pool.backward(ctx, w, _average(op))
    if made is None:
        return None
    x_spec, y_spec = pool.specs
    step = Step(made, {c.DIFF_DST: In(2), c.DIFF_SRC: Out(0)})
    return prepared([None, None, y_spec], [x_spec], [step])


def _average(op: Any) -> int:
    return c.POOLING_AVERAGE_ALL if getattr(op, "count_include_pad", False) else c.POOLING_AVERAGE_VALID
