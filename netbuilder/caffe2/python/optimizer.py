"""Optimizers, and functions that add them to a model."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numpy as np

from netbuilder import optimizers as native
from netbuilder.caffe2.lenient import warn_ignored
from netbuilder.caffe2.missing import names_of
from netbuilder.caffe2.python import workspace
from netbuilder.graph.blob_devices import blob_devices
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

_Given = ParamSpec("_Given")
_Made = TypeVar("_Made")

_INSTEAD = {"weight_decay": "; call add_weight_decay(model, {value}) before it"}


def _ignore_unknown_arguments(builder: Callable[_Given, _Made], optimizer: type[Optimizer]) -> Callable[_Given, _Made]:
    """Return a builder that ignores arguments which neither its optimizer nor the LearningRate operator has.

    Caffe2 passes them to the LearningRate operator, which ignores them. Near misses of argument names are refused.

    Args:
        builder: such as ``build_sgd``.
        optimizer: the class that it builds.
    """

    @functools.wraps(builder)
    def build(*args: _Given.args, **kwargs: _Given.kwargs) -> _Made:
        for name in optimizer.unknown_arguments(kwargs, builder):
            hint = _INSTEAD.get(name, "").format(value=kwargs.pop(name))
            warn_ignored(builder.__name__, name, f"; it has no effect{hint}")
        return builder(*args, **kwargs)

    return build


build_adadelta = _ignore_unknown_arguments(native.build_adadelta, AdadeltaOptimizer)
build_adagrad = _ignore_unknown_arguments(native.build_adagrad, AdagradOptimizer)
build_adam = _ignore_unknown_arguments(native.build_adam, AdamOptimizer)
build_decay_adagrad = _ignore_unknown_arguments(native.build_decay_adagrad, DecayAdagradOptimizer)
build_fp16_sgd = _ignore_unknown_arguments(native.build_fp16_sgd, FP16SgdOptimizer)
build_ftrl = _ignore_unknown_arguments(native.build_ftrl, FtrlOptimizer)
build_gftrl = _ignore_unknown_arguments(native.build_gftrl, GFtrlOptimizer)
build_multi_precision_sgd = _ignore_unknown_arguments(native.build_multi_precision_sgd, MultiPrecisionSgdOptimizer)
build_rms_prop = _ignore_unknown_arguments(native.build_rms_prop, RmsPropOptimizer)
build_sgd = _ignore_unknown_arguments(native.build_sgd, SgdOptimizer)
build_storm = _ignore_unknown_arguments(native.build_storm, StormOptimizer)
build_wngrad = _ignore_unknown_arguments(native.build_wngrad, WngradOptimizer)
build_yellowfin = _ignore_unknown_arguments(native.build_yellowfin, YellowFinOptimizer)


def _get_param_to_device(model: Any) -> dict[str, DeviceOption]:
    """Return the device of each blob of a model: that of the first operator that uses it, the init net first."""
    return blob_devices([model.net.Proto()]) | blob_devices([model.param_init_net.Proto()])


def get_lr_injection() -> Any:
    """Return the factor of the learning rates of models built with ``allow_lr_injection``, an array of shape (1,).

    Raises:
        BlobError: neither such a model's init net nor ``set_lr_injection`` has set it.
    """
    return workspace.FetchBlob(LR_INJECTION)


def set_lr_injection(lr_injection_value: float) -> None:
    """Set the factor of the learning rates of models built with ``allow_lr_injection``, from the next run on."""
    workspace.FeedBlob(LR_INJECTION, np.array([float(lr_injection_value)], np.float32))
