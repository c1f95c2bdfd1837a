"""What tests of the zoo share: small nets with the blocks of large ones, counts of operators and parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from netbuilder.graph import infer_shapes
from netbuilder.model import ModelHelper
from netbuilder.zoo import inception
from netbuilder.zoo.resnet import RESNET_STAGES
from netbuilder.zoo.resnext import create_resnext

__all__ = ["built", "create_small_inception", "create_small_resnext", "operators", "parameter_count"]

_BRANCHES = inception.Branches(16, 16, 24, 8, 16, 8)


def create_small_inception(*args: Any, **kwargs: Any) -> Any:
    """As ``create_inception_v1``: its stem, and one narrow module in each of the three stages."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inception, "STAGES", {stage: {"a": _BRANCHES} for stage in (3, 4, 5)})
        return inception.create_inception_v1(*args, **kwargs)


def create_small_resnext(*args: Any, **kwargs: Any) -> Any:
    """As ``create_resnext`` of 50 layers, but with one bottleneck in each of the four stages."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(RESNET_STAGES, 50, (1, 1, 1, 1))
        return create_resnext(*args, **kwargs)


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
