"""Training by several processes: how they find one another, agree, exchange arrays, are launched and end.

Its names are imported on first use: what starts with a process must not import operators.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from netbuilder._lazy import names_on_first_use as _names_on_first_use

_EXPORTS = {
    "netbuilder.distributed.agreement": ["exchanged_bytes", "require_equal_blobs"],
    "netbuilder.distributed.transport.time_limits": ["set_collective_timeout"],
    "netbuilder.distributed.optimizer": ["DistributedOptimizer"],
    "netbuilder.distributed.preflight_checks": ["fingerprint", "preflight"],
    "netbuilder.distributed.process_group": ["ProcessGroup"],
    "netbuilder.distributed.rendezvous": ["Rendezvous"],
    "netbuilder.distributed.stores.heartbeat": ["Heartbeat", "Heartbeats"],
    "netbuilder.distributed.strategies": [
        "STRATEGIES",
        "BlockMomentum",
        "DiLoCo",
        "HalfPrecision",
        "LocalSGD",
        "PartialSynchronization",
        "Plain",
        "PowerSGD",
        "Strategy",
        "Threshold",
        "TopK",
        "Zero",
    ],
}

__all__ = [
    "STRATEGIES",
    "BlockMomentum",
    "DiLoCo",
    "DistributedOptimizer",
    "HalfPrecision",
    "Heartbeat",
    "Heartbeats",
    "LocalSGD",
    "PartialSynchronization",
    "Plain",
    "PowerSGD",
    "ProcessGroup",
    "Rendezvous",
    "Strategy",
    "Threshold",
    "TopK",
    "Zero",
    "exchanged_bytes",
    "fingerprint",
    "preflight",
    "require_equal_blobs",
    "set_collective_timeout",
]

if TYPE_CHECKING:
    from netbuilder.distributed.agreement import exchanged_bytes as exchanged_bytes
    from netbuilder.distributed.agreement import require_equal_blobs as require_equal_blobs
    from netbuilder.distributed.optimizer import DistributedOptimizer as DistributedOptimizer
    from netbuilder.distributed.preflight_checks import fingerprint as fingerprint
    from netbuilder.distributed.preflight_checks import preflight as preflight
    from netbuilder.distributed.process_group import ProcessGroup as ProcessGroup
    from netbuilder.distributed.rendezvous import Rendezvous as Rendezvous
    from netbuilder.distributed.stores.heartbeat import Heartbeat as Heartbeat
    from netbuilder.distributed.stores.heartbeat import Heartbeats as Heartbeats
    from netbuilder.distributed.strategies import STRATEGIES as STRATEGIES
    from netbuilder.distributed.strategies import BlockMomentum as BlockMomentum
    from netbuilder.distributed.strategies import DiLoCo as DiLoCo
    from netbuilder.distributed.strategies import HalfPrecision as HalfPrecision
    from netbuilder.distributed.strategies import LocalSGD as LocalSGD
    from netbuilder.distributed.strategies import PartialSynchronization as PartialSynchronization
    from netbuilder.distributed.strategies import Plain as Plain
    from netbuilder.distributed.strategies import PowerSGD as PowerSGD
    from netbuilder.distributed.strategies import Strategy as Strategy
    from netbuilder.distributed.strategies import Threshold as Threshold
    from netbuilder.distributed.strategies import TopK as TopK
    from netbuilder.distributed.strategies import Zero as Zero
    from netbuilder.distributed.transport.time_limits import set_collective_timeout as set_collective_timeout

__getattr__, __dir__ = _names_on_first_use(__name__, _EXPORTS, {"failure", "launch", "stores", "transport"})
