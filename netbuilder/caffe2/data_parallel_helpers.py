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

from netbuilder.distributed.agreement import require_equal_blobs
from netbuilder.distributed.common_worlds import (
    WORLD_MAKERS,
    ProcessRequest,
    barrier_net,
    process_link,
    reassign_worlds,
    world_maker,
)
from netbuilder.distributed.rendezvous import Rendezvous
from netbuilder.graph.blob import BlobReference, GradientSlice
from netbuilder.graph.blob_devices import blob_devices
from netbuilder.graph.devices import Devices
from netbuilder.graph.net import Net
from netbuilder.graph.replicas import Replicas, World, has_record
from netbuilder.graph.scope import SEPARATOR, DeviceScope, NameScope
from netbuilder.model import ModelHelper
from netbuilder.parallel import OptimizeGradientMemory, stripBlobName
from netbuilder.parallel.backward import add_backward_pass
from netbuilder.parallel.build import keep_only
from netbuilder.parallel.synchronize import initialized_names
from netbuilder.passes.device_check import check_devices
from netbuilder.passes.processes import ProcessLink, broadcast_over_processes
from netbuilder.passes.reductions import allreduce, broadcast, nccl_allreduce, nccl_broadcast
from netbuilder.proto import PROTO_CUDA, NetError
from netbuilder.proto.arguments import arguments, make_device_option, make_op

__all__ = ["AddDistributedBlobSync", "CollectivesConcurrencyControl", "log"]

_DEFAULT_TIMEOUT_SEC = 30
_DEFAULT_BARRIER_NET_TIMEOUT_SEC = 300
_MOST_OPERATORS = 4  # between processes at the same time, if a function is not told

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
    losses = [list(losses_by_gpu[device]) for device in devices]
    add_backward_pass(model, _devices(model, devices), losses, vector_losses=True)


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
    """Append the sums of the groups ``blob_names`` over the devices, and over the processes of ``rendezvous``.

    Raises: as ``_AllReduce``; NetError: ``rendezvous`` is wrong, or the main net has fewer than two workers.
    """
    if _several(rendezvous) is None:
        _AllReduceBlobsSingleHost(blob_names, devices, model, net, use_nccl)
    else:
        _AllReduceBlobsDistributed(blob_names, devices, model, net, rendezvous, max_concurrent_distributed_ops)


def _AllReduceBlobsDistributed(
    blob_names: Iterable[str],
    devices: Sequence[int],
    model: ModelHelper,
    net: Net,
    rendezvous: Any,
    max_concurrent_distributed_ops: int,
) -> None:
    """Append the sums of the groups ``blob_names`` over the devices and the processes; see ``_AllReduceBlobs``."""
    link = _join(model, devices, rendezvous, max_concurrent_distributed_ops)
    for name in blob_names:
        group = _group(model, devices, name)
        net.extend_ops(allreduce([group], link.devices, hand_back=False).op)
        net.extend_ops(link.allreduce(group[:1]))
        net.extend_ops(broadcast([group], link.devices).op)
    reassign_worlds(net, link.worlds)


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
    """Append copies of the first device's blobs of each name, those of rank 0 with ``rendezvous``, to the others."""
    if _several(rendezvous) is None:
        _SyncAllParamsSingleHost(devices, model, net, unique_param_names)
    else:
        _SyncAllParamsDistributed(
            devices, model, init_net, net, rendezvous, unique_param_names, max_concurrent_distributed_ops
        )


def _SyncAllParamsDistributed(
    devices: Sequence[int],
    model: ModelHelper,
    init_net: Net,
    net: Net,
    rendezvous: Any,
    unique_param_names: Iterable[str],
    max_concurrent_distributed_ops: int,
) -> None:
    """Append copies of the first device's blobs of each name, in rank 0, to all devices of all processes.

    The model's init net makes the common worlds.
    """
    link = _join(model, devices, rendezvous, max_concurrent_distributed_ops)
    groups = [_group(model, devices, name) for name in sorted(unique_param_names)]
    net.extend_ops(broadcast_over_processes(groups, link).op)
    reassign_worlds(net, link.worlds)


