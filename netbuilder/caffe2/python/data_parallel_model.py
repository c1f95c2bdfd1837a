"""Data parallelism: replicas of a model over devices."""

from __future__ import annotations

from netbuilder.caffe2.absent import names_of
from netbuilder.parallel import (
    AddBlobSync,
    ConvertNetForDevice,
    CreateNet,
    ExtractPredictorNet,
    FinalizeAfterCheckpoint,
    GetCheckpointParams,
    GetLearningRateBlobNames,
    OptimizeGradientMemory,
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
