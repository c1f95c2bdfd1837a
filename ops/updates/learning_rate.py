"""LearningRate: the learning rate of an iteration, computed by a policy."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import PlanContext, Prepared, RunContext
from netbuilder.ops.core.operator import Operator, TensorSpec, argument_fields
from netbuilder.ops.core.registry import CPU, kernel, prepare, register
from netbuilder.ops.updates.rate_policies import Rate, chain, rate_of
from netbuilder.proto import ArgumentError, OperatorDef
from netbuilder.proto.arguments import arguments
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["LearningRate"]

_SUB_POLICY = "sub_policy_"


@register
@dataclass(frozen=True)
class LearningRate(Operator):
    """lr = ``base_lr`` times the factor of the policy at the iteration; see ``rate_policies``.

    The policy ``composite`` applies other policies, each for ``sub_policy_num_iters[i]`` iterations; their arguments
    have the prefix ``sub_policy_<i>_``, and ``sub_policy_<i>_lr_scale`` multiplies the rate.
    """

    signature = "iteration {1}: float|int -> lr (): float32"
    open_arguments = (_SUB_POLICY,)
    inputs_on_host = True
    base_lr: float | None = None
    policy: str = ""
    power: float | None = None
    gamma: float | None = None
    stepsize: int | None = None
    decay: float | None = None
    max_lr: float | None = None
    min_lr: float | None = None
    active_first: bool | None = None
    active_period: int | None = None
    inactive_period: int | None = None
    max_iter: int | None = None
    num_iter: int | None = None
    start_multiplier: float | None = None
    end_multiplier: float | None = None
    multiplier: float | None = None
    multiplier_1: float | None = None
    multiplier_2: float | None = None
    num_iter_1: int | None = None
    num_iter_2: int | None = None
    m1: float | None = None
    n1: int | None = None
    m2: float | None = None
    n2: int | None = None
    m3: float | None = None
    period: int | None = None
    t_mult: float | None = None
    lr_shrink: float | None = None
    start_warmup_multiplier: float | None = None
    constant_warmup_num_iter: int | None = None
    linear_warmup_num_iter: int | None = None
    cyclical_max_lr: float | None = None
    cyclical_step_size: int | None = None
    cyclical_decay: float | None = None
    cosine_min_lr: float | None = None
    cosine_max_lr: float | None = None
    cosine_period: int | None = None
    cosine_t_mult: float | None = None
    cosine_lr_shrink: float | None = None
    sub_policy_num_iters: tuple[int, ...] = ()

    def check(self) -> None:
        if self.base_lr is None:
            raise ArgumentError("LearningRate: base_lr must be given")
        if not self.policy:
            raise ArgumentError("LearningRate: policy must be given, such as 'fixed'")
        if self.policy != "composite":
            rate_of(self.policy, self)
        elif not self.sub_policy_num_iters:
            raise ArgumentError("LearningRate: policy 'composite' needs sub_policy_num_iters, one number per policy")

    def rate(self, op_def: OperatorDef) -> Rate:
        """Return the rate as a function of the iteration; the policies of ``composite`` are read from ``op_def``."""
        base = self.base_lr
        assert base is not None
        factor = self._composite(op_def) if self.policy == "composite" else rate_of(self.policy, self)

        def rate(it: int) -> float:
            try:
                return base * float(factor(it))  # float() refuses a complex number, the power of a negative one
            except (ArithmeticError, TypeError, ValueError) as error:
                raise ArgumentError(
                    f"LearningRate: policy {self.policy!r} gives no real number at iteration {it} ({error}); "
                    "change its arguments, or the count of iterations"
                ) from error

        return rate

    def _composite(self, op_def: OperatorDef) -> Rate:
        given = arguments(op_def)
        readers = argument_fields(type(self))
        rates: list[Rate] = []
        scales: list[float] = []
        for i in range(len(self.sub_policy_num_iters)):
            prefix = f"{_SUB_POLICY}{i}_"
            own = {name[len(prefix) :]: value for name, value in given.items() if name.startswith(prefix)}
            policy = readers["policy"](own.get("policy", b""))
            if policy == "composite":
                raise ArgumentError(f"LearningRate: {prefix}policy must not be 'composite': composites do not nest")
            try:
                values = {name: readers[name](own[name]) for name in own if name in readers}
                rates.append(rate_of(policy, LearningRate(**{**values, "base_lr": self.base_lr})))
                scales.append(readers["max_lr"](own.get("lr_scale", 1.0)))  # any reader of a float
            except (TypeError, ValueError) as error:
                raise ArgumentError(f"LearningRate: policy {i} of 'composite' ({prefix}...): {error}") from error
        return chain(self.sub_policy_num_iters, rates, scales)


@kernel(LearningRate)
def learning_rate(op: LearningRate, ctx: RunContext, iteration: Any) -> tuple[Any, ...]:
    value = op.base_lr if op.policy == "fixed" else ctx.derived(op.rate(ctx.op_def), iteration)
    return (ctx.xp.asarray(value, dtype=np.float32),)


@prepare(LearningRate, device=CPU)
def prepare_learning_rate(op: LearningRate, ctx: PlanContext, iteration: TensorSpec) -> Prepared:
    rate = op.rate(ctx.op_def)

    def bind(inputs: Any, outputs: Any, scratch: Any) -> Any:
        counter, lr = inputs[0], outputs[0]
        if op.policy == "fixed":
            value = np.float32(op.base_lr)

            def call() -> None:
                lr[()] = value

        else:

            def call() -> None:
                lr[()] = rate(counter.item())

        return call

    spec = iteration.plain if op.policy != "fixed" else None
    return Prepared([spec], list(op.infer(iteration)), bind, name="number on the host")
