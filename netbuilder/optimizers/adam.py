"""Adam, dense and sparse."""

from __future__ import annotations

from typing import Any

from netbuilder.graph.blob import BlobReference, GradientSlice
from netbuilder.graph.net import Net
from netbuilder.model.parameter_info import ParameterInfo
from netbuilder.optimizers.builders import builder
from netbuilder.optimizers.optimizer import Optimizer, iteration_counter
from netbuilder.proto import ArgumentError, GradientError, TensorProto

__all__ = ["AdamOptimizer", "AdamWOptimizer", "build_adam", "build_adamw"]


class AdamOptimizer(Optimizer, name="adam"):
    """w = w - alpha * c * m / (sqrt(v) + epsilon), with running averages m of g and v of g^2, and bias correction c.

    c = sqrt(1 - beta2^t) / (1 - beta1^t) in step t = 1, 2, .... In the compatibility layer, as in
    Caffe2, the first step has t = 2.

    m and v are stored in ``<parameter>_first_moment`` and ``<parameter>_second_moment``.

    Args:
        alpha: base learning rate, before its policy.
        beta1, beta2: decay rates of m and v per iteration.
        epsilon: prevents division by 0.
        policy: how the rate changes, see ``netbuilder.ops.updates.rate_policies``.
        sparse_dedup_aggregator: how rows of equal index are aggregated, see ``Optimizer.dedup``.
        engine: the engine of the update.
        use_lr_adaption: within an iteration, adapt the rate after the update of each parameter, by the dot product of
            its gradient and the effective gradient in ``<parameter>_effective_grad`` (see the operator
            LearningRateAdaption); the next iteration starts from the rate of the policy.
        lr_alpha: step size of the adaption.
        normalized_lr_adaption: use the cosine of the angle between the gradients instead of the dot product.
        rowWise: store one v per row, of the mean of its squares, in ``<parameter>_avg_second_moment``; only for sparse
            gradients.
        enableRAdam: for sparse gradients, smaller steps while the estimate of v is uncertain (see the operator
            SparseAdam); dense gradients are not affected, as in Caffe2.
        use_smart_decay: when a row of a sparse gradient is updated, apply the decay of the iterations that it missed,
            counted from ``<parameter>_last_seen`` (see the operator SmartDecaySparseAdam); dense gradients are not
            affected, but have that blob too, as in Caffe2's checkpoints.
        kwargs: arguments of the policy.

    Raises:
        ArgumentError: an argument is out of range, options exclude each other, or require a shape that is not known.
        GradientError: ``rowWise`` is set and a gradient is dense.

    Source: Kingma and Ba, "Adam: a method for stochastic optimization", 2015, arXiv:1412.6980, algorithm 1, in the
    order of operations at the end of section 2.
    """

    repeats = True
    rate_name = "alpha"
    usual_rate = 0.001

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
        self._check("in [0, 1)", beta1=beta1, beta2=beta2)
        self._check("at least 0", epsilon=epsilon, lr_alpha=lr_alpha)
        self._check_flags(use_lr_adaption=use_lr_adaption, normalized_lr_adaption=normalized_lr_adaption)
        self._check_flags(rowWise=rowWise, enableRAdam=enableRAdam, use_smart_decay=use_smart_decay)
        self._check_choices(engine=engine, sparse_dedup_aggregator=sparse_dedup_aggregator)
        for_sparse = {"rowWise": rowWise, "enableRAdam": enableRAdam, "use_smart_decay": use_smart_decay}
        if len(requested := [name for name, value in for_sparse.items() if value]) > 1:
            raise ArgumentError(f"AdamOptimizer: {' and '.join(requested)} exclude each other; choose one")
        if use_smart_decay and use_lr_adaption:
            raise ArgumentError(
                "AdamOptimizer: use_smart_decay and use_lr_adaption exclude each other, because use_smart_decay "
                "computes no effective gradient; choose one"
            )
        self.alpha = alpha
        self.beta1 = beta1
        self.beta2 = beta2
        self.epsilon = epsilon
        self.policy = policy
        self.use_lr_adaption = use_lr_adaption
        self.lr_alpha = lr_alpha
        self.normalized_lr_adaption = normalized_lr_adaption
        self.sparse_dedup_aggregator = sparse_dedup_aggregator
        self.rowWise = rowWise
        self.engine = engine
        self.enableRAdam = enableRAdam
        self.use_smart_decay = use_smart_decay
        self.init_kwargs = kwargs

    def _run(self, net: Net, param_init_net: Net, param_info: ParameterInfo) -> None:
        param, grad = param_info.blob, param_info.grad
        sparse = isinstance(grad, GradientSlice)
        if self.rowWise and not sparse:
            raise GradientError(
                f"AdamOptimizer: rowWise requires sparse gradients, but the gradient of {param_info} is dense"
            )
        lr, iteration = self._rate(net, param_init_net, -1, self.alpha, self.policy, self.init_kwargs)
        state = self._moments(param_init_net, param_info, smart=self.use_smart_decay)
        self._share(iteration_counter(net, param_init_net))
        options: dict[str, Any] = {
            "beta1": float(self.beta1),
            "beta2": float(self.beta2),
            "epsilon": float(self.epsilon),
        }
        if self.engine:
            options["engine"] = self.engine
        grad = self.dedup(net, self.sparse_dedup_aggregator, grad, shape=param_info.shape)
        outputs = [param, *state] + ([param + "_effective_grad"] if self.use_lr_adaption else [])
        if sparse:
            kind = "RowWiseSparseAdam" if self.rowWise else "SparseAdam"
            if self.use_smart_decay:
                kind = "SmartDecaySparseAdam"
            elif not self.rowWise:
                options["enableRAdam"] = int(self.enableRAdam)
            getattr(net, kind)([param, *state, grad.indices, grad.values, lr, iteration], outputs, **options)
            grad = grad.values
        else:
            moments = state[:2]
            outputs = [param, *moments, *outputs[1 + len(state) :]]
            net.Adam([param, *moments, grad, lr, iteration], outputs, **options)
        if self.use_lr_adaption:
            net.LearningRateAdaption(
                [lr, grad, outputs[-1]],
                [lr],
                lr_alpha=float(self.lr_alpha),
                normalized_lr_adaption=int(self.normalized_lr_adaption),
            )

    def _moments(self, param_init_net: Net, param_info: ParameterInfo, *, smart: bool) -> list[BlobReference]:
        """Add the state of the update, in the order of its inputs."""
        param = param_info.blob
        first = self._state(param_init_net, param, "_first_moment")
        if self.rowWise:
            return [first, self._row_state(param_init_net, param_info, "_avg_second_moment", value=0.0)]
        moments = [first, self._state(param_init_net, param, "_second_moment")]
        if smart:
            seen = self._row_state(param_init_net, param_info, "_last_seen", value=0, dtype=TensorProto.INT64)
            moments.append(seen)
        return moments


class AdamWOptimizer(AdamOptimizer, name="adamw"):
    """Adam with decoupled weight decay: w = w - alpha * weight_decay * w before the update of Adam.

    Args:
        alpha: base learning rate, before its policy.
        weight_decay: the decay; ``build_optimizer`` applies it to weights, not to biases.
        kwargs: arguments of ``AdamOptimizer`` and of the policy.

    Raises:
        ArgumentError: as for ``AdamOptimizer``, or ``weight_decay`` is negative.
        GradientError: a parameter that decays has a sparse gradient.

    Source: Loshchilov and Hutter, "Decoupled weight decay regularization", 2019, arXiv:1711.05101, algorithm 2.
    """

    repeats = True
    own_decay_is_decoupled = True

    def __init__(
        self,
        alpha: float = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        policy: str = "fixed",
        weight_decay: float = 0.01,
        **kwargs: Any,
    ) -> None:
        super().__init__(alpha, beta1, beta2, epsilon, policy, **kwargs)
        self._check("at least 0", weight_decay=weight_decay)
        self.weight_decay = self.decoupled_decay = weight_decay


build_adam = builder(AdamOptimizer)
build_adamw = builder(AdamWOptimizer)
