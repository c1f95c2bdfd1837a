"""RMSProp."""

from __future__ import annotations

from typing import Any

from netbuilder.graph.net import Net
from netbuilder.model.parameter_info import ParameterInfo
from netbuilder.optimizers.builders import builder
from netbuilder.optimizers.optimizer import Optimizer, one, require_dense

__all__ = ["RmsPropOptimizer", "build_rms_prop"]


class RmsPropOptimizer(Optimizer, name="rms-prop"):
    """v = momentum * v + g / sqrt(epsilon + s), w = w - alpha * v, s being a running average of g^2.

    s and v are stored in ``<parameter>_mean_squares`` and ``<parameter>_momentum``; the step of the
    last iteration is in ``<parameter>_grad_o``.

    Args:
        alpha: base learning rate, before its policy.
        decay: decay rate of s per iteration.
        momentum: decay rate of v per iteration.
        epsilon: prevents division by 0.
        policy: how the rate changes, see ``netbuilder.ops.updates.rate_policies``.
        engine: the engine of the update.
        kwargs: arguments of the policy.

    Raises:
        ArgumentError: an argument is out of range.

    Source: Tieleman and Hinton, "Neural networks for machine learning", lecture 6.5, 2012.
    """

    repeats = True
    rate_name = "alpha"
    usual_rate = 0.001

    def __init__(
        self,
        alpha: float = 0.01,
        decay: float = 0.9,
        momentum: float = 0.0,
        epsilon: float = 1e-5,
        policy: str = "fixed",
        engine: str = "",
        **kwargs: Any,
    ) -> None:
        super().__init__()
        self._check("in [0, 1]", decay=decay)
        self._check("in [0, 1)", momentum=momentum)
        self._check("at least 0", epsilon=epsilon)
        self._check_choices(engine=engine)
        self.alpha = alpha
        self.decay = decay
        self.momentum = momentum
        self.epsilon = epsilon
        self.policy = policy
        self.engine = engine
        self.init_kwargs = kwargs

    def _run(self, net: Net, param_init_net: Net, param_info: ParameterInfo) -> None:
        param, grad = param_info.blob, require_dense(self, param_info)
        unit = one(param_init_net)
        lr, _ = self._rate(net, param_init_net, 1, self.alpha, self.policy, self.init_kwargs)
        step: Any = param_init_net.ConstantFill([param], param + "_grad_o", value=0.0)
        s = self._state(param_init_net, param, "_mean_squares")
        v = self._state(param_init_net, param, "_momentum")
        options: dict[str, Any] = {"engine": self.engine} if self.engine else {}
        net.RmsProp(
            [grad, s, v, unit],
            [step, s, v],
            decay=float(self.decay),
            momentum=float(self.momentum),
            epsilon=float(self.epsilon),
            **options,
        )
        net.MomentumSGDUpdate([step, v, lr, param], [step, v, param])


build_rms_prop = builder(RmsPropOptimizer)
