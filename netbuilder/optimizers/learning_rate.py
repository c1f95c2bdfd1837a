"""The learning rate of an optimizer: a check of its arguments before any operator is added, and its blob."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from netbuilder.graph.source import warn_user
from netbuilder.ops.core.operator import decode
from netbuilder.ops.updates.learning_rate import LearningRate
from netbuilder.ops.updates.rate_policies import POLICIES, rate_of
from netbuilder.proto import ArgumentError
from netbuilder.proto.arguments import make_op

__all__ = ["LR_INJECTION", "check_policy"]

LR_INJECTION = "lr_injection"
"""The blob that multiplies all rates of a model built with ``allow_lr_injection``; it can be fed between runs."""

_COMPOSITE = "composite"


def check_policy(base_learning_rate: float, policy: str, arguments: Mapping[str, Any]) -> None:
    """Check the arguments of a learning rate; warn about arguments that its policy does not use.

    Args:
        base_learning_rate: the rate, not negative.
        policy: a name in ``netbuilder.ops.updates.rate_policies.POLICIES``, or "composite".
        arguments: arguments of the operator LearningRate.

    Raises:
        ArgumentError: the policy is unknown, the rate is negative, or an argument is unknown, missing
            or out of range.

    >>> check_policy(0.1, "step", {"stepsize": 10, "gamma": 0.5})
    """
    if base_learning_rate < 0:
        raise ArgumentError(
            f"learning rate: the base rate must not be negative, got {base_learning_rate}; the optimizer sets its sign"
        )
    if policy not in POLICIES and policy != _COMPOSITE:
        raise ArgumentError(
            f"learning rate: unknown policy {policy!r}; the policies are {sorted([*POLICIES, _COMPOSITE])}"
        )
    trial = make_op("LearningRate", ["iteration"], ["lr"], base_lr=base_learning_rate, policy=policy, **arguments)
    operator = decode(LearningRate, trial, strict=True)
    assert isinstance(operator, LearningRate)
    operator.rate(trial)
    if policy != _COMPOSITE and (unused := sorted(set(arguments) - _read_by(policy, operator))):
        warn_user(f"learning rate: policy {policy!r} does not use {', '.join(unused)}")


def _read_by(policy: str, operator: LearningRate) -> set[str]:
    """Return the arguments that a policy uses."""
    read: set[str] = set()

    class Recorder(SimpleNamespace):
        def __getattribute__(self, name: str) -> Any:
            read.add(name)
            return getattr(operator, name)

    rate_of(policy, Recorder())(1)
    return read
