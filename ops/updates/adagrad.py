"""Adagrad, dense and sparse: the gradient divided by the root of the sum of its squares."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.declaration import operator_class
from netbuilder.ops.core.half import widen
from netbuilder.ops.core.operator import Operator, TensorSpec
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.engines import flat
from netbuilder.ops.engines.piecewise import Piecewise, piecewise
from netbuilder.ops.updates.row_updates import add_row_kernels
from netbuilder.ops.updates.sparse_updates import Rows, SparseUpdate
from netbuilder.ops.updates.update_rules import check_range, check_rate, check_same, rate_as

__all__ = ["Adagrad", "SparseAdagrad"]


@register
@operator_class(frozen=True)
class Adagrad(Operator):
    """H' = decay * H + G^2; P' = P + L * G with the effective rate L = lr / (sqrt(H') + epsilon).

    G is the gradient, with ``weight_decay`` times P added. The third output is L, the fourth the update L * G. The
    step is added, so ``lr`` is negative for descent.

    Source: Duchi, Hazan and Singer, "Adaptive subgradient methods for online learning and stochastic optimization",
    2011, section 1.
    """

    signature = """
        param (*S): float
        moment (*S): as param
        grad (*S): as param
        lr (1) or (): float
        -> output_param (*S): as param
        -> output_moment (*S): as param
        -> output_effective_lr? (*S): as param
        -> output_update? (*S): as param
    """
    inplace = ((0, 0), (1, 1))
    epsilon: float = 1e-5
    decay: float = 1.0
    weight_decay: float = 0.0

    def check(self) -> None:
        check_range(self, 0, 1, decay=self.decay)
        check_range(self, 0, math.inf, epsilon=self.epsilon, weight_decay=self.weight_decay)

    def infer(self, param: TensorSpec, moment: TensorSpec, grad: TensorSpec, lr: TensorSpec) -> tuple[TensorSpec, ...]:
        check_same(self, param=param, moment=moment, grad=grad)
        check_rate(self, lr)
        return (param.plain,) * self.n_out

    def flops(self, param: TensorSpec, *others: TensorSpec) -> int:
        return 8 * param.size


@kernel(Adagrad)
def adagrad(op: Adagrad, ctx: RunContext, param: Any, moment: Any, grad: Any, lr: Any) -> tuple[Any, ...]:
    p, g = widen(param), widen(grad)
    if op.weight_decay:
        g = g + op.weight_decay * p
    h = op.decay * widen(moment) + g * g
    effective = rate_as(lr, g) / (ctx.xp.sqrt(h) + op.epsilon)
    update = effective * g
    results = (p + update, h, effective, update)
    return tuple(x.astype(param.dtype) for x in results[: op.n_out])


@piecewise(Adagrad)
def _adagrad_pieces(
    op: Adagrad, param: TensorSpec, moment: TensorSpec, grad: TensorSpec, lr: TensorSpec
) -> Piecewise | None:
    # Padding must stay zero; the effective rate of padding is not, so a third output requires the plain layout.
    spec = flat.common_spec([param, moment, grad], zero_to_zero=op.epsilon > 0 and op.n_out == 2)
    if spec is None or lr.dtype != spec.dtype:
        return None
    decay, epsilon, shrink = (flat.scalar(v, spec.dtype) for v in (op.decay, op.epsilon, op.weight_decay))

    def steps(
        ins: Sequence[Any], outs: Sequence[Any], spare: Sequence[Any], needed: Sequence[bool]
    ) -> Iterator[flat.Step]:
        p, h, g, rate = ins
        p_new, h_new, *extra = outs
        t = spare[0]
        effective = extra[0] if extra else t
        update = extra[1] if len(extra) > 1 else t
        if op.weight_decay:
            decayed = spare[1]
            yield np.multiply, (p, shrink, decayed)
            yield np.add, (decayed, g, decayed)
            g = decayed
        yield np.multiply, (g, g, t)
        if op.decay != 1:
            yield np.multiply, (h, decay, h_new)
        yield np.add, (h_new if op.decay != 1 else h, t, h_new)
        yield np.sqrt, (h_new, t)
        yield np.add, (t, epsilon, t)
        yield np.divide, (rate, t, effective)
        yield np.multiply, (effective, g, update)
        yield np.add, (p, update, p_new)

    return Piecewise(spec, frozenset({3}), steps, temporaries=2 if op.weight_decay else 1)


@register
@operator_class(frozen=True)
class SparseAdagrad(SparseUpdate):
    """Adagrad on the rows ``indices`` of a table; a row that occurs several times is updated each time, in order."""

    signature = """
        param (R, *S): float
        moment (R, *S): as param
        indices (I): int32|int64
        grad (I, *S): as param
        lr (1) or (): float
        -> output_param (R, *S): as param
        -> output_moment_1 (R, *S): as param
    """
    must_inplace = ((0, 0), (1, 1))
    epsilon: float = 1e-5
    weight_decay: float = 0.0

    def check(self) -> None:
        check_range(self, 0, math.inf, epsilon=self.epsilon, weight_decay=self.weight_decay)

    def update(self, ctx: RunContext, rows: Rows, g: Any, numbers: Rows, reduced: Any) -> Rows:
        p, h = rows
        if self.weight_decay:
            g = g + self.weight_decay * p
        h = h + g * g
        return p + rate_as(numbers[0], g) * g / (ctx.xp.sqrt(h) + self.epsilon), h


add_row_kernels(SparseAdagrad)
