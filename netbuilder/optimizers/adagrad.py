"""Adagrad, dense and sparse."""

from __future__ import annotations

from typing import Any

from netbuilder.graph.blob import GradientSlice
from netbuilder.graph.net import Net
from netbuilder.model.parameter_info import ParameterInfo
from netbuilder.optimizers.builders import selective_builder
from netbuilder.optimizers.optimizer import Optimizer, iteration_counter, refuse
from netbuilder.proto import ArgumentError, GradientError, TensorProto
from netbuilder.proto.numbers import check_whole_numbers

__all__ = ["AdagradOptimizer", "build_adagrad"]

_NOT_AVAILABLE = {
    "pruning_options": None,
    "swa_options": None,
    "ema_options": None,
    "weight_scale": None,
}


class AdagradOptimizer(Optimizer, name="adagrad"):
    """h = decay * h + g^2, w = w - alpha * g / (sqrt(h) + epsilon); h is stored in ``<parameter>_squared_sum``.

    Args:
        alpha: base learning rate, before its policy.
        epsilon: prevents division by 0.
        decay: decay rate of h; must be 1 for sparse gradients.
        policy: how the rate changes, see ``netbuilder.ops.updates.rate_policies``.
        sparse_dedup_aggregator: how rows of equal index are aggregated, see ``Optimizer.dedup``.
        rowWise: store one h per row, the mean over the row, in ``<parameter>_avg_squared_sum``; only for sparse
            gradients.
        engine: the engine of the update.
        weight_decay: multiple of the weight that is added to the gradient: for a sparse gradient only in its rows,
            for dense ones only of parameters with more than one axis.
        lars: offset of layer-wise rates of dense parameters, see ``SgdOptimizer``; None: none.
        output_effective_lr: write alpha / (sqrt(h) + epsilon) to ``<parameter>_effective_lr``; dense gradients.
        output_effective_lr_and_update: write it, and the update to ``<parameter>_update``.
        counter_halflife: count the updates of each row of sparse gradients in ``<parameter>_update_counter``, with
            this half-life in iterations (see the operator RowWiseCounter); with ``rowWise``, the weight decay of a row
            is ``weight_decay * counter_halflife / counter``. -1: no counter.
        pruning_options, swa_options, ema_options, weight_scale: not supported.
        kwargs: arguments of the policy.

    Raises:
        ArgumentError: an option is not supported or out of range, or requires a shape that is not known.

    Source: Duchi, Hazan and Singer, "Adaptive subgradient methods for online learning and stochastic
    optimization", 2011.
    """

    repeats = True
    rate_name = "alpha"

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
        self._check("at least 0", epsilon=epsilon, weight_decay=weight_decay)
        self._check("in [0, 1]", decay=decay)
        self._check_flags(rowWise=rowWise, output_effective_lr=output_effective_lr)
        self._check_flags(output_effective_lr_and_update=output_effective_lr_and_update)
        self._check_choices(engine=engine, sparse_dedup_aggregator=sparse_dedup_aggregator)
        check_whole_numbers("AdagradOptimizer", -1, counter_halflife=counter_halflife)
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
            raise GradientError(
                f"AdagradOptimizer: rowWise requires sparse gradients, but the gradient of {param_info} is dense"
            )
        if sparse and self.decay != 1:
            raise ArgumentError(
                f"AdagradOptimizer: decay must be 1 for the sparse gradient of {param_info}, got {self.decay}"
            )
        local = self._local_rate(net, param_init_net, param_info, self.lars)
        lr, _ = self._rate(net, param_init_net, -1, self.alpha, self.policy, self.init_kwargs)
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
        self._update_rows(net, param_init_net, param_info, lr, options)

    def _update_rows(
        self, net: Net, param_init_net: Net, param_info: ParameterInfo, lr: Any, options: dict[str, Any]
    ) -> None:
        param = param_info.blob
        if self.rowWise:
            h = self._row_state(param_init_net, param_info, "_avg_squared_sum", value=0.0)
        else:
            h = self._state(param_init_net, param, "_squared_sum")
        counters = self._counters(param_init_net, param_info)
        iteration = iteration_counter(net, param_init_net)
        if counters:
            self._share(iteration)
        grad = self.dedup(net, self.sparse_dedup_aggregator, param_info.grad, shape=param_info.shape)
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
        """Add the iteration of each row's last update and its decayed number of updates, if requested; return both."""
        if self.counter_halflife <= 0:
            return []
        counts = self._row_state(param_init_net, param_info, "_update_counter", value=0.0, dtype=TensorProto.DOUBLE)
        before = self._row_state(param_init_net, param_info, "_prev_update_iter", value=0, dtype=TensorProto.INT64)
        return [before, counts]


build_adagrad = selective_builder(AdagradOptimizer)
