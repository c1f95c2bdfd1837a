"""What engines with kernels for convolutions have alike in their tables: fusions, and operators of fixed rank."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from netbuilder.engines.fusion import Condition, Fusion
from netbuilder.ops.core.contexts import Prepared

__all__ = ["conv_fusions", "with_fixed_ranks"]

Entry = TypeVar("Entry")


def conv_fusions(fused_conv: Callable[..., Prepared | None]) -> tuple[Fusion, ...]:
    """Return the fusions of Conv with Relu, with Sum or an Add of equal shapes, and with both.

    Args:
        fused_conv: ``fused_conv(op, ctx, specs, relu=False, add=None) -> Prepared | None`` prepares the Conv ``op`` of
            inputs ``specs``, with a Relu after it, and with an addend of spec ``add``.
    """

    def relu(op: Any, ctx: Any, *specs: Any) -> Prepared | None:
        return fused_conv(op, ctx, specs, relu=True)

    def add(op: Any, ctx: Any, *specs: Any, relu: bool = False) -> Prepared | None:
        *own, other = specs
        (y,) = op.infer(*(spec.plain for spec in own))
        return fused_conv(op, ctx, own, relu=relu, add=other) if other.shape == y.shape else None

    found = [Fusion("Conv: *x -> a; Relu: a -> y", "*x -> y", relu, "conv_relu")]
    for total in ("Sum", "Add"):
        operators = f"Conv: *x -> a; {total}: {{a other}} -> y"
        overwritten = {"other": Condition.OVERWRITTEN}
        found += [
            Fusion(f"Conv+{total}: *x -> a; Relu: a -> y", "*x -> y", partial(add, relu=True), "conv_relu"),
            Fusion(operators, "*x other -> y", add, "conv_sum", conditions=overwritten),
        ]
    return tuple(found)


def with_fixed_ranks(table: dict[str, Entry]) -> dict[str, Entry]:
    """Return a table by operator type with the types for 1, 2 and 3 axes (``Conv2D``, ``MaxPool3DGradient``) added."""
    fixed = {
        f"{name}{axes}D{suffix}": table[name + suffix]
        for name in ("AveragePool", "Conv", "MaxPool")
        for suffix in ("", "Gradient")
        for axes in (1, 2, 3)
    }
    return {**table, **fixed}