def _SyncAllParamsSingleHost(
    devices: Sequence[int], model: ModelHelper, net: Net, unique_param_names: Iterable[str]
) -> None:
    """Append copies of the first device's blobs of each name to the others."""
    for name in unique_param_names:
        _Broadcast(devices, model, net, name)


def _BroadcastComputedParams(
    devices: Sequence[int], model: ModelHelper, rendezvous: Any, use_nccl: bool = False
) -> None:
    """Append copies of the first device's computed parameters, those of rank 0 with ``rendezvous``, to the main net."""
    if _several(rendezvous) is None:
        _BroadcastComputedParamsSingleHost(devices, model, use_nccl)
    else:
        _BroadcastComputedParamsDistributed(devices, model, rendezvous, use_nccl)


def _BroadcastComputedParamsDistributed(
    devices: Sequence[int], model: ModelHelper, rendezvous: Any, use_nccl: bool = False
) -> None:
    """Append copies of the first device's computed parameters, in rank 0, to the main net."""
    names, init_net = model._computed_param_names, model.param_init_net
    _SyncAllParamsDistributed(devices, model, init_net, model.net, rendezvous, names, _MOST_OPERATORS)


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
    """Give a model a barrier: the net ``_barrier_net``, and ``_barrier_init_net``, which makes its common world.

    They become the first of ``_data_parallel_model_nets`` and ``_data_parallel_model_init_nets``, if it has these.
    A model that ``Parallelize`` made for several processes has a barrier already, and one for one process needs none.
    """
    if _several(getattr(model, "_rendezvous", None)) is None or getattr(model, "_barrier_net", None) is not None:
        return
    init_net = Net(f"{model.net.Name()}_barrier_init")
    net = _CreateBarrierNet(model, init_net, model.net.Name(), barrier_net_timeout_sec)
    vars(model).update(_barrier_net=net, _barrier_init_net=init_net)
    for name, first in (("_data_parallel_model_init_nets", init_net), ("_data_parallel_model_nets", net)):
        getattr(model, name, []).insert(0, first)


def _CreateBarrierNet(model: ModelHelper, init_net: Net, name_prefix: str, timeout_sec: float) -> Net:
    """Return a net in which each process waits for all others; ``init_net`` gets the operator for its common world."""
    world = _CreateOrCloneCommonWorld(
        init_net, name_prefix + "_barrier_cw", rendezvous=model._rendezvous, timeout_sec=timeout_sec
    )
    return Net(barrier_net(name_prefix, World(barrier=str(world))))


def _CreateOrCloneCommonWorld(
    net: Net, common_world_blob: Any, rendezvous: Any, name: str | None = None, timeout_sec: float | None = None
) -> BlobReference:
    """Append an operator that makes a common world, or clones one with this time limit that the net makes before.

    Args:
        net: the net.
        common_world_blob: name of the common world.
        rendezvous: the processes.
        name: name of the operator; None: that of the common world.
        timeout_sec: time limit of operators that use it, in seconds; None: 30.
    """
    maker = world_maker(Rendezvous.of(rendezvous), str(common_world_blob), timeout_sec or _DEFAULT_TIMEOUT_SEC)
    for op in net.Proto().op:
        if op.type == maker.type and arguments(op) == arguments(maker):
            maker = make_op("CloneCommonWorld", op.output[:1], maker.output, device_option=op.device_option)
            break
    if name is not None:
        maker.name = name
    net.extend_ops([maker])
    return BlobReference(maker.output[0], net)


class CollectivesConcurrencyControl:
    """Gives out common worlds in turn, and the blob that the next user of each has to wait for.

    Args:
        name: what the names of the common worlds begin with.
        max_concurrent_context: number of common worlds.
        param_init_net: net that makes them.
        rendezvous: the processes.
    """

    def __init__(self, name: str, max_concurrent_context: int, param_init_net: Net, rendezvous: Any) -> None:
        self.name, self.max_concurrent_context = name, max_concurrent_context
        self.param_init_net, self.rendezvous = param_init_net, rendezvous
        self.counter = 0
        self.common_worlds: list[BlobReference] = []
        self.control_inputs: list[Any] = []

    def get_control_and_context(self, control_output_blob: Any) -> list[Any]:
        """Return the next common world, and the control input of its operator: None, or what its last user wrote.

        Args:
            control_output_blob: an output of the operator that uses the common world.
        """
        slot, self.counter = self.counter % self.max_concurrent_context, self.counter + 1
        if slot == len(self.common_worlds):
            world = _CreateOrCloneCommonWorld(self.param_init_net, f"{self.name}_{slot}_cw", self.rendezvous)
            self.common_worlds.append(world)
            self.control_inputs.append(None)
        before, self.control_inputs[slot] = self.control_inputs[slot], control_output_blob
        return [self.common_worlds[slot], before]


