"""Information about the machine's GPUs."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.engines.arrays import array_module, gpu_count
from netbuilder.proto import PROTO_CUDA

__all__ = [
    "GetCUDAVersion",
    "GetCuDNNVersion",
    "GetDeviceProperties",
    "GetGPUMemoryInfo",
    "GetGPUMemoryUsageStats",
]

_most_used: dict[int, int] = {}
"""GPU -> the most bytes in use that ``GetGPUMemoryUsageStats`` has found."""


def GetCUDAVersion() -> int:
    """Return CUDA's version as one number, 12040 for 12.4; 0 if no GPU can be used."""
    return int(array_module(PROTO_CUDA).cuda.runtime.runtimeGetVersion()) if gpu_count() else 0


def GetCuDNNVersion() -> int:
    """Return 0: netbuilder does not use cuDNN."""
    return 0


def GetDeviceProperties(device_id: int) -> dict[str, Any] | None:
    """Return properties of a GPU: ``name``, compute capability ``major`` and ``minor``, ``totalGlobalMem`` in bytes.

    Args:
        device_id: its number.

    Returns:
        None if no GPU can be used.
    """
    if not gpu_count():
        return None
    found = array_module(PROTO_CUDA).cuda.runtime.getDeviceProperties(device_id)
    name = found["name"]
    return {
        "name": name.decode() if isinstance(name, bytes) else name,
        "major": int(found["major"]),
        "minor": int(found["minor"]),
        "totalGlobalMem": int(found["totalGlobalMem"]),
    }


def GetGPUMemoryInfo(device_id: int = 0) -> tuple[int, int] | None:
    """Return the free and the total memory of a GPU, in bytes; None if no GPU can be used."""
    if not gpu_count():
        return None
    free, total = array_module(PROTO_CUDA).cuda.Device(device_id).mem_info
    return int(free), int(total)


def GetGPUMemoryUsageStats() -> dict[str, Any]:
    """Return the memory in use on the GPUs, in bytes, including other processes.

    Returns:
        ``total_by_gpu`` and ``max_by_gpu``, an int64 array each with an entry for each GPU: what is in use now, and
        the most that a call of this function has found; ``total`` and ``max_total``, their sums.

    Raises:
        DeviceError: no GPU can be used.
    """
    xp = array_module(PROTO_CUDA)
    used = []
    for device in range(gpu_count()):
        free, total = xp.cuda.Device(device).mem_info
        used.append(int(total - free))
        _most_used[device] = max(used[-1], _most_used.get(device, 0))
    now, most = np.array(used, np.int64), np.array([_most_used[device] for device in range(len(used))], np.int64)
    return {"total_by_gpu": now, "max_by_gpu": most, "total": now.sum(), "max_total": most.sum()}
