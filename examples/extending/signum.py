"""Signum: steps of constant size in the direction of the sign of a running average."""

from __future__ import annotations

from typing import Any

from netbuilder.graph.net import Net
from netbuilder.model.parameter_info import ParameterInfo
from netbuilder.optimizers.optimizer import Optimizer, one, require_dense
from netbuilder.proto import ArgumentError

__all__ = ["SignumOptimizer"]


class SignumOptimizer(Optimizer, name="signum"):
    """m = beta * m + (1 - beta) * g, w = w - alpha * sign(m); m is stored in ``<parameter>_mean``.

    Args:
        alpha: the base learning rate.
        beta: share of m kept each iteration, in [0, 1).
        policy: how the learning rate changes, see ``netbuilder.ops.updates.rate_policies``.
        kwargs: arguments of the policy.

    Raises:
        ArgumentError: ``beta`` is out of range.

    Source: Bernstein et al., "signSGD: Compressed Optimization for Non-Convex Problems", 2018, arXiv:1802.04434.
    """

    rate_name = "alpha"

    def __init__(self, alpha: float = 0.01, beta: float = 0.9, policy: str = "fixed", **kwargs: Any) -> None:
        super().__init__()
        if not 0 <= beta < 1:
            raise ArgumentError(f"SignumOptimizer: beta must lie in [0, 1), got {beta}")
        self.alpha, self.beta, self.policy, self.init_kwargs = alpha, beta, policy, kwargs

    def _run(self, net: Net, param_init_net: Net, param_info: ParameterInfo) -> None:
        param, grad = param_info.blob, require_dense(self, param_info)
        lr, _ = self._rate(net, param_init_net, -1, self.alpha, self.policy, self.init_kwargs)
        mean = self._state(param_init_net, param, "_mean")
        net.Scale(mean, mean, scale=float(self.beta))
        net.Scale(grad, grad, scale=1 - float(self.beta))
        net.Add([mean, grad], mean)
        net.Sign(mean, grad)
        net.WeightedSum([param, one(param_init_net), grad, lr], param)
