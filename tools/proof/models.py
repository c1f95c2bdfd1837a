"""What is trained on several numbers of devices, with batches from a fixed seed: models with tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from netbuilder.graph import DeviceScope, NameScope
from netbuilder.model import Initializer, ModelHelper, brew
from netbuilder.proto import PROTO_CPU
from netbuilder.proto.arguments import make_device_option

__all__ = ["SAMPLES", "TABLES", "ProofModel"]

SAMPLES = 24
"""Samples of a batch, a number that 1, 2, 3, 4 and 8 divide."""

_ROWS, _COLUMNS, _READ, _CLASSES = 13, 4, 3, 4

Batch = dict[str, Any]


@dataclass(frozen=True)
class ProofModel:
    """A model whose training is compared.

    Args:
        build: adds the forward pass of one replica to the model, given the loss scale and what ``outside`` made.
        batch: draws the inputs of ``SAMPLES`` samples, by name.
        outside: makes parameters outside of the replicas; None: there are none.
        axes: axis of the samples, for inputs where that is not the first one.
        options: further arguments of Parallelize.
    """

    build: Callable[[ModelHelper, float, Any], list[Any]]
    batch: Callable[[np.random.Generator], Batch]
    outside: Callable[[ModelHelper], Any] | None = None
    axes: Mapping[str, int] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


def _indices(rng: np.random.Generator) -> Batch:
    """Draw a few rows for each sample, many of them several times, and classes."""
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


def _looked_up(model: ModelHelper, loss_scale: float, table: Any) -> list[Any]:
    """Rows of a table, a hidden layer, classes; the table is outside, or made here."""
    x = _hidden(model, table if table is not None else _table(model))
    return _loss(model, brew.fc(model, x, "fc2", _COLUMNS, _CLASSES), loss_scale)


def _tied(model: ModelHelper, loss_scale: float, table: Any) -> list[Any]:
    """The table is looked up, and is the weight of the scores, too: a sparse and a dense gradient for one parameter."""
    table = _table(model)
    scores = model.net.MatMul([_hidden(model, table), table], "scores", trans_b=1)
    return _loss(model, brew.fc(model, scores, "fc2", _ROWS, _CLASSES), loss_scale)


TABLES: dict[str, ProofModel] = {
    "embedding outside": ProofModel(_looked_up, _indices, outside=_table_outside),
    "embedding inside": ProofModel(_looked_up, _indices),
    "embedding moved out": ProofModel(_looked_up, _indices, options={"outside_from_bytes": 0}),
    "both on one table": ProofModel(_tied, _indices),
}
"""By name: models whose table gets a sparse gradient, or a sparse one and a dense one."""
