"""What there is for GPUs on this machine: GPUs, driver, libraries; and what is missing."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path

from netbuilder.ops.engines.arrays import array_module, gpu_count
from netbuilder.proto import PROTO_CUDA

__all__ = ["describe_gpus", "gpu_memory_in_use", "missing_for_gpus"]

_PACKAGES = ("cupy-cuda12x", "nvidia-cudnn-cu12", "nvidia-cudnn-frontend", "nvidia-nccl-cu12")
_DRIVER = Path("/proc/driver/nvidia/version")
_INSTALL = "pip install 'netbuilder[gpu]'"


def describe_gpus() -> list[str]:
    """Return lines that name the GPUs, the driver and the libraries; one line says so if no GPU can be used."""
    if not gpu_count():
        return ["no NVIDIA GPU can be used"]
    runtime = array_module(PROTO_CUDA).cuda.runtime
    lines = []
    for number in range(gpu_count()):
        found = runtime.getDeviceProperties(number)
        name = found["name"].decode() if isinstance(found["name"], bytes) else found["name"]
        size = found["totalGlobalMem"] / 2**30
        lines.append(f"GPU {number}: {name}, {size:.0f} GiB, compute capability {found['major']}.{found['minor']}")
    return [*lines, f"driver {_driver()}, CUDA runtime {runtime.runtimeGetVersion()}", ", ".join(_versions())]


def gpu_memory_in_use(number: int) -> int:
    """Return the bytes of a GPU's memory that are in use, by all processes and the driver."""
    free, total = array_module(PROTO_CUDA).cuda.Device(number).mem_info
    return int(total - free)


def missing_for_gpus() -> list[str]:
    """Return what is missing to use GPUs at full speed, each with its remedy."""
    missing = []
    if importlib.util.find_spec("cupy") is None:
        missing.append(f"CuPy ({_INSTALL})")
    elif not gpu_count():
        missing.append("an NVIDIA GPU that CuPy can use, with NVIDIA's driver (nvidia-smi lists GPUs and driver)")
    for package in _PACKAGES[1:]:
        if _version(package) is None:
            missing.append(f"{package} ({_INSTALL}, which has it)")
    return missing


def _driver() -> str:
    try:
        return _DRIVER.read_text().splitlines()[0].partition("version:")[2].strip()
    except (OSError, IndexError):
        return "of unknown version"


def _versions() -> list[str]:
    return [f"{package} {_version(package) or 'missing'}" for package in _PACKAGES]


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
