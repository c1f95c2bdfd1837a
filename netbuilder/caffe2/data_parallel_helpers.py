"""The private functions of Caffe2's data_parallel_model that scripts call to make replicas of their own kind.

They read what Caffe2's scripts, or ``Parallelize``, set on the model: ``_devices``, ``_device_type``,
``_device_prefix``, ``_device_grouped_blobs`` (name -> device -> blob), and lists of names. ``Parallelize`` does all of
it in one call.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from netbuilder.graph.blob import BlobReference, GradientSlice
from netbuilder.graph.blob_devices import blob_devices
from netbuilder.graph.devices import Devices
from netbuilder.graph.net import Net
from netbuilder.graph.replicas import Replicas, has_record
from netbuilder.graph.scope import SEPARATOR, DeviceScope, NameScope
from netbuilder.model import ModelHelper
from netbuilder.parallel import OptimizeGradientMemory, stripBlobName
from netbuilder.parallel.backward import add_backward_pass
from netbuilder.parallel.build import keep_only
from netbuilder.parallel.synchronize import initialized_names
from netbuilder.passes.device_check import check_devices
from netbuilder.passes.reductions import allreduce, broadcast, nccl_allreduce, nccl_broadcast
from netbuilder.proto import PROTO_CUDA, NetError
from netbuilder.proto.arguments import make_device_option

__all__ = ["AddDistributedBlobSync", "log"]

_DEFAULT_TIMEOUT_SEC = 30
_DEFAULT_BARRIER_NET_TIMEOUT_SEC = 300

log = logging.getLogger("netbuilder")

Blob = BlobReference | GradientSlice


def _ForEachDevice(
    devices: Iterable[int],
    f: Callable[..., Any],
    device_type: int,
    device_prefix: str,
    scoped: bool = False,
    *args: Any,
    **kwargs: Any,
) -> None:
    """Call ``f(device, *args, **kwargs)`` in the device scope of each device, and with ``scoped`` in its name scope."""
    for device in devices:
        with DeviceScope(make_device_option(device_type, device)):
            if scoped:
                with NameScope(f"{device_prefix}_{device}"):
                    f(device, *args, **kwargs)
            else:
                f(device, *args, **kwargs)


def _AddGradientOperators(devices: Sequence[int], model: ModelHelper, losses_by_gpu: Mapping[int, Any]) -> None:
    """Add the backward pass of all replicas; ``losses_by_gpu`` has the losses of each device."""
    add_backward_pass(model, _devices(model, devices), [list(losses_by_gpu[device]) for device in devices])


def _Broadcast(devices: Sequence[int], model: ModelHelper, net: Net, param: str, use_nccl: bool = False) -> None:
    """Append copies of the first device's blob of the group ``param`` to the others."""
    copy = nccl_broadcast if use_nccl else broadcast
    net.extend_ops(copy([_group(model, devices, param)], _devices(model, devices)).op)


def _AllReduce(
    devices: Sequence[int],
    model: ModelHelper,
    net: Net,
    param: str,
    use_nccl: bool = False,
    control_input: Any = None,
) -> None:
    """Append the sum of the blobs of the group ``param`` over the devices, which all get.

    Args:
        control_input: blob that the first operator waits for.

    Raises:
        NetError: a device has no blob of the group, or it is a sparse gradient.
    """
    group, over = _group(model, devices, param), _devices(model, devices)
    ops = (nccl_allreduce([group], over) if use_nccl else allreduce([group], over)).op
    if control_input is not None and ops:
        ops[0].control_input.append(str(control_input))
    net.extend_ops(ops)


def _AllReduceBlobs(
    blob_names: Iterable[str],
    devices: Sequence[int],
    model: ModelHelper,
    net: Net,
    rendezvous: Any,
    use_nccl: bool,
    max_concurrent_distributed_ops: int,
) -> None:
    """Append the sums of the groups ``blob_names`` over the devices; see ``_AllReduce``."""
    _refuse_several_hosts(rendezvous)
    _AllReduceBlobsSingleHost(blob_names, devices, model, net, use_nccl)


