"""RMSNorm: each sample divided by its root mean square; and its gradient."""

from __future__ import annotations

from typing import Any

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.half import narrow, widen
from netbuilder.ops.core.operator import spec_of
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.normalization.layer_norm import FromAxis
from netbuilder.proto import ArgumentError, OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["RMSNorm", "RMSNormGradient"]


@dataclass(frozen=True)
class _Arguments(FromAxis):
    eps: float = 0.0

    def check(self) -> None:
        if self.eps < 0:
            raise ArgumentError(f"{self.type}: eps must not be negative, got {self.eps}")


@register
@dataclass(frozen=True)
class RMSNorm(_Arguments):
    """Y = X * rrms * gamma + beta, with rrms = 1 / sqrt(mean of X^2 + eps) over all axes from ``axis`` on.

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019, arXiv:1910.07467.
    """

    signature = """
        X (*A, D @ axis, *B): float
        gamma {D * prod(B)}: as X
        beta {D * prod(B)}: as X
        -> Y: as X
        -> rrms (*A): as X
    """
    flops_per_element = 5

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.d_output("Y"), g.input("X"), g.input("gamma"), g.output("rrms")]
        return [make_op("RMSNormGradient", inputs, [g.d_input(i) for i in range(3)])]


@register
@dataclass(frozen=True)
class RMSNormGradient(_Arguments):
    """Gradients of RMSNorm: of X, gamma and beta."""

    signature = "dY, X, gamma, rrms -> dX, dgamma, dbeta: as gamma"
    flops_per_element = 9


@kernel(RMSNorm)
def rms_norm(op: RMSNorm, ctx: RunContext, x: Any, gamma: Any, beta: Any) -> tuple[Any, ...]:
    rows = widen(x).reshape(op.extents(spec_of(x)))
    squares = (rows * rows).mean(axis=1, keepdims=True)
    rrms = 1 / ctx.xp.sqrt(squares + squares.dtype.type(op.eps))
    y = rows * rrms * widen(gamma).reshape(1, -1) + widen(beta).reshape(1, -1)
    return narrow(y.reshape(x.shape), x), narrow(rrms.reshape(x.shape[: op.axis % x.ndim]), x)


@kernel(RMSNormGradient)
def rms_norm_gradient(op: RMSNormGradient, ctx: RunContext, dy: Any, x: Any, gamma: Any, rrms: Any) -> tuple[Any, ...]:
    shape = op.extents(spec_of(x))
    d_rows, inverse = widen(dy).reshape(shape), widen(rrms).reshape(-1, 1)
    normal = widen(x).reshape(shape) * inverse
    d_normal = d_rows * widen(gamma).reshape(1, -1)
    dx = (d_normal - normal * (d_normal * normal).mean(axis=1, keepdims=True)) * inverse
    dgamma, dbeta = ((d_rows * normal).sum(axis=0), d_rows.sum(axis=0))
    return narrow(dx.reshape(x.shape), x), *(narrow(d.reshape(gamma.shape), gamma) for d in (dgamma, dbeta))
