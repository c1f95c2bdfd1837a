"""What tests of the zoo count: operators and parameters of a model."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.graph import infer_shapes
from netbuilder.model import ModelHelper

__all__ = ["built", "operators", "parameter_count"]


def built(create: Any, *args: Any, **kwargs: Any) -> tuple[ModelHelper, Any]:
    """Return a model with one net over the blob ``data``, and what the builder returned."""
    model = ModelHelper("zoo")
    return model, create(model, "data", *args, **kwargs)


def operators(model: ModelHelper, op_type: str) -> list[Any]:
    return [op for op in model.net.Proto().op if op.type == op_type]


def parameter_count(model: ModelHelper) -> int:
    """Return the number of elements of all parameters."""
    shapes = infer_shapes([model.param_init_net]).shapes
    return sum(int(np.prod(shapes[str(p)])) for p in model.params)
