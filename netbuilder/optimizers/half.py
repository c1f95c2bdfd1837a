"""SGD for float16 parameters: with float32 master copies, or entirely in float16."""

from __future__ import annotations

from typing import Any

from netbuilder.graph.net import Net
from netbuilder.model.model_helper import ModelHelper
from netbuilder.model.parameter_info import ParameterInfo
from netbuilder.optimizers.build import Params, build_optimizer
from netbuilder.optimizers.builders import builder
from netbuilder.optimizers.optimizer import Optimizer, refuse, require_dense
from netbuilder.optimizers.sgd import SgdOptimizer
from netbuilder.proto import ArgumentError, TensorProto
from netbuilder.proto.suggestions import suggests_arguments

__all__ = ["FP16SgdOptimizer", "MultiPrecisionSgdOptimizer", "build_fp16_sgd", "build_multi_precision_sgd"]


class MultiPrecisionSgdOptimizer(SgdOptimizer, name="multi-precision-sgd"):
    """SGD on float32 master copies of float16 parameters; after each step the parameters are rounded from them.

    Parameters of ``PseudoFP16Initializer`` have master copies: the gradient is converted to float32
    (``<gradient>_fp32``) and updates the master copy, which is then rounded to the parameter.
    ``<parameter>_momentum`` is float32. Master copies are state: ``get_auxiliary_parameters`` lists them. Other
    parameters are updated as by ``SgdOptimizer``.

    Args:
        base_learning_rate, momentum, policy, nesterov, sparse_dedup_aggregator, kwargs: see ``SgdOptimizer``.

    Raises:
        ArgumentError: an argument is out of range; or, when the updates are added, a parameter has a float16 copy
            instead of a master copy (``ReversePseudoFP16Initializer``).
        GradientError: the gradient of a float16 parameter is sparse.

    Source: Micikevicius et al., "Mixed precision training", 2017, arXiv:1710.03740, section 3.1.
    """

    decouples = False
    for_float16 = True

    def __init__(
        self,
        base_learning_rate: float = 0.1,
        momentum: float = 0.0,
        policy: str = "fixed",
        nesterov: bool = True,
        sparse_dedup_aggregator: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            base_learning_rate=base_learning_rate,
            policy=policy,
            momentum=momentum,
            nesterov=nesterov,
            sparse_dedup_aggregator=sparse_dedup_aggregator,
            **kwargs,
        )
        self._sign_of_rate: dict[str, int] = {}

    def _run(self, net: Net, param_init_net: Net, param_info: ParameterInfo) -> None:
        if not param_info.blob_copy:
            super()._run(net, param_init_net, param_info)
            return
        master = param_info.blob_copy.get(TensorProto.FLOAT)
        if master is None:
            raise ArgumentError(
                f"MultiPrecisionSgdOptimizer: parameter {param_info} has no float32 master copy; create it with "
                "PseudoFP16Initializer"
            )
        param, grad = param_info.blob, require_dense(self, param_info)
        lr = self._rate_of_sign(net, param_init_net, 1)
        moment = param_init_net.ConstantFill([master], param + "_momentum", value=0.0)
        self._aux_params.local.extend([moment, master])
        wide = net.HalfToFloat(grad, grad + "_fp32")
        net.MomentumSGDUpdate(
            [wide, moment, lr, master],
            [wide, moment, master],
            momentum=float(self.momentum),
            nesterov=int(self.nesterov),
        )
        net.FloatToHalf(master, param)

    def _rate_of_sign(self, net: Net, param_init_net: Net, sign: int) -> Any:
        """Return the rate with this sign.

        Without momentum, updates of master copies subtract the step and those of other parameters add it. If a device
        has both, the second kind gets its own rate; in Caffe2 it would use the wrong sign and ascend.
        """
        name = self.make_unique_blob_name("lr")
        if self._sign_of_rate.setdefault(name, sign) == sign:
            return super()._rate_of_sign(net, param_init_net, sign)
        other = self.make_unique_blob_name("subtracted_lr" if sign > 0 else "added_lr")
        arguments = {**self.init_kwargs, "learning_rate_blob": other}
        return self._rate(net, param_init_net, sign, self.base_learning_rate, self.policy, arguments)[0]


class FP16SgdOptimizer(SgdOptimizer, name="fp16-sgd"):
    """SGD with weight decay in float16: parameters, gradients and momentum. Float32 parameters are updated in float32.

    Float16 parameters are those of ``PseudoFP16Initializer``, or the float16 copies of
    ``ReversePseudoFP16Initializer``. The momentum of every parameter is stored twice, ``<parameter>_momentum_fp32``
    and, rounded, ``<parameter>_momentum``; each update uses the one of its type, which
    ``get_auxiliary_parameters`` lists. All parameters decay, biases included.

    Args:
        base_learning_rate, momentum, policy, nesterov, kwargs: see ``SgdOptimizer``.
        weight_decay: multiple of the weight that is added to its gradient.
        sparse_dedup_aggregator: not supported.

    Raises:
        ArgumentError: an argument is out of range, or an option is not supported.
        GradientError: a gradient is sparse.
    """

    decouples = False
    for_float16 = True

    def __init__(
        self,
        base_learning_rate: float = 0.1,
        momentum: float = 0.0,
        policy: str = "fixed",
        nesterov: bool = True,
        weight_decay: float = 0.0001,
        sparse_dedup_aggregator: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            base_learning_rate=base_learning_rate, policy=policy, momentum=momentum, nesterov=nesterov, **kwargs
        )
        refuse("FP16SgdOptimizer", {"sparse_dedup_aggregator": sparse_dedup_aggregator})
        self._check("at least 0", weight_decay=weight_decay)
        self.weight_decay = weight_decay

    def _run(self, net: Net, param_init_net: Net, param_info: ParameterInfo) -> None:
        param, grad = param_info.blob, require_dense(self, param_info)
        copies = param_info.blob_copy or {}
        single = copies.get(TensorProto.FLOAT, param)
        half = copies.get(TensorProto.FLOAT16, param if copies else None)
        named = param if half is None else half
        lr = self._rate_of_sign(net, param_init_net, 1)
        wide = param_init_net.ConstantFill([single], named + "_momentum_fp32", value=0.0)
        narrow = param_init_net.FloatToHalf(wide, named + "_momentum")
        moment, updated, kind = (wide, param, "FP32") if half is None else (narrow, half, "FP16")
        self._aux_params.local.append(moment)
        getattr(net, kind + "MomentumSGDUpdate")(
            [grad, moment, lr, updated],
            [grad, moment, updated],
            momentum=float(self.momentum),
            nesterov=int(self.nesterov),
            weight_decay=float(self.weight_decay),
        )


build_multi_precision_sgd = builder(MultiPrecisionSgdOptimizer)


@suggests_arguments
def build_fp16_sgd(
    model: ModelHelper,
    base_learning_rate: float,
    *,
    max_gradient_norm: float | None = None,
    params: Params | None = None,
    **kwargs: Any,
) -> Optimizer:
    """Update a model by SGD in float16, with weight decay; ``kwargs`` for ``FP16SgdOptimizer``."""
    made = FP16SgdOptimizer(base_learning_rate=base_learning_rate, **kwargs)
    return build_optimizer(model, made, params=params, max_gradient_norm=max_gradient_norm)
