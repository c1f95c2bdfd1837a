"""Data parallelism on one host: replicas of a model on several devices, their record, and how they are run."""

from netbuilder.graph.replicas import GradientGroup, Replicas, has_record
from netbuilder.parallel.accumulate import forget_gradients, pending_steps
from netbuilder.parallel.input import loss_reader, prefetch
from netbuilder.parallel.memory import OptimizeGradientMemory
from netbuilder.parallel.parallelize import Parallelize, Parallelize_CPU, Parallelize_GPU, Parallelize_iDeep
from netbuilder.parallel.predictor import ConvertNetForDevice, ExtractPredictorNet
from netbuilder.parallel.record import replicas_of
from netbuilder.parallel.running import (
    CreateNet,
    GetCheckpointParams,
    GetLearningRateBlobNames,
    RunInitNet,
    RunNet,
    stripBlobName,
)
from netbuilder.parallel.shares import feed_shares, gather_shares, share_sizes
from netbuilder.parallel.synchronize import AddBlobSync, FinalizeAfterCheckpoint, Synchronize

__all__ = [
    "AddBlobSync",
    "ConvertNetForDevice",
    "CreateNet",
    "ExtractPredictorNet",
    "FinalizeAfterCheckpoint",
    "GetCheckpointParams",
    "GetLearningRateBlobNames",
    "GradientGroup",
    "OptimizeGradientMemory",
    "Parallelize",
    "Parallelize_CPU",
    "Parallelize_GPU",
    "Parallelize_iDeep",
    "Replicas",
    "RunInitNet",
    "RunNet",
    "Synchronize",
    "feed_shares",
    "forget_gradients",
    "gather_shares",
    "has_record",
    "loss_reader",
    "pending_steps",
    "prefetch",
    "replicas_of",
    "share_sizes",
    "stripBlobName",
]
