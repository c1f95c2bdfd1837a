"""An optimizer by its name, for programs that let their users choose one."""

from __future__ import annotations

from typing import Any

from netbuilder.optimizers.optimizer import OPTIMIZERS, Optimizer
from netbuilder.proto import ArgumentError
from netbuilder.proto.suggestions import near_or_known

__all__ = ["optimizer_by_name"]


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
        settings: other arguments; ``OPTIMIZERS[name].settings()`` lists them.

    Raises:
        ArgumentError: the name or an argument is unknown or out of range; or the optimizer does not support policies.

    >>> optimizer_by_name("adam", 0.002, beta2=0.99).attributes["beta2"]
    0.99
    """
    if not isinstance(name, str) or name not in OPTIMIZERS:
        raise ArgumentError(f"unknown optimizer {name!r}{near_or_known(str(name), OPTIMIZERS, 'optimizers')}")
    optimizer = OPTIMIZERS[name]
    known = optimizer.settings()
    for key in settings:
        if key not in known:
            raise ArgumentError(f"optimizer {name!r}: unknown argument {key!r}{near_or_known(key, known, 'arguments')}")
    if not optimizer.has_policy() and (policy != "fixed" or policy_arguments):
        raise ArgumentError(f"optimizer {name!r} has a fixed rate, so policy must be 'fixed', got {policy!r}")
    rate = optimizer.usual_rate if learning_rate is None else learning_rate
    changes = {"policy": policy, **(policy_arguments or {})} if optimizer.has_policy() else {}
    first = {} if optimizer.rate_name is None else {optimizer.rate_name: rate}
    return optimizer(**first, **changes, **settings)
