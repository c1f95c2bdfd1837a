"""Peer access between GPUs."""

from __future__ import annotations

import functools

from netbuilder.engines.arrays import array_module, gpu_count
from netbuilder.proto import PROTO_CUDA

__all__ = ["can_access_peer"]


@functools.cache
def can_access_peer(reader: int, owner: int) -> bool:
    """Whether GPU ``reader`` can access the memory of GPU ``owner``.

    For GPUs that this machine does not have, the answer is True: a net may be built on another machine than it runs on.
    """
    if reader == owner or max(reader, owner) >= gpu_count():
        return True
    return bool(array_module(PROTO_CUDA).cuda.runtime.deviceCanAccessPeer(reader, owner))
