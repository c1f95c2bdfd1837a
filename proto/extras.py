"""The name under which netbuilder is distributed, what installs its extras, and what those for GPUs are."""

from __future__ import annotations

__all__ = ["CUDNN", "DISTRIBUTION", "FRONTEND", "NCCL", "gpu_extra", "gpu_requirements", "how_to_install"]

DISTRIBUTION = "netbuilder-nn"
"""The package that pip installs; ``netbuilder``, the name that is imported, is another project's package."""

CUDNN, NCCL = "nvidia-cudnn-cu{}", "nvidia-nccl-cu{}"
FRONTEND = "nvidia-cudnn-frontend>=1.14,<1.19"  # later ones pull in half a gigabyte that nothing here uses


def how_to_install(*extras: str) -> str:
    """Return the command that installs netbuilder with extras.

    >>> how_to_install("onnx", "mpi")
    "pip install 'netbuilder-nn[onnx,mpi]'"
    """
    return f"pip install '{DISTRIBUTION}[{','.join(extras)}]'"


def gpu_extra(cuda: int) -> str:
    """Return the extra for GPUs and a major version of CUDA, 12 or 13."""
    return "gpu" if cuda == 12 else f"gpu-cuda{cuda}"


def gpu_requirements(cuda: int) -> list[str]:
    """Return what that extra installs."""
    return [f"cupy-cuda{cuda}x[ctk]>=14", f"{CUDNN.format(cuda)}>=9.8,<10", FRONTEND, NCCL.format(cuda)]