def _AllReduceBlobsSingleHost(
    blob_names: Iterable[str], devices: Sequence[int], model: ModelHelper, net: Net, use_nccl: bool
) -> None:
    """Append the sums of the groups ``blob_names`` over the devices; see ``_AllReduce``."""
    last = None
    for name in blob_names if len(devices) > 1 else ():
        _AllReduce(devices, model, net, name, use_nccl, last if use_nccl else None)
        last = _group(model, devices, name)[0]


def _SyncAllParams(
    devices: Sequence[int],
    model: ModelHelper,
    init_net: Net,
    net: Net,
    rendezvous: Any,
    unique_param_names: Iterable[str],
    max_concurrent_distributed_ops: int = 4,
) -> None:
    """Append copies of the first device's blobs of each name to the others."""
    _refuse_several_hosts(rendezvous)
    _SyncAllParamsSingleHost(devices, model, net, unique_param_names)


def _SyncAllParamsSingleHost(
    devices: Sequence[int], model: ModelHelper, net: Net, unique_param_names: Iterable[str]
) -> None:
    """Append copies of the first device's blobs of each name to the others."""
    for name in unique_param_names:
        _Broadcast(devices, model, net, name)


def _BroadcastComputedParams(
    devices: Sequence[int], model: ModelHelper, rendezvous: Any, use_nccl: bool = False
) -> None:
    """Append copies of the first device's computed parameters to the main net."""
    _refuse_several_hosts(rendezvous)
    _BroadcastComputedParamsSingleHost(devices, model, use_nccl)


def _BroadcastComputedParamsSingleHost(devices: Sequence[int], model: ModelHelper, use_nccl: bool = False) -> None:
    """Append copies of the first device's computed parameters to the main net."""
    for name in model._computed_param_names if len(devices) > 1 else ():
        _Broadcast(devices, model, model.net, name, use_nccl)


def _GetReverseOrderedGrads(model: ModelHelper) -> list[str]:
    """Return the names of the gradients, last parameter first: the order in which they are ready."""
    return list(reversed(model._grad_names))


def _AnalyzeOperators(model: ModelHelper) -> None:
    """Raise NetError if an operator of the main net uses a blob of another device."""
    record = Replicas.load(model.net.Proto()) if has_record(model.net.Proto()) else None
    devices = _devices(model, model._devices) if record is None else record.devices
    shared = () if record is None else record.shared_blobs
    check_devices(model.net, init_net=model.param_init_net, devices=devices, shared=shared)


def _InferBlobDevice(model: ModelHelper) -> None:
    """Set ``model._blob_to_device``: the device of each blob, that of the first operator that reads or writes it."""
    vars(model).update(_blob_to_device=blob_devices([model.param_init_net.Proto(), model.net.Proto()]))


def _IsGPUBlob(model: ModelHelper, blob_name: Any) -> bool:
    """Whether a blob, or the first replica's blob of a name, is on a GPU."""
    return _device_type_of(model, blob_name) == PROTO_CUDA


def _IsIDEEPBlob(model: ModelHelper, blob_name: Any) -> bool:
    """Whether a blob is on an iDeep device: never, since such devices are CPUs here."""
    return False


def _GroupByDevice(
    model: ModelHelper, devices: Sequence[int], params: Sequence[Any], non_data_params: Sequence[Any]
) -> OrderedDict[str, dict[int, Any]]:
    """Return name -> device -> blob for all of ``params`` but the first ones, which are ``non_data_params``.

    Raises:
        NetError: a blob is neither a reference nor a sparse gradient, or is not in the scope of a device.
    """
    over = _devices(model, devices)
    grouped: OrderedDict[str, dict[int, Any]] = OrderedDict()
    for param in params[len(non_data_params) :]:
        if not isinstance(param, (BlobReference, GradientSlice)):
            raise NetError(f"_GroupByDevice: {param!r} must be a BlobReference or a GradientSlice")
        name = param.indices if isinstance(param, GradientSlice) else param
        replica = over.replica_of(str(name))
        if replica is None:
            raise NetError(
                f"_GroupByDevice: blob {str(name)!r} is not in the scope of a device ({', '.join(over.scopes)})"
            )
        grouped.setdefault(stripBlobName(param), {})[over.ids[replica]] = param
    return grouped


