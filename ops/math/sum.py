"""Sum and Mean of any number of tensors of the same shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.half import widen
from netbuilder.ops.core.operator import Exchange, InBatch, Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Mean", "MeanGradient", "Sum"]


def _infer_same_shape(
    op: Operator, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]
) -> tuple[Sequence[TensorSpec | None], Sequence[TensorSpec | None]]:
    """Give every unknown spec the shape and type of the known ones.

    Raises:
        ShapeError: two known ones differ; the message says which.
    """
    known: tuple[str, TensorSpec] | None = None
    for what, specs in (("input", inputs), ("output", outputs)):
        for i, spec in enumerate(specs):
            if spec is None:
                continue
            here = f"{what} {i}"
            if known is None:
                known = here, spec.plain
            require(
                spec.shape == known[1].shape,
                op,
                f"all must have the same shape; {known[0]} has {known[1].shape}, {here} has {spec.shape}",
            )
    if known is None:
        return inputs, outputs
    return [known[1] if s is None else s for s in inputs], [known[1] if s is None else s for s in outputs]


@register
@dataclass(frozen=True)
class Sum(Operator):
    """Y = X0 + X1 + ...; the gradient of each input is the output's gradient itself."""

    signature = "X+ (*S): one float|int -> Y (*S): as X"
    inplace = ((0, 0),)
    in_batch = InBatch.LINEAR | InBatch.ROW_BY_ROW
    exchanges = Exchange.BETWEEN_DEVICES

    def infer_partial(
        self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]
    ) -> tuple[Sequence[TensorSpec | None], Sequence[TensorSpec | None]]:
        return _infer_same_shape(self, inputs, outputs)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        dy = g.d_output("Y")
        for i in range(len(g.op.input)):
            g.set_d_input(i, dy)
        return []

    def flops(self, *x: TensorSpec) -> int:
        return (len(x) - 1) * x[0].size


def _total(xp: Any, xs: Sequence[Any]) -> Any:
    """Return the sum of arrays in a new array, added from the first to the last; of float16 in float32."""
    if len(xs) == 1:
        return xs[0].copy()
    total = xp.asarray(xp.add(widen(xs[0]), widen(xs[1])))
    for x in xs[2:]:
        xp.add(total, x, out=total)
    return total


@kernel(Sum)
def sum_(op: Sum, ctx: RunContext, *xs: Any) -> tuple[Any, ...]:
    return (_total(ctx.xp, xs).astype(xs[0].dtype, copy=False),)


@register
@dataclass(frozen=True)
class Mean(Operator):
    """Y = (X0 + X1 + ...) / number of inputs."""

    signature = "X+ (*S): one float -> Y (*S): as X"
    inplace = ((0, 0),)
    in_batch = InBatch.LINEAR

    def infer_partial(
        self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]
    ) -> tuple[Sequence[TensorSpec | None], Sequence[TensorSpec | None]]:
        return _infer_same_shape(self, inputs, outputs)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("MeanGradient", [g.d_output("Y")], [g.d_input(i) for i in range(len(g.op.input))])]

    def flops(self, *x: TensorSpec) -> int:
        return len(x) * x[0].size


@kernel(Mean)
def mean(op: Mean, ctx: RunContext, *xs: Any) -> tuple[Any, ...]:
    total = _total(ctx.xp, xs)
    return ((total / total.dtype.type(len(xs))).astype(xs[0].dtype, copy=False),)


@register
@dataclass(frozen=True)
class MeanGradient(Operator):
    """Each output is dY / number of outputs."""

    signature = "dY -> dX+"
    inplace = ((0, 0),)


@kernel(MeanGradient)
def mean_gradient(op: MeanGradient, ctx: RunContext, dy: Any) -> tuple[Any, ...]:
    share = dy / dy.dtype.type(op.n_out)
    return (share, *(share.copy() for _ in range(op.n_out - 1)))
