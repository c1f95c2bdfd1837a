"""Checks of the arguments of Parallelize that options do not make themselves: of what they are given together with."""

from __future__ import annotations

import dataclasses
import inspect
import math
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from netbuilder.distributed.common_worlds import ProcessRequest
from netbuilder.distributed.rendezvous import Rendezvous
from netbuilder.distributed.strategies import Plain, Strategy
from netbuilder.distributed.transport.time_limits import time_limits
from netbuilder.engines.arrays import gpu_count
from netbuilder.engines.nccl import nccl
from netbuilder.graph.devices import Devices
from netbuilder.graph.replicas import has_record
from netbuilder.graph.scope import SEPARATOR, CurrentDeviceScope, CurrentNameScope
from netbuilder.graph.source import warn_user
from netbuilder.model import ModelHelper
from netbuilder.ops.core.precision import check_precision, precision_of
from netbuilder.parallel.bucket_choice import check_auto
from netbuilder.parallel.gradient_scaling import GradientScaling
from netbuilder.parallel.options import DataParallelOptions
from netbuilder.proto import PROTO_CPU, PROTO_CUDA, DeviceError, DeviceOption, NetError, UsageError
from netbuilder.proto.errors import counted

__all__ = [
    "check_builders",
    "check_call",
    "check_device_type",
    "check_model",
    "check_scope",
    "check_strategy",
    "choose_devices",
    "choose_nccl",
    "choose_processes",
    "choose_scaling",
    "choose_sharing",
    "chosen_precision",
    "settled",
    "with_gpus",
    "wrapper_devices",
]


def check_call(model: Any, **builders: Any) -> None:
    """Check what Parallelize and Parallelize_BMUF have in common besides options; raise what the functions below do."""
    check_scope()
    check_model(model)
    check_builders(**builders)


def check_model(model: Any) -> None:
    """Check that a model can be parallelized.

    Raises:
        TypeError: it is not a ModelHelper.
        NetError: it is data-parallel already, or has a backward pass.
    """
    if not isinstance(model, ModelHelper):
        raise TypeError(f"Parallelize: the model must be a ModelHelper, got {model!r} of type {type(model).__name__}")
    if has_record(model.net.Proto()):
        raise NetError(
            f"model {model.name!r} is data-parallel already; make a new ModelHelper for another call of Parallelize"
        )
    if model.gradient_ops_added:
        raise NetError(
            f"model {model.name!r} has a backward pass already; Parallelize adds one for each device, so call it on a "
            "model without backward pass"
        )


def check_scope(called: str = "Parallelize") -> None:
    """Check that no name scope and no GPU scope is active, because it would apply to the blobs of all replicas.

    Args:
        called: what is called, for the message.

    Raises:
        UsageError: such a scope is active.
    """
    if CurrentNameScope():
        raise UsageError(
            f"{called} was called inside NameScope({CurrentNameScope().rstrip(SEPARATOR)!r}); call it outside of "
            "name scopes, because the names of the replicas' blobs begin with the replica's scope (gpu_0/)"
        )
    scope = CurrentDeviceScope()
    if scope is not None and scope.device_type != PROTO_CPU:
        text = " ".join(str(scope).split())
        raise UsageError(
            f"{called} was called inside DeviceScope({text}); call it outside of GPU scopes, because it sets the "
            "devices of the replicas itself"
        )


_CALLED_WITH = {
    "forward_pass_builder_fun": ("model", "loss_scale"),
    "net_transformer_fun": ("model", "num_devices", "device_prefix", "device_type"),
}
_REQUIRED = ("input_builder_fun", "forward_pass_builder_fun")


def check_builders(**builders: Any) -> None:
    """Check that the builders are functions of the right arguments, and that at most one is for the update.

    Raises:
        NetError: both update builders are given, or the signature of a builder takes other arguments.
        TypeError: a builder is not callable.
    """
    if builders["param_update_builder_fun"] is not None and builders.get("optimizer_builder_fun") is not None:
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


def check_strategy(strategy: Strategy, options: DataParallelOptions, *, trains: bool) -> None:
    """Raise NetError if a strategy cannot be combined with other options, or has no update that it needs."""
    if strategy.blocks and not trains:
        raise NetError(
            f"strategy={strategy!r} is for training: without param_update_builder_fun or optimizer_builder_fun there "
            "is nothing to average; omit it"
        )
    refused = _NOT_IN_BLOCKS if strategy.blocks else () if strategy.sums_gradients else _NOT_ALONE
    for name in refused:
        value = getattr(options, name)
        if value is not None and value is not False:
            raise NetError(
                f"strategy={strategy!r} cannot be combined with {name}: {_WHY_NOT[name]}; omit one of them, or use a "
                "strategy that exchanges gradients"
            )


