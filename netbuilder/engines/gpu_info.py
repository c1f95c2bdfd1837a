"""What there is for GPUs on this machine: GPUs, driver, libraries; and what is missing."""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import importlib.util
from collections.abc import Callable
from pathlib import Path

from netbuilder.engines import nccl
from netbuilder.engines.arrays import array_module, gpu_count
from netbuilder.engines.cudnn import library
from netbuilder.engines.gpu_packages import conflicts, how_to_install
from netbuilder.proto import PROTO_CUDA, DeviceError
from netbuilder.proto.extras import NCCL

__all__ = ["VERSIONS", "describe_gpus", "gpu_memory_in_use", "missing_for_gpus", "or_why"]

_DRIVER = Path("/proc/driver/nvidia/version")
_LOADED = Path("/proc/self/maps")


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
    libraries = ", ".join(f"{name} {or_why(version)}" for name, version in VERSIONS.items())
    lines += [f"driver {_driver()}, CUDA runtime {runtime.runtimeGetVersion()}", libraries]
    return [*lines, f"missing: {'; '.join(missing)}"] if (missing := missing_for_gpus()) else lines


def gpu_memory_in_use(number: int) -> int:
    """Return the bytes of a GPU's memory that are in use, by all processes and the driver."""
    free, total = array_module(PROTO_CUDA).cuda.Device(number).mem_info
    return int(total - free)


def missing_for_gpus() -> list[str]:
    """Return what is missing to use GPUs at full speed, each with its remedy."""
    missing = []
    if not gpu_count():
        missing.append("an NVIDIA GPU that CuPy can use, with NVIDIA's driver (nvidia-smi lists GPUs and driver)")
    if importlib.util.find_spec("cupy") is None:
        return [*missing, f"CuPy, cuDNN and NCCL ({how_to_install()})"]
    missing += conflicts()
    if why := library.missing():
        missing.append(f"cuDNN: {why}")
    if not nccl.nccl_available():
        missing.append(f"NCCL ({how_to_install(NCCL)})")
    return missing


def _driver() -> str:
    try:
        return _DRIVER.read_text().splitlines()[0].partition("version:")[2].strip()
    except (OSError, IndexError):
        return "of unknown version"


def or_why(version: Callable[[], str]) -> str:
    """Return a version, or that there is none: a library that cannot be asked must not hide the others."""
    try:
        return version()
    except DeviceError:
        return "missing"
    except Exception as error:
        return f"of unknown version ({error})"


def _cupy_version() -> str:
    """Return CuPy's version, and the names of the packages that have installed it: there should be one."""
    cupy = array_module(PROTO_CUDA)
    packages = sorted({*importlib.metadata.packages_distributions().get("cupy", ())})
    return f"{cupy.__version__} ({', '.join(packages) or 'of no package'})"


def _cublas_version() -> str:
    """Return the version of the library that this process has loaded, without a handle, which would take memory."""
    places = [line.split(maxsplit=5)[-1] for line in _LOADED.read_text().splitlines() if "/libcublas." in line]
    if not places:
        return "not loaded"
    ask = ctypes.CDLL(places[0]).cublasGetProperty
    numbers = []
    for which in range(3):
        number = ctypes.c_int()
        ask(which, ctypes.byref(number))
        numbers.append(str(number.value))
    return ".".join(numbers)


def _cudnn_version() -> str:
    """Return the versions of the library that the frontend has loaded, and of the frontend."""
    return f"{library.version()} with its frontend {getattr(library.cudnn(), '__version__', 'of unknown version')}"


def _nccl_version() -> str:
    number = int(nccl.nccl().get_version())  # as 22705
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


VERSIONS = {
    "CuPy": _cupy_version,
    "cuBLAS": _cublas_version,
    "cuDNN": _cudnn_version,
    "NCCL": _nccl_version,
}
