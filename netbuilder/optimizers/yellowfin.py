"""YellowFin."""

from __future__ import annotations

from typing import Any

from netbuilder.graph.net import Net
from netbuilder.model.model_helper import ModelHelper
from netbuilder.model.parameter_info import ParameterInfo
from netbuilder.optimizers.build import Params, build_optimizer
from netbuilder.optimizers.optimizer import Optimizer, iteration_counter, refuse, require_dense
from netbuilder.proto import ArgumentError
from netbuilder.proto.numbers import check_whole_numbers
from netbuilder.proto.suggestions import suggests_arguments

__all__ = ["YellowFinOptimizer", "build_yellowfin"]


class YellowFinOptimizer(Optimizer, name="yellowfin"):
    """Momentum SGD that tunes rate and momentum of each parameter automatically (see the operator YellowFin).

    The state has the parameter's name with the suffixes ``_moment``, ``_lr_avg``, ``_mu_avg``, ``_curv_win``,
    ``_g_avg``, ``_g2_avg`` and ``_scalars_memory``.

    Args:
        alpha: initial rate, positive.
        mu: initial momentum.
        beta: decay rate of running averages per iteration.
        curv_win_width: number of iterations for the minimum and maximum of the curvature.
        zero_debias: correct the bias of running averages from their start at 0.
        epsilon: prevents division by 0.
        policy: must be "fixed", because the rate is tuned automatically.
        sparse_dedup_aggregator: not supported.
        kwargs: ``nesterov``.

    Raises:
        ArgumentError: an argument is unknown, out of range or not supported.

    Source: Zhang and Mitliagkas, "YellowFin and the art of momentum tuning", 2017, arXiv:1706.03471.
    """

    repeats = True
    rate_name = "alpha"
    usual_rate = 0.1

    decouples = False
    tunes_rate = True

    def __init__(
        self,
        alpha: float = 0.1,
        mu: float = 0.0,
        beta: float = 0.999,
        curv_win_width: int = 20,
        zero_debias: bool = True,
        epsilon: float = 0.1**6,
        policy: str = "fixed",
        sparse_dedup_aggregator: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        refuse("YellowFinOptimizer", {"sparse_dedup_aggregator": sparse_dedup_aggregator})
        if policy != "fixed":
            raise ArgumentError(
                f"YellowFinOptimizer: policy must be 'fixed', because the rate is tuned automatically, got {policy!r}"
            )
        if unknown := sorted(kwargs.keys() - {"nesterov"}):
            raise ArgumentError(f"YellowFinOptimizer: unknown arguments {unknown}")
        self._check("positive", alpha=alpha, epsilon=epsilon)
        self._check("in [0, 1)", mu=mu, beta=beta)
        self._check_flags(zero_debias=zero_debias, nesterov=kwargs.get("nesterov", False))
        check_whole_numbers("YellowFinOptimizer", 1, curv_win_width=curv_win_width)
        self.alpha = alpha
        self.mu = mu
        self.beta = beta
        self.curv_win_width = curv_win_width
        self.zero_debias = zero_debias
        self.epsilon = epsilon
        self.policy = policy
        self.init_kwargs = kwargs

    def _run(self, net: Net, param_init_net: Net, param_info: ParameterInfo) -> None:
        param, grad = param_info.blob, require_dense(self, param_info)
        if self._lr_multiplier is not None:
            raise ArgumentError("YellowFinOptimizer has an automatically tuned rate, which a multiplier cannot scale")

        def fill(suffix: str, size: int, value: float = 0.0) -> Any:
            return param_init_net.ConstantFill([], param + suffix, shape=[size], value=value)

        def like(suffix: str) -> Any:
            return param_init_net.ConstantFill([param], param + suffix, value=0.0)

        moment = like("_moment")
        window = fill("_curv_win", self.curv_win_width)
        means = [like("_g_avg"), like("_g2_avg")]
        lr, mu = fill("_lr_avg", 1, float(self.alpha)), fill("_mu_avg", 1, float(self.mu))
        state = [moment, lr, mu, window, *means, fill("_scalars_memory", 5)]
        self._aux_params.local.extend(state)
        iteration = iteration_counter(net, param_init_net)
        self._share(iteration)
        options: dict[str, Any] = {"nesterov": 1} if self.init_kwargs.get("nesterov") else {}
        net.YellowFin(
            [param, *state, grad, iteration],
            [param, *state],
            beta=float(self.beta),
            epsilon=float(self.epsilon),
            curv_win_width=self.curv_win_width,
            zero_debias=int(self.zero_debias),
            **options,
        )


@suggests_arguments
def build_yellowfin(
    model: ModelHelper,
    base_learning_rate: float = 0.1,
    *,
    max_gradient_norm: float | None = None,
    params: Params | None = None,
    **kwargs: Any,
) -> Optimizer:
    """Update a model by YellowFin; ``kwargs`` for ``YellowFinOptimizer``."""
    made = YellowFinOptimizer(alpha=base_learning_rate, **kwargs)
    return build_optimizer(model, made, params=params, max_gradient_norm=max_gradient_norm)
