"""A checked call of Parallelize, whose steps build the replicas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from netbuilder.distributed.common_worlds import EXTRA_WORKERS, ProcessRequest, process_link
from netbuilder.distributed.strategies import Plain, Strategy
from netbuilder.engines.peers import can_access_peer
from netbuilder.graph.devices import Devices
from netbuilder.graph.replicas import Replicas, World
from netbuilder.model import ModelHelper
from netbuilder.ops.core.precision import DETERMINISTIC_ARGUMENT
from netbuilder.parallel.block_update import BlockRequest
from netbuilder.parallel.options import DataParallelOptions
from netbuilder.passes.processes import ProcessLink
from netbuilder.passes.reductions import PeerAccess
from netbuilder.proto.arguments import arguments
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Request", "is_deterministic", "link_of"]

Builder = Callable[[ModelHelper], Any]


@dataclass(frozen=True)
class Request:
    """A checked call of Parallelize or Parallelize_BMUF.

    Args:
        options: with what was chosen where the caller left it open, or where it does not apply.
        strategy: of the exchange between processes.
    """

    devices: Devices
    options: DataParallelOptions
    debug_info: str
    build_input: Builder
    build_forward: Callable[[ModelHelper, float], Any]
    update: Builder | None = None
    optimize: Builder | None = None
    post_sync: Builder | None = None
    before_gradients: Builder | None = None
    transform: Callable[[ModelHelper, int, str, int], Any] | None = None
    world: World = World()
    processes: ProcessRequest | None = None
    block: BlockRequest | None = None
    strategy: Strategy = Plain()

    @property
    def gradient_seed(self) -> float:
        """The gradient of each loss, which is multiplied by 1 / the number of replicas, and by the weight of its share.

        A strategy whose replicas or processes train on their own makes their gradients those of their own means.
        """
        summed = self.world_size
        if self.strategy.blocks:
            summed = 1
        elif not self.strategy.sums_gradients:
            summed = len(self.devices)
        return self.world_size / summed

    @property
    def loss_scale(self) -> float:
        """The number that the forward builder multiplies its losses by."""
        return 1.0 / self.world_size

    @property
    def world_size(self) -> int:
        """The number of replicas of all processes."""
        return self.world.size or len(self.devices)

    @property
    def hands_back(self) -> bool:
        """Whether all devices get the sums of gradients, not only the first one."""
        return not (self.options.shared_model or self.options.reduce_update_broadcast)

    @property
    def peer_access(self) -> PeerAccess:
        """Which GPUs can read each other's memory."""
        return self.options.peer_access or can_access_peer

    @property
    def workers(self) -> int:
        """The maximum number of threads that run the main net."""
        extra = EXTRA_WORKERS if self.processes is not None else 0
        return self.options.num_threads_per_device * len(self.devices) + extra

    @property
    def trains(self) -> bool:
        return self.update is not None or self.optimize is not None


def is_deterministic(model: ModelHelper) -> bool:
    """Whether the main net is to give the same bits in each run."""
    return bool(arguments(model.net.Proto()).get(DETERMINISTIC_ARGUMENT))


def link_of(model: ModelHelper, request: Request, record: Replicas) -> ProcessLink | None:
    """Return how operators exchange values with other processes; None: they do not."""
    return process_link(
        record,
        [model.param_init_net.Proto(), model.net.Proto()],
        deterministic=is_deterministic(model),
        debug_info=request.debug_info,
        by_nccl=request.processes is not None and request.processes.rendezvous.engine == "NCCL",
    )
