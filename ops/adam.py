"""Adam: the running mean of the gradient over the root of its running mean square, both without start-up bias."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from netbuilder.ops.contexts import PlanContext, Prepared, RunContext
from netbuilder.ops.engines import flat
from netbuilder.ops.half import widen
from netbuilder.ops.operator import Operator, TensorSpec, require
from netbuilder.ops.registry import CPU, kernel, prepare, register
from netbuilder.ops.update_rules import check_rate, check_same, rate_as
from netbuilder.proto import ArgumentError

__all__ = ["Adam"]


@register
@dataclass(frozen=True)
class Adam(Operator):
    """M1' = beta1 * M1 + (1 - beta1) * G, M2' = beta2 * M2 + (1 - beta2) * G^2, P' = P + lr * G'.

    G' = M1' / (sqrt(M2') + epsilon) * sqrt(1 - beta2^t) / (1 - beta1^t) with t = iter + 1 is the effective gradient,
    the fourth output. The step is added, so ``lr`` is negative for descent.

    Source: Kingma and Ba, "Adam: a method for stochastic optimization", 2014, arXiv:1412.6980, section 2.
    """

    inputs = ("param", "moment_1", "moment_2", "grad", "lr", "iter")
    outputs = ("output_param", "output_moment_1", "output_moment_2", "output_grad?")
    inplace = ((0, 0), (1, 1), (2, 2))
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-5

    def input_place(self, index: int) -> Literal["here", "host", "any"]:
        return "host" if index == 5 else "here"

    def check(self) -> None:
        for name, value in (("beta1", self.beta1), ("beta2", self.beta2)):
            if not 0 <= value < 1:
                raise ArgumentError(f"Adam: {name} must lie in [0, 1), got {value}")

    def infer(
        self,
        param: TensorSpec,
        moment_1: TensorSpec,
        moment_2: TensorSpec,
        grad: TensorSpec,
        lr: TensorSpec,
        iteration: TensorSpec,
    ) -> tuple[TensorSpec, ...]:
        check_same(self, param=param, moment_1=moment_1, moment_2=moment_2, grad=grad)
        check_rate(self, lr)
        check_rate(self, iteration, "iter")
        require(iteration.dtype.kind == "i", self, f"iter must be an integer, got {iteration.dtype}")
        return (param.plain,) * self.n_out

    def flops(self, param: TensorSpec, *others: TensorSpec) -> int:
        return 13 * param.size

    def correction(self, iteration: int) -> float:
        """Return the factor that takes the start-up bias out of both running means."""
        t = iteration + 1
        return float((1 - self.beta2**t) ** 0.5 / (1 - self.beta1**t))


@kernel(Adam)
def adam(
    op: Adam, ctx: RunContext, param: Any, moment_1: Any, moment_2: Any, grad: Any, lr: Any, iteration: Any
) -> tuple[Any, ...]:
    g = widen(grad)
    m1 = op.beta1 * widen(moment_1) + (1 - op.beta1) * g
    m2 = op.beta2 * widen(moment_2) + (1 - op.beta2) * (g * g)
    correction = op.correction(int(ctx.host(iteration).item()))
    effective = correction * m1 / (ctx.xp.sqrt(m2) + op.epsilon)
    p = widen(param) + rate_as(lr, g) * effective
    return tuple(x.astype(param.dtype) for x in (p, m1, m2, effective))[: op.n_out]


@prepare(Adam, device=CPU)
def prepare_adam(
    op: Adam,
    ctx: PlanContext,
    param: TensorSpec,
    moment_1: TensorSpec,
    moment_2: TensorSpec,
    grad: TensorSpec,
    lr: TensorSpec,
    iteration: TensorSpec,
) -> Prepared | None:
    spec = flat.common_spec([param, moment_1, moment_2, grad], zero_to_zero=op.epsilon > 0)
    if spec is None:
        return None
    beta1, rest1, beta2, rest2, epsilon = (
        flat.scalar(v, spec.dtype) for v in (op.beta1, 1 - op.beta1, op.beta2, 1 - op.beta2, op.epsilon)
    )

    def bind(inputs: Any, outputs: Any, scratch: Any) -> Any:
        lr, counter = inputs[4].reshape(()), inputs[5].reshape(())
        scale, correction = flat.scalar(0, spec.dtype), flat.scalar(0, spec.dtype)

        def before() -> None:
            factor = op.correction(counter.item())
            correction[()] = factor
            scale[()] = factor * lr.item()

        steps: list[flat.Step] = []
        made = len(outputs)
        for part in flat.pieces(spec, [*inputs[:4], *outputs], scratch, 1):
            p, m1, m2, g = part[:4]
            p_new, m1_new, m2_new, *effective = part[4 : 4 + made]
            t = part[-1]
            steps += [
                (np.multiply, (g, rest1, t)),
                (np.multiply, (m1, beta1, m1_new)),
                (np.add, (m1_new, t, m1_new)),
                (np.multiply, (g, g, t)),
                (np.multiply, (t, rest2, t)),
                (np.multiply, (m2, beta2, m2_new)),
                (np.add, (m2_new, t, m2_new)),
                (np.sqrt, (m2_new, t)),
                (np.add, (t, epsilon, t)),
                (np.divide, (m1_new, t, t)),
            ]
            steps += [(np.multiply, (t, correction, out)) for out in effective]
            steps += [(np.multiply, (t, scale, t)), (np.add, (p, t, p_new))]
        return flat.replay(steps, before)

    return Prepared(
        [spec, spec, spec, spec, lr.plain, iteration.plain],
        [spec] * op.n_out,
        bind,
        scratch=flat.scratch_bytes(spec, 1),
        inplace=Adam.inplace,
        name="numpy",
    )
