"""Weight decay: a multiple of each weight is added to its gradient."""

from __future__ import annotations

from netbuilder.graph.blob import GradientSlice
from netbuilder.graph.net import Net
from netbuilder.model.parameter_info import ParameterInfo
from netbuilder.optimizers.optimizer import Optimizer, constant, one
from netbuilder.proto import ArgumentError, GradientError

__all__ = ["WeightDecayBuilder"]


class WeightDecayBuilder(Optimizer):
    """g = g + weight_decay * w.

    Args:
        weight_decay: the factor, not negative.

    Raises:
        ArgumentError: ``weight_decay`` is negative.
    """

    updates = False

    def __init__(self, weight_decay: float) -> None:
        super().__init__()
        if weight_decay < 0:
            raise ArgumentError(f"weight decay must not be negative, got {weight_decay}")
        self.weight_decay = weight_decay

    def _run(self, net: Net, param_init_net: Net, param_info: ParameterInfo) -> None:
        param, grad = param_info.blob, param_info.grad
        if isinstance(grad, GradientSlice):
            raise GradientError(
                f"weight decay: supports only dense gradients, but the gradient of {param_info} is sparse; "
                "do not tag this parameter as a weight"
            )
        unit = one(param_init_net)
        decay = constant(param_init_net, "wd", float(self.weight_decay))
        net.WeightedSum([grad, unit, param, decay], grad)