def _RunComparison(model: ModelHelper, blob_name: Any, device: Any = None) -> bool:
    """Return True if a blob is the same in all processes, to the bit; with one process it is.

    Args:
        model: made by ``Parallelize``.
        blob_name: name without a replica's scope, or the full name of a blob outside the replicas.
        device: the device, or its DeviceOption, whose blob is compared; None: the first one.

    Raises:
        DistributedError: it is not; the message names the blob and the processes.
    """
    if _several(getattr(model, "_rendezvous", None)) is None:
        return True
    record, name = Replicas.load(model.net.Proto()), str(blob_name)
    if name not in record.outside:
        number = record.devices.ids[0] if device is None else getattr(device, "device_id", device)
        scopes = dict(zip(record.devices.ids, record.devices.scopes))
        if number not in scopes:
            raise NetError(f"_RunComparison: device must be one of {list(record.devices.ids)}, got {device!r}")
        name = scopes[number] + record.devices.short_name(name)
    require_equal_blobs(model, [name])
    return True


def AddDistributedBlobSync(model: ModelHelper, blobs: Iterable[Any]) -> None:
    """Append the sum of each blob over processes to the main net, but not over devices; nothing for one process.

    Args:
        model: made by ``Parallelize``, or with what Caffe2's scripts set.
        blobs: full names or references.
    """
    if isinstance(blobs, (str, bytes)):
        raise TypeError(f"blobs must be a list of strings or references, got the single string {blobs!r}")
    names = list(map(str, blobs))
    if names and _several(model._rendezvous) is not None:
        link = _join(model, model._devices, model._rendezvous, _MOST_OPERATORS)
        model.net.extend_ops(link.allreduce(names))
        reassign_worlds(model.net, link.worlds)


def _several(rendezvous: Any) -> Rendezvous | None:
    """Return the rendezvous of several processes; None for one."""
    found = None if rendezvous is None else Rendezvous.of(rendezvous)
    return found if found is not None and found.num_shards > 1 else None


def _request(model: ModelHelper, devices: Sequence[int], rendezvous: Any, most: int) -> tuple[ProcessRequest, World]:
    workers = model.net.Proto().num_workers
    if workers < 2:
        raise NetError(
            f"net {model.net.Name()!r} has {workers} workers; operators between processes need two or more, one of "
            "them for the other operators: set net.Proto().num_workers"
        )
    request = ProcessRequest(Rendezvous.of(rendezvous), most)
    return request, request.world(model.net.Name(), _devices(model, devices), workers, joined=True)


def _join(model: ModelHelper, devices: Sequence[int], rendezvous: Any, most: int) -> ProcessLink:
    """Return how a model exchanges values with other processes.

    A model that ``Parallelize`` made for them has common worlds; the init net of another makes them.

    Raises:
        NetError: ``rendezvous`` is of one process, or ``Parallelize`` made the model for one.
    """
    if _several(rendezvous) is None:
        raise NetError(f"rendezvous must be of two processes or more, got {rendezvous!r}")
    nets = [model.param_init_net.Proto(), model.net.Proto()]
    if has_record(nets[1]):
        link = process_link(Replicas.load(nets[1]), nets)
        if link is None:
            raise NetError(f"model {model.name!r} was parallelized without this rendezvous; give it to Parallelize")
        return link
    request, world = _request(model, devices, rendezvous, most)
    present = {blob for op in nets[0].op if op.type in WORLD_MAKERS for blob in op.output}
    for op in request.creators(world):
        if not present.intersection(op.output) and world.barrier not in op.output:
            model.param_init_net.insert_op_at_idx(op, len(present))
            present.update(op.output)
    link = process_link(Replicas(_devices(model, devices), world=world), nets)
    assert link is not None
    return link


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
