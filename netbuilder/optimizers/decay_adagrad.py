"""DecayAdagrad, and Adagrad for sparse gradients."""

from __future__ import annotations

from typing import Any

from netbuilder.graph.blob import GradientSlice
from netbuilder.graph.net import Net
from netbuilder.model.parameter_info import ParameterInfo
from netbuilder.optimizers.builders import builder
from netbuilder.optimizers.optimizer import Optimizer, iteration_counter, refuse

__all__ = ["DecayAdagradOptimizer", "build_decay_adagrad"]


class DecayAdagradOptimizer(Optimizer, name="decay-adagrad"):
    """v = v + g^2, w = w - alpha * (m / (sqrt(v) + epsilon) + weight_decay * w), m being a running average of g.

    Sparse gradients are updated by Adagrad, without m and without decay; their sums of squares are stored in
    ``<parameter>_squared_sum``.

    m and v are stored in ``<parameter>_first_mo1ment``, spelled as in Caffe2, and ``<parameter>_second_moment``.

    Args:
        alpha: base learning rate, before its policy.
        beta1: decay rate of m per iteration.
        beta2: ignored; Caffe2's operators have it.
        epsilon: prevents division by 0.
        weight_decay: multiple of the weight that each step subtracts, times alpha.
        ema_options: not supported.
        bias_correction_first: correct the bias of m from its start at 0.
        policy: how the rate changes, see ``netbuilder.ops.updates.rate_policies``.
        engine: the engine of the update of dense gradients.
        sparse_dedup_aggregator: how rows of equal index are aggregated, see ``Optimizer.dedup``.
        kwargs: arguments of the policy.

    Raises:
        ArgumentError: an argument is out of range, or an option is not available.

    Source: Duchi, Hazan and Singer, "Adaptive subgradient methods for online learning and stochastic
    optimization", 2011.
    """

    repeats = True
    rate_name = "alpha"

    def __init__(
        self,
        alpha: float = 0.01,
        beta1: float = 0.0,
        beta2: float = 0.999,
        epsilon: float = 0.1,
        weight_decay: float = 0.0,
        ema_options: Any = None,
        bias_correction_first: bool = True,
        policy: str = "fixed",
        engine: str = "",
        *,
        sparse_dedup_aggregator: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        self._check("in [0, 1)", beta1=beta1, beta2=beta2)
        self._check("at least 0", epsilon=epsilon, weight_decay=weight_decay)
        self._check_flags(bias_correction_first=bias_correction_first)
        self._check_choices(engine=engine, sparse_dedup_aggregator=sparse_dedup_aggregator)
        refuse("DecayAdagradOptimizer", {"ema_options": ema_options})
        self.alpha = alpha
        self.beta1 = beta1
        self.beta2 = beta2
        self.epsilon = epsilon
        self.weight_decay = weight_decay
        self.bias_correction_first = bias_correction_first
        self.policy = policy
        self.engine = engine
        self.sparse_dedup_aggregator = sparse_dedup_aggregator
        self.init_kwargs = kwargs

    def _run(self, net: Net, param_init_net: Net, param_info: ParameterInfo) -> None:
        param, grad = param_info.blob, param_info.grad
        lr, iteration = self._rate(net, param_init_net, -1, self.alpha, self.policy, self.init_kwargs)
        if isinstance(grad, GradientSlice):
            grad = self.dedup(net, self.sparse_dedup_aggregator, grad, shape=param_info.shape)
            h = self._state(param_init_net, param, "_squared_sum")
            net.SparseAdagrad([param, h, grad.indices, grad.values, lr], [param, h], epsilon=float(self.epsilon))
            return
        m = self._state(param_init_net, param, "_first_mo1ment")
        v = self._state(param_init_net, param, "_second_moment")
        self._share(iteration_counter(net, param_init_net))
        options: dict[str, Any] = {"engine": self.engine} if self.engine else {}
        net.DecayAdagrad(
            [param, m, v, grad, lr, iteration],
            [param, m, v],
            beta1=float(self.beta1),
            beta2=float(self.beta2),
            epsilon=float(self.epsilon),
            weight_decay=float(self.weight_decay),
            bias_correction_first=int(self.bias_correction_first),
            **options,
        )


build_decay_adagrad = builder(DecayAdagradOptimizer)
