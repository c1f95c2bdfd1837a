"""Optimizers by name, for programs that let their users choose one."""

from __future__ import annotations

import inspect
from typing import Any

from netbuilder.optimizers.adadelta import AdadeltaOptimizer
from netbuilder.optimizers.adagrad import AdagradOptimizer
from netbuilder.optimizers.adam import AdamOptimizer, AdamWOptimizer
from netbuilder.optimizers.decay_adagrad import DecayAdagradOptimizer
from netbuilder.optimizers.ftrl import FtrlOptimizer, GFtrlOptimizer
from netbuilder.optimizers.half import FP16SgdOptimizer, MultiPrecisionSgdOptimizer
from netbuilder.optimizers.lamb import LambOptimizer
from netbuilder.optimizers.lion import LionOptimizer
from netbuilder.optimizers.optimizer import Optimizer
from netbuilder.optimizers.rms_prop import RmsPropOptimizer
from netbuilder.optimizers.sgd import SgdOptimizer
from netbuilder.optimizers.storm import StormOptimizer
from netbuilder.optimizers.wngrad import WngradOptimizer
from netbuilder.optimizers.yellowfin import YellowFinOptimizer
from netbuilder.proto import ArgumentError
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.proto.suggestions import did_you_mean

__all__ = ["OPTIMIZERS", "NamedOptimizer", "optimizer_by_name"]

_NOT_SETTINGS = ("engine", "kwargs", "policy")


@dataclass(frozen=True)
class NamedOptimizer:
    """An optimizer class with information for programs that offer it.

    Args:
        make: the class; its first argument is the learning rate.
        usual_rate: default learning rate.
        has_policy: whether it supports learning rate policies; otherwise the rate is fixed.
        half: whether it is for float16 parameters.
    """

    make: type[Optimizer]
    usual_rate: float = 0.01
    has_policy: bool = True
    half: bool = False

    @property
    def rate(self) -> str:
        """The name of its argument for the learning rate."""
        return next(iter(inspect.signature(self.make).parameters))

    @property
    def decoupled(self) -> bool:
        """Whether its ``weight_decay`` is decoupled from the gradients, as that of ``build_optimizer``."""
        return self.make.decouples and "weight_decay" in self.settings and self.make is not AdagradOptimizer

    @property
    def settings(self) -> list[str]:
        """The names of its arguments other than the learning rate and its policy."""
        return [name for name in inspect.signature(self.make).parameters if name not in (*_NOT_SETTINGS, self.rate)]


OPTIMIZERS: dict[str, NamedOptimizer] = {
    "sgd": NamedOptimizer(SgdOptimizer, usual_rate=0.1),
    "adadelta": NamedOptimizer(AdadeltaOptimizer, usual_rate=1.0),
    "adagrad": NamedOptimizer(AdagradOptimizer),
    "adam": NamedOptimizer(AdamOptimizer, usual_rate=0.001),
    "adamw": NamedOptimizer(AdamWOptimizer, usual_rate=0.001),
    "decay-adagrad": NamedOptimizer(DecayAdagradOptimizer),
    "fp16-sgd": NamedOptimizer(FP16SgdOptimizer, usual_rate=0.1, half=True),
    "ftrl": NamedOptimizer(FtrlOptimizer, usual_rate=0.1, has_policy=False),
    "gftrl": NamedOptimizer(GFtrlOptimizer, usual_rate=0.1, has_policy=False),
    "lamb": NamedOptimizer(LambOptimizer, usual_rate=0.002),
    "lion": NamedOptimizer(LionOptimizer, usual_rate=0.001),
    "multi-precision-sgd": NamedOptimizer(MultiPrecisionSgdOptimizer, usual_rate=0.1, half=True),
    "rms-prop": NamedOptimizer(RmsPropOptimizer, usual_rate=0.001),
    "storm": NamedOptimizer(StormOptimizer, usual_rate=0.1),
    "wngrad": NamedOptimizer(WngradOptimizer, usual_rate=1.0),
    "yellowfin": NamedOptimizer(YellowFinOptimizer, usual_rate=0.1, has_policy=False),
}
"""All optimizers of this package, by name."""


def optimizer_by_name(
    name: str,
    learning_rate: float | None = None,
    *,
    policy: str = "fixed",
    policy_arguments: dict[str, Any] | None = None,
    **settings: Any,
) -> Optimizer:
    """Return an optimizer for ``build_optimizer``.

    Args:
        name: one of ``OPTIMIZERS``.
        learning_rate: base learning rate; None: the optimizer's usual one.
        policy, policy_arguments: how the rate changes, see ``netbuilder.ops.updates.rate_policies``.
        settings: other arguments; ``OPTIMIZERS[name].settings`` lists them.

    Raises:
        ArgumentError: the name or an argument is unknown or out of range; or the optimizer does not support policies.

    >>> optimizer_by_name("adam", 0.002, beta2=0.99).attributes["beta2"]
    0.99
    """
    if not isinstance(name, str) or name not in OPTIMIZERS:
        near = did_you_mean(name, OPTIMIZERS) if isinstance(name, str) else ""
        raise ArgumentError(f"unknown optimizer {name!r}; the optimizers are {', '.join(OPTIMIZERS)}{near}")
    about = OPTIMIZERS[name]
    for key in settings:
        if key not in about.settings:
            raise ArgumentError(
                f"optimizer {name!r}: unknown argument {key!r}; its arguments are {', '.join(about.settings)}"
                f"{did_you_mean(key, about.settings)}"
            )
    if not about.has_policy and (policy != "fixed" or policy_arguments):
        raise ArgumentError(f"optimizer {name!r}: has a fixed rate, so policy must be 'fixed', got {policy!r}")
    rate = about.usual_rate if learning_rate is None else learning_rate
    changes = {"policy": policy, **(policy_arguments or {})} if about.has_policy else {}
    return about.make(**{about.rate: rate}, **changes, **settings)
