"""Data parallelism over processes: how they find one another, check that they agree, and are launched."""

from netbuilder.ops.engines.collectives.time_limits import set_collective_timeout
from netbuilder.ops.engines.stores.heartbeat import Heartbeat, Heartbeats
from netbuilder.parallel.distributed.agreement import exchanged_bytes, require_equal_blobs
from netbuilder.parallel.distributed.optimizer import DistributedOptimizer
from netbuilder.parallel.distributed.preflight import fingerprint, preflight
from netbuilder.parallel.distributed.process_group import ProcessGroup
from netbuilder.parallel.distributed.rendezvous import Rendezvous
from netbuilder.parallel.distributed.strategies import (
    STRATEGIES,
    BlockMomentum,
    HalfPrecision,
    LocalSGD,
    PartialSynchronization,
    Plain,
    Strategy,
    Threshold,
    TopK,
)

__all__ = [
    "STRATEGIES",
    "BlockMomentum",
    "DistributedOptimizer",
    "HalfPrecision",
    "Heartbeat",
    "Heartbeats",
    "LocalSGD",
    "PartialSynchronization",
    "Plain",
    "ProcessGroup",
    "Rendezvous",
    "Strategy",
    "Threshold",
    "TopK",
    "exchanged_bytes",
    "fingerprint",
    "preflight",
    "require_equal_blobs",
    "set_collective_timeout",
]
