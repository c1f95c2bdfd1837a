"""LAMB."""

from __future__ import annotations

from typing import Any

from netbuilder.graph.net import Net
from netbuilder.model.parameter_info import ParameterInfo
from netbuilder.optimizers.builders import builder
from netbuilder.optimizers.optimizer import Optimizer, constant, iteration_counter, one, require_dense

__all__ = ["LambOptimizer", "build_lamb"]


class LambOptimizer(Optimizer, name="lamb"):
    """w = w - alpha * |w| / |r| * r, with r = u + weight_decay * w, u being the step of Adam at a rate of 1.

    Where w or r is 0, the factor |w| / |r| is 1. The running means of Adam are stored in
    ``<parameter>_first_moment`` and ``<parameter>_second_moment``. Sparse gradients are refused: the norms are of the
    whole parameter.

    Args:
        alpha: base learning rate, before its policy.
        beta1, beta2: decay rates of the running means of g and g^2 per iteration.
        epsilon: prevents division by 0, as in ``AdamOptimizer``.
        weight_decay: decay of weights, see ``build_optimizer``; parameters that do not decay have r = u.
        policy: how the rate changes, see ``netbuilder.ops.updates.rate_policies``.
        kwargs: arguments of the policy.

    Raises:
        ArgumentError: an argument is out of range.
        GradientError: a gradient is sparse.

    Source: You et al., "Large batch optimization for deep learning", 2020, arXiv:1904.00962, algorithm 2.
    """

    repeats = True
    rate_name = "alpha"
    usual_rate = 0.002
    own_decay_is_decoupled = True

    def __init__(
        self,
        alpha: float = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        policy: str = "fixed",
        weight_decay: float = 0.01,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        self._check("in [0, 1)", beta1=beta1, beta2=beta2)
        self._check("at least 0", epsilon=epsilon, weight_decay=weight_decay)
        self.alpha = alpha
        self.beta1 = beta1
        self.beta2 = beta2
        self.epsilon = epsilon
        self.policy = policy
        self.weight_decay = self.decoupled_decay = weight_decay
        self.init_kwargs = kwargs

    def _run(self, net: Net, param_init_net: Net, param_info: ParameterInfo) -> None:
        param, grad = param_info.blob, require_dense(self, param_info)
        self._decaying = None  # the decay is a part of the step
        unit, none = one(param_init_net), constant(param_init_net, "lamb_zero", 0.0)
        lr, iteration = self._rate(net, param_init_net, -1, self.alpha, self.policy, self.init_kwargs)
        state = [self._state(param_init_net, param, f"_{name}_moment") for name in ("first", "second")]
        self._share(iteration_counter(net, param_init_net))
        step: Any = param + "_lamb_step"
        options: dict[str, Any] = {
            "beta1": float(self.beta1), "beta2": float(self.beta2), "epsilon": float(self.epsilon)
        }  # fmt: skip
        net.Adam([param, *state, grad, none, iteration], [param, *state, step], **options)
        if self.decoupled_decay:
            decay = constant(param_init_net, "lamb_decay", float(self.decoupled_decay))
            net.WeightedSum([step, unit, param, decay], step)
        trust, limit = (constant(param_init_net, name, x) for name, x in (("lamb_trust", 1.0), ("lamb_limit", 1e30)))
        ratio = net.Lars([param, step, none, trust, limit], param + "_lamb_ratio", offset=0.0, lr_min=0.0)
        local = net.Mul([lr, ratio], param + "_lamb_rate", broadcast=1)
        net.WeightedSum([param, unit, step, local], param)


build_lamb = builder(LambOptimizer)
