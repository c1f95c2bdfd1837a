"""The loss scale, and warnings if a builder does not apply it exactly once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from netbuilder.graph.source import warn_user
from netbuilder.proto import NetDef, OperatorDef
from netbuilder.proto.arguments import made_at

__all__ = ["LossScale", "warn_of_scaled_updates", "warn_of_unscaled_losses"]

_FACTORS = frozenset({"scale", "value", "values", "loss_scale"})
"""Arguments that are factors: of an operator that multiplies, or of a fill whose output is a factor."""


class LossScale(float):
    """The loss scale that a forward builder gets; it records the numbers that were computed from it.

    >>> scale = LossScale(0.5)
    >>> auxiliary = 0.25 * scale
    >>> auxiliary, scale.gave(0.125), scale.gave(0.25)
    (0.125, True, False)
    """

    # Optimizers warn if a learning rate has this attribute; they cannot import this class.
    is_loss_scale = True
    _derived: set[np.float32]

    def __new__(cls, value: float) -> LossScale:
        scale = super().__new__(cls, value)
        scale._derived = {np.float32(value)}
        return scale

    def _record(self, value: Any) -> Any:
        if value is NotImplemented:
            return value
        derived = LossScale(value)
        self._derived.add(np.float32(value))
        derived._derived = self._derived
        return derived

    def __mul__(self, other: Any) -> Any:
        return self._record(super().__mul__(other))

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        return self._record(super().__truediv__(other))

    def __rtruediv__(self, other: Any) -> Any:
        return self._record(super().__rtruediv__(other))

    def __neg__(self) -> Any:
        return self._record(super().__neg__())

    def __reduce__(self) -> tuple[Any, ...]:
        return float, (float(self),)

    def gave(self, value: float) -> bool:
        """Whether ``value``, as float32, is the scale or a number computed from it."""
        return np.float32(value) in self._derived


def warn_of_unscaled_losses(
    ops: Sequence[OperatorDef], init_net: NetDef, losses: Iterable[Any], scale: LossScale, devices: int
) -> None:
    """Warn about each loss that no operator on the path to it multiplies by the scale.

    Args:
        ops: the operators that the forward builder appended for one replica.
        init_net: the init net, which may fill constants.
        losses: the losses that the builder returned.
        scale: the loss scale that the builder got.
        devices: number of replicas.
    """
    makers = {blob: op for op in [*init_net.op, *ops] for blob in op.output}
    for loss in losses:
        if not _is_scaled(str(loss), makers, scale):
            maker = makers.get(str(loss))
            made = "" if maker is None else made_at(maker, ",")
            warn_user(
                f"loss {str(loss)!r}{made} is not multiplied by loss_scale, so the gradients on {devices} devices "
                f"sum to {devices} times those of one device; return model.Scale(loss, scale=loss_scale) from "
                "forward_pass_builder_fun"
            )


def _is_scaled(loss: str, makers: dict[str, OperatorDef], scale: LossScale) -> bool:
    seen = {loss}
    todo = [loss]
    while todo:
        op = makers.get(todo.pop())
        if op is None:
            continue
        for argument in op.arg:
            if argument.name in _FACTORS and any(map(scale.gave, [argument.f, *argument.floats])):
                return True
        fresh = set(op.input) - seen
        seen |= fresh
        todo += fresh
    return False


def warn_of_scaled_updates(
    ops: Sequence[OperatorDef], gradients: Iterable[str], scale: LossScale, devices: int
) -> None:
    """Warn if the update divides the learning rate, or gradients, by the number of devices a second time.

    Args:
        ops: the operators that the update or optimizer builders appended.
        gradients: the gradients of the parameters.
        scale: the loss scale that the forward builder got.
        devices: number of replicas.
    """
    scaled = dict.fromkeys(gradients, "gradient")
    warned: set[str] = set()  # one warning for all replicas
    for op in ops:
        if op.type == "LearningRate":
            scaled[op.output[0]] = "learning rate"
        elif op.type == "Scale" and op.input[0] in scaled:
            factor = next((argument.f for argument in op.arg if argument.name == "scale"), 1.0)
            if np.float32(factor) == np.float32(scale) and scaled[op.input[0]] not in warned:
                warned.add(scaled[op.input[0]])
                made = f", at {op.debug_info}," if op.debug_info else ""
                warn_user(
                    f"the {scaled[op.input[0]]} {op.input[0]!r} is multiplied by 1/{devices}{made} although the losses "
                    "already are, by loss_scale, so steps become too small; scale only the losses"
                )
