"""Gradients of Conv and ConvTranspose on oneDNN.

In bfloat16, images and their gradients are bfloat16, and the gradients of weights and biases are float32. In oneDNN
3.2, the threads of the bfloat16 kernels for the weights of filters larger than 1x1 wait for one another, which takes
long if anything else runs on the cores. So these kernels are measured (see ``autotune``), and where they are slow both
images are converted to float32 first, which loses nothing; likewise where there is no kernel at all (groups of fewer
channels than a block). The gradient of images is computed in channels last where that is faster.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from netbuilder.engines.onednn import declarations as c
from netbuilder.engines.onednn.arguments import In, MemoryRef, Out, Persistent, ScratchAllocator
from netbuilder.engines.onednn.autotune import fastest, may_measure
from netbuilder.engines.onednn.bfloat16 import types_for_products
from netbuilder.engines.onednn.blocked_layout import Desc, View, desc_in, element_code, plain_in
from netbuilder.engines.onednn.channels_last import ChannelsLastConvolution, backward_data_channels_last
from netbuilder.engines.onednn.convolutions import (
    Views,
    any_order,
    backward_data,
    backward_weights,
    description_of,
    forward,
    own_order,
    serves,
    worth_measuring,
)
from netbuilder.engines.onednn.depthwise import DepthwiseGradient, depthwise_gradient
from netbuilder.engines.onednn.primitive import Extra, Primitive, Step, first_fast, prepared
from netbuilder.engines.onednn.reorders import reorder, reorder_primitive
from netbuilder.engines.onednn.winograd import FilterGradient, Winograd, data_gradient, filter_gradient, may_serve
from netbuilder.ops.core.contexts import PlanContext, Prepared
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["conv_gradient", "conv_transpose_gradient"]

_REFERENCE_FLOPS = 20_000_000  # the library's reference kernel takes 0.1 s or more for so many


def conv_gradient(op: Any, ctx: PlanContext, x: TensorSpec, w: TensorSpec, dy: TensorSpec) -> Prepared | None:
    """Prepare ConvGradient: X, W, dY -> dW, [db], [dX]."""
    return _prepare_gradient(op, ctx, x, w, dy, transposed=False)


def conv_transpose_gradient(op: Any, ctx: PlanContext, x: TensorSpec, w: TensorSpec, dy: TensorSpec) -> Prepared | None:
    """Prepare ConvTransposeGradient: X, W, dY -> dW, [db], [dX]."""
    return _prepare_gradient(op, ctx, x, w, dy, transposed=True)


@dataclass(frozen=True)
class _Found:
    """The primitives of a convolution's gradient.

    Args:
        dw: for the gradients of weights and bias.
        dx: for the gradient of X, if it is needed.
        widen: conversions of X and dY to float32, whose results ``dw`` reads.
        other_dx: computes dX instead of ``dx``, from the same dY and into the same layout.
        other_dw: computes dW instead of ``dw``, from the same X and dY.
    """

    dw: Primitive
    dx: Primitive | None
    widen: tuple[Primitive, ...] = ()
    other_dx: ChannelsLastConvolution | Winograd | None = None
    other_dw: FilterGradient | DepthwiseGradient | None = None

    @property
    def slow(self) -> bool:
        return any(made.slow for made in (self.dw, self.dx) if made is not None)

    @property
    def by_gemm(self) -> bool:
        """Whether the library unrolls the images for matrix products, as it does where it has no special kernel."""
        return any("gemm" in made.name for made in (self.dw, self.dx) if made is not None)

    @property
    def scratch(self) -> int:
        """Bytes of scratch memory that dX needs."""
        return self.other_dx.scratch if self.other_dx is not None else 0

    @property
    def saved_flops(self) -> int:
        """Floating-point operations that minimal filtering saves."""
        return sum(other.saved_flops for other in (self.other_dx, self.other_dw) if other is not None)

    def weights(self, spec: TensorSpec, view: View) -> TensorSpec:
        """Return the spec in which the weights are read, for dX."""
        if self.other_dx is not None:
            return self.other_dx.weights(spec)
        assert self.dx is not None
        return self.dx.spec(c.WEIGHTS, spec, view)

    def dx_steps(self, dy: MemoryRef, weights: MemoryRef, dx: MemoryRef) -> list[Step | Extra]:
        """Return the executions that compute dX."""
        if self.other_dx is not None:
            return self.other_dx.steps(dy, dx, weights)
        return [] if self.dx is None else [Step(self.dx, {c.DIFF_DST: dy, c.WEIGHTS: weights, c.DIFF_SRC: dx})]

    def dw_kernel(self, v: Views, x: TensorSpec, w: TensorSpec, dy: TensorSpec) -> Prepared:
        """Return a kernel that computes the gradients of the weights and the bias, for measuring it."""
        bias = self.dw.nbytes(c.DIFF_BIAS)
        steps, scratch = self.dw_steps(Persistent(bias) if bias else None)
        inputs = [self.x(x, v.x), None, self.dy(dy, v.y)]
        return prepared(inputs, [self.dw_spec(w, v.weights)], steps, scratch=scratch)

    def dw_spec(self, w: TensorSpec, view: View) -> TensorSpec:
        """Return the spec in which the gradient of the weights is written."""
        return self.other_dw.weights(w) if self.other_dw is not None else self.dw.spec(c.DIFF_WEIGHTS, w.plain, view)

    def dw_steps(self, bias: MemoryRef | None) -> tuple[list[Step | Extra], int]:
        """Return the executions that compute the gradients of weights and bias, and the bytes of scratch memory.

        X is input 0, dY input 2, the gradient of the weights output 0.

        Args:
            bias: the memory of the bias's gradient, None if it is not computed.
        """
        if self.other_dw is not None:
            return self.other_dw.steps(In(0), In(2), Out(0), bias), self.other_dw.scratch
        arguments: dict[int, MemoryRef] = {c.SRC: In(0), c.DIFF_DST: In(2), c.DIFF_WEIGHTS: Out(0)}
        if bias is not None:
            arguments[c.DIFF_BIAS] = bias
        steps: list[Step | Extra] = []
        scratch_memory = ScratchAllocator()
        for made, number in zip(self.widen, (c.SRC, c.DIFF_DST)):
            copy = scratch_memory.allocate(made.nbytes(c.DST))
            steps.append(Step(made, {c.SRC: arguments[number], c.DST: copy}))
            arguments[number] = copy
        return [*steps, Step(self.dw, arguments)], scratch_memory.nbytes

    def x(self, spec: TensorSpec, view: View) -> TensorSpec:
        """Return the spec in which X is read."""
        return (self.widen[0] if self.widen else self.dw).spec(c.SRC, spec, view)

    def dy(self, spec: TensorSpec, view: View) -> TensorSpec:
        """Return the spec in which dY is read."""
        return self.widen[1].spec(c.SRC, spec, view) if self.widen else self.dw.spec(c.DIFF_DST, spec, view)


def _prepare_gradient(
    op: Any, ctx: PlanContext, x: TensorSpec, w: TensorSpec, dy: TensorSpec, *, transposed: bool
) -> Prepared | None:
    if not serves(x, w, dy):
        return None
    v = Views(op, x, w, transposed=transposed)
    slow = None
    for code in types_for_products(ctx):
        search = _Search(op, ctx, v, code)
        found = search.find(x, dy) if code == c.F32 else search.find_best(x, w, dy)
        if found is not None and not found.slow:
            found = _with_faster_dw(op, ctx, v, found, x, w, dy)
            return _bound(op, v, _with_faster_dx(op, ctx, v, found, x, w, dy), x, w, dy)
        slow = slow or found
    if slow is None or op.group == 1 and op.flops(x, w, dy) > _REFERENCE_FLOPS:
        return None  # matrix products over unrolled windows (im2col) are far faster than the library's reference
    return _bound(op, v, slow, x, w, dy)


def _with_faster_dw(
    op: Any, ctx: PlanContext, v: Views, found: _Found, x: TensorSpec, w: TensorSpec, dy: TensorSpec
) -> _Found:
    """Return the primitives, with the fastest way to compute the gradient of the weights."""
    code = element_code(found.dw.argument(c.DIFF_DST))
    if not ctx.enabled("winograd") or not worth_measuring(op, ctx, v, x, w) or not may_serve(v, code):
        return found

    def through_winograd() -> _Found | None:
        made = filter_gradient(v, found.x(x, v.x), found.dy(dy, v.y), op.computes_db, threads=ctx.threads)
        return None if made is None else dataclasses.replace(found, other_dw=made)

    def kernels(found: _Found | None) -> list[Prepared]:
        return [] if found is None else [found.dw_kernel(v, x, w, dy)]

    key = f"gradient of the weights of {description_of(v, code)}, {'with' if op.computes_db else 'without'} a bias"
    ways = {"blocked": lambda: kernels(found), "winograd": lambda: kernels(through_winograd())}
    chosen = fastest(key, ways, ctx, flops=2 * op.products(x, w))
    return found if chosen == "blocked" else through_winograd() or found


def _with_faster_dx(
    op: Any, ctx: PlanContext, v: Views, found: _Found, x: TensorSpec, w: TensorSpec, dy: TensorSpec
) -> _Found:
    """Return the primitives, with the fastest way to compute dX, including the reorder of the weights in each step."""
    if found.dx is None or not worth_measuring(op, ctx, v, x, w):
        return found
    code = element_code(found.dx.argument(c.DIFF_DST))
    ends = found.dy(dy, v.y), found.dx.spec(c.DIFF_SRC, x.plain, v.x)
    own = found.dw_spec(w, v.weights)

    def through_channels_last() -> _Found | None:
        made = backward_data_channels_last(v, ends[1], ends[0], code, threads=ctx.threads)
        return None if made is None else dataclasses.replace(found, other_dx=made)

    def through_winograd() -> _Found | None:
        made = data_gradient(v, ends[1], ends[0], threads=ctx.threads)
        return None if made is None else dataclasses.replace(found, other_dx=made)

    def kernels(found: _Found | None) -> list[Prepared]:
        if found is None:
            return []
        needed = found.weights(w, v.weights)
        steps = found.dx_steps(In(0), In(1), Out(0))
        kernel = prepared([ends[0], needed], [ends[1]], steps, scratch=found.scratch)
        return [kernel] if own == needed else [kernel, reorder(ctx, own, needed)]

    ways = {"blocked": lambda: kernels(found), "channels last": lambda: kernels(through_channels_last())}
    if ctx.enabled("winograd") and may_serve(v, code):
        ways["winograd"] = lambda: kernels(through_winograd())
    key = f"gradient of the images of {description_of(v, code)}"
    chosen = fastest(key, ways, ctx, flops=2 * op.products(x, w))
    makers = {"blocked": lambda: found, "channels last": through_channels_last, "winograd": through_winograd}
    return makers[chosen]() or found


class _Search:
    """Finds the primitives of a convolution's gradient for images of one element type."""

    def __init__(self, op: Any, ctx: PlanContext, v: Views, code: int) -> None:
        self.op, self.ctx, self.v, self.code, self.threads = op, ctx, v, code, ctx.threads
        self.bias = plain_in(v.bias, c.F32) if op.computes_db else None
        self.x, self.y, self.weights = (any_order(view, code) for view in (v.x, v.y, v.weights))
        self.hint = forward(
            v.kind, self.x, self.weights, self.bias, self.y, v.window, False, (), threads=self.threads
        )  # fmt: skip

    def find(self, x: TensorSpec, dy: TensorSpec) -> _Found | None:
        """Return the primitives for X and dY in their layouts or, if those are slow, in other layouts."""
        if self.hint is None:
            return None
        wish_x, wish_y = own_order(x, self.v.x, self.code), own_order(dy, self.v.y, self.code)
        dw = first_fast(self._make_dw, [(wish_x, wish_y), (wish_x, self.y), (self.x, self.y)])
        in_parts = None
        if dw is not None and self.code == c.F32 and "gemm" in dw.name:
            in_parts = depthwise_gradient(self.v, self.bias, threads=self.threads)
            dw = dw if in_parts is None else in_parts.whole
        if dw is None or not self.op.computes_dx:
            return None if dw is None else _Found(dw, None, other_dw=in_parts)
        # Both primitives read the same dY, so the second has to use the layout that the first has chosen.
        chosen_y = dw.desc(c.DIFF_DST, self.v.y)
        dx = first_fast(self._make_dx, [(wish_x, chosen_y), (self.x, chosen_y)])
        return _Found(dw, dx, other_dw=in_parts) if dx is not None else None

    def find_best(self, x: TensorSpec, w: TensorSpec, dy: TensorSpec) -> _Found | None:
        """Return the primitives for X and dY in bfloat16; for the weights, those in float32 if they are faster."""
        found = self.find(x, dy)
        may_wait = self.threads > 1 and not self.v.is_pointwise and may_measure(self.ctx)
        poor = found is None or found.slow or found.by_gemm
        if not poor and not may_wait:
            return found
        other = self._find_widened(None if poor else found, x, dy)
        if found is None or other is None:
            return found or other
        if poor:
            return other if (other.slow, other.by_gemm) < (found.slow, found.by_gemm) else found
        return self._faster(found, other, x, w, dy)

    def _find_widened(self, direct: _Found | None, x: TensorSpec, dy: TensorSpec) -> _Found | None:
        """Return primitives that convert X and dY to float32 for the weights; dX is computed as in ``direct``."""
        wide = _Search(self.op, self.ctx, self.v, c.F32)
        dw = wide._make_dw(wide.x, wide.y) if wide.hint is not None else None
        if dw is None or self.hint is None:
            return None
        own_x, own_y = desc_in(x, self.v.x, self.code), desc_in(dy, self.v.y, self.code)
        dx = None
        if direct is not None:
            own_x, own_y, dx = direct.dw.desc(c.SRC, self.v.x), direct.dw.desc(c.DIFF_DST, self.v.y), direct.dx
        elif self.op.computes_dx:
            wish_x, wish_y = own_order(x, self.v.x, self.code), own_order(dy, self.v.y, self.code)
            dx = first_fast(self._make_dx, [(wish_x, wish_y), (self.x, wish_y), (self.x, self.y)])
            if dx is None:
                return None
            own_y = dx.desc(c.DIFF_DST, self.v.y)
        first = reorder_primitive(own_x, dw.desc(c.SRC, self.v.x), threads=self.threads)
        second = reorder_primitive(own_y, dw.desc(c.DIFF_DST, self.v.y), threads=self.threads)
        return _Found(dw, dx, (first, second)) if first is not None and second is not None else None

    def _make_dw(self, src: Desc, dst: Desc) -> Primitive | None:
        v, weights = self.v, any_order(self.v.weights, c.F32)
        return backward_weights(v.kind, src, weights, self.bias, dst, v.window, self.hint, threads=self.threads)

    def _make_dx(self, src: Desc, dst: Desc) -> Primitive | None:
        v = self.v
        return backward_data(v.kind, src, self.weights, dst, v.window, self.hint, threads=self.threads)

    def _faster(self, direct: _Found, other: _Found, x: TensorSpec, w: TensorSpec, dy: TensorSpec) -> _Found:
        """Return the one that computes the gradient of the weights faster."""
        ways = {"bfloat16": direct, "float32": other}
        key = f"gradient of the weights of {description_of(self.v, self.code)}"
        makers = {name: lambda found=found: [found.dw_kernel(self.v, x, w, dy)] for name, found in ways.items()}
        return ways[fastest(key, makers, self.ctx, flops=2 * self.op.products(x, w))]


def _bound(op: Any, v: Views, found: _Found, x: TensorSpec, w: TensorSpec, dy: TensorSpec) -> Prepared:
    inputs: list[TensorSpec | None] = [found.x(x, v.x), None, found.dy(dy, v.y)]
    outputs = [found.dw_spec(w, v.weights)]
    bias = Out(1) if op.computes_db else None
    if bias is not None:
        outputs.append(TensorSpec(v.bias.dims, x.dtype))
    steps, scratch = found.dw_steps(bias)
    inplace = []
    if found.dx is not None:
        inputs[1] = found.weights(w, v.weights)
        inplace.append((0, len(outputs)))  # dX is computed when nothing reads X any more
        outputs.append(found.dx.spec(c.DIFF_SRC, x.plain, v.x))
        steps += found.dx_steps(In(2), In(1), Out(len(outputs) - 1))
    scratch = max(scratch, found.scratch)
    return prepared(inputs, outputs, steps, inplace=inplace, scratch=scratch, saved_flops=found.saved_flops)
