"""Data parallelism: replicas of a model over devices."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from netbuilder.caffe2.absent import names_of
from netbuilder.model import ModelHelper
from netbuilder.parallel import (
    AddBlobSync,
    ConvertNetForDevice,
    CreateNet,
    ExtractPredictorNet,
    FinalizeAfterCheckpoint,
    GetCheckpointParams,
    GetLearningRateBlobNames,
    Parallelize,
    Parallelize_CPU,
    Parallelize_GPU,
    Parallelize_iDeep,
    RunInitNet,
    RunNet,
    Synchronize,
    stripBlobName,
)

__all__ = [
    "AddBlobSync",
    "ConvertNetForDevice",
    "CreateNet",
    "ExtractPredictorNet",
    "FinalizeAfterCheckpoint",
    "GetCheckpointParams",
    "GetLearningRateBlobNames",
    "OptimizeGradientMemory",
    "Parallelize",
    "Parallelize_CPU",
    "Parallelize_GPU",
    "Parallelize_iDeep",
    "RunInitNet",
    "RunNet",
    "Synchronize",
    "stripBlobName",
]

__getattr__ = names_of(__name__)

_log = logging.getLogger("netbuilder")


def OptimizeGradientMemory(
    model: ModelHelper, input_shapes: Mapping[str, Sequence[int]], excluded_blobs: Collection[Any],
    recycle_activations: bool,
) -> None:  # fmt: skip
    """Leave the model as it is: memory planning is not in this version, so every gradient keeps a blob of its own.

    What the net computes does not depend on it. A line in the log says so.

    Args:
        model: a model that Parallelize has made.
        input_shapes, excluded_blobs, recycle_activations: not read.

    Raises:
        TypeError: it is no ModelHelper.
    """
    if not isinstance(model, ModelHelper):
        raise TypeError(f"OptimizeGradientMemory: needs a ModelHelper, got {model!r}")
    _log.info("model %r: gradients keep their blobs, OptimizeGradientMemory changes nothing", model.name)
