"""Iteration counter and weight decay constants of training nets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from netbuilder.graph.blob import BlobReference
from netbuilder.proto import ArgumentError, TensorProto
from netbuilder.proto.arguments import make_device_option

if TYPE_CHECKING:
    from netbuilder.model.model_helper import ModelHelper

__all__ = ["add_weight_decay", "iter"]


def iter(model: ModelHelper, blob_out: str | BlobReference, **kwargs: Any) -> BlobReference:
    """Count iterations in a blob on the CPU: 1 after the first run.

    Args:
        blob_out: name of the counter, int64, shape (1,).
    """
    kwargs.pop("device_option", None)
    counter = model.param_init_net.ConstantFill(
        [], blob_out, shape=[1], value=0, dtype=TensorProto.INT64, device_option=make_device_option(), **kwargs
    )
    result: BlobReference = model.net.Iter(counter, counter, **kwargs)
    return result


def add_weight_decay(model: ModelHelper, weight_decay: float) -> None:
    """Create the constants ``wd`` and ``ONE``, from which old scripts build their weight decay.

    ``netbuilder.optimizers.add_weight_decay`` adds the decay to the gradients.

    Raises:
        ArgumentError: ``weight_decay`` is not positive.
    """
    if weight_decay <= 0:
        raise ArgumentError(f"add_weight_decay: weight_decay must be positive, got {weight_decay}")
    model.param_init_net.ConstantFill([], "wd", shape=[1], value=weight_decay)
    model.param_init_net.ConstantFill([], "ONE", shape=[1], value=1.0)
