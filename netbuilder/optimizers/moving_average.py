"""Exponential moving averages of parameters, as operators of the net."""

from __future__ import annotations

from collections.abc import Mapping

from netbuilder.graph.blob import BlobReference
from netbuilder.graph.scope import DeviceScope
from netbuilder.model.model_helper import ModelHelper
from netbuilder.model.rollback import remove_added_on_error
from netbuilder.optimizers.optimizer import constant
from netbuilder.optimizers.placement import get_param_device, parameter_devices
from netbuilder.proto import NetError
from netbuilder.proto.numbers import check_numbers

__all__ = ["AVERAGE_SUFFIX", "add_moving_averages", "moving_averages"]

AVERAGE_SUFFIX = "_moving_average"
"""Suffix of the name of a parameter's average."""


def add_moving_averages(model: ModelHelper, decay: float) -> Mapping[str, str]:
    """Average all parameters and computed parameters over the steps; return parameter -> blob of its average.

    After each update ``average = decay * average + (1 - decay) * parameter``; the first average is the initial value.
    The operators are appended after the updates, on the parameter's device. Each replica of a data-parallel model has
    its own averages, which are equal, as the parameters are. Checkpoints include them.

    Args:
        model: model with updates; for a data-parallel model call this function in the optimizer builder.
        decay: decay rate of the average per step, in [0, 1); the average spans about 1 / (1 - decay) steps.

    Raises:
        ArgumentError: ``decay`` is out of range.
        NetError: the model has no update yet, or has averages already.
        DeviceError: the device of a parameter cannot be determined.

    After an exception the model is in its former state.

    Source: Polyak and Juditsky, "Acceleration of stochastic approximation by averaging", 1992; as exponential averages
    of weights and statistics in use since Szegedy et al., "Rethinking the Inception architecture", 2015,
    arXiv:1512.00567, section 8.
    """
    check_numbers("moving averages", "in [0, 1)", decay=decay)
    trained, params = model.GetParams(""), [*model.GetParams(""), *model.GetComputedParams("")]
    written = {blob for op in model.net.Proto().op for blob in op.output}
    if not written.intersection(map(str, trained)):
        raise NetError(
            f"model {model.name!r}: no operator updates a parameter yet; add moving averages after the updates"
        )
    if moving_averages(model):
        raise NetError(f"model {model.name!r}: has moving averages already")
    devices = parameter_devices([model.net.Proto(), model.param_init_net.Proto()], params)
    numbers: dict[bytes, tuple[BlobReference, BlobReference]] = {}
    with remove_added_on_error(model):
        for param in params:
            device = get_param_device(str(param), None, devices)
            with DeviceScope(device):
                place = device.SerializeToString(deterministic=True)
                if place not in numbers:
                    numbers[place] = (
                        constant(model.param_init_net, "moving_average_decay", decay),
                        constant(model.param_init_net, "moving_average_share", 1 - decay),
                    )
                keep, take = numbers[place]
                average = model.param_init_net.Copy(param, param + AVERAGE_SUFFIX)
                model.net.WeightedSum([average, keep, param, take], average)
    return moving_averages(model)


def moving_averages(model: ModelHelper) -> dict[str, str]:
    """Return parameter -> blob of its average; empty if the model has none."""
    made = {blob for op in model.param_init_net.Proto().op for blob in op.output}
    names = map(str, [*model.GetParams(""), *model.GetComputedParams("")])
    return {name: name + AVERAGE_SUFFIX for name in names if name + AVERAGE_SUFFIX in made}
