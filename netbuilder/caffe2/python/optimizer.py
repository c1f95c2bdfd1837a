"""Optimizers and what adds them to a model."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.caffe2.absent import names_of
from netbuilder.caffe2.python import workspace
from netbuilder.optimizers import (
    LR_INJECTION,
    AdadeltaOptimizer,
    AdagradOptimizer,
    AdamOptimizer,
    AuxOptimizerParams,
    DecayAdagradOptimizer,
    FP16SgdOptimizer,
    FtrlOptimizer,
    GFtrlOptimizer,
    MultiPrecisionSgdOptimizer,
    Optimizer,
    RmsPropOptimizer,
    SgdOptimizer,
    StormOptimizer,
    WeightDecayBuilder,
    WngradOptimizer,
    YellowFinOptimizer,
    add_weight_decay,
    build_adadelta,
    build_adagrad,
    build_adam,
    build_decay_adagrad,
    build_fp16_sgd,
    build_ftrl,
    build_gftrl,
    build_multi_precision_sgd,
    build_rms_prop,
    build_sgd,
    build_storm,
    build_wngrad,
    build_yellowfin,
    get_param_device,
    reset_optimizer_instance_count,
)

__all__ = [
    "AdadeltaOptimizer",
    "AdagradOptimizer",
    "AdamOptimizer",
    "AuxOptimizerParams",
    "DecayAdagradOptimizer",
    "FP16SgdOptimizer",
    "FtrlOptimizer",
    "GFtrlOptimizer",
    "MultiPrecisionSgdOptimizer",
    "Optimizer",
    "RmsPropOptimizer",
    "SgdOptimizer",
    "StormOptimizer",
    "WeightDecayBuilder",
    "WngradOptimizer",
    "YellowFinOptimizer",
    "add_weight_decay",
    "build_adadelta",
    "build_adagrad",
    "build_adam",
    "build_decay_adagrad",
    "build_fp16_sgd",
    "build_ftrl",
    "build_gftrl",
    "build_multi_precision_sgd",
    "build_rms_prop",
    "build_sgd",
    "build_storm",
    "build_wngrad",
    "build_yellowfin",
    "get_lr_injection",
    "get_param_device",
    "reset_optimizer_instance_count",
    "set_lr_injection",
]

__getattr__ = names_of(__name__)


def get_lr_injection() -> Any:
    """Return what scales the rates of models built with ``allow_lr_injection``, an array of shape (1,).

    Raises:
        BlobError: neither such a model's init net nor ``set_lr_injection`` has set it.
    """
    return workspace.FetchBlob(LR_INJECTION)


def set_lr_injection(lr_injection_value: float) -> None:
    """Scale the rates of models built with ``allow_lr_injection`` from the next run on."""
    workspace.FeedBlob(LR_INJECTION, np.array([float(lr_injection_value)], np.float32))
