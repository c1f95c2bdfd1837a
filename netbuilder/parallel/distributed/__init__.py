"""Data parallelism over processes: how they find one another, check that they agree, and are launched."""

from netbuilder.parallel.distributed.agreement import require_equal_blobs
from netbuilder.parallel.distributed.heartbeat import Heartbeat, Heartbeats
from netbuilder.parallel.distributed.preflight import fingerprint, preflight
from netbuilder.parallel.distributed.rendezvous import Rendezvous

__all__ = ["Heartbeat", "Heartbeats", "Rendezvous", "fingerprint", "preflight", "require_equal_blobs"]
