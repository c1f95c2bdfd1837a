"""Follow the regularized leader, dense and sparse."""

from __future__ import annotations

from typing import Any, ClassVar

from netbuilder.graph.blob import GradientSlice
from netbuilder.graph.net import Net
from netbuilder.model.parameter_info import ParameterInfo
from netbuilder.optimizers.optimizer import Optimizer, require_dense
from netbuilder.proto import ArgumentError

__all__ = ["FtrlOptimizer", "GFtrlOptimizer"]


class FtrlOptimizer(Optimizer):
    """Each weight from the sums of its gradients and of their squares; little ones become 0 (see the operator Ftrl).

    The sums are kept in ``<parameter>_ftrl_nz``, of the parameter's shape and a last axis of 2.

    Args:
        alpha: the rate, above 0.
        beta: keeps the first steps small.
        lambda1: bound below which a weight is 0.
        lambda2: weight decay.
        sparse_dedup_aggregator: what is done with rows of one index, see ``Optimizer.dedup``.
        engine: the engine of the update.

    Raises:
        ArgumentError: ``alpha`` is not above 0, or an option is not available.

    Source: McMahan et al., "Ad click prediction: a view from the trenches", 2013.
    """

    _operator: ClassVar[str] = "Ftrl"
    _suffix: ClassVar[str] = "_ftrl_nz"

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
        name = type(self).__name__
        if not alpha > 0:
            raise ArgumentError(f"{name}: alpha must be above 0, got {alpha}")
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
            "alpha": self.alpha,
            "beta": self.beta,
            "lambda1": self.lambda1,
            "lambda2": self.lambda2,
        }
        if self.engine:
            options["engine"] = self.engine
        grad = self.dedup(net, self.sparse_dedup_aggregator, grad)
        if isinstance(grad, GradientSlice):
            net.SparseFtrl([param, state, grad.indices, grad.values], [param, state], **options)
        else:
            getattr(net, self._operator)([param, state, grad], [param, state], **options)

    def _gradient(self, param_info: ParameterInfo) -> Any:
        return param_info.grad

    def scale_learning_rate(self, scale: float) -> None:
        """Multiply the rate; before the updates are added."""
        self.alpha *= scale


class GFtrlOptimizer(FtrlOptimizer):
    """As ``FtrlOptimizer``, but all weights along the first axis become 0 together (see the operator GFtrl).

    The sums are kept in ``<parameter>_gftrl_nz``. Gradients must be dense: groups reach over rows.

    Source: Ni et al., "Feature selection for Facebook feed ranking system via a group-sparsity-regularized training
    algorithm", 2019.
    """

    _operator: ClassVar[str] = "GFtrl"
    _suffix: ClassVar[str] = "_gftrl_nz"

    def _gradient(self, param_info: ParameterInfo) -> Any:
        return require_dense(self, param_info)
