"""Data parallelism on one host: replicas of a model over devices, their record, and how they run."""

from netbuilder.parallel.input import loss_reader, prefetch
from netbuilder.parallel.parallelize import Parallelize, Parallelize_CPU, Parallelize_GPU, Parallelize_iDeep
from netbuilder.parallel.predictor import ConvertNetForDevice, ExtractPredictorNet
from netbuilder.parallel.record import GradientGroup, Replicas, has_record, replicas_of
from netbuilder.parallel.running import (
    CreateNet,
    GetCheckpointParams,
    GetLearningRateBlobNames,
    RunInitNet,
    RunNet,
    stripBlobName,
)
from netbuilder.parallel.synchronise import AddBlobSync, FinalizeAfterCheckpoint, Synchronize

__all__ = [
    "AddBlobSync",
    "ConvertNetForDevice",
    "CreateNet",
    "ExtractPredictorNet",
    "FinalizeAfterCheckpoint",
    "GetCheckpointParams",
    "GetLearningRateBlobNames",
    "GradientGroup",
    "Parallelize",
    "Parallelize_CPU",
    "Parallelize_GPU",
    "Parallelize_iDeep",
    "Replicas",
    "RunInitNet",
    "RunNet",
    "Synchronize",
    "has_record",
    "loss_reader",
    "prefetch",
    "replicas_of",
    "stripBlobName",
]
