"""What netbuilder-prove trains: dense models and those with tables, with batches from a fixed seed, and optimizers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, replace
from typing import Any

import numpy as np

from netbuilder import optimizers
from netbuilder.graph import DeviceScope, GradientSlice, NameScope
from netbuilder.model import Initializer, ModelHelper, brew
from netbuilder.proto import PROTO_CPU
from netbuilder.proto.arguments import make_device_option
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["OPTIMIZERS", "SAMPLES", "TABLES", "UNEVEN", "ProofModel"]

SAMPLES = 24
"""Samples per batch, a multiple of 1, 2, 3, 4 and 8."""

_ROWS, _COLUMNS, _READ, _CLASSES, _INPUTS = 13, 4, 3, 4, 6

Batch = dict[str, Any]


@dataclass(frozen=True)
class ProofModel:
    """A model whose training on different numbers of devices is compared.

    Args:
        build: adds the forward pass of one replica, given the model, the loss scale and the result of ``outside``.
        batch: draws the inputs of ``SAMPLES`` samples, by name.
        outside: makes parameters outside of the replicas; None: there are none.
        axes: axis of the samples, for inputs in which it is not the first.
        options: further arguments of Parallelize.
        last: number of samples of each of the last batches, if they have fewer than ``SAMPLES``.
        by_devices: the results depend on the number of devices, though not on that of processes.
        looks_up: a parameter has a sparse gradient, which cannot be scaled.
        weighs: the loss is a mean over weights; replicas that train on their own each divide by the sum of their own.
    """

    build: Callable[[ModelHelper, float, Any], list[Any]]
    batch: Callable[[np.random.Generator], Batch]
    outside: Callable[[ModelHelper], Any] | None = None
    axes: Mapping[str, int] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    last: tuple[int, ...] = ()
    by_devices: bool = False
    looks_up: bool = False
    weighs: bool = False

    def with_options(self, options: Mapping[str, Any]) -> ProofModel:
        """Return the same model with further arguments of Parallelize."""
        return replace(self, options={**self.options, **options})

    def batches(self, steps: int) -> Iterator[Batch]:
        """Draw the batches of so many steps from a fixed seed; those of ``last`` have the first axis of the samples."""
        rng = np.random.default_rng(5)
        sizes = (*[SAMPLES] * (steps - len(self.last)), *self.last)[-steps:] if self.last else [SAMPLES] * steps
        for size in sizes:
            batch = self.batch(rng)
            yield batch if size == SAMPLES else {name: whole[:size] for name, whole in batch.items()}


def _indices(rng: np.random.Generator) -> Batch:
    """Draw indices, many of them repeated, and classes."""
    return {
        "indices": rng.integers(0, _ROWS, (SAMPLES, _READ)).astype(np.int32),
        "label": rng.integers(0, _CLASSES, SAMPLES).astype(np.int32),
    }


def _table(model: ModelHelper) -> Any:
    return model.create_param("table", [_ROWS, _COLUMNS], Initializer("UniformFill", min=-0.5, max=0.5))


def _table_outside(model: ModelHelper) -> Any:
    with NameScope("host"), DeviceScope(make_device_option(PROTO_CPU, 0)):
        return _table(model)


def _hidden(model: ModelHelper, table: Any) -> Any:
    flat, _ = model.net.Reshape("indices", ["flat_indices", "indices_shape"], shape=[-1])
    rows = model.net.Gather([table, flat], "rows")
    x, _ = model.net.Reshape(rows, ["x", "rows_shape"], shape=[-1, _READ * _COLUMNS])
    return model.net.Tanh(brew.fc(model, x, "fc1", _READ * _COLUMNS, _COLUMNS), "hidden")


def _loss(model: ModelHelper, scores: Any, loss_scale: float) -> list[Any]:
    _, loss = model.net.SoftmaxWithLoss([scores, "label"], ["softmax", "loss"])
    return [model.net.Scale(loss, "scaled_loss", scale=loss_scale)]


def _embedding(model: ModelHelper, loss_scale: float, table: Any) -> list[Any]:
    """Add an embedding, a hidden layer and classes; the table is ``table``, or made here."""
    x = _hidden(model, table if table is not None else _table(model))
    return _loss(model, brew.fc(model, x, "fc2", _COLUMNS, _CLASSES), loss_scale)


def _tied(model: ModelHelper, loss_scale: float, table: Any) -> list[Any]:
    """Add a model whose table is also the weight of the scores: one parameter with a sparse and a dense gradient."""
    table = _table(model)
    scores = model.net.MatMul([_hidden(model, table), table], "scores", trans_b=1)
    return _loss(model, brew.fc(model, scores, "fc2", _ROWS, _CLASSES), loss_scale)


def _vectors(rng: np.random.Generator) -> Batch:
    return {
        "data": rng.standard_normal((SAMPLES, _INPUTS), np.float32),
        "label": rng.integers(0, _CLASSES, SAMPLES).astype(np.int32),
    }


def _layers(model: ModelHelper, loss_scale: float, outside: Any) -> list[Any]:
    x = model.net.Tanh(brew.fc(model, "data", "fc1", _INPUTS, _COLUMNS), "hidden")
    return _loss(model, brew.fc(model, x, "fc2", _COLUMNS, _CLASSES), loss_scale)


def _weighted_vectors(rng: np.random.Generator) -> Batch:
    """Draw vectors whose samples have weights, of which a quarter are 0 and the last ones are much larger."""
    weights = rng.uniform(0.5, 1.5, SAMPLES) * (rng.random(SAMPLES) > 0.25) * np.linspace(0.1, 4.0, SAMPLES)
    return {**_vectors(rng), "weight": weights.astype(np.float32)}


def _weighted(model: ModelHelper, loss_scale: float, outside: Any) -> list[Any]:
    """Add a model whose loss is a mean over weights, which differ from share to share."""
    x = model.net.Tanh(brew.fc(model, "data", "fc1", _INPUTS, _COLUMNS), "hidden")
    scores = brew.fc(model, x, "fc2", _COLUMNS, _CLASSES)
    _, loss = model.net.SoftmaxWithLoss([scores, "label", "weight"], ["softmax", "loss"])
    return [model.net.Scale(loss, "scaled_loss", scale=loss_scale)]


UNEVEN: dict[str, Any] = {"options": {"weighted_shares": True}, "last": (13, 3)}
"""Arguments of models whose last batches cannot be split evenly; the very last has too few samples for four devices."""

TABLES: dict[str, ProofModel] = {
    "dense": ProofModel(_layers, _vectors),
    "uneven dense": ProofModel(_layers, _vectors, **UNEVEN),
    "weighted": ProofModel(_weighted, _weighted_vectors, weighs=True),
    "uneven weighted": ProofModel(_weighted, _weighted_vectors, **UNEVEN, weighs=True),
    "embedding outside": ProofModel(_embedding, _indices, outside=_table_outside, looks_up=True),
    "embedding inside": ProofModel(_embedding, _indices, looks_up=True),
    "uneven embedding": ProofModel(_embedding, _indices, **UNEVEN, looks_up=True),
    "embedding moved out": ProofModel(_embedding, _indices, options={"outside_from_bytes": 0}, looks_up=True),
    "both on one table": ProofModel(_tied, _indices, looks_up=True),
}
"""Name -> model of dense layers, or whose table gets a sparse gradient, or a sparse and a dense one."""

_SUM: dict[str, Any] = {"sparse_dedup_aggregator": "sum"}  # sums repeated rows of sparse gradients before the update


def _row_wise(model: ModelHelper) -> Any:
    """Adagrad, row-wise for the parameters that have a sparse gradient."""
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
"""Name -> function that adds the updates to a model."""
