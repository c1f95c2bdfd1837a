"""Updates of embedding tables that are indexed by matrices."""

from __future__ import annotations

from netbuilder.graph import GradientSlice
from netbuilder.model import ModelHelper
from netbuilder.optimizers import build_adam

__all__ = ["build_update"]


def build_update(model: ModelHelper, rate: float, width: int) -> None:
    """Add Adam, which updates each row of a table once per step, with the sum of its gradients.

    Then the order of the words, and the number of devices that share them, make no difference.

    Args:
        rate: the learning rate.
        width: of the tables' rows.
    """
    for parameter, gradient in model.param_to_grad.items():
        if isinstance(gradient, GradientSlice):  # flatten to a vector of indices and a matrix with a row for each
            indices = model.net.FlattenToVec(gradient.indices, f"{gradient.indices}_flat")
            flat = [f"{gradient.values}_flat", f"{gradient.values}_flat_shape"]
            values = model.net.Reshape(gradient.values, flat, shape=[-1, width])[0]
            model.param_to_grad[parameter] = GradientSlice(indices, values)
    build_adam(model, rate, sparse_dedup_aggregator="sum")
