"""WNGrad, dense and sparse."""

from __future__ import annotations

from typing import Any

from netbuilder.graph.blob import GradientSlice
from netbuilder.graph.net import Net
from netbuilder.model.parameter_info import ParameterInfo
from netbuilder.optimizers.builders import selective_builder
from netbuilder.optimizers.optimizer import Optimizer

__all__ = ["WngradOptimizer", "build_wngrad"]


class WngradOptimizer(Optimizer, name="wngrad"):
    """w = w - alpha * g / (b + epsilon), then b = b + |g|^2 / (b + epsilon), with one b for each parameter.

    b is stored in ``<parameter>_moment``, shape (1,).

    Args:
        alpha: base learning rate, before its policy.
        epsilon: prevents division by 0.
        policy: how the rate changes, see ``netbuilder.ops.updates.rate_policies``.
        sparse_dedup_aggregator: how rows of equal index are aggregated, see ``Optimizer.dedup``.
        engine: the engine of the update.
        moment_init: initial value of b, positive.
        lars: offset of layer-wise rates of dense gradients, see ``SgdOptimizer``; None: none.
        output_effective_lr: write alpha / (b + epsilon) to ``<parameter>_effective_lr``, shape (1,); dense gradients.
        output_effective_lr_and_update: write it, and the update to ``<parameter>_update``.
        kwargs: arguments of the policy.

    Raises:
        ArgumentError: an argument is out of range or not supported.

    Source: Wu, Ward and Bottou, "WNGrad: learn the learning rate in gradient descent", 2018, arXiv:1803.02865.
    """

    repeats = True
    rate_name = "alpha"
    usual_rate = 1.0

    def __init__(
        self,
        alpha: float = 1.0,
        epsilon: float = 1e-9,
        policy: str = "fixed",
        sparse_dedup_aggregator: str | None = None,
        engine: str = "",
        moment_init: float = 100.0,
        lars: float | None = None,
        output_effective_lr: bool = False,
        output_effective_lr_and_update: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        self._check("positive", moment_init=moment_init)
        self._check("at least 0", epsilon=epsilon)
        self._check_flags(output_effective_lr=output_effective_lr)
        self._check_flags(output_effective_lr_and_update=output_effective_lr_and_update)
        self._check_choices(engine=engine, sparse_dedup_aggregator=sparse_dedup_aggregator)
        self.alpha = alpha
        self.epsilon = epsilon
        self.policy = policy
        self.sparse_dedup_aggregator = sparse_dedup_aggregator
        self.engine = engine
        self.moment_init = moment_init
        self.lars = self._checked_lars(lars)
        self.output_effective_lr = output_effective_lr
        self.output_effective_lr_and_update = output_effective_lr_and_update
        self.init_kwargs = kwargs

    def _run(self, net: Net, param_init_net: Net, param_info: ParameterInfo) -> None:
        param, grad = param_info.blob, param_info.grad
        local = self._local_rate(net, param_init_net, param_info, self.lars)
        lr, _ = self._rate(net, param_init_net, -1, self.alpha, self.policy, self.init_kwargs)
        lr = self._localized(net, lr, local)
        b: Any = param_init_net.ConstantFill([], param + "_moment", shape=[1], value=float(self.moment_init))
        self._aux_params.local.append(b)
        options: dict[str, Any] = {"epsilon": float(self.epsilon)}
        if self.engine:
            options["engine"] = self.engine
        grad = self.dedup(net, self.sparse_dedup_aggregator, grad, shape=param_info.shape)
        if isinstance(grad, GradientSlice):
            net.SparseWngrad([param, b, grad.indices, grad.values, lr], [param, b], **options)
            return
        outputs = [param, b]
        if self.output_effective_lr or self.output_effective_lr_and_update:
            outputs.append(param + "_effective_lr")
        if self.output_effective_lr_and_update:
            outputs.append(param + "_update")
        net.Wngrad([param, b, grad, lr], outputs, **options)


build_wngrad = selective_builder(WngradOptimizer)
