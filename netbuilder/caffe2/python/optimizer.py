"""Optimizers and what adds them to a model."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder import optimizers as native
from netbuilder.caffe2.absent import names_of
from netbuilder.caffe2.ignored_arguments import ignore_unknown_arguments
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
    get_param_device,
    reset_optimizer_instance_count,
)
from netbuilder.optimizers.optimizer import _instances as _optimizer_instance_count  # noqa: F401, Caffe2's name for it
from netbuilder.passes.blob_devices import blob_devices
from netbuilder.proto import DeviceOption

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

build_adadelta = ignore_unknown_arguments(native.build_adadelta, AdadeltaOptimizer)
build_adagrad = ignore_unknown_arguments(native.build_adagrad, AdagradOptimizer)
build_adam = ignore_unknown_arguments(native.build_adam, AdamOptimizer)
build_decay_adagrad = ignore_unknown_arguments(native.build_decay_adagrad, DecayAdagradOptimizer)
build_fp16_sgd = ignore_unknown_arguments(native.build_fp16_sgd, FP16SgdOptimizer)
build_ftrl = ignore_unknown_arguments(native.build_ftrl, FtrlOptimizer)
build_gftrl = ignore_unknown_arguments(native.build_gftrl, GFtrlOptimizer)
build_multi_precision_sgd = ignore_unknown_arguments(native.build_multi_precision_sgd, MultiPrecisionSgdOptimizer)
build_rms_prop = ignore_unknown_arguments(native.build_rms_prop, RmsPropOptimizer)
build_sgd = ignore_unknown_arguments(native.build_sgd, SgdOptimizer)
build_storm = ignore_unknown_arguments(native.build_storm, StormOptimizer)
build_wngrad = ignore_unknown_arguments(native.build_wngrad, WngradOptimizer)
build_yellowfin = ignore_unknown_arguments(native.build_yellowfin, YellowFinOptimizer)


def _get_param_to_device(model: Any) -> dict[str, DeviceOption]:
    """Return the device of each blob of a model: that of the first operator that touches it, the init net first."""
    return blob_devices([model.net.Proto()]) | blob_devices([model.param_init_net.Proto()])


def get_lr_injection() -> Any:
    """Return what scales the rates of models built with ``allow_lr_injection``, an array of shape (1,).

    Raises:
        BlobError: neither such a model's init net nor ``set_lr_injection`` has set it.
    """
    return workspace.FetchBlob(LR_INJECTION)


def set_lr_injection(lr_injection_value: float) -> None:
    """Scale the rates of models built with ``allow_lr_injection`` from the next run on."""
    workspace.FeedBlob(LR_INJECTION, np.array([float(lr_injection_value)], np.float32))
