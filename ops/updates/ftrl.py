"""Follow the regularized leader: Ftrl, and GFtrl, which sets groups of weights to 0 as a whole."""

from __future__ import annotations

import math
from typing import Any

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.half import narrow, widen
from netbuilder.ops.core.operator import Operator
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.updates.update_rules import check_range, rate_as
from netbuilder.proto import ArgumentError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Ftrl", "FtrlArguments", "GFtrl", "ftrl_step"]


@dataclass(frozen=True)
class FtrlArguments(Operator):
    """Base: the arguments of Ftrl."""

    alpha: float = 0.005
    beta: float = 1.0
    lambda1: float = 0.001
    lambda2: float = 0.001

    def check(self) -> None:
        check_range(self, 0, math.inf, beta=self.beta, lambda1=self.lambda1, lambda2=self.lambda2)
        if not self.alpha > 0:
            raise ArgumentError(f"{self.type}: alpha must be positive, got {self.alpha}")


@dataclass(frozen=True)
class _Ftrl(FtrlArguments):
    """Base: the last axis of ``n_z`` holds the state (n, z) of each weight; a fourth input replaces ``alpha``."""

    signature = """
        param (*S): float
        n_z (*S, 2): as param, a pair for each weight
        grad (*S): as param
        alpha? {1}: float|int
        -> output_param (*S): as param
        -> output_n_z (*S, 2): as param
    """
    inplace = ((0, 0), (1, 1))
    flops_per_element = 18


@register
@dataclass(frozen=True)
class Ftrl(_Ftrl):
    """n' = n + G^2, z' = z + G - (sqrt(n') - sqrt(n)) / alpha * P, and P' from z' and n'.

    P' = (sign(z') * lambda1 - z') / ((beta + sqrt(n')) / alpha + lambda2), or 0 where |z'| <= lambda1.

    Source: McMahan et al., "Ad click prediction: a view from the trenches", 2013, algorithm 1.
    """


@register
@dataclass(frozen=True)
class GFtrl(_Ftrl):
    """As Ftrl, but lambda1 * sqrt(N) is compared with the norm of z' over the N elements along the first axis.

    P' = z' * (lambda1 * sqrt(N) / norm - 1) / ((beta + sqrt(n')) / alpha + lambda2), or 0 where the norm is at most
    lambda1 * sqrt(N): all weights of one input of a layer become 0 together.

    Source: Ni et al., "Feature selection for Facebook feed ranking system via a group-sparsity-regularized training
    algorithm", 2019.
    """


@kernel(Ftrl)
@kernel(GFtrl)
def ftrl(op: Any, ctx: RunContext, param: Any, n_z: Any, grad: Any, alpha: Any = None) -> tuple[Any, ...]:
    p, g, state = widen(param), widen(grad), widen(n_z)
    rate = op.alpha if alpha is None else rate_as(alpha, g)
    p, n, z = ftrl_step(ctx.xp, op, p, state[..., 0], state[..., 1], g, rate)
    return narrow(p, param), narrow(ctx.xp.stack([n, z], axis=-1), n_z)


def ftrl_step(xp: Any, op: Any, p: Any, n: Any, z: Any, g: Any, rate: Any) -> tuple[Any, Any, Any]:
    """Return the new weights and their new states n and z.

    Args:
        op: an operator with the arguments of Ftrl.
        p, n, z, g: weights, their states, gradient.
        rate: alpha.
    """
    square = g * g
    root = xp.sqrt(n + square)
    both = root + xp.sqrt(n)
    gain = square / xp.where(both > 0, both, 1)  # the difference of the roots, computed without cancellation
    z = z + g - gain / rate * p
    divisor = (op.beta + root) / rate + op.lambda2
    if op.type == "GFtrl":
        bound, size = op.lambda1 * math.sqrt(p.shape[0] if p.ndim else 1), xp.abs(z)
        if p.ndim:
            size = xp.sqrt((z * z).sum(axis=0, keepdims=True))
        shrink = z * bound / xp.where(size > bound, size, 1)
    else:
        bound, size = op.lambda1, xp.abs(z)
        shrink = xp.sign(z) * bound
    p = xp.where(size > bound, (shrink - z) / divisor, 0)
    return p, n + square, z
