"""NCCL's unique id, which one process makes and the others get through a store."""

from __future__ import annotations

from netbuilder.distributed.stores import Store
from netbuilder.engines.gpu_packages import how_to_install
from netbuilder.engines.nccl import nccl, nccl_available
from netbuilder.proto import DeviceError, DistributedError
from netbuilder.proto.extras import NCCL

__all__ = ["shared_unique_id"]

_LENGTH = 128  # bytes of an id


def shared_unique_id(store: Store, rank: int, name: str, timeout: float = 60.0) -> bytes:
    """Return NCCL's unique id for a common world: rank 0 makes it, the others wait for it.

    Args:
        store: one that all ranks see, with a prefix of this run.
        rank: of this process.
        name: of the common world; each needs its own.
        timeout: seconds to wait for rank 0.

    Returns:
        128 bytes, the same on all ranks, for ``NcclCommunicator``.

    Raises:
        DeviceError: rank 0 has no NCCL; it is raised on all ranks.
        StoreTimeoutError: rank 0 has not come.
        DistributedError: the key holds something else, or the id of an earlier run.
    """
    key = f"nccl/{name}"
    if rank == 0:
        if store.add(f"{key}/made") > 1:
            raise DistributedError(
                f"NCCL's id of common world {name!r} is in {store} already: give each run its own run_id, and each "
                "common world its own name"
            )
        store.set(key, _new_id())
    found = store.get(key, timeout)
    if not found:
        raise DeviceError(f"common world {name!r}: rank 0 has no NCCL; {how_to_install(NCCL)}")
    if len(found) != _LENGTH:
        raise DistributedError(f"{store}: key {key!r} must hold NCCL's id of {_LENGTH} bytes, got {len(found)}")
    return found


def _new_id() -> bytes:
    """Return a new id; b"" without NCCL, which tells the other ranks."""
    if not nccl_available():
        return b""
    return bytes(nccl().get_unique_id())
