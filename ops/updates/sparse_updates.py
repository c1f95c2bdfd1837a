"""Updates of the table rows that a sparse gradient touches; their cost grows with these rows, not with the table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.core.registry import register
from netbuilder.ops.core.segment_groups import per_row
from netbuilder.ops.updates.ftrl import FtrlArguments, ftrl_step
from netbuilder.ops.updates.row_updates import RowUpdate, add_row_kernels
from netbuilder.ops.updates.update_rules import (
    check_range,
    rate_as,
    step_number,
)
from netbuilder.proto import ArgumentError
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "RowWiseSparseAdagrad",
    "Rows",
    "RowWiseSparseAdam",
    "SmartDecaySparseAdam",
    "SparseAdadelta",
    "SparseAdam",
    "SparseFtrl",
    "SparseUpdate",
]

Rows = Sequence[Any]


@dataclass(frozen=True)
class SparseUpdate(RowUpdate):
    """Base: the inputs are tables, indices, grad, and numbers; a further output has the effective gradients."""

    counter: ClassVar[int | None] = None  # index of the input iter, which is read on the host

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "host" if index == self.counter else "here"

    def flops(self, *given: TensorSpec) -> int:
        return 10 * given[len(self.tables) + 1].size


@register
@dataclass(frozen=True)
class RowWiseSparseAdagrad(SparseUpdate):
    """h' = h + mean(G^2) over a row, P' = P + lr * G / (sqrt(h') + epsilon), on the rows ``indices``.

    G is the gradient, with ``weight_decay`` times P added; ``moment`` holds one h per row. The step is added, so ``lr``
    is negative for descent. ``counter`` has the number of recent updates of each row (see RowWiseCounter). With it and
    a positive ``counter_halflife``, a row's decay is multiplied by ``counter_halflife / counter`` where the counter is
    positive, so that rows that are updated seldom decay more in each update.
    """

    signature = """
        param (R, *S): float
        moment (R): as param, one number per row
        indices (*I): int32|int64
        grad (*I, *S): as param
        lr {1}: float|int
        counter? (R): float64
        -> output_param (R, *S): as param
        -> output_moment (R): as param
    """
    must_inplace = ((0, 0), (1, 1))
    by_row = ("counter",)
    reduced = "mean"
    epsilon: float = 1e-5
    weight_decay: float = 0.0
    counter_halflife: int = -1

    def check(self) -> None:
        check_range(self, 0, math.inf, epsilon=self.epsilon, weight_decay=self.weight_decay)

    def measure(self, ctx: RunContext, rows: Rows, g: Any, numbers: Rows) -> Any:
        g = self.decayed(ctx, rows[0], g, numbers)
        return g * g

    def update(self, ctx: RunContext, rows: Rows, g: Any, numbers: Rows, reduced: Any) -> Rows:
        p, h = rows
        g = self.decayed(ctx, p, g, numbers)
        h = h + reduced
        rate = rate_as(numbers[0], g) / (ctx.xp.sqrt(h) + self.epsilon)
        return p + per_row(rate, p) * g, h

    def decayed(self, ctx: RunContext, p: Any, g: Any, numbers: Rows) -> Any:
        """Return the gradient with the weight decay."""
        if not self.weight_decay:
            return g
        return g + self.weight_decay * self.decay_of_rows(ctx, numbers, p) * p

    def decay_of_rows(self, ctx: RunContext, numbers: Rows, p: Any) -> Any:
        """Return the factor of each row's weight decay."""
        if len(numbers) < 2 or self.counter_halflife <= 0:
            return 1.0
        seen = numbers[1]
        factors = ctx.xp.where(seen > 0, self.counter_halflife / ctx.xp.maximum(seen, 1e-30), 1.0)
        return per_row(factors, p)


@dataclass(frozen=True)
class _Moments(SparseUpdate):
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-5

    def check(self) -> None:
        for name, value in (("beta1", self.beta1), ("beta2", self.beta2)):
            if not 0 <= value < 1:
                raise ArgumentError(f"{self.type}: {name} must lie in [0, 1), got {value}")


@dataclass(frozen=True)
class _SparseAdam(_Moments):
    signature = """
        param
        moment_1
        moment_2
        indices
        grad
        lr
        iter
        -> output_param
        -> output_moment_1
        -> output_moment_2
        -> output_grad?
    """
    counter = 6
    must_inplace = ((0, 0), (1, 1), (2, 2))

    def new_moments(self, rows: Rows, g: Any, square: Any) -> tuple[Any, Any]:
        """Return both running means after this step."""
        _, m1, m2 = rows
        return self.beta1 * m1 + (1 - self.beta1) * g, self.beta2 * m2 + (1 - self.beta2) * square


@register
@dataclass(frozen=True)
class SparseAdam(_SparseAdam):
    """Adam on the rows ``indices`` of a table; the moments of other rows stay as they are.

    With ``enableRAdam``, the rate of the first iterations is reduced, because the second moment varies much in these.

    Source: Kingma and Ba, "Adam: a method for stochastic optimization", 2014, arXiv:1412.6980, section 2; Liu et al.,
    "On the variance of the adaptive learning rate and beyond", 2019, arXiv:1908.03265, algorithm 2.
    """

    signature = """
        param (R, *S): float
        moment_1 (R, *S): as param
        moment_2 (R, *S): as param
        indices (*I): int32|int64
        grad (*I, *S): as param
        lr {1}: float|int
        iter {1}: int
        -> output_param (R, *S): as param
        -> output_moment_1 (R, *S): as param
        -> output_moment_2 (R, *S): as param
        -> output_grad? (*I, *S): as param
    """
    enableRAdam: bool = False

    def update(self, ctx: RunContext, rows: Rows, g: Any, numbers: Rows, reduced: Any) -> Rows:
        m1, m2 = self.new_moments(rows, g, g * g)
        effective = ctx.derived(self.factor, numbers[1]) * m1
        divided = effective / (ctx.xp.sqrt(m2) + self.epsilon)
        if self.enableRAdam:  # in the first steps the second moment is not used
            divided = ctx.xp.where(ctx.derived(self.uses_second_moment, numbers[1]) != 0, divided, effective)
        effective = divided
        return rows[0] + rate_as(numbers[0], g) * effective, m1, m2, effective

    def factor(self, iteration: int) -> float:
        """Return the factor of the first moment in a step: the corrections of the initial bias of both moments."""
        t = step_number(self, iteration)
        first, second = 1 / (1 - self.beta1**t), math.sqrt(1 - self.beta2**t)
        rectified = self.rectified(t) if self.enableRAdam else 1.0
        return first if rectified is None else rectified * first * second

    def uses_second_moment(self, iteration: int) -> float:
        return float(self.rectified(step_number(self, iteration)) is not None)

    def rectified(self, t: int) -> float | None:
        """Return the rectification of step ``t`` (from 1), or None if the second moment must not be used yet."""
        limit = 2 / (1 - self.beta2) - 1  # rho_infinity in the paper
        rho = limit - 2 * t * self.beta2**t / (1 - self.beta2**t)
        if rho < 5:
            return None
        return math.sqrt((rho - 4) * (rho - 2) * limit / ((limit - 4) * (limit - 2) * rho))


@register
@dataclass(frozen=True)
class RowWiseSparseAdam(_SparseAdam):
    """Adam on the rows ``indices``, with one second moment per row: the running mean of the row's mean square."""

    signature = """
        param (R, *S): float
        moment_1 (R, *S): as param
        moment_2 (R): as param, one number per row
        indices (*I): int32|int64
        grad (*I, *S): as param
        lr {1}: float|int
        iter {1}: int
        -> output_param (R, *S): as param
        -> output_moment_1 (R, *S): as param
        -> output_moment_2 (R): as param
        -> output_grad? (*I, *S): as param
    """

    reduced = "mean"

    def correction(self, iteration: int) -> float:
        """Return the factor that corrects the initial bias of both moments."""
        t = step_number(self, iteration)
        return math.sqrt(1 - self.beta2**t) / (1 - self.beta1**t)

    def measure(self, ctx: RunContext, rows: Rows, g: Any, numbers: Rows) -> Any:
        return g * g

    def update(self, ctx: RunContext, rows: Rows, g: Any, numbers: Rows, reduced: Any) -> Rows:
        m1, m2 = self.new_moments(rows, g, reduced)
        effective = ctx.derived(self.correction, numbers[1]) * m1 / per_row(ctx.xp.sqrt(m2) + self.epsilon, m1)
        return rows[0] + rate_as(numbers[0], g) * effective, m1, m2, effective


@register
@dataclass(frozen=True)
class SmartDecaySparseAdam(_Moments):
    """Adam on the rows ``indices``, including the steps of the iterations in which they were not touched.

    With t = iter + 1 and k = t - last_seen, the number of iterations since a row was touched:
    m1' = beta1^k m1 + (1 - beta1) g, m2' = beta2^k m2 + (1 - beta2) g^2, and the row moves by
    lr (m1' + (beta1 + ... + beta1^(k-1)) m1) / (sqrt(m2') + epsilon), all missed steps at once.
    """

    signature = """
        param (R, *S): float
        moment_1 (R, *S): as param
        moment_2 (R, *S): as param
        last_seen (R): int64, one iteration per row
        indices (*I): int32|int64
        grad (*I, *S): as param
        lr {1}: float|int
        iter {1}: int
        -> output_param (R, *S): as param
        -> output_moment_1 (R, *S): as param
        -> output_moment_2 (R, *S): as param
        -> output_last_seen (R): int64
    """
    counter = 7
    must_inplace = ((0, 0), (1, 1), (2, 2), (3, 3))

    def update(self, ctx: RunContext, rows: Rows, g: Any, numbers: Rows, reduced: Any) -> Rows:
        p, m1, m2, seen = rows
        t = ctx.derived(self.step, numbers[1], np.int64)
        passed = per_row(t - seen, p)
        caught_up = self.beta1 * (1 - self.beta1 ** ctx.xp.maximum(passed - 1, 0)) / (1 - self.beta1)
        new_m1 = self.beta1**passed * m1 + (1 - self.beta1) * g
        new_m2 = self.beta2**passed * m2 + (1 - self.beta2) * (g * g)
        step = (new_m1 + caught_up * m1) / (ctx.xp.sqrt(new_m2) + self.epsilon)
        return p + rate_as(numbers[0], g) * step, new_m1, new_m2, t + 0 * seen

    def step(self, iteration: int) -> int:
        return step_number(self, iteration)


@register
@dataclass(frozen=True)
class SparseAdadelta(SparseUpdate):
    """Adadelta on the rows ``indices`` of a table."""

    signature = """
        param (R, *S): float
        moment (R, *S): as param
        moment_delta (R, *S): as param
        indices (*I): int32|int64
        grad (*I, *S): as param
        lr {1}: float|int
        -> output_param (R, *S): as param
        -> output_moment (R, *S): as param
        -> output_moment_delta (R, *S): as param
    """
    must_inplace = ((0, 0), (1, 1), (2, 2))
    epsilon: float = 1e-5
    decay: float = 0.95

    def check(self) -> None:
        check_range(self, 0, 1, decay=self.decay)
        check_range(self, 0, math.inf, epsilon=self.epsilon)

    def update(self, ctx: RunContext, rows: Rows, g: Any, numbers: Rows, reduced: Any) -> Rows:
        p, m, d = rows
        m = self.decay * m + (1 - self.decay) * (g * g)
        step = g * (ctx.xp.sqrt(d + self.epsilon) / ctx.xp.sqrt(m + self.epsilon))
        d = self.decay * d + (1 - self.decay) * (step * step)
        return p + rate_as(numbers[0], g) * step, m, d


@register
@dataclass(frozen=True)
class SparseFtrl(SparseUpdate, FtrlArguments):
    """Ftrl on the rows ``indices`` of a table; a fifth input replaces ``alpha``."""

    signature = """
        param (R, *S): float
        n_z (R, *S, 2): as param, a pair for each weight
        indices (*I): int32|int64
        grad (*I, *S): as param
        alpha? {1}: float|int
        -> output_param (R, *S): as param
        -> output_n_z (R, *S, 2): as param
    """
    must_inplace = ((0, 0), (1, 1))
    pairs = (1,)

    def update(self, ctx: RunContext, rows: Rows, g: Any, numbers: Rows, reduced: Any) -> Rows:
        rate = rate_as(numbers[0], g) if numbers else self.alpha
        p, n, z = rows
        return ftrl_step(ctx.xp, self, p, n, z, g, rate)


add_row_kernels(RowWiseSparseAdagrad, SparseAdam, RowWiseSparseAdam, SmartDecaySparseAdam, SparseAdadelta, SparseFtrl)
