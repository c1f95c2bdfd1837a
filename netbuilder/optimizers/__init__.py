"""Optimizers: update rules, learning rates, weight decay, clipping."""

import typing as _typing

from netbuilder._lazy import names_on_first_use as _names_on_first_use
from netbuilder.optimizers.adadelta import AdadeltaOptimizer, build_adadelta
from netbuilder.optimizers.adagrad import AdagradOptimizer, build_adagrad
from netbuilder.optimizers.adam import AdamOptimizer, AdamWOptimizer, build_adam, build_adamw
from netbuilder.optimizers.build import WeightDecayBuilder, add_weight_decay, build_optimizer
from netbuilder.optimizers.decay_adagrad import DecayAdagradOptimizer, build_decay_adagrad
from netbuilder.optimizers.early_stopping import EarlyStopping
from netbuilder.optimizers.ftrl import FtrlOptimizer, GFtrlOptimizer, build_ftrl, build_gftrl
from netbuilder.optimizers.half import (
    FP16SgdOptimizer,
    MultiPrecisionSgdOptimizer,
    build_fp16_sgd,
    build_multi_precision_sgd,
)
from netbuilder.optimizers.lamb import LambOptimizer, build_lamb
from netbuilder.optimizers.layer_rates import layer_rates, layers_of
from netbuilder.optimizers.learning_rate import LR_INJECTION, check_policy
from netbuilder.optimizers.lion import LionOptimizer, build_lion
from netbuilder.optimizers.moving_average import add_moving_averages, moving_averages
from netbuilder.optimizers.named import optimizer_by_name
from netbuilder.optimizers.optimizer import (
    ITERATION,
    OPTIMIZERS,
    AuxOptimizerParams,
    Optimizer,
    reset_optimizer_instance_count,
)
from netbuilder.optimizers.placement import get_param_device
from netbuilder.optimizers.rms_prop import RmsPropOptimizer, build_rms_prop
from netbuilder.optimizers.sgd import SgdOptimizer, build_sgd
from netbuilder.optimizers.storm import StormOptimizer, build_storm
from netbuilder.optimizers.wngrad import WngradOptimizer, build_wngrad
from netbuilder.optimizers.yellowfin import YellowFinOptimizer, build_yellowfin

__all__ = [
    "AdadeltaOptimizer",
    "AdagradOptimizer",
    "AdamOptimizer",
    "AdamWOptimizer",
    "AuxOptimizerParams",
    "DecayAdagradOptimizer",
    "EarlyStopping",
    "FP16SgdOptimizer",
    "FtrlOptimizer",
    "GFtrlOptimizer",
    "ITERATION",
    "LR_INJECTION",
    "LambOptimizer",
    "LionOptimizer",
    "MultiPrecisionSgdOptimizer",
    "OPTIMIZERS",
    "Optimizer",
    "RmsPropOptimizer",
    "SgdOptimizer",
    "StormOptimizer",
    "WeightDecayBuilder",
    "WngradOptimizer",
    "YellowFinOptimizer",
    "add_moving_averages",
    "add_weight_decay",
    "build_adadelta",
    "build_adagrad",
    "build_adam",
    "build_adamw",
    "build_decay_adagrad",
    "build_fp16_sgd",
    "build_ftrl",
    "build_gftrl",
    "build_lamb",
    "build_lion",
    "build_multi_precision_sgd",
    "build_optimizer",
    "build_rms_prop",
    "build_sgd",
    "build_storm",
    "build_wngrad",
    "build_yellowfin",
    "check_policy",
    "get_param_device",
    "layer_rates",
    "layers_of",
    "moving_averages",
    "optimizer_by_name",
    "reset_optimizer_instance_count",
]

if not _typing.TYPE_CHECKING:  # for which all names are known
    __getattr__, __dir__ = _names_on_first_use(__name__, {})
