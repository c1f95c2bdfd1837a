"""The learning rate of an optimizer: a check of its arguments before any operator is added, and its blob."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

from netbuilder.graph.source import warn_user
from netbuilder.ops.core.operator import decode
from netbuilder.ops.updates.learning_rate import LearningRate
from netbuilder.ops.updates.rate_policies import POLICIES, rate_of
from netbuilder.proto import ArgumentError, OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.numbers import check_numbers, check_whole_numbers
from netbuilder.proto.suggestions import near_or_known

__all__ = ["LR_INJECTION", "NEEDED", "check_policy", "check_policy_as_in_caffe2", "completed", "rate_at"]

LR_INJECTION = "lr_injection"
"""The blob that multiplies all rates of a model built with ``allow_lr_injection``; it can be fed between runs."""

_COMPOSITE = "composite"

NEEDED = {
    "alter": ("active_period", "inactive_period"),
    "compositeCosine": ("constant_warmup_num_iter", "linear_warmup_num_iter", "cosine_period"),
    "compositeCyclical": (
        "constant_warmup_num_iter",
        "linear_warmup_num_iter",
        "cyclical_step_size",
        "cyclical_max_lr",
    ),
    "constantThenLinearWarmup": ("constant_warmup_num_iter", "linear_warmup_num_iter"),
    "constantWarmup": ("multiplier", "num_iter"),
    "cosine": ("period",),
    "cyclical": ("stepsize", "max_lr"),
    "exp": ("gamma",),
    "gate": ("num_iter", "multiplier_1", "multiplier_2"),
    "hill": ("num_iter", "start_multiplier", "gamma", "power"),
    "inv": ("gamma", "power"),
    "linearWarmup": ("num_iter", "start_multiplier"),
    "pieceWarmup": ("m1", "n1", "m2", "n2", "m3"),
    "poly": ("max_iter", "power"),
    "slope": ("num_iter_1", "multiplier_1", "num_iter_2", "multiplier_2"),
    "step": ("stepsize", "gamma"),
}
"""Arguments that a policy must be given. The operator has Caffe2's values for many of them, which suit hardly any run:
a cosine of 50 iterations from half the rate, a power of 0."""

_USUAL = {
    "compositeCosine": {"cosine_max_lr": 1.0, "cosine_min_lr": 0.0, "cosine_lr_shrink": 1.0},
    "cosine": {"max_lr": 1.0, "min_lr": 0.0, "lr_shrink": 1.0},
}
"""Arguments that have another value than the operator's if they are not given: a cosine from the rate to 0."""

_OF_ANY_SIGN = ("power",)
_NOT_NUMBERS = ("active_first", "base_lr", "policy", "sub_policy_num_iters")
_FRACTIONS = {field.name: "float" in str(field.type) for field in fields(LearningRate)}


def check_policy(base_learning_rate: float, policy: str, arguments: Mapping[str, Any]) -> None:
    """Check the arguments of a learning rate; warn about arguments that its policy does not use.

    Args:
        base_learning_rate: the rate, not negative.
        policy: a name in ``netbuilder.ops.updates.rate_policies.POLICIES``, or "composite".
        arguments: arguments of the operator LearningRate.

    Raises:
        ArgumentError: the policy is unknown, the rate is negative or not finite, or an argument is unknown, missing
            or out of range.

    >>> check_policy(0.1, "step", {"stepsize": 10, "gamma": 0.5})
    """
    _require_policy(policy)
    check_numbers("learning rate", "at least 0", **{"the base rate": base_learning_rate})
    _check_operator(base_learning_rate, policy, completed(policy, arguments))


def check_policy_as_in_caffe2(base_learning_rate: float, policy: str, arguments: Mapping[str, Any]) -> None:
    """Like ``check_policy``; missing arguments get the operator's values, and negative factors are no error."""
    _require_policy(policy)
    _check_operator(base_learning_rate, policy, arguments)


