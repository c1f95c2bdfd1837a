"""Data parallelism on one host: replicas of a model on several devices, their record, and how they are run.

Its names are imported on first use: a predictor needs none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from netbuilder._lazy import names_on_first_use as _names_on_first_use

_EXPORTS = {
    "netbuilder.graph.replicas": ["GradientGroup", "Replicas", "has_record"],
    "netbuilder.parallel.accumulate": ["forget_gradients", "pending_steps"],
    "netbuilder.parallel.blocks": ["RunWarmup", "finish_block"],
    "netbuilder.parallel.budget": ["build_within_budget", "planned_step"],
    "netbuilder.parallel.data_parallel": ["DataParallel", "Output"],
    "netbuilder.parallel.gradient_scaling": ["GradientScaling"],
    "netbuilder.parallel.input": ["loss_reader", "prefetch"],
    "netbuilder.parallel.memory": ["OptimizeGradientMemory"],
    "netbuilder.parallel.options": ["DataParallelOptions"],
    "netbuilder.parallel.parallel_do": ["ParallelDo"],
    "netbuilder.parallel.parallelize": ["Parallelize", "Parallelize_CPU", "Parallelize_GPU", "Parallelize_iDeep"],
    "netbuilder.parallel.parallelize_bmuf": ["Parallelize_BMUF", "Parallelize_CPU_BMUF", "Parallelize_GPU_BMUF"],
    "netbuilder.parallel.predictor": ["ConvertNetForDevice", "ExtractPredictorNet"],
    "netbuilder.parallel.record": ["replicas_of"],
    "netbuilder.parallel.running": [
        "CreateNet",
        "GetCheckpointParams",
        "GetLearningRateBlobNames",
        "RunInitNet",
        "RunNet",
        "stripBlobName",
    ],
    "netbuilder.parallel.shares": ["ProcessBatch", "feed_shares", "gather_shares", "share_sizes"],
    "netbuilder.parallel.statistics": ["estimate_statistics"],
    "netbuilder.parallel.synchronize": ["AddBlobSync", "FinalizeAfterCheckpoint", "Synchronize"],
    "netbuilder.parallel.unequal_steps": ["process_batches"],
    "netbuilder.parallel.work_pool": ["Parallel", "Parallelizable"],
}

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
    "estimate_statistics",
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

if TYPE_CHECKING:
    from netbuilder.graph.replicas import GradientGroup as GradientGroup
    from netbuilder.graph.replicas import Replicas as Replicas
    from netbuilder.graph.replicas import has_record as has_record
    from netbuilder.parallel.accumulate import forget_gradients as forget_gradients
    from netbuilder.parallel.accumulate import pending_steps as pending_steps
    from netbuilder.parallel.blocks import RunWarmup as RunWarmup
    from netbuilder.parallel.blocks import finish_block as finish_block
    from netbuilder.parallel.budget import build_within_budget as build_within_budget
    from netbuilder.parallel.budget import planned_step as planned_step
    from netbuilder.parallel.data_parallel import DataParallel as DataParallel
    from netbuilder.parallel.data_parallel import Output as Output
    from netbuilder.parallel.gradient_scaling import GradientScaling as GradientScaling
    from netbuilder.parallel.input import loss_reader as loss_reader
    from netbuilder.parallel.input import prefetch as prefetch
    from netbuilder.parallel.memory import OptimizeGradientMemory as OptimizeGradientMemory
    from netbuilder.parallel.options import DataParallelOptions as DataParallelOptions
    from netbuilder.parallel.parallel_do import ParallelDo as ParallelDo
    from netbuilder.parallel.parallelize import Parallelize as Parallelize
    from netbuilder.parallel.parallelize import Parallelize_CPU as Parallelize_CPU
    from netbuilder.parallel.parallelize import Parallelize_GPU as Parallelize_GPU
    from netbuilder.parallel.parallelize import Parallelize_iDeep as Parallelize_iDeep
    from netbuilder.parallel.parallelize_bmuf import Parallelize_BMUF as Parallelize_BMUF
    from netbuilder.parallel.parallelize_bmuf import Parallelize_CPU_BMUF as Parallelize_CPU_BMUF
    from netbuilder.parallel.parallelize_bmuf import Parallelize_GPU_BMUF as Parallelize_GPU_BMUF
    from netbuilder.parallel.predictor import ConvertNetForDevice as ConvertNetForDevice
    from netbuilder.parallel.predictor import ExtractPredictorNet as ExtractPredictorNet
    from netbuilder.parallel.record import replicas_of as replicas_of
    from netbuilder.parallel.running import CreateNet as CreateNet
    from netbuilder.parallel.running import GetCheckpointParams as GetCheckpointParams
    from netbuilder.parallel.running import GetLearningRateBlobNames as GetLearningRateBlobNames
    from netbuilder.parallel.running import RunInitNet as RunInitNet
    from netbuilder.parallel.running import RunNet as RunNet
    from netbuilder.parallel.running import stripBlobName as stripBlobName
    from netbuilder.parallel.shares import ProcessBatch as ProcessBatch
    from netbuilder.parallel.shares import feed_shares as feed_shares
    from netbuilder.parallel.shares import gather_shares as gather_shares
    from netbuilder.parallel.shares import share_sizes as share_sizes
    from netbuilder.parallel.statistics import estimate_statistics as estimate_statistics
    from netbuilder.parallel.synchronize import AddBlobSync as AddBlobSync
    from netbuilder.parallel.synchronize import FinalizeAfterCheckpoint as FinalizeAfterCheckpoint
    from netbuilder.parallel.synchronize import Synchronize as Synchronize
    from netbuilder.parallel.unequal_steps import process_batches as process_batches
    from netbuilder.parallel.work_pool import Parallel as Parallel
    from netbuilder.parallel.work_pool import Parallelizable as Parallelizable

__getattr__, __dir__ = _names_on_first_use(__name__, _EXPORTS)
