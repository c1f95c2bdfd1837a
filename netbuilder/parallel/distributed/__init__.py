"""Data parallelism over processes: how they find one another, check that they agree, and are launched."""

from netbuilder.parallel.distributed.agreement import require_equal_blobs
from netbuilder.parallel.distributed.rendezvous import Rendezvous

__all__ = ["Rendezvous", "require_equal_blobs"]