def _require_policy(policy: str) -> None:
    if not isinstance(policy, str) or policy not in POLICIES and policy != _COMPOSITE:
        known = sorted([*POLICIES, _COMPOSITE])
        near = near_or_known(str(policy), known, "policies")
        raise ArgumentError(f"learning rate: unknown policy {policy!r}{near}")


def rate_at(base_learning_rate: float, policy: str, arguments: Mapping[str, Any], iteration: int) -> float:
    """Return the learning rate of an iteration, counted from 0.

    >>> rate_at(1.0, "step", {"stepsize": 10, "gamma": 0.5}, 25)
    0.25
    """
    operator, trial = _operator(base_learning_rate, policy, completed(policy, arguments))
    return operator.rate(trial)(iteration)


def _operator(base_learning_rate: float, policy: str, arguments: Mapping[str, Any]) -> tuple[LearningRate, OperatorDef]:
    trial = make_op("LearningRate", ["iteration"], ["lr"], base_lr=base_learning_rate, policy=policy, **arguments)
    operator = decode(LearningRate, trial, strict=True)
    assert isinstance(operator, LearningRate)
    return operator, trial


def _check_operator(base_learning_rate: float, policy: str, arguments: Mapping[str, Any]) -> None:
    operator, trial = _operator(base_learning_rate, policy, arguments)
    operator.rate(trial)(1)
    if policy != _COMPOSITE and (unused := sorted(set(arguments) - _read_by(policy, operator))):
        warn_user(f"learning rate: policy {policy!r} does not use {', '.join(unused)}")


def completed(policy: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a policy with the usual values of some that are not given.

    Raises:
        ArgumentError: one that the policy needs is missing, or one is out of range.
    """
    if policy != _COMPOSITE:
        return _completed(policy, arguments, "")
    lengths = arguments.get("sub_policy_num_iters")
    if isinstance(lengths, str) or not isinstance(lengths, Sequence) or not lengths:
        raise ArgumentError(
            "learning rate: policy 'composite' needs sub_policy_num_iters, a list with the number of iterations of "
            f"each policy, got {lengths!r}"
        )
    check_whole_numbers("learning rate", 0, **{f"sub_policy_num_iters[{i}]": n for i, n in enumerate(lengths)})
    found = dict(arguments)
    for number in range(len(lengths)):
        prefix = f"sub_policy_{number}_"
        own = {name.removeprefix(prefix): value for name, value in arguments.items() if name.startswith(prefix)}
        kind = own.pop("policy", None)
        if kind not in POLICIES:
            raise ArgumentError(
                f"learning rate: {prefix}policy must be one of {sorted(POLICIES)}, got {kind!r}; composites do not nest"
            )
        check_numbers("learning rate", "at least 0", **{f"{prefix}lr_scale": own.pop("lr_scale", 1.0)})
        found |= {prefix + name: value for name, value in _completed(kind, own, prefix).items()}
    return found


def _completed(policy: str, arguments: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    needed = NEEDED.get(policy, ())
    if missing := [prefix + name for name in needed if arguments.get(name) is None]:
        hint = "; period is the number of iterations of the whole run" if "period" in missing else ""
        raise ArgumentError(f"learning rate: policy {policy!r} needs {', '.join(missing)}{hint}")
    for name, value in arguments.items():
        if name in _FRACTIONS and name not in _NOT_NUMBERS:
            _check_number(policy, prefix + name, name, value)
    return {**_USUAL.get(policy, {}), **arguments}


def _check_number(policy: str, shown: str, name: str, value: Any) -> None:
    owner = f"learning rate: policy {policy!r}"
    if _FRACTIONS[name]:
        check_numbers(owner, "finite" if name in _OF_ANY_SIGN else "at least 0", **{shown: value})
    else:
        check_whole_numbers(owner, 0, **{shown: value})


def _read_by(policy: str, operator: LearningRate) -> set[str]:
    """Return the arguments that a policy uses."""
    read: set[str] = set()

    class Recorder(SimpleNamespace):
        def __getattribute__(self, name: str) -> Any:
            read.add(name)
            return getattr(operator, name)

    rate_of(policy, Recorder())(1)
    return read