def _ValidateParams(params: Iterable[Any]) -> None:
    """Raise NetError if a parameter is listed twice."""
    if repeated := [name for name, count in Counter(map(str, params)).items() if count > 1]:
        raise NetError(f"the parameters {repeated} are listed more than once; create each of them once")


def _ComputeBlobsToSync(model: ModelHelper) -> tuple[list[BlobReference], set[str]]:
    """Return the blobs of the replicas that the init net fills, in the order of the devices, and their short names.

    Raises:
        NetError: the init net does not initialize a parameter.
    """
    over = _devices(model, model._devices)
    names = set(initialized_names(model.param_init_net.Proto(), over))
    if missing := sorted(set(model._param_names) - names):
        raise NetError(f"model {model.name!r}: the init net does not initialize the parameters {missing}")
    return [BlobReference(scope + name) for scope in over.scopes for name in sorted(names)], names


def _OptimizeGradientMemorySimple(model: ModelHelper, losses_by_gpu: Any, devices: Any) -> None:
    """Let gradients that are not needed at the same time share blobs; the model was made by ``Parallelize``."""
    OptimizeGradientMemory(model, None, None, False)


def _AddDynamicMemoryOptimization(model: ModelHelper, blobs_to_keep: Iterable[Any] | None, devices: Any) -> None:
    """Keep only outputs after a run, and ``blobs_to_keep``: those of all replicas if they are given without a scope."""
    keep_only(model, _devices(model, model._devices), map(str, blobs_to_keep or ()))


def _AddBarrierToModelNets(model: ModelHelper, barrier_net_timeout_sec: float) -> None:
    """Do nothing: barriers are between hosts."""
    _refuse_several_hosts(getattr(model, "_rendezvous", None))


def _RunComparison(model: ModelHelper, blob_name: Any, device: Any = None) -> bool:
    """Return True: there is one host, so nothing can differ between hosts."""
    _refuse_several_hosts(getattr(model, "_rendezvous", None))
    return True


def AddDistributedBlobSync(model: ModelHelper, blobs: Iterable[Any]) -> None:
    """Do nothing: it sums blobs over hosts, and there is one."""
    _refuse_several_hosts(getattr(model, "_rendezvous", None))


def _devices(model: ModelHelper, ids: Sequence[int]) -> Devices:
    if "_device_type" not in vars(model):
        raise NetError(
            f"model {model.name!r} has no replicas: call Parallelize, or set its _devices, _device_type and "
            "_device_prefix, as Caffe2's scripts do"
        )
    return Devices(model._device_type, tuple(ids))


def _group(model: ModelHelper, devices: Sequence[int], name: str) -> list[str]:
    """Return the blobs of a group, in the order of the devices; without a group, those of the name."""
    blobs = getattr(model, "_device_grouped_blobs", {}).get(name)
    if blobs is None:
        return list(_devices(model, devices).copies(str(name)))
    found = [blobs.get(device) for device in devices]
    if any(isinstance(blob, GradientSlice) for blob in found):
        raise NetError(f"group {name!r} is a sparse gradient, which only Parallelize exchanges; call it instead")
    if missing := [device for device, blob in zip(devices, found) if blob is None]:
        raise NetError(f"group {name!r} has no blob on device {', '.join(map(str, missing))}")
    return list(map(str, found))


def _device_type_of(model: ModelHelper, blob: Any) -> int:
    name = str(blob)
    if name not in model._blob_to_device:
        name = f"{model._device_prefix}_{model._devices[0]}{SEPARATOR}{name}"
    if name not in model._blob_to_device:
        raise NetError(f"model {model.name!r}: its nets have no blob {str(blob)!r}, in the first replica neither")
    return int(model._blob_to_device[name].device_type)


def _refuse_several_hosts(rendezvous: Any) -> None:
    if rendezvous is not None and (rendezvous.get("num_shards", 2) if isinstance(rendezvous, Mapping) else 2) > 1:
        raise NotImplementedError(
            f"rendezvous={rendezvous!r}: training over several hosts is not supported in this version; give None"
        )
