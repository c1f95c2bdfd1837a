"""Optimizers: update rules, learning rates, weight decay, clipping."""

from netbuilder.optimizers.adadelta import AdadeltaOptimizer
from netbuilder.optimizers.adagrad import AdagradOptimizer
from netbuilder.optimizers.adam import AdamOptimizer, AdamWOptimizer
from netbuilder.optimizers.build import WeightDecayBuilder, add_weight_decay, build_optimizer
from netbuilder.optimizers.builders import (
    build_adadelta,
    build_adagrad,
    build_adam,
    build_adamw,
    build_decay_adagrad,
    build_fp16_sgd,
    build_ftrl,
    build_gftrl,
    build_lamb,
    build_lion,
    build_multi_precision_sgd,
    build_rms_prop,
    build_sgd,
    build_storm,
    build_wngrad,
    build_yellowfin,
)
from netbuilder.optimizers.decay_adagrad import DecayAdagradOptimizer
from netbuilder.optimizers.early_stopping import EarlyStopping
from netbuilder.optimizers.ftrl import FtrlOptimizer, GFtrlOptimizer
from netbuilder.optimizers.half import FP16SgdOptimizer, MultiPrecisionSgdOptimizer
from netbuilder.optimizers.lamb import LambOptimizer
from netbuilder.optimizers.layer_rates import layer_rates, layers_of
from netbuilder.optimizers.learning_rate import LR_INJECTION, check_policy
from netbuilder.optimizers.lion import LionOptimizer
from netbuilder.optimizers.moving_average import add_moving_averages, moving_averages
from netbuilder.optimizers.named import OPTIMIZERS, NamedOptimizer, optimizer_by_name
from netbuilder.optimizers.optimizer import ITERATION, AuxOptimizerParams, Optimizer, reset_optimizer_instance_count
from netbuilder.optimizers.placement import get_param_device
from netbuilder.optimizers.rms_prop import RmsPropOptimizer
from netbuilder.optimizers.sgd import SgdOptimizer
from netbuilder.optimizers.storm import StormOptimizer
from netbuilder.optimizers.wngrad import WngradOptimizer
from netbuilder.optimizers.yellowfin import YellowFinOptimizer

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
    "NamedOptimizer",
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
