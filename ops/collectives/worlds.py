"""Common worlds, over which the processes of a run exchange values: making and destroying them, and the barrier."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from netbuilder.distributed.worlds.world import CommonWorld, create_world
from netbuilder.ops.collectives.stores import store_of
from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.objects import shared_object
from netbuilder.ops.core.operator import STRING, Exchange, Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "Barrier",
    "CloneCommonWorld",
    "CreateCommonWorld",
    "DestroyCommonWorld",
    "OverWorld",
    "world_of",
]

_OBJECT = TensorSpec((), STRING)
_ENGINES = ("", "DEFAULT", "MPI", "GLOO", "NCCL")  # all but the last one exchange values of the host by MPI


@dataclass(frozen=True)
class OverWorld(Operator):
    """Base: a collective of all processes, over the common world in input 0."""

    signature = "common_world ->"
    stateful = True
    outputs_on_host = True
    inputs_on_host: ClassVar[tuple[int, ...] | Literal[True]] = True
    flops_per_element = 0
    exchanges: ClassVar[Exchange] = Exchange.BETWEEN_PROCESSES

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        world = inputs[0].dtype
        require(world == STRING, self, f"input 0 must be a common world, got a tensor of type {world}")
        return (_OBJECT,) * self.n_out


def world_of(op: Operator, value: Any) -> CommonWorld:
    """Return the common world in input 0 of an operator."""
    return shared_object(op, value, CommonWorld, "CreateCommonWorld")


@register
@dataclass(frozen=True)
class CreateCommonWorld(Operator):
    """Make the common world of ``size`` processes, of which this one has the number ``rank``.

    All of them run it, in the same order among other collectives. Several processes are connected by MPI, whose process
    manager has started them, or which meet in the store; with engine NCCL by NCCL, between the GPUs of the processes,
    which meet in the store: of this one the GPU ``device_id``, or several, ``device_ids``. A world of one process needs
    no library. A second run gives the same world.

    A collective raises an error if other ranks have not come after ``timeout_ms`` milliseconds; -1: after the time
    limits of the process. The other arguments are Caffe2's, and change nothing.
    """

    signature = """
        kv_handler?: object, the store in which processes meet for NCCL, and for MPI without a process manager
        -> common_world: object
    """
    stateful = True
    outputs_on_host = True
    exchanges = Exchange.BETWEEN_PROCESSES
    flops_per_element = 0
    size: int = 0  # 0: all processes that MPI has started, numbered as by MPI
    rank: int = 0
    timeout_ms: int = -1
    device_id: int = 0
    device_ids: tuple[int, ...] = ()
    sync: bool = False
    transport: str = ""
    interface: str = ""
    mpi_rendezvous: bool = False
    status_blob: str = ""

    def check(self) -> None:
        if self.size < 0 or not 0 <= self.rank < max(1, self.size):
            raise ArgumentError(
                f"CreateCommonWorld: rank must lie in [0, size), got rank={self.rank}, size={self.size}; leave out "
                "both to take them from MPI"
            )
        if len({*self.device_ids}) < len(self.device_ids):
            raise ArgumentError(f"CreateCommonWorld: device_ids must name each GPU once, got {list(self.device_ids)}")
        if self.timeout_ms < 1 and self.timeout_ms != -1:
            raise ArgumentError(
                f"CreateCommonWorld: timeout_ms must be a positive number of milliseconds, or -1, got {self.timeout_ms}"
            )

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "any"


@kernel(CreateCommonWorld)
def create_common_world(op: CreateCommonWorld, ctx: RunContext, *store: Any) -> tuple[Any, ...]:
    if ctx.op_def.engine not in _ENGINES:
        raise ArgumentError(
            f"CreateCommonWorld: engine {ctx.op_def.engine!r} is not in this version; use 'MPI' or 'NCCL', or leave it "
            "out"
        )
    timeout = None if op.timeout_ms < 0 else op.timeout_ms / 1000
    name = ctx.op_def.output[0]
    gpus = (op.device_ids or (op.device_id,)) if ctx.op_def.engine == "NCCL" and op.size != 1 else ()
    found = store_of(op, store[0]).with_prefix(ctx.op_def.name or name) if store and op.size != 1 else None
    return (create_world(name, op.size, op.rank, timeout, found, gpus),)


@register
@dataclass(frozen=True)
class CloneCommonWorld(OverWorld):
    """Make a common world of the same processes; messages over the two do not meet."""

    signature = "existing_common_world: object -> common_world: object"
    sync: bool = False
    status_blob: str = ""


@kernel(CloneCommonWorld)
def clone_common_world(op: CloneCommonWorld, ctx: RunContext, world: Any) -> tuple[Any, ...]:
    return (world_of(op, world).clone(ctx.op_def.output[0]),)


@register
@dataclass(frozen=True)
class DestroyCommonWorld(OverWorld):
    """Free what the library has for a common world; using it afterwards is an error."""

    signature = "common_world: object -> common_world: object"
    must_inplace = ((0, 0),)


@kernel(DestroyCommonWorld)
def destroy_common_world(op: DestroyCommonWorld, ctx: RunContext, world: Any) -> tuple[Any, ...]:
    world_of(op, world).close()
    return (world,)


@register
@dataclass(frozen=True)
class Barrier(OverWorld):
    """Wait until all processes have come to it."""

    signature = "common_world: object ->"
    status_blob: str = ""


@kernel(Barrier)
def barrier(op: Barrier, ctx: RunContext, world: Any) -> tuple[Any, ...]:
    common = world_of(op, world)
    terms, common.at_barrier = common.at_barrier, ""
    common.run(common.call("Barrier", "", terms), lambda communicator, _: None)  # the agreement is a barrier by itself
    return ()
