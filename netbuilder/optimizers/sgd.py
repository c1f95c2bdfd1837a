"""Stochastic gradient descent, with momentum, dense and sparse."""

from __future__ import annotations

from typing import Any

from netbuilder.graph.blob import GradientSlice
from netbuilder.graph.net import Net
from netbuilder.model.parameter_info import ParameterInfo
from netbuilder.optimizers.builders import builder
from netbuilder.optimizers.optimizer import Optimizer, one

__all__ = ["SgdOptimizer", "build_sgd"]


class SgdOptimizer(Optimizer, name="sgd"):
    """w = w - lr * g; with momentum m, v = m * v + lr * g and w = w - v.

    With Nesterov momentum the step is (1 + m) * v' - m * v instead of v' (the new v). v is stored in
    ``<parameter>_momentum``.

    Args:
        base_learning_rate: base learning rate, before its policy.
        policy: how the rate changes, see ``netbuilder.ops.updates.rate_policies``.
        momentum: m, in [0, 1); 0: none.
        nesterov: use Nesterov momentum.
        sparse_dedup_aggregator: how rows of equal index are aggregated, see ``Optimizer.dedup``.
        lars: None, or the offset of layer-wise rates: the rate of a dense parameter is multiplied by
            ``1 / (|g| / |w| + lars)`` (see the operator Lars). Sparse gradients keep the plain rate.
        kwargs: arguments of the policy.

    Raises:
        ArgumentError: an argument is out of range.

    Source: Sutskever, Martens, Dahl and Hinton, "On the importance of initialization and momentum in
    deep learning", 2013; You, Gitman and Ginsburg, "Large batch training of convolutional networks", 2017,
    arXiv:1708.03888.

    >>> from netbuilder.model import ModelHelper, brew
    >>> model = ModelHelper("example_sgd")
    >>> scores = brew.fc(model, "data", "scores", 4, 2)
    >>> softmax, loss = model.net.SoftmaxWithLoss([scores, "label"], ["softmax", "loss"])
    >>> gradients = model.AddGradientOperators([loss])
    >>> optimizer = build_sgd(model, 0.1, policy="step", stepsize=100, gamma=0.5, momentum=0.9)
    >>> model.net.Proto().op[-1].type
    'MomentumSGDUpdate'
    """

    repeats = True
    rate_name = "base_learning_rate"
    usual_rate = 0.1

    def __init__(
        self,
        base_learning_rate: float = 0.01,
        policy: str = "fixed",
        momentum: float = 0.0,
        nesterov: bool = True,
        sparse_dedup_aggregator: str | None = None,
        lars: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        self._check("in [0, 1)", momentum=momentum)
        self._check_flags(nesterov=nesterov)
        self._check_choices(sparse_dedup_aggregator=sparse_dedup_aggregator)
        self.base_learning_rate = base_learning_rate
        self.policy = policy
        self.momentum = momentum
        self.nesterov = nesterov
        self.sparse_dedup_aggregator = sparse_dedup_aggregator
        self.lars = self._checked_lars(lars)
        self.init_kwargs = kwargs

    def _run(self, net: Net, param_init_net: Net, param_info: ParameterInfo) -> None:
        param, grad = param_info.blob, param_info.grad
        local = self._local_rate(net, param_init_net, param_info, self.lars)
        # The momentum update subtracts its step, the weighted sum adds it.
        lr = self._rate_of_sign(net, param_init_net, 1 if self.momentum else -1)
        lr = self._localized(net, lr, local)
        unit = one(param_init_net)
        self._share(unit)
        if self.momentum or self.sparse_dedup_aggregator:  # plain SGD is additive, so repeated rows need no aggregation
            grad = self.dedup(net, self.sparse_dedup_aggregator, grad, shape=param_info.shape)
        if self.momentum:
            moment = self._state(param_init_net, param, "_momentum")
            options: dict[str, Any] = {"momentum": float(self.momentum), "nesterov": int(self.nesterov)}
            if isinstance(grad, GradientSlice):
                net.SparseMomentumSGDUpdate(
                    [grad.values, moment, lr, param, grad.indices], [grad.values, moment, param], **options
                )
            else:
                net.MomentumSGDUpdate([grad, moment, lr, param], [grad, moment, param], **options)
        elif isinstance(grad, GradientSlice):
            net.ScatterWeightedSum([param, unit, grad.indices, grad.values, lr], param)
        else:
            net.WeightedSum([param, unit, grad, lr], param)

    def _rate_of_sign(self, net: Net, param_init_net: Net, sign: int) -> Any:
        return self._rate(net, param_init_net, sign, self.base_learning_rate, self.policy, self.init_kwargs)[0]


build_sgd = builder(SgdOptimizer)
