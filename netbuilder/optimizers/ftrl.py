"""Follow the regularized leader, dense and sparse."""

from __future__ import annotations

from typing import Any, ClassVar

from netbuilder.graph.blob import GradientSlice
from netbuilder.graph.net import Net
from netbuilder.model.model_helper import ModelHelper
from netbuilder.model.parameter_info import ParameterInfo
from netbuilder.optimizers.build import Params, build_optimizer
from netbuilder.optimizers.optimizer import Optimizer, require_dense
from netbuilder.proto import ArgumentError
from netbuilder.proto.suggestions import suggests_arguments

__all__ = ["FtrlOptimizer", "GFtrlOptimizer", "build_ftrl", "build_gftrl"]


class FtrlOptimizer(Optimizer, name="ftrl"):
    """Computes each weight from the sums of its gradients and of their squares, with L1 and L2 (see the operator Ftrl).

    The sums are stored in ``<parameter>_ftrl_nz``, of the parameter's shape and a last axis of 2.

    Args:
        alpha: learning rate, positive.
        beta: makes the first steps smaller.
        lambda1: L1 regularization: weights below this threshold become 0.
        lambda2: L2 regularization (weight decay).
        sparse_dedup_aggregator: how rows of equal index are aggregated, see ``Optimizer.dedup``.
        engine: the engine of the update.

    Raises:
        ArgumentError: an argument is out of range, or an option is not supported.

    Source: McMahan et al., "Ad click prediction: a view from the trenches", 2013.
    """

    repeats = True
    rate_name = "alpha"
    usual_rate = 0.1

    _operator: ClassVar[str] = "Ftrl"
    _suffix: ClassVar[str] = "_ftrl_nz"

    decouples = False

    def __init__(
        self,
        alpha: float = 0.01,
        beta: float = 1e-4,
        lambda1: float = 0,
        lambda2: float = 0,
        sparse_dedup_aggregator: str | None = None,
        engine: str = "",
    ) -> None:
        super().__init__()
        self._check("positive", alpha=alpha)
        self._check("at least 0", beta=beta, lambda1=lambda1, lambda2=lambda2)
        self._check_choices(engine=engine, sparse_dedup_aggregator=sparse_dedup_aggregator)
        self.alpha = alpha
        self.beta = beta
        self.lambda1 = lambda1
        self.lambda2 = lambda2
        self.sparse_dedup_aggregator = sparse_dedup_aggregator
        self.engine = engine

    def _run(self, net: Net, param_init_net: Net, param_info: ParameterInfo) -> None:
        param, grad = param_info.blob, self._gradient(param_info)
        if self._lr_multiplier is not None:
            raise ArgumentError(f"{type(self).__name__} has no learning rate that a multiplier could scale")
        state: Any = param_init_net.ConstantFill([param], param + self._suffix, extra_shape=[2], value=0.0)
        self._aux_params.local.append(state)
        options: dict[str, Any] = {
            "alpha": self.rate_factor * self.alpha,
            "beta": self.beta,
            "lambda1": self.lambda1,
            "lambda2": self.lambda2,
        }
        if self.engine:
            options["engine"] = self.engine
        grad = self.dedup(net, self.sparse_dedup_aggregator, grad, shape=param_info.shape)
        if isinstance(grad, GradientSlice):
            net.SparseFtrl([param, state, grad.indices, grad.values], [param, state], **options)
        else:
            getattr(net, self._operator)([param, state, grad], [param, state], **options)

    def _gradient(self, param_info: ParameterInfo) -> Any:
        return param_info.grad


class GFtrlOptimizer(FtrlOptimizer, name="gftrl"):
    """Like ``FtrlOptimizer``, with group sparsity: weights along the first axis become 0 together (see GFtrl).

    The sums are stored in ``<parameter>_gftrl_nz``. Gradients must be dense, because groups span rows.

    Source: Ni et al., "Feature selection for Facebook feed ranking system via a group-sparsity-regularized training
    algorithm", 2019.
    """

    repeats = True

    _operator: ClassVar[str] = "GFtrl"
    _suffix: ClassVar[str] = "_gftrl_nz"

    def _gradient(self, param_info: ParameterInfo) -> Any:
        return require_dense(self, param_info)


@suggests_arguments
def build_ftrl(
    model: ModelHelper,
    engine: str = "SIMD",
    *,
    max_gradient_norm: float | None = None,
    params: Params | None = None,
    **kwargs: Any,
) -> Optimizer:
    """Update a model by FTRL; ``kwargs`` for ``FtrlOptimizer``."""
    made = FtrlOptimizer(engine=engine, **kwargs)
    return build_optimizer(model, made, params=params, max_gradient_norm=max_gradient_norm)


@suggests_arguments
def build_gftrl(
    model: ModelHelper,
    engine: str = "",
    *,
    max_gradient_norm: float | None = None,
    params: Params | None = None,
    **kwargs: Any,
) -> Optimizer:
    """Update a model by FTRL with group sparsity; ``kwargs`` for ``GFtrlOptimizer``."""
    made = GFtrlOptimizer(engine=engine, **kwargs)
    return build_optimizer(model, made, params=params, max_gradient_norm=max_gradient_norm)
