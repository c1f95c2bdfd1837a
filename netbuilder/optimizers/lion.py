"""Lion."""

from __future__ import annotations

from typing import Any

from netbuilder.graph.net import Net
from netbuilder.model.parameter_info import ParameterInfo
from netbuilder.optimizers.builders import builder
from netbuilder.optimizers.optimizer import Optimizer, constant, one, require_dense

__all__ = ["LionOptimizer", "build_lion"]


class LionOptimizer(Optimizer, name="lion"):
    """w = w - alpha * sign(beta1 * m + (1 - beta1) * g), then m = beta2 * m + (1 - beta2) * g.

    m is stored in ``<parameter>_momentum``. Sparse gradients are refused: each step moves all of a parameter.

    Args:
        alpha: base learning rate, before its policy; usually a third to a tenth of Adam's.
        beta1, beta2: decay rates of m in the step and per iteration.
        weight_decay: decoupled decay of weights, see ``build_optimizer``; usually three to ten times AdamW's.
        policy: how the rate changes, see ``netbuilder.ops.updates.rate_policies``.
        kwargs: arguments of the policy.

    Raises:
        ArgumentError: an argument is out of range.
        GradientError: a gradient is sparse.

    Source: Chen et al., "Symbolic discovery of optimization algorithms", 2023, arXiv:2302.06675, program 1.
    """

    repeats = True
    rate_name = "alpha"
    usual_rate = 0.001
    own_decay_is_decoupled = True

    def __init__(
        self,
        alpha: float = 0.0001,
        beta1: float = 0.9,
        beta2: float = 0.99,
        policy: str = "fixed",
        weight_decay: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        self._check("in [0, 1)", beta1=beta1, beta2=beta2)
        self._check("at least 0", weight_decay=weight_decay)
        self.alpha = alpha
        self.beta1 = beta1
        self.beta2 = beta2
        self.policy = policy
        self.weight_decay = self.decoupled_decay = weight_decay
        self.init_kwargs = kwargs

    def _run(self, net: Net, param_init_net: Net, param_info: ParameterInfo) -> None:
        param, grad = param_info.blob, require_dense(self, param_info)
        unit = one(param_init_net)
        shares = [
            constant(param_init_net, f"lion_{name}", value)
            for name, value in (
                ("kept_in_step", self.beta1), ("new_in_step", 1 - self.beta1),
                ("kept", self.beta2), ("new", 1 - self.beta2),
            )
        ]  # fmt: skip
        lr, _ = self._rate(net, param_init_net, -1, self.alpha, self.policy, self.init_kwargs)
        moment = self._state(param_init_net, param, "_momentum")
        step: Any = param + "_lion_step"
        net.WeightedSum([moment, shares[0], grad, shares[1]], step)
        net.WeightedSum([param, unit, net.Sign(step, param + "_lion_sign"), lr], param)
        net.WeightedSum([moment, shares[2], grad, shares[3]], moment)


build_lion = builder(LionOptimizer)
