"""The optimizers of the proof; repeated rows of sparse gradients are summed before their update."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from netbuilder import optimizers
from netbuilder.graph import GradientSlice
from netbuilder.model import ModelHelper

__all__ = ["OPTIMIZERS"]

_SUM: dict[str, Any] = {"sparse_dedup_aggregator": "sum"}


def _row_wise(model: ModelHelper) -> Any:
    """Adagrad, with one sum a row for the parameters that have a sparse gradient."""
    rows = optimizers.AdagradOptimizer(alpha=0.05, rowWise=True, **_SUM)
    for param in model.params:
        if isinstance(model.param_to_grad.get(param), GradientSlice):
            info = model.get_param_info(param)
            assert info is not None
            info.optimizer = rows
    return optimizers.build_adagrad(model, 0.05)


OPTIMIZERS: dict[str, Callable[[ModelHelper], Any]] = {
    "SGD": lambda model: optimizers.build_sgd(model, 0.1, **_SUM),
    "momentum": lambda model: optimizers.build_sgd(model, 0.05, momentum=0.9, **_SUM),
    "Adagrad": lambda model: optimizers.build_adagrad(model, 0.05, **_SUM),
    "Adam": lambda model: optimizers.build_adam(model, 0.01, **_SUM),
    "row-wise": _row_wise,
}
"""By name: each adds its updates to a model."""
