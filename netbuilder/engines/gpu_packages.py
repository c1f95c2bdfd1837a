"""The Python packages of the libraries for GPUs, for the CUDA at hand: what to install, and which ones conflict.

Packages are for one major version of CUDA each. Those of two versions have the same files, so the one that was
installed last serves both, and to remove one breaks the other.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import re

from netbuilder.proto import extras
from netbuilder.proto.extras import CUDNN, NCCL, gpu_extra, gpu_requirements

__all__ = ["MAJORS", "conflicts", "cuda_major", "how_to_install", "several_cupys", "wrong_cudnn"]

MAJORS = (12, 13)
"""The versions of CUDA that there are extras for."""

_CUPY = ("cupy", "cupy-cuda11x", *(f"cupy-cuda{major}x" for major in MAJORS))


def how_to_install(package: str = "") -> str:
    """Return the command that installs the extra for the CUDA at hand, or one of its packages, such as ``CUDNN``."""
    major = cuda_major()
    found = [name for name in gpu_requirements(major) if package and name.startswith(package.format(major))]
    return f"pip install '{found[0]}'" if found else extras.how_to_install(gpu_extra(major))


@functools.cache
def cuda_major() -> int:
    """Return the version of CUDA of the packages that are installed: CuPy's, or else cuDNN's or NCCL's, or else 12."""
    for names in (_CUPY, tuple(map(CUDNN.format, MAJORS)), tuple(map(NCCL.format, MAJORS))):
        for name in _installed(names):
            number = int(re.sub(r"\D", "", name) or 0) or _runtime()
            if number in MAJORS:
                return number
    return MAJORS[0]


def _runtime() -> int:
    """Return the version of CUDA of a CuPy that was built here, whose package does not name it; 0: unknown."""
    try:
        return int(importlib.import_module("cupy").cuda.runtime.runtimeGetVersion()) // 1000
    except Exception:  # a CuPy without its libraries raises its own errors
        return 0


def conflicts() -> list[str]:
    """Return which installed packages conflict with one another, each with its remedy."""
    return [text for text in (several_cupys(), wrong_cudnn()) if text]


def several_cupys() -> str:
    """Return which packages of CuPy are installed, and what to do, if there are several; "" otherwise."""
    cupy = _installed(_CUPY)
    if len(cupy) < 2:
        return ""
    return (
        f"{' and '.join(cupy)} are installed, and both are CuPy; pip uninstall {' '.join(cupy)}, then "
        f"{extras.how_to_install(gpu_extra(_of_cudnn() or cuda_major()))}"
    )


def wrong_cudnn() -> str:
    """Return what is wrong with packages of cuDNN, two of them or one for another CUDA than CuPy's; "": nothing."""
    cupy, cudnn = _installed(_CUPY), _installed(tuple(map(CUDNN.format, MAJORS)))
    if len(cudnn) > 1:
        return (
            f"{' and '.join(cudnn)} are installed, and have the same files; pip uninstall {' '.join(cudnn)}, then "
            f"{how_to_install(CUDNN)}"
        )
    if len(cupy) == 1 and cudnn and _of_cudnn() != cuda_major():
        return (
            f"{cupy[0]} is for CUDA {cuda_major()}, {cudnn[0]} for CUDA {_of_cudnn()}; pip uninstall {cupy[0]}, then "
            f"{extras.how_to_install(gpu_extra(_of_cudnn() or MAJORS[0]))}"
        )
    return ""


def _of_cudnn() -> int | None:
    """Return the version of CUDA that the only package of cuDNN is for; None: there is none, or there are two."""
    found = [major for major in MAJORS if _installed((CUDNN.format(major),))]
    return found[0] if len(found) == 1 else None


def _installed(names: tuple[str, ...]) -> list[str]:
    found = []
    for name in names:
        try:
            importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        found.append(name)
    return found
