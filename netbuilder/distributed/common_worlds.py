"""The common worlds of a data-parallel model: their blobs, how its init net makes them, and the barrier."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from netbuilder.distributed.rendezvous import Rendezvous
from netbuilder.graph.blob_devices import blob_devices
from netbuilder.graph.devices import Devices
from netbuilder.graph.net import Net
from netbuilder.graph.replicas import Replicas, World
from netbuilder.passes.net_pass import PassContext
from netbuilder.passes.processes import ProcessLink, assign_worlds_pass
from netbuilder.proto import PROTO_CPU, NetDef, OperatorDef
from netbuilder.proto.arguments import arguments, make_device_option, make_op, set_argument
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.runtime import Workspace

__all__ = [
    "EXTRA_WORKERS",
    "WORLD_MAKERS",
    "ProcessRequest",
    "assign_worlds",
    "barrier_maker",
    "barrier_name",
    "barrier_net",
    "create_worlds",
    "makers_of",
    "process_link",
    "reassign_worlds",
    "world_maker",
]

EXTRA_WORKERS = 8
"""Workers that a net has for operators between processes, in addition to those of its devices, as in Caffe2."""

WORLD_MAKERS = frozenset({"CloneCommonWorld", "CreateCommonWorld"})

_HOST = make_device_option(PROTO_CPU, 0)
_LONGEST_MS = 2**31 - 1


@dataclass(frozen=True)
class ProcessRequest:
    """The checked arguments of Parallelize that concern several processes.

    Args:
        rendezvous: the processes, two or more.
        concurrent: maximum number of operators between processes that run at the same time.
        barrier_seconds: time limit of the barrier.
        gpus: with engine NCCL: the GPUs of this process.
    """

    rendezvous: Rendezvous
    concurrent: int = 16
    barrier_seconds: float = 300
    gpus: tuple[int, ...] = ()

    def world(self, name: str, devices: Devices, workers: int, *, joined: bool) -> World:
        """Return the place of this process's replicas; each process has as many.

        Args:
            name: name of the main net, with which the names of the common worlds begin.
            devices: devices of this process.
            workers: workers of the main net, one of which remains for what is not between processes.
            joined: whether the net exchanges values with other processes.
        """
        count, rank = len(devices), self.rendezvous.shard_id
        names = [f"{name}_{index}_cw" for index in range(min(self.concurrent, workers - 1))] if joined else ()
        barrier = f"{name}_barrier_cw" if joined else ""
        return World(count * self.rendezvous.num_shards, count * rank, rank, tuple(names), barrier)

    def creators(self, world: World) -> list[OperatorDef]:
        """Return the operators that make the common worlds; the first one of a kind makes it, and others clone it."""
        first, *others = world.common
        ops = [world_maker(self.rendezvous, first, gpus=self.gpus)]
        ops += [make_op("CloneCommonWorld", [first], [blob], device_option=_HOST) for blob in others]
        return [*ops, world_maker(self.rendezvous, world.barrier, self.barrier_seconds, self.gpus)]


def world_maker(found: Rendezvous, blob: str, seconds: float | None = None, gpus: Sequence[int] = ()) -> OperatorDef:
    """Return the operator that makes a common world of the processes of a rendezvous.

    Args:
        found: the rendezvous.
        blob: the common world.
        seconds: time limit of operators over it; None: that of all collectives of the process.
        gpus: with engine NCCL: the GPUs of this process.
    """
    handler = [str(found.kv_handler)] if isinstance(found.kv_handler, str) else []
    options: dict[str, Any] = {
        "name": f"{found.run_id}/{blob}" if found.run_id else blob,  # unlike that of another run
        "size": found.num_shards,
        "rank": found.shard_id,
    }
    if found.engine == "NCCL":
        options |= {"device_ids": list(gpus)} if len(gpus) > 1 else {"device_id": gpus[0] if gpus else 0}
    if seconds is not None:
        options["timeout_ms"] = _milliseconds(seconds)
    op = make_op("CreateCommonWorld", handler, [blob], device_option=_HOST, **options)
    op.engine = found.engine
    return op


def process_link(
    record: Replicas,
    nets: Sequence[NetDef],
    *,
    deterministic: bool = False,
    debug_info: str = "",
    by_nccl: bool = False,
) -> ProcessLink | None:
    """Return how a model's operators exchange values with other processes; None: they do not.

    Args:
        record: the record of its replicas.
        nets: the nets of the model, in the order in which they run, which say where the blobs on GPUs are.
        deterministic, debug_info, by_nccl: see ``ProcessLink``; nets that make the common worlds say ``by_nccl``.
    """
    if not record.world.common:
        return None
    places = {} if record.devices.is_cpu else blob_devices(nets)
    processes = record.world.size // len(record)
    by_nccl = any(op.type == "CreateCommonWorld" and op.engine == "NCCL" for net in nets for op in net.op) or by_nccl
    return ProcessLink(record.world.common, processes, record.devices, places, deterministic, debug_info, by_nccl)


def assign_worlds(nets: Sequence[Net], init_net: Net, world: World, request: ProcessRequest) -> World:
    """Distribute the operators of a model's nets over the common worlds, which the init net makes first.

    Args:
        nets: all nets of the model, the init net among them; changed.
        init_net: the init net.
        world: the common worlds that there may be.
        request: how they are made.

    Returns:
        The world, with the common worlds that are used.
    """
    used = max(sum(op.input[:1] == [world.common[0]] for op in net.Proto().op) for net in nets)
    world = dataclasses.replace(world, common=world.common[: max(1, used)])
    for index, op in enumerate(request.creators(world)):
        init_net.insert_op_at_idx(op, index)
    for net in nets:
        reassign_worlds(net, world.common)
    return world


def reassign_worlds(net: Net, worlds: Sequence[str]) -> None:
    """Distribute the operators of a net over common worlds, which it may make at its beginning."""
    users = NetDef()
    users.CopyFrom(net.Proto())
    makers = [op for op in net.Proto().op if op.type in WORLD_MAKERS]
    del users.op[: len(makers)]
    made = assign_worlds_pass(users, PassContext(available=worlds), worlds=worlds).net
    known = {blob for op in makers for blob in op.output}
    external = [blob for blob in made.external_input if blob not in known]
    result = NetDef()
    result.CopyFrom(made)
    del result.op[:], result.external_input[:]
    result.external_input.extend(external)
    result.op.extend([*makers, *made.op])
    net.replace_message(result)


def makers_of(init_net: NetDef, world: World) -> list[OperatorDef]:
    """Return the operators of an init net that make the common worlds."""
    blobs = {*world.common, world.barrier}
    return [op for op in init_net.op if op.type in WORLD_MAKERS and op.output[0] in blobs]


def create_worlds(makers: Sequence[OperatorDef], workspace: Workspace) -> None:
    """Run operators that make common worlds, unless the workspace has all of these."""
    blobs = [op.output[0] for op in makers]
    if all(workspace.has(blob) and not workspace.get(blob).is_empty for blob in blobs):
        return
    net = NetDef(name=f"{blobs[0]}_makers")
    net.op.extend(makers)
    net.external_input.extend(dict.fromkeys(name for op in makers for name in op.input if name not in blobs))
    workspace.run_net_once(net)


def barrier_name(name: str) -> str:
    """Return the name of the net in which a process waits for all others; ``name`` is that of the main net."""
    return f"{name}_barrier"


def barrier_net(name: str, world: World) -> NetDef:
    """Return the net in which a process waits for all others; ``name`` is that of the main net."""
    net = NetDef(name=barrier_name(name), external_input=[world.barrier])
    net.op.append(make_op("Barrier", [world.barrier], [], device_option=_HOST))
    return net


def barrier_maker(init_net: NetDef, world: World, seconds: float) -> OperatorDef:
    """Return the operator that makes the common world of a barrier with this time limit."""
    maker, limit = OperatorDef(), _milliseconds(seconds)
    maker.CopyFrom(next(op for op in makers_of(init_net, world) if op.output[0] == world.barrier))
    if arguments(maker).get("timeout_ms") != limit:
        maker.output[:] = [f"{world.barrier}_{limit}_ms"]
        set_argument(maker, "timeout_ms", limit)
    return maker


def _milliseconds(seconds: float) -> int:
    return max(1, round(min(1000 * seconds, _LONGEST_MS)))
