"""Data parallelism on one host: replicas of a model on several devices, their record, and how they are run."""

from netbuilder.graph.replicas import GradientGroup, Replicas, has_record
from netbuilder.parallel.accumulate import forget_gradients, pending_steps
from netbuilder.parallel.blocks import RunWarmup, finish_block
from netbuilder.parallel.budget import build_within_budget, planned_step
from netbuilder.parallel.data_parallel import DataParallel, Output
from netbuilder.parallel.gradient_scaling import GradientScaling
from netbuilder.parallel.input import loss_reader, prefetch
from netbuilder.parallel.memory import OptimizeGradientMemory
from netbuilder.parallel.options import DataParallelOptions
from netbuilder.parallel.parallel_do import ParallelDo
from netbuilder.parallel.parallelize import Parallelize, Parallelize_CPU, Parallelize_GPU, Parallelize_iDeep
from netbuilder.parallel.parallelize_bmuf import Parallelize_BMUF, Parallelize_CPU_BMUF, Parallelize_GPU_BMUF
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
from netbuilder.parallel.shares import ProcessBatch, feed_shares, gather_shares, share_sizes
from netbuilder.parallel.synchronize import AddBlobSync, FinalizeAfterCheckpoint, Synchronize
from netbuilder.parallel.unequal_steps import process_batches
from netbuilder.parallel.work_pool import Parallel, Parallelizable

__all__ = [
    "AddBlobSync",
    "ConvertNetForDevice",
    "CreateNet",
    "DataParallel",
    "DataParallelOptions",
    "ExtractPredictorNet",
    "FinalizeAfterCheckpoint",
    "GetCheckpointParams",
    "GetLearningRateBlobNames",
    "GradientGroup",
    "GradientScaling",
    "OptimizeGradientMemory",
    "Output",
    "Parallel",
    "Parallelizable",
    "ParallelDo",
    "Parallelize",
    "Parallelize_BMUF",
    "Parallelize_CPU",
    "Parallelize_CPU_BMUF",
    "Parallelize_GPU",
    "Parallelize_GPU_BMUF",
    "Parallelize_iDeep",
    "ProcessBatch",
    "Replicas",
    "RunInitNet",
    "RunNet",
    "RunWarmup",
    "Synchronize",
    "build_within_budget",
    "feed_shares",
    "finish_block",
    "forget_gradients",
    "gather_shares",
    "has_record",
    "loss_reader",
    "pending_steps",
    "planned_step",
    "prefetch",
    "process_batches",
    "replicas_of",
    "share_sizes",
    "stripBlobName",
]
