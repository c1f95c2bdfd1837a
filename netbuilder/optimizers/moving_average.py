"""Averages of parameters over the steps, exponential or with equal weights, as operators of the net."""

from __future__ import annotations

from collections.abc import Mapping

from netbuilder.graph.blob import BlobReference
from netbuilder.graph.scope import DeviceScope
from netbuilder.model.model_helper import ModelHelper
from netbuilder.model.rollback import remove_added_on_error
from netbuilder.optimizers.optimizer import constant, iteration_counter, iteration_number, one
from netbuilder.optimizers.placement import get_param_device, parameter_devices
from netbuilder.proto import ArgumentError, NetError
from netbuilder.proto.numbers import check_numbers, check_whole_numbers

__all__ = ["AVERAGE_SHARE", "AVERAGE_SUFFIX", "add_moving_averages", "moving_averages"]

AVERAGE_SUFFIX = "_moving_average"
"""Suffix of the name of a parameter's average."""

AVERAGE_SHARE = "moving_average_share"
"""Name of the operator that computes the weight of a step's parameters in averages with equal weights."""


def add_moving_averages(model: ModelHelper, decay: float | None, *, first_step: int = 0) -> Mapping[str, str]:
    """Average all parameters and computed parameters over the steps; return parameter -> blob of its average.

    After each update ``average = decay * average + (1 - decay) * parameter``; the first average is the initial value.
    Without a decay, the average is the mean of the parameters after each step from ``first_step`` on, which is
    stochastic weight averaging in each step; until then it is the parameter. The operators are appended after the
    updates, on the parameter's device. Each replica of a data-parallel model has its own averages, which are equal, as
    the parameters are. Checkpoints include them.

    Args:
        model: model with updates; for a data-parallel model call this function in the optimizer builder.
        decay: decay rate of the average per step, in [0, 1); the average spans about 1 / (1 - decay) steps. None: the
            steps have equal weights.
        first_step: number of the first step that counts, from 0 on; without a decay only.

    Raises:
        ArgumentError: ``decay`` or ``first_step`` is out of range, or both are given.
        NetError: the model has no update yet, or has averages already.
        DeviceError: the device of a parameter cannot be determined.

    After an exception the model is in its former state.

    Source: Polyak and Juditsky, "Acceleration of stochastic approximation by averaging", 1992; as exponential averages
    of weights and statistics in use since Szegedy et al., "Rethinking the Inception architecture", 2015,
    arXiv:1512.00567, section 8; with equal weights Izmailov et al., "Averaging weights leads to wider optima and better
    generalization", 2018, arXiv:1803.05407.
    """
    if decay is not None:
        check_numbers("moving averages", "in [0, 1)", decay=decay)
        if first_step:
            raise ArgumentError(
                f"moving averages: first_step is of averages with equal weights, got first_step={first_step!r} with "
                f"decay={decay!r}; give decay=None, or no first_step"
            )
    check_whole_numbers("moving averages", 0, first_step=first_step)
    trained, params = model.GetParams(""), [*model.GetParams(""), *model.GetComputedParams("")]
    written = {blob for op in model.net.Proto().op for blob in op.output}
    if not written.intersection(map(str, trained)):
        raise NetError(
            f"model {model.name!r}: no operator updates a parameter yet; add moving averages after the updates"
        )
    if moving_averages(model):
        raise NetError(f"model {model.name!r} has moving averages already")
    devices = parameter_devices([model.net.Proto(), model.param_init_net.Proto()], params)
    numbers: dict[bytes, tuple[BlobReference, BlobReference]] = {}
    with remove_added_on_error(model):
        for param in params:
            device = get_param_device(str(param), None, devices)
            with DeviceScope(device):
                place = device.SerializeToString(deterministic=True)
                if place not in numbers:
                    numbers[place] = _weights(model, decay, first_step)
                keep, take = numbers[place]
                average = model.param_init_net.Copy(param, param + AVERAGE_SUFFIX)
                model.net.WeightedSum([average, keep, param, take], average)
    return moving_averages(model)


def _weights(model: ModelHelper, decay: float | None, first_step: int) -> tuple[BlobReference, BlobReference]:
    """Return the blobs of the weights of the average so far and of the parameters, on the current device."""
    init, net = model.param_init_net, model.net
    if decay is not None:
        return constant(init, "moving_average_decay", decay), constant(init, "moving_average_share", 1 - decay)
    unit = one(init)
    number = iteration_number(net, iteration_counter(net, init))
    counted_from = 1 if net.updates_as_in_caffe2 else 0
    share = net.LearningRate(
        [number], BlobReference(f"{unit}_moving_average_share", net), name=AVERAGE_SHARE, base_lr=1.0, policy="hill",
        num_iter=first_step + counted_from, start_multiplier=1.0, gamma=1.0, power=1.0,
    )  # fmt: skip
    keep = net.WeightedSum(
        [unit, unit, constant(init, "moving_average_sign", -1.0), share],
        BlobReference(f"{unit}_moving_average_rest", net),
    )
    return keep, share


def moving_averages(model: ModelHelper) -> dict[str, str]:
    """Return parameter -> blob of its average; empty if the model has none."""
    made = {blob for op in model.param_init_net.Proto().op for blob in op.output}
    names = map(str, [*model.GetParams(""), *model.GetComputedParams("")])
    return {name: name + AVERAGE_SUFFIX for name in names if name + AVERAGE_SUFFIX in made}
