"""GPUs that a file describes: plans are made for one on a machine that has none.

Inside ``planned_for`` the engines of GPUs are available, and what they are asked about a GPU is answered from its
description. Buffers on it have no values, so kernels are made ready and never bound. cuDNN is taken to have a plan for
each of its graphs, without scratch memory.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from netbuilder.ops.core.operator import STRING, TensorSpec
from netbuilder.proto import DeviceError
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.proto.suggestions import near_or_known

__all__ = ["DescribedGPU", "described_gpu", "known_gpus", "planned_for", "read_gpu", "unwritten_buffer"]

_OWN = Path(__file__).with_name("gpus.json")
_RATES = ("float64", "float32", "tf32", "bfloat16", "float16")
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Linux: pages count as used when they are written


@dataclass(frozen=True)
class DescribedGPU:
    """What a plan depends on, and the limits of a step.

    Args:
        name: of the GPU.
        compute_capability: 90 stands for 9.0.
        bandwidth: of its memory, in bytes per second.
        rates: of products, in floating-point operations per second, by the type of the factors: float64, float32, tf32,
            bfloat16, float16.
    """

    name: str
    compute_capability: int
    bandwidth: float
    rates: dict[str, float]

    def seconds(self, flops: float, nbytes: float, factors: str) -> float:
        """Return the least time for so many operations and, at the same time, so many bytes read and written.

        Args:
            flops: number of operations.
            nbytes: number of bytes.
            factors: the type of the factors of products, a key of ``rates``.
        """
        return max(flops / self.rates[factors], nbytes / self.bandwidth)


def known_gpus() -> tuple[str, ...]:
    """Return the names of the GPUs that are described here."""
    return tuple(json.loads(_OWN.read_text()))


def read_gpu(name: str) -> DescribedGPU:
    """Return a described GPU.

    Args:
        name: one of ``known_gpus()``, or the path of a JSON file with the fields of ``DescribedGPU``.

    Raises:
        DeviceError: there is no such GPU or file, or the file does not describe a GPU.
    """
    if name in known_gpus():
        return _checked(json.loads(_OWN.read_text())[name], _OWN)
    path = Path(name)
    if not path.is_file():
        raise DeviceError(
            f"{name!r} is neither the name of a described GPU nor a JSON file with "
            f"{', '.join(each.name for each in fields(DescribedGPU))}{near_or_known(name, known_gpus(), 'names')}"
        )
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise DeviceError(f"{path} cannot be read as JSON: {error}") from error
    return _checked(found, path)


def _checked(found: Any, path: Path) -> DescribedGPU:
    names = [each.name for each in fields(DescribedGPU)]
    if not isinstance(found, dict) or sorted(found) != sorted(names):
        given = sorted(found) if isinstance(found, dict) else found
        raise DeviceError(f"{path}: a GPU is described by an object with {', '.join(names)}, got {given!r}")
    rates = found["rates"]
    if not isinstance(rates, dict) or sorted(rates) != sorted(_RATES):
        raise DeviceError(f"{path}: rates must have a number for each of {', '.join(_RATES)}, got {rates!r}")
    if not isinstance(found["name"], str):
        raise DeviceError(f"{path}: name must be text, got {found['name']!r}")
    figures = {key: value for key, value in found.items() if key not in ("name", "rates")}
    for key, value in {**figures, **{f"rate of {key}": value for key, value in rates.items()}}.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
            raise DeviceError(f"{path}: {key} must be a positive number, got {value!r}")
    return DescribedGPU(**found)


_current: ContextVar[DescribedGPU | None] = ContextVar("netbuilder_described_gpu", default=None)

described_gpu = _current.get
"""Return the described GPU that plans are made for; None: plans are for the GPUs of this machine."""


@contextmanager
def planned_for(gpu: DescribedGPU) -> Iterator[None]:
    """Inside, this thread makes plans for a described GPU, which cannot run."""
    before = _current.set(gpu)
    try:
        yield
    finally:
        _current.reset(before)


def unwritten_buffer(spec: TensorSpec) -> Any:
    """Return an array in place of a buffer on the described GPU, which takes address space only until it is written."""
    if spec.dtype == STRING:
        return np.empty(spec.shape, object)
    pages = mmap.mmap(-1, max(spec.nbytes, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
    flat = np.frombuffer(pages, np.uint8, spec.nbytes)
    return flat if spec.layout is not None else flat.view(spec.dtype).reshape(spec.shape)
