"""Optimizers: update rules, learning rates, weight decay, clipping."""

from netbuilder.optimizers.adagrad import AdagradOptimizer
from netbuilder.optimizers.adam import AdamOptimizer
from netbuilder.optimizers.build import (
    add_weight_decay,
    build_adagrad,
    build_adam,
    build_optimizer,
    build_rms_prop,
    build_sgd,
)
from netbuilder.optimizers.learning_rate import LR_INJECTION, check_policy
from netbuilder.optimizers.optimizer import (
    ITERATION,
    AuxOptimizerParams,
    Optimizer,
    reset_optimizer_instance_count,
)
from netbuilder.optimizers.placement import get_param_device
from netbuilder.optimizers.rms_prop import RmsPropOptimizer
from netbuilder.optimizers.sgd import SgdOptimizer
from netbuilder.optimizers.weight_decay import WeightDecayBuilder

__all__ = [
    "ITERATION",
    "LR_INJECTION",
    "AdagradOptimizer",
    "AdamOptimizer",
    "AuxOptimizerParams",
    "Optimizer",
    "RmsPropOptimizer",
    "SgdOptimizer",
    "WeightDecayBuilder",
    "add_weight_decay",
    "build_adagrad",
    "build_adam",
    "build_optimizer",
    "build_rms_prop",
    "build_sgd",
    "check_policy",
    "get_param_device",
    "reset_optimizer_instance_count",
]
