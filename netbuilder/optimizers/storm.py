"""Storm, dense and sparse."""

from __future__ import annotations

from typing import Any

from netbuilder.graph.blob import GradientSlice
from netbuilder.graph.net import Net
from netbuilder.model.parameter_info import ParameterInfo
from netbuilder.optimizers.builders import selective_builder
from netbuilder.optimizers.optimizer import Optimizer
from netbuilder.proto import ArgumentError

__all__ = ["StormOptimizer", "build_storm"]


class StormOptimizer(Optimizer, name="storm"):
    """s = s + |g|^2, r = lr / cbrt(beta + s), m = g + (1 - momentum * r^2) * (m - g), w = w - r * m.

    m is stored in ``<parameter>_moment``, s, shape (1,), in ``<parameter>_grad_sq_sum``.

    Args:
        lr: base learning rate, before its policy.
        momentum: factor of r^2 in the formula of m.
        beta: makes the first rates smaller.
        grad_sq_init: initial value of s.
        policy: how the rate changes, see ``netbuilder.ops.updates.rate_policies``.
        sparse_dedup_aggregator: how rows of equal index are aggregated, see ``Optimizer.dedup``.
        lars: offset of layer-wise rates of dense gradients, see ``SgdOptimizer``; None: none.
        kwargs: arguments of the policy.

    Raises:
        ArgumentError: an argument is out of range or not supported.

    Source: Cutkosky and Orabona, "Momentum-based variance reduction in non-convex SGD", 2019, arXiv:1905.10018.
    """

    repeats = True
    rate_name = "lr"
    usual_rate = 0.1

    def __init__(
        self,
        lr: float = 0.1,
        momentum: float = 10.0,
        beta: float = 0.1,
        grad_sq_init: float = 0.01,
        policy: str = "fixed",
        sparse_dedup_aggregator: str | None = None,
        lars: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        self._check("at least 0", momentum=momentum, beta=beta, grad_sq_init=grad_sq_init)
        self._check_choices(sparse_dedup_aggregator=sparse_dedup_aggregator)
        if not beta + grad_sq_init > 0:
            raise ArgumentError(
                f"StormOptimizer: beta + grad_sq_init must be positive, got grad_sq_init={grad_sq_init}, beta={beta}"
            )
        self.lr = lr
        self.momentum = momentum
        self.beta = beta
        self.grad_sq_init = grad_sq_init
        self.policy = policy
        self.sparse_dedup_aggregator = sparse_dedup_aggregator
        self.lars = self._checked_lars(lars)
        self.init_kwargs = kwargs

    def _run(self, net: Net, param_init_net: Net, param_info: ParameterInfo) -> None:
        param, grad = param_info.blob, param_info.grad
        local = self._local_rate(net, param_init_net, param_info, self.lars)
        lr, _ = self._rate(net, param_init_net, -1, self.lr, self.policy, self.init_kwargs)
        lr = self._localized(net, lr, local)
        m = self._state(param_init_net, param, "_moment")
        total: Any = param_init_net.ConstantFill([], param + "_grad_sq_sum", shape=[1], value=float(self.grad_sq_init))
        self._aux_params.local.append(total)
        options: dict[str, Any] = {"momentum": float(self.momentum), "beta": float(self.beta)}
        grad = self.dedup(net, self.sparse_dedup_aggregator, grad, shape=param_info.shape)
        if isinstance(grad, GradientSlice):
            inputs = [param, m, total, grad.values, grad.indices, lr]
            net.SparseStorm(inputs, [param, m, total], **options)
        else:
            net.Storm([param, m, total, grad, lr], [param, m, total], **options)


build_storm = selective_builder(StormOptimizer)
