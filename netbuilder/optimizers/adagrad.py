"""Adagrad, dense and sparse."""

from __future__ import annotations

from typing import Any

from netbuilder.graph.blob import GradientSlice
from netbuilder.graph.net import Net
from netbuilder.model.parameter_info import ParameterInfo
from netbuilder.optimizers.optimizer import Optimizer, refuse
from netbuilder.proto import ArgumentError, GradientError, TensorProto

__all__ = ["AdagradOptimizer"]

_NOT_AVAILABLE = {
    "pruning_options": None,
    "swa_options": None,
    "ema_options": None,
    "weight_scale": None,
}


class AdagradOptimizer(Optimizer):
    """h = decay * h + g^2, w = w - alpha * g / (sqrt(h) + epsilon); h is kept in ``<parameter>_squared_sum``.

    Args:
        alpha: the rate before its policy.
        epsilon: keeps the divisor from 0.
        decay: share of h kept; 1 for sparse gradients.
        policy: how the rate changes, see ``netbuilder.ops.updates.rate_policies``.
        sparse_dedup_aggregator: what is done with rows of one index, see ``Optimizer.dedup``.
        rowWise: keep one h a row, ``<parameter>_avg_squared_sum``, the mean over it; sparse gradients only.
        engine: the engine of the update.
        weight_decay: share of the weight added to the gradient: of the rows that a sparse one touches, and of dense
            parameters with more than one axis.
        lars: offset of layer-wise rates of dense parameters, see ``SgdOptimizer``; None: none.
        output_effective_lr: leave the rates, divided, in ``<parameter>_effective_lr``; dense gradients.
        output_effective_lr_and_update: that, and the update in ``<parameter>_update``.
        counter_halflife: count the updates of each row of sparse gradients in ``<parameter>_update_counter``, halved
            every so many iterations (see the operator RowWiseCounter); with ``rowWise``, rows decay by
            ``counter_halflife / counter`` times ``weight_decay``. -1: no counter.
        pruning_options, swa_options, ema_options, weight_scale: not available.
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
        self.counter_halflife = counter_halflife
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
        lr, iteration = self._rate(net, param_init_net, -1, self.alpha, self.policy, self.init_kwargs)
        options: dict[str, Any] = {"epsilon": float(self.epsilon)}
        if self.engine:
            options["engine"] = self.engine
        if not sparse:
            h = self._state(param_init_net, param, "_squared_sum")
            if self.weight_decay and len(self._shape(param_info, "weight_decay")) > 1:
                options["weight_decay"] = float(self.weight_decay)
            outputs = [param, h]
            if self.output_effective_lr or self.output_effective_lr_and_update:
                outputs.append(param + "_effective_lr")
            if self.output_effective_lr_and_update:
                outputs.append(param + "_update")
            lr = self._localized(net, lr, local)
            net.Adagrad([param, h, grad, lr], outputs, decay=float(self.decay), **options)
            return
        if self.weight_decay:
            options["weight_decay"] = float(self.weight_decay)
        self._update_rows(net, param_init_net, param_info, lr, iteration, options)

    def _update_rows(
        self, net: Net, param_init_net: Net, param_info: ParameterInfo, lr: Any, iteration: Any, options: dict[str, Any]
    ) -> None:
        param = param_info.blob
        if self.rowWise:
            h = self._row_state(param_init_net, param_info, "_avg_squared_sum", value=0.0)
        else:
            h = self._state(param_init_net, param, "_squared_sum")
        counters = self._counters(param_init_net, param_info)
        if counters:
            self._share(iteration)
        grad = self.dedup(net, self.sparse_dedup_aggregator, param_info.grad)
        inputs = [param, h, grad.indices, grad.values, lr]
        if not self.rowWise:
            net.SparseAdagrad(inputs, [param, h], **options)
        elif not counters:
            net.RowWiseSparseAdagrad(inputs, [param, h], **options)
        else:
            if self.weight_decay:
                options["counter_halflife"] = self.counter_halflife
            net.RowWiseSparseAdagrad([*inputs, counters[1]], [param, h], **options)
        if counters:
            net.RowWiseCounter([*counters, grad.indices, iteration], counters, counter_halflife=self.counter_halflife)

    def _counters(self, param_init_net: Net, param_info: ParameterInfo) -> list[Any]:
        """Add, where wanted, when each row was updated last and how often of late; return their blobs."""
        if self.counter_halflife <= 0:
            return []
        counts = self._row_state(param_init_net, param_info, "_update_counter", value=0.0, dtype=TensorProto.DOUBLE)
        before = self._row_state(param_init_net, param_info, "_prev_update_iter", value=0, dtype=TensorProto.INT64)
        return [before, counts]

    def scale_learning_rate(self, scale: float) -> None:
        """Multiply the base rate; before the updates are added."""
        self.alpha *= scale
