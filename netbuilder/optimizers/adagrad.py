"""Adagrad, dense and sparse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from netbuilder.graph.blob import GradientSlice
from netbuilder.graph.net import Net
from netbuilder.model.parameter_info import ParameterInfo
from netbuilder.optimizers.optimizer import Optimizer, refuse
from netbuilder.proto import ArgumentError, GradientError

__all__ = ["AdagradOptimizer"]

_NOT_AVAILABLE = {
    "pruning_options": None,
    "swa_options": None,
    "ema_options": None,
    "weight_scale": None,
    "counter_halflife": -1,
}


class AdagradOptimizer(Optimizer):
    """h = decay * h + g^2, w = w - alpha * g / (sqrt(h) + epsilon); h is kept in ``<parameter>_squared_sum``.

    Args:
        alpha: the rate before its policy.
        epsilon: keeps the divisor from 0.
        decay: share of h kept; 1 for sparse gradients.
        policy: how the rate changes, see ``netbuilder.ops.rate_policies``.
        sparse_dedup_aggregator: "sum" or "mean" joins repeated rows of sparse gradients first.
        rowWise: keep one h a row, ``<parameter>_avg_squared_sum``, the mean over it; sparse gradients only.
        engine: the engine of the update.
        weight_decay: share of the weight added to dense gradients of parameters with more than one axis.
        lars: offset of layer-wise rates of dense parameters, see ``SgdOptimizer``; None: none.
        output_effective_lr: leave the rates, divided, in ``<parameter>_effective_lr``; dense gradients.
        output_effective_lr_and_update: that, and the update in ``<parameter>_update``.
        pruning_options, swa_options, ema_options, weight_scale, counter_halflife: not available.
        kwargs: arguments of the policy.

    Raises:
        ArgumentError: an option is not available or out of range, or the shape that it needs is not known.

    Source: Duchi, Hazan and Singer, "Adaptive subgradient methods for online learning and stochastic
    optimization", 2011.
    """

    def __init__(
        self,
        alpha: float = 0.01,
        epsilon: float = 1e-4,
        decay: float = 1,
        weight_decay: float = 0.0,
        policy: str = "fixed",
        sparse_dedup_aggregator: str | None = None,
        rowWise: bool = False,
        engine: str = "",
        lars: float | None = None,
        output_effective_lr: bool = False,
        output_effective_lr_and_update: bool = False,
        pruning_options: Any = None,
        swa_options: Any = None,
        ema_options: Any = None,
        weight_scale: Any = None,
        counter_halflife: int = -1,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        given = dict(locals())
        refuse("AdagradOptimizer", {name: given[name] for name in _NOT_AVAILABLE}, _NOT_AVAILABLE)
        if weight_decay < 0:
            raise ArgumentError(f"AdagradOptimizer: weight_decay must not be negative, got {weight_decay}")
        self.weight_decay = weight_decay
        self.lars = self._checked_lars(lars)
        self.output_effective_lr = output_effective_lr
        self.output_effective_lr_and_update = output_effective_lr_and_update
        self.alpha = alpha
        self.epsilon = epsilon
        self.decay = decay
        self.policy = policy
        self.sparse_dedup_aggregator = sparse_dedup_aggregator
        self.rowWise = rowWise
        self.engine = engine
        self.init_kwargs = kwargs

    def _run(self, net: Net, param_init_net: Net, param_info: ParameterInfo) -> None:
        param, grad = param_info.blob, param_info.grad
        sparse = isinstance(grad, GradientSlice)
        if self.rowWise and not sparse:
            raise GradientError(f"AdagradOptimizer: rowWise is for sparse gradients; that of {param_info} is dense")
        if sparse and self.decay != 1:
            raise ArgumentError(
                f"AdagradOptimizer: the gradient of {param_info} is sparse, decay must be 1, got {self.decay}"
            )
        local = self._local_rate(net, param_init_net, param_info, self.lars)
        lr, _ = self._rate(net, param_init_net, -1, self.alpha, self.policy, self.init_kwargs)
        options: dict[str, Any] = {"epsilon": float(self.epsilon)}
        if self.engine:
            options["engine"] = self.engine
        if not sparse:
            h = self._state(param_init_net, param, "_squared_sum")
            if self.weight_decay and len(_shape(param_info, "weight_decay")) > 1:
                options["weight_decay"] = float(self.weight_decay)
            outputs = [param, h]
            if self.output_effective_lr or self.output_effective_lr_and_update:
                outputs.append(param + "_effective_lr")
            if self.output_effective_lr_and_update:
                outputs.append(param + "_update")
            lr = self._localised(net, lr, local)
            net.Adagrad([param, h, grad, lr], outputs, decay=float(self.decay), **options)
            return
        grad = self.dedup(net, self.sparse_dedup_aggregator, grad)
        if self.rowWise:
            h = param_init_net.ConstantFill(
                [], param + "_avg_squared_sum", shape=[int(_shape(param_info, "rowWise")[0])], value=0.0
            )
            self._aux_params.local.append(h)
            net.RowWiseSparseAdagrad([param, h, grad.indices, grad.values, lr], [param, h], **options)
        else:
            h = self._state(param_init_net, param, "_squared_sum")
            net.SparseAdagrad([param, h, grad.indices, grad.values, lr], [param, h], **options)

    def scale_learning_rate(self, scale: float) -> None:
        """Multiply the base rate; before the updates are added."""
        self.alpha *= scale


def _shape(param_info: ParameterInfo, option: str) -> Sequence[int]:
    if param_info.shape is None:
        raise ArgumentError(
            f"AdagradOptimizer: {option} needs the shape of {param_info}; make it by create_param, or by a fill with "
            "the argument shape"
        )
    return param_info.shape
