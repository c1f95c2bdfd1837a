"""Adam."""

from __future__ import annotations

from typing import Any

from netbuilder.graph.blob import GradientSlice
from netbuilder.graph.net import Net
from netbuilder.model.parameter_info import ParameterInfo
from netbuilder.optimizers.optimizer import Optimizer, refuse

__all__ = ["AdamOptimizer"]

_NOT_AVAILABLE = {
    "rowWise": False,
    "enableRAdam": False,
    "use_smart_decay": False,
}


class AdamOptimizer(Optimizer):
    """m and v follow g and g^2; w = w - alpha * c * m / (sqrt(v) + epsilon), c correcting for their start at 0.

    m and v are kept in ``<parameter>_first_moment`` and ``<parameter>_second_moment``.

    Args:
        alpha: the rate before its policy.
        beta1, beta2: shares of m and of v kept each iteration.
        epsilon: keeps the divisor from 0.
        policy: how the rate changes, see ``netbuilder.ops.rate_policies``.
        sparse_dedup_aggregator: "sum" or "mean" joins repeated rows of sparse gradients first.
        engine: the engine of the update.
        use_lr_adaption: within an iteration, change the rate after the update of each dense parameter, by the angle
            between its gradient and the effective one, which ``<parameter>_effective_grad`` keeps (see the operator
            LearningRateAdaption); the next iteration starts from the rate of the policy.
        lr_alpha: how fast the rate changes.
        normalized_lr_adaption: go by the cosine of the angle, not by the product.
        rowWise, enableRAdam, use_smart_decay: not available.
        kwargs: arguments of the policy.

    Raises:
        ArgumentError: an option is not available.

    Source: Kingma and Ba, "Adam: a method for stochastic optimization", 2015, arXiv:1412.6980, algorithm 1.
    """

    def __init__(
        self,
        alpha: float = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        policy: str = "fixed",
        use_lr_adaption: bool = False,
        lr_alpha: float = 0.01,
        normalized_lr_adaption: bool = True,
        sparse_dedup_aggregator: str | None = None,
        rowWise: bool = False,
        engine: str = "",
        enableRAdam: bool = False,
        use_smart_decay: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        given = dict(locals())
        refuse("AdamOptimizer", {name: given[name] for name in _NOT_AVAILABLE}, _NOT_AVAILABLE)
        self.alpha = alpha
        self.beta1 = beta1
        self.beta2 = beta2
        self.epsilon = epsilon
        self.policy = policy
        self.use_lr_adaption = use_lr_adaption
        self.lr_alpha = lr_alpha
        self.normalized_lr_adaption = normalized_lr_adaption
        self.sparse_dedup_aggregator = sparse_dedup_aggregator
        self.engine = engine
        self.init_kwargs = kwargs

    def _run(self, net: Net, param_init_net: Net, param_info: ParameterInfo) -> None:
        param, grad = param_info.blob, param_info.grad
        lr, iteration = self._rate(net, param_init_net, -1, self.alpha, self.policy, self.init_kwargs)
        m = self._state(param_init_net, param, "_first_moment")
        v = self._state(param_init_net, param, "_second_moment")
        self._share(iteration)
        options: dict[str, Any] = {
            "beta1": float(self.beta1),
            "beta2": float(self.beta2),
            "epsilon": float(self.epsilon),
        }
        if self.engine:
            options["engine"] = self.engine
        grad = self.dedup(net, self.sparse_dedup_aggregator, grad)
        if isinstance(grad, GradientSlice):
            net.SparseAdam(
                [param, m, v, grad.indices, grad.values, lr, iteration], [param, m, v], enableRAdam=0, **options
            )
        else:
            outputs = [param, m, v] + ([param + "_effective_grad"] if self.use_lr_adaption else [])
            net.Adam([param, m, v, grad, lr, iteration], outputs, **options)
            if self.use_lr_adaption:
                net.LearningRateAdaption(
                    [lr, grad, outputs[-1]],
                    [lr],
                    lr_alpha=float(self.lr_alpha),
                    normalized_lr_adaption=int(self.normalized_lr_adaption),
                )

    def scale_learning_rate(self, scale: float) -> None:
        """Multiply the base rate; before the updates are added."""
        self.alpha *= scale
