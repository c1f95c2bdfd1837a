"""The arguments of Parallelize, checked before anything is built."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from netbuilder.graph.devices import Devices
from netbuilder.graph.replicas import has_record
from netbuilder.graph.scope import SEPARATOR, CurrentDeviceScope, CurrentNameScope
from netbuilder.graph.source import warn_user
from netbuilder.model import ModelHelper
from netbuilder.ops.engines.arrays import gpu_count
from netbuilder.proto import PROTO_CPU, PROTO_CUDA, DeviceError, NetError, UsageError
from netbuilder.runtime import NET_TYPES

__all__ = [
    "check_accumulation",
    "check_builders",
    "check_flags",
    "check_model",
    "check_net_type",
    "check_outside_from_bytes",
    "check_scope",
    "choose_devices",
    "refuse_later_arguments",
]


def check_model(model: Any) -> None:
    """Refuse what is no model, and a model that is used up.

    Raises:
        TypeError: it is no ModelHelper.
        NetError: it is data-parallel already, or has a backward pass.
    """
    if not isinstance(model, ModelHelper):
        raise TypeError(f"Parallelize: needs a ModelHelper, got {model!r} of type {type(model).__name__}")
    if has_record(model.net.Proto()):
        raise NetError(
            f"model {model.name!r} is data-parallel already; make a new ModelHelper for another call of Parallelize"
        )
    if model.gradient_ops_added:
        raise NetError(
            f"model {model.name!r} has a backward pass already; Parallelize adds one for each device, so call it on a "
            "model without"
        )


def check_scope() -> None:
    """Refuse a name scope around Parallelize, and a device scope of another kind than the CPU: they reach all blobs.

    Raises:
        UsageError: there is one.
    """
    if CurrentNameScope():
        raise UsageError(
            f"Parallelize was called inside NameScope({CurrentNameScope().rstrip(SEPARATOR)!r}); call it outside of "
            "name scopes, blobs of replicas begin with gpu_0/ and the like"
        )
    scope = CurrentDeviceScope()
    if scope is not None and scope.device_type != PROTO_CPU:
        text = " ".join(str(scope).split())
        raise UsageError(
            f"Parallelize was called inside DeviceScope({text}); call it outside of GPU scopes, it makes those of "
            "the replicas itself"
        )


_CALLED_WITH = {
    "forward_pass_builder_fun": ("model", "loss_scale"),
    "net_transformer_fun": ("model", "num_devices", "device_prefix", "device_type"),
}
_REQUIRED = ("input_builder_fun", "forward_pass_builder_fun")


def check_builders(**builders: Any) -> None:
    """Refuse builders that cannot be called as they will be, and two for the update.

    Raises:
        NetError: both builders of the update are given, or one plainly takes other arguments.
        TypeError: one is not callable.
    """
    if builders["param_update_builder_fun"] is not None and builders["optimizer_builder_fun"] is not None:
        raise NetError(
            "give param_update_builder_fun (called once per device) or optimizer_builder_fun (called once), not both"
        )
    for name, builder in builders.items():
        if callable(builder):
            _check_signature(name, builder, _CALLED_WITH.get(name, ("model",)))
        elif builder is not None or name in _REQUIRED:
            raise TypeError(f"{name} must be a function, got {builder!r}")


def _check_signature(name: str, builder: Callable[..., Any], names: Sequence[str]) -> None:
    try:
        signature = inspect.signature(builder)
    except (TypeError, ValueError):  # some functions in C have none
        return
    try:
        signature.bind(*names)
    except TypeError:
        raise NetError(f"{name} is called with the arguments ({', '.join(names)}), but takes {signature}") from None


def refuse_later_arguments(**given: tuple[Any, bool, str]) -> None:
    """Raise NotImplementedError for an argument whose machinery this version has not.

    Args:
        given: argument -> (value, whether it asks for something, what it would do).
    """
    for name, (value, asks, purpose) in given.items():
        if asks:
            raise NotImplementedError(
                f"Parallelize: {name}={value!r} ({purpose}) is not supported in this version; leave it out"
            )


def check_flags(**given: Any) -> None:
    """Raise TypeError for an argument, given by its name, that is not True or False."""
    for name, value in given.items():
        if not isinstance(value, bool):
            raise TypeError(f"{name} must be True or False, got {value!r}")


def check_accumulation(steps: Any) -> None:
    """Raise TypeError or NetError unless ``steps`` is a whole number from 1 on."""
    if isinstance(steps, bool) or not isinstance(steps, int):
        raise TypeError(f"accumulate_steps must be a whole number, got {steps!r}")
    if steps < 1:
        raise NetError(f"accumulate_steps must be at least 1, got {steps}")


def check_outside_from_bytes(size: Any) -> None:
    """Raise TypeError or NetError unless ``size`` is None or a whole number from 0 on."""
    if size is None:
        return
    if isinstance(size, bool) or not isinstance(size, int):
        raise TypeError(f"outside_from_bytes must be a whole number of bytes or None, got {size!r}")
    if size < 0:
        raise NetError(f"outside_from_bytes must not be negative, got {size}")


def check_net_type(net_type: Any) -> None:
    """Raise NetError unless ``net_type`` is one that workspaces can run."""
    if net_type not in NET_TYPES:
        raise NetError(f"unknown net_type {net_type!r}; the types are {', '.join(NET_TYPES)}")


def choose_devices(devices: Iterable[int] | None, device_type: int) -> Devices:
    """Return the devices that a call of Parallelize names; None: all GPUs, or as many replicas as the CPU has cores.

    Absent GPUs are no error, since a net may be built elsewhere than it runs; they are warned of.

    Raises:
        NetError: the list is empty, or a device is no whole number, negative, or named twice.
        DeviceError: None, and there is no GPU.
    """
    if device_type == PROTO_CUDA:
        return _gpus(devices, gpu_count())
    return Devices(PROTO_CPU, _numbers(range(os.cpu_count() or 1) if devices is None else devices))


def _gpus(devices: Iterable[int] | None, present: int) -> Devices:
    if devices is None:
        if not present:
            raise DeviceError(
                "devices=None means all GPUs, and this machine has none that can be used; name those of the machine "
                "that will run the net, as devices=[0, 1], or use Parallelize_CPU"
            )
        return Devices(PROTO_CUDA, tuple(range(present)))
    numbers = _numbers(devices)
    if absent := [number for number in numbers if number >= present]:
        there = f"only {list(range(present))}" if present else "none"
        warn_user(f"GPUs {absent} are not on this machine, which has {there}; the net can be built, but not run, here")
    return Devices(PROTO_CUDA, numbers)


def _numbers(devices: Any) -> tuple[int, ...]:
    if isinstance(devices, (str, bytes)) or not isinstance(devices, Iterable):
        raise NetError(f"devices must be a list of whole numbers, got {devices!r}")
    numbers: Sequence[Any] = list(devices)
    if not numbers:
        raise NetError("devices must name at least one device, got an empty list; give None for all")
    for number in numbers:
        if isinstance(number, bool) or not hasattr(number, "__index__") or number < 0:
            raise NetError(f"devices must be whole numbers, 0 or more, got {number!r} in {numbers}")
    plain = tuple(number.__index__() for number in numbers)
    if repeated := sorted({number for number in plain if plain.count(number) > 1}):
        raise NetError(f"devices must differ from each other, got {repeated} more than once in {list(plain)}")
    return plain
