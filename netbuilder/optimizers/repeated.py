"""The updates of many parameters on one device: the operators are built for two of them and repeated for the others."""

from __future__ import annotations

from netbuilder.graph.blob import BlobReference
from netbuilder.graph.operator_pattern import OperatorPattern
from netbuilder.model.model_helper import ModelHelper
from netbuilder.model.parameter_info import ParameterInfo
from netbuilder.optimizers.optimizer import Optimizer

__all__ = ["RepeatedUpdates"]

_PARAMETER, _GRADIENT = "\x01parameter\x01", "\x01gradient\x01"  # in no name that a user gives
_LEAST = 4  # parameters from which on a pattern takes less time than their updates


class RepeatedUpdates:
    """Adds the updates of parameters on one device, as calls of the optimizer for each of them do.

    The first update on a device also makes the blobs that the others share, such as the rate. Those after it differ
    only in the names of blobs if the optimizer says so (``Optimizer.repeats``) and the gradient is dense.

    Args:
        optimizer: the optimizer.
        model: gets the updates.
        count: maximum number of parameters.
    """

    def __init__(self, optimizer: Optimizer, model: ModelHelper, count: int) -> None:
        self._optimizer, self._nets = optimizer, (model.net, model.param_init_net)
        self._left = count
        self._repeats = "repeats" in vars(type(optimizer)) and optimizer.repeats
        self._pattern: OperatorPattern | None = None
        self._state: list[BlobReference] = []
        self._began = False

    def add(self, info: ParameterInfo) -> None:
        """Add the update of a parameter."""
        self._left -= 1
        if not self._repeats or info.blob_copy or not isinstance(info.grad, BlobReference):
            self._optimizer(*self._nets, info)
            return
        if self._began and self._pattern is None:
            self._record()
        if self._pattern is None or not self._repeat(self._pattern, info):
            self._optimizer(*self._nets, info)
        self._began = True

    def _record(self) -> None:
        """Record the update of a parameter whose shape is not known: one that depends on the shape is not repeated."""
        self._repeats = False
        if self._left < _LEAST:
            return
        optimizer, (local, shared) = self._optimizer, self._optimizer.get_auxiliary_parameters()
        before = len(local), len(shared)
        info = ParameterInfo(None, BlobReference(_PARAMETER), grad=BlobReference(_GRADIENT))
        names = _PARAMETER, _GRADIENT
        pattern = OperatorPattern.record(self._nets, names, lambda: optimizer(*self._nets, info))
        self._state = local[before[0] :]
        del local[before[0] :]
        if pattern is not None and len(shared) == before[1]:
            self._pattern, self._repeats = pattern, True

    def _repeat(self, pattern: OperatorPattern, info: ParameterInfo) -> bool:
        names = pattern.append((info.name, str(info.grad)))
        if names is None:
            return False
        state = (BlobReference(names[str(blob)], blob.Net()) for blob in self._state)
        self._optimizer.get_auxiliary_parameters().local.extend(state)
        return True