def settled(
    options: DataParallelOptions,
    model: ModelHelper,
    devices: Devices,
    processes: ProcessRequest | None,
    strategy: Strategy,
    *,
    trains: bool,
) -> DataParallelOptions:
    """Return the options of a call with what holds where they leave it open or do not apply.

    Args:
        options: as they are given.
        model: to be replicated.
        devices: of the replicas.
        processes: what is requested for several processes.
        strategy: of the exchange between them.
        trains: whether there is an update.

    Raises:
        NetError: options cannot be combined with one another, or with the other arguments.
        DeviceError: NCCL is missing.
    """
    shared = choose_sharing(options, devices, processes)
    if options.reduce_update_broadcast and shared:
        options.refuse_one_update("shared_model=True, whose replicas have one copy")
    options = dataclasses.replace(options, shared_model=shared)
    check_strategy(strategy, options, trains=trains)
    if processes is not None and trains:
        check_auto(options, strategy, on_cpu=devices.is_cpu)
    if strategy.has_owners and processes is not None and trains and len(devices) > 1:
        options = dataclasses.replace(options, reduce_update_broadcast=True)  # others get parameters by copies, too
    precision = chosen_precision(options.dtype, model)
    return dataclasses.replace(
        options,
        use_nccl=choose_nccl(options.use_nccl, devices),
        weighted_shares=options.weighted_shares or options.accumulate_steps > 1,
        gradient_scaling=choose_scaling(options, precision, trains=trains, strategy=not isinstance(strategy, Plain)),
    )


def choose_scaling(
    options: DataParallelOptions, precision: str, *, trains: bool, strategy: bool = False
) -> GradientScaling | None:
    """Return the scaling of gradients; raise NetError if it cannot be combined with other options.

    Args:
        options: with the scaling that is given; training with float16 has one by default.
        precision: in which activations are stored.
        trains: whether there is an update.
        strategy: whether there is one but ``Plain``.
    """
    scaling, what, remedy = options.gradient_scaling, "gradient_scaling", "omit one of them"
    if scaling is None:
        if precision != "float16" or not trains:
            return None
        scaling = GradientScaling()
        what, remedy = "dtype='float16', which scales gradients,", "store activations as bfloat16, or omit it"
    if not trains:
        raise NetError(
            "gradient_scaling is for training: without a function that appends the update there are no gradients; give "
            "one, or omit it"
        )
    excluded = {name: getattr(options, name) for name in ("shared_model", "reduce_update_broadcast")}
    for name, given in {**excluded, "strategy": strategy}.items():
        if given:
            raise NetError(
                f"{what} cannot be combined with {name}, with which not every replica has the gradients of all; "
                f"{remedy}"
            )
    return scaling


_WHY_NOT = {
    "shared_model": "its replicas train on their own, so each needs its own parameters",
    "combine_spatial_bn": "processes that train on their own have no statistics in common",
    "outside_from_bytes": "tables outside the replicas would be updated by all of them in each step",
    "reduce_update_broadcast": "replicas that train on their own are not updated on one device",
    "shard_tables": "processes that train on their own have no table in common",
}
_NOT_ALONE = ("combine_spatial_bn", "shard_tables")
_NOT_IN_BLOCKS = tuple(_WHY_NOT)


def choose_processes(rendezvous: Any, options: DataParallelOptions) -> ProcessRequest | None:
    """Return what is requested for several processes; None for one process.

    Args:
        rendezvous: a Rendezvous, a dict with Caffe2's keys, or None.
        options: of the replicas.

    Raises:
        NetError: the rendezvous is none, or several processes do not support an option.
    """
    found = None if rendezvous is None else Rendezvous.of(rendezvous)
    if found is None or found.num_shards == 1:
        return None
    if options.use_nccl:
        raise NetError(
            f"use_nccl=True cannot be combined with a rendezvous of {found.num_shards} processes; omit one of them"
        )
    seconds = options.barrier_net_timeout_sec or time_limits().between or math.inf
    return ProcessRequest(found, options.max_concurrent_distributed_ops, float(seconds))


def with_gpus(processes: ProcessRequest | None, devices: Devices) -> ProcessRequest | None:
    """Return what is requested for several processes, with the GPUs by which NCCL reaches the others.

    Raises:
        NetError: NCCL is to exchange values of replicas on the CPU.
    """
    if processes is None or processes.rendezvous.engine != "NCCL":
        return processes
    if devices.is_cpu:
        raise NetError(
            "rendezvous: engine 'NCCL' exchanges values of GPUs, but the replicas are on the CPU; use engine 'MPI' "
            "(pip install 'netbuilder-nn[mpi]'), or Parallelize_GPU"
        )
    return dataclasses.replace(processes, gpus=tuple(devices.ids))


def check_device_type(device_type: Any) -> int:
    """Return a device type; raise NetError unless it is that of CPUs or of GPUs."""
    if device_type not in (PROTO_CPU, PROTO_CUDA) or isinstance(device_type, bool):
        raise NetError(f"device_type must be PROTO_CPU ({PROTO_CPU}) or PROTO_CUDA ({PROTO_CUDA}), got {device_type!r}")
    return int(device_type)


