"""Adadelta, dense and sparse."""

from __future__ import annotations

from typing import Any

from netbuilder.graph.blob import GradientSlice
from netbuilder.graph.net import Net
from netbuilder.model.parameter_info import ParameterInfo
from netbuilder.optimizers.builders import selective_builder
from netbuilder.optimizers.optimizer import Optimizer

__all__ = ["AdadeltaOptimizer", "build_adadelta"]


class AdadeltaOptimizer(Optimizer, name="adadelta"):
    """w = w - alpha * g * sqrt(d + epsilon) / sqrt(m + epsilon): steps are scaled by the size of the previous steps.

    m and d are running averages of g^2 and of the square of the step without alpha; they are stored in
    ``<parameter>_squared_moment`` and ``<parameter>_squared_moment_update``.

    Args:
        alpha: base learning rate, before its policy.
        epsilon: added under both roots: it scales the first steps and prevents division by 0.
        decay: decay rate of m and d per iteration.
        policy: how the rate changes, see ``netbuilder.ops.updates.rate_policies``.
        sparse_dedup_aggregator: how rows of equal index are aggregated, see ``Optimizer.dedup``.
        engine: the engine of the update.
        kwargs: arguments of the policy.

    Raises:
        ArgumentError: an argument is out of range.

    Source: Zeiler, "ADADELTA: an adaptive learning rate method", 2012, arXiv:1212.5701.
    """

    repeats = True
    rate_name = "alpha"
    usual_rate = 1.0

    def __init__(
        self,
        alpha: float = 0.01,
        epsilon: float = 1e-4,
        decay: float = 0.95,
        policy: str = "fixed",
        sparse_dedup_aggregator: str | None = None,
        engine: str = "",
        **kwargs: Any,
    ) -> None:
        super().__init__()
        self._check("at least 0", epsilon=epsilon)
        self._check("in [0, 1]", decay=decay)
        self._check_choices(engine=engine, sparse_dedup_aggregator=sparse_dedup_aggregator)
        self.alpha = alpha
        self.epsilon = epsilon
        self.decay = decay
        self.policy = policy
        self.sparse_dedup_aggregator = sparse_dedup_aggregator
        self.engine = engine
        self.init_kwargs = kwargs

    def _run(self, net: Net, param_init_net: Net, param_info: ParameterInfo) -> None:
        param, grad = param_info.blob, param_info.grad
        lr, _ = self._rate(net, param_init_net, -1, self.alpha, self.policy, self.init_kwargs)
        m = self._state(param_init_net, param, "_squared_moment")
        d = self._state(param_init_net, param, "_squared_moment_update")
        options: dict[str, Any] = {"epsilon": float(self.epsilon), "decay": float(self.decay)}
        if self.engine:
            options["engine"] = self.engine
        grad = self.dedup(net, self.sparse_dedup_aggregator, grad, shape=param_info.shape)
        if isinstance(grad, GradientSlice):
            net.SparseAdadelta([param, m, d, grad.indices, grad.values, lr], [param, m, d], **options)
        else:
            net.Adadelta([param, m, d, grad, lr], [param, m, d], **options)


build_adadelta = selective_builder(AdadeltaOptimizer)
