"""LayerNorm: each sample normalized over its last axes; and its gradient."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.half import narrow, widen
from netbuilder.ops.core.operator import InBatch, Operator, TensorSpec, require, spec_of
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError, NetError, OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.errors import counted
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["C10LayerNorm_DontUseThisOpYet", "FromAxis", "LayerNorm", "LayerNormGradient"]


@dataclass(frozen=True)
class FromAxis(Operator):
    """Base of normalizations over the axes from ``axis`` on."""

    remedies: ClassVar[dict[str, str]] = dict.fromkeys(
        ("gamma", "beta"),
        "that is the size of X from axis on: give the layer that as its dim, X so many features, or another axis "
        "(axis=-1: each row of the last axis)",
    )
    axis: int = 1

    def extents(self, x: TensorSpec) -> tuple[int, int]:
        """Return the rows and columns of X as a matrix of which each row is normalized."""
        axis = self.axis % x.ndim
        return math.prod(x.shape[:axis]), math.prod(x.shape[axis:])

    def check_inputs(self, *inputs: TensorSpec) -> None:
        x = inputs[[name.rstrip("?") for name in self.inputs].index("X")]
        text = f"X of shape {x.shape} has no elements to normalize from axis {self.axis} on"
        require(self.extents(x)[1] > 0, self, text)


@dataclass(frozen=True)
class _Arguments(FromAxis):
    epsilon: float = 1e-5
    elementwise_affine: bool = False

    def check(self) -> None:
        if self.epsilon < 0:
            raise ArgumentError(f"{self.type}: epsilon must not be negative, got {self.epsilon}")


@register
@dataclass(frozen=True)
class LayerNorm(_Arguments):
    """Y = (X - mean) / std, with statistics over all axes from ``axis`` on; std = sqrt(variance + epsilon).

    With ``elementwise_affine``, Y = (X - mean) / std * gamma + beta.

    Source: Ba, Kiros and Hinton, "Layer Normalization", 2016, arXiv:1607.06450.
    """

    signature = """
        X (*A, D @ axis, *B): float
        gamma? {D * prod(B)}: wide X
        beta? {D * prod(B)}: wide X
        -> Y: as X
        -> mean (*A, 1): as X
        -> std (*A, 1): as X
    """
    in_batch = InBatch.ROW_BY_ROW

    def check(self) -> None:
        super().check()
        if self.elementwise_affine and self.n_in != 3:
            raise NetError(
                f"{self.type}: with elementwise_affine=1 it needs the inputs X, gamma and beta, got "
                f"{counted(self.n_in, 'input')}"
            )

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.d_output("Y"), g.output("Y"), g.output("mean"), g.output("std"), g.input("X")]
        outputs = [g.d_input("X")]
        if self.elementwise_affine:
            inputs.append(g.input("gamma"))
            outputs += [g.d_input("gamma"), g.d_input("beta")]
        return [make_op("LayerNormGradient", inputs, outputs)]

    def flops(self, x: TensorSpec, *affine: TensorSpec) -> int:
        return (8 if self.elementwise_affine else 6) * x.size


@register
@dataclass(frozen=True)
class C10LayerNorm_DontUseThisOpYet(LayerNorm):
    """LayerNorm under its name from an experiment in Caffe2's last releases, without a gradient."""

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        raise NotImplementedError(f"{self.type} has no gradient; use LayerNorm, which has one")


@register
@dataclass(frozen=True)
class LayerNormGradient(_Arguments):
    """dX of LayerNorm and, with ``elementwise_affine``, the gradients of gamma and beta."""

    signature = "dY, Y, mean, std, X, gamma? -> dX, dgamma?, dbeta?: as gamma"
    flops_per_element = 10

    def check(self) -> None:
        super().check()
        expected = (6, 3) if self.elementwise_affine else (5, 1)
        if (self.n_in, self.n_out) != expected:
            raise NetError(
                f"LayerNormGradient: with elementwise_affine={self.elementwise_affine} it takes {expected[0]} inputs "
                f"and makes {counted(expected[1], 'output')}, got {self.n_in} and {self.n_out}"
            )


@kernel(LayerNorm)
@kernel(C10LayerNorm_DontUseThisOpYet)
def layer_norm(op: LayerNorm, ctx: RunContext, x: Any, *affine: Any) -> tuple[Any, ...]:
    rows = widen(x).reshape(op.extents(spec_of(x)))
    mean = rows.mean(axis=1, keepdims=True)
    y = rows - mean
    variance = (y * y).mean(axis=1, keepdims=True)
    std = ctx.xp.sqrt(variance + variance.dtype.type(op.epsilon))
    y /= std
    if op.elementwise_affine:
        gamma, beta = (widen(a).reshape(1, -1) for a in affine)
        y = y * gamma + beta
    stats = (*x.shape[: op.axis % x.ndim], 1)
    return narrow(y.reshape(x.shape), x), narrow(mean.reshape(stats), x), narrow(std.reshape(stats), x)


@kernel(LayerNormGradient)
def layer_norm_gradient(
    op: LayerNormGradient, ctx: RunContext, dy: Any, y: Any, mean: Any, std: Any, x: Any, gamma: Any = None
) -> tuple[Any, ...]:
    shape = op.extents(spec_of(x))
    d_rows, deviation = widen(dy).reshape(shape), widen(std).reshape(-1, 1)
    normal = (widen(x).reshape(shape) - widen(mean).reshape(-1, 1)) / deviation
    d_normal = d_rows if gamma is None else d_rows * widen(gamma).reshape(1, -1)
    projection = (d_normal * normal).mean(axis=1, keepdims=True)
    d_values = (d_normal - d_normal.mean(axis=1, keepdims=True) - normal * projection) / deviation
    dx = narrow(d_values.reshape(x.shape), x)
    if gamma is None:
        return (dx,)
    dgamma, dbeta = (d_rows * normal).sum(axis=0), d_rows.sum(axis=0)
    return dx, narrow(dgamma.reshape(gamma.shape), gamma), narrow(dbeta.reshape(gamma.shape), gamma)