def choose_nccl(use_nccl: bool, devices: Devices) -> bool:
    """Return whether a net gets NCCL's operators, which are for several GPUs; warn of replicas on the CPU.

    Raises:
        DeviceError: this machine has GPUs but not NCCL. Without GPUs the net is built to run elsewhere.
    """
    if not use_nccl or len(devices) < 2:
        return use_nccl and not devices.is_cpu
    if devices.is_cpu:
        warn_user(
            "use_nccl=True: NCCL exchanges values between GPUs; gradients of replicas on the CPU are exchanged by sums "
            "and copies"
        )
    elif gpu_count():
        nccl()
    return not devices.is_cpu


def choose_sharing(options: DataParallelOptions, devices: Devices, processes: ProcessRequest | None) -> bool:
    """Return whether replicas have one copy of the parameters; a process with one device has one anyway.

    Raises:
        NetError: they are replicas of several processes, with several devices each.
    """
    if not options.shared_model or len(devices) == 1:
        return False
    if processes is not None:
        raise NetError(
            f"shared_model=True cannot be combined with {len(devices)} devices in each of "
            f"{processes.rendezvous.num_shards} processes; give each process one device, or omit it"
        )
    return True


def chosen_precision(dtype: Any, model: ModelHelper) -> str:
    """Return the type in which activations are stored: ``dtype``, or what the model asks for if it is None."""
    where = f"model {model.name!r}"
    return precision_of(model.net.Proto(), where) if dtype is None else check_precision(dtype, where)


def choose_devices(devices: Iterable[int] | None, device_type: int) -> Devices:
    """Return the devices for a call of Parallelize; None: all GPUs, or as many replicas as the CPU has cores.

    For missing GPUs there is only a warning, because a net may be built on another machine than it runs on.

    Raises:
        NetError: the list is empty, or a device is not an integer, is negative, or is listed twice.
        DeviceError: ``devices`` is None and there is no GPU.
    """
    if device_type == PROTO_CUDA:
        return _gpus(devices, gpu_count())
    return Devices(PROTO_CPU, _numbers(range(os.cpu_count() or 1) if devices is None else devices))


def _gpus(devices: Iterable[int] | None, present: int) -> Devices:
    if devices is None:
        if not present:
            raise DeviceError(
                "devices=None means all GPUs, but this machine has no usable GPU; give the GPUs of the machine "
                "that will run the net, for example devices=[0, 1], or use Parallelize_CPU"
            )
        return Devices(PROTO_CUDA, tuple(range(present)))
    numbers = _numbers(devices)
    if absent := [number for number in numbers if number >= present]:
        available = f"only {list(range(present))}" if present else "none"
        warn_user(
            f"GPUs {absent} are not on this machine, which has {available}; here the net can be built, but not run"
        )
    return Devices(PROTO_CUDA, numbers)


def _numbers(devices: Any) -> tuple[int, ...]:
    if isinstance(devices, (str, bytes)) or not isinstance(devices, Iterable) or getattr(devices, "ndim", 1) == 0:
        raise NetError(f"devices must be a list of integers, got {devices!r}")
    numbers: Sequence[Any] = list(devices)
    if not numbers:
        raise NetError("devices must list at least one device, got an empty list; give None for all")
    for number in numbers:
        if isinstance(number, bool) or not hasattr(number, "__index__") or number < 0:
            raise NetError(f"devices must be non-negative integers, got {number!r} in {numbers}")
    plain = tuple(number.__index__() for number in numbers)
    if repeated := sorted({number for number in plain if plain.count(number) > 1}):
        raise NetError(f"devices must all be different, got {repeated} more than once in {list(plain)}")
    return plain


def wrapper_devices(devices: Iterable[Any], cpu_device: bool) -> Devices:
    """Return the devices of a wrapper.

    Args:
        devices: numbers, or DeviceOptions of one type.
        cpu_device: what numbers are: replicas on the CPU, or GPUs.

    Raises:
        NetError: a device is repeated, negative or no device, or there is none.
        DeviceError: this machine has no such GPU.
    """
    listed: Any = devices
    if not isinstance(listed, (str, bytes)) and isinstance(listed, Iterable):
        listed = list(listed)
        options = [device for device in listed if isinstance(device, DeviceOption)]
        if options:
            kinds = {option.device_type for option in options}
            if len(options) < len(listed) or len(kinds) > 1 or not kinds <= {PROTO_CPU, PROTO_CUDA}:
                raise NetError(f"DataParallel: devices must be all CPU devices or all GPUs, got {listed}")
            cpu_device, listed = kinds == {PROTO_CPU}, [option.device_id for option in options]
        if not cpu_device and (
            absent := [number for number in listed if isinstance(number, int) and number >= gpu_count()]
        ):
            raise DeviceError(
                f"DataParallel: this machine has {counted(gpu_count(), 'usable GPU')}, so there is no GPU {absent}; "
                "give others, or cpu_device=True for replicas on the CPU"
            )
    return choose_devices(listed, PROTO_CPU if cpu_device else PROTO_CUDA)
