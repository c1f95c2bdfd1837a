"""Dynamic scaling of gradients: AllFinite, DivideBlobs, SaveBlobs, RestoreBlobs and UpdateGradientScale.

Gradients in float16 underflow below 6e-8. So the loss is multiplied by a large scale, and the gradients are divided by
it, in float32, before the update. Where a gradient has overflowed, the step changes nothing and the scale becomes
smaller; after many steps without overflow it becomes larger.

Source: Micikevicius et al., "Mixed precision training", 2017, arXiv:1710.03740, section 3.2.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.half import narrow, widen
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["AllFinite", "DivideBlobs", "RestoreBlobs", "SaveBlobs", "UpdateGradientScale"]

_MOST = 1000
_SMALLEST, _LARGEST = 2.0**-14, 2.0**100


@register
@dataclass(frozen=True)
class AllFinite(Operator):
    """Y = whether no element of any X is infinite or NaN."""

    signature = "X+ (...): float -> Y (1): bool"

    def flops(self, *xs: TensorSpec) -> int:
        return sum(x.size for x in xs)


@kernel(AllFinite)
def all_finite(op: AllFinite, ctx: RunContext, *xs: Any) -> tuple[Any, ...]:
    finite = ctx.xp.ones(1, bool)
    for x in xs:
        finite &= ctx.xp.isfinite(x).all()
    return (finite,)


@register
@dataclass(frozen=True)
class DivideBlobs(Operator):
    """Each Y is its X divided by the scale, in place; float16 is divided in float32."""

    signature = "scale (1): float32, X+ (...): float -> Y+ (...): as X"
    must_inplace: ClassVar[tuple[tuple[int, int], ...]] = tuple((i + 1, i) for i in range(_MOST))

    def check(self) -> None:
        if self.n_out != self.n_in - 1 or self.n_out > _MOST:
            raise ArgumentError(
                f"DivideBlobs takes a scale and 1 to {_MOST} blobs, which are its outputs too; got {self.n_in} inputs "
                f"and {self.n_out} outputs"
            )

    def flops(self, scale: TensorSpec, *xs: TensorSpec) -> int:
        return sum(x.size for x in xs)


@kernel(DivideBlobs)
def divide_blobs(op: DivideBlobs, ctx: RunContext, scale: Any, *xs: Any) -> tuple[Any, ...]:
    divisor = scale.reshape(())
    return tuple(narrow(widen(x) / divisor, x) for x in xs)


@register
@dataclass(frozen=True)
class SaveBlobs(Operator):
    """Each Y is a copy of its X, for RestoreBlobs."""

    signature = "X+ (...): any -> Y+ (...): as X"
    flops_per_element = 0

    def check(self) -> None:
        if self.n_out != self.n_in:
            raise ArgumentError(
                f"SaveBlobs has as many outputs as inputs, got {self.n_in} inputs and {self.n_out} outputs"
            )


@kernel(SaveBlobs)
def save_blobs(op: SaveBlobs, ctx: RunContext, *xs: Any) -> tuple[Any, ...]:
    return tuple(x.copy() for x in xs)


@register
@dataclass(frozen=True)
class RestoreBlobs(Operator):
    """Each Y is its X, in place, if the condition is true, and else what X was before."""

    signature = """
        condition (1): bool
        X+ (...): any, as many blobs, and then as many earlier values of them
        -> Y+ (...): as X
    """
    flops_per_element = 0
    must_inplace: ClassVar[tuple[tuple[int, int], ...]] = tuple((i + 1, i) for i in range(_MOST))

    def check(self) -> None:
        if self.n_in != 1 + 2 * self.n_out or self.n_out > _MOST:
            raise ArgumentError(
                f"RestoreBlobs takes a condition, 1 to {_MOST} blobs, which are its outputs too, and as many earlier "
                f"values; got {self.n_in} inputs and {self.n_out} outputs"
            )

    def check_inputs(self, condition: TensorSpec, *xs: TensorSpec) -> None:
        blobs, before = xs[: self.n_out], xs[self.n_out :]
        for i, (x, earlier) in enumerate(zip(blobs, before), start=1):
            require(
                x.shape == earlier.shape and x.dtype == earlier.dtype,
                self,
                f"input {i} and its earlier value, input {i + self.n_out}, must have one shape and type, got {x.shape} "
                f"{x.dtype} and {earlier.shape} {earlier.dtype}",
            )


@kernel(RestoreBlobs)
def restore_blobs(op: RestoreBlobs, ctx: RunContext, condition: Any, *xs: Any) -> tuple[Any, ...]:
    blobs, before = xs[: op.n_out], xs[op.n_out :]
    if not ctx.is_gpu:
        return blobs if condition[0] else before
    flag = condition.reshape(())  # which the host does not read
    return tuple(ctx.xp.where(flag, x, earlier) for x, earlier in zip(blobs, before))


@register
@dataclass(frozen=True)
class UpdateGradientScale(Operator):
    """Multiply the scale by ``backoff`` if gradients were not finite, by ``growth`` after ``interval`` finite steps.

    ``steps`` counts finite steps since the scale has changed. The scale stays between 2**-14 and 2**100.
    """

    signature = """
        scale (1): float32
        steps (1): int32
        finite (1): bool
        -> scale (1): float32
        -> steps (1): int32
    """
    must_inplace = ((0, 0), (1, 1))
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000

    def check(self) -> None:
        if not self.growth >= 1 or not 0 < self.backoff <= 1 or self.interval < 1:
            raise ArgumentError(
                "UpdateGradientScale: growth must be at least 1, backoff in (0, 1] and interval at least 1, got "
                f"growth={self.growth}, backoff={self.backoff}, interval={self.interval}"
            )

    def flops(self, *inputs: TensorSpec) -> int:
        return 2


@kernel(UpdateGradientScale)
def update_gradient_scale(
    op: UpdateGradientScale, ctx: RunContext, scale: Any, steps: Any, finite: Any
) -> tuple[Any, ...]:
    xp, counted = ctx.xp, steps + 1
    grows = finite & (counted >= op.interval)
    factor = xp.where(grows, np.float32(op.growth), xp.where(finite, np.float32(1), np.float32(op.backoff)))
    scaled = xp.clip(scale * factor, np.float32(_SMALLEST), np.float32(_LARGEST)).astype(scale.dtype)
    return scaled, xp.where(finite & ~grows, counted, 0).astype(steps.dtype)
