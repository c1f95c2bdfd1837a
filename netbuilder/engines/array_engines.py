"""The array engines: NumPy on the host, CuPy on GPUs. They hold plain row-major values."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from netbuilder.engines.arrays import as_flat, gpu_count
from netbuilder.engines.engine import Engine, Location
from netbuilder.engines.gpu import gpu
from netbuilder.engines.large_pages import lasting_zeros
from netbuilder.ops.core.contexts import Prepared
from netbuilder.ops.core.extensions import CAPTURABLE
from netbuilder.ops.core.operator import STRING, TensorSpec
from netbuilder.proto import PROTO_CUDA

__all__ = ["CuPyEngine", "NumPyEngine"]


class _ArrayEngine(Engine):
    def prepare_reorder(self, ctx: Any, source: TensorSpec, target: TensorSpec, location: Location) -> Prepared:
        return Prepared([source], [target], _bind_copy, name="copy", extensions=CAPTURABLE)


class NumPyEngine(_ArrayEngine):
    """Arrays in the host's memory, aligned to 64 bytes."""

    name: ClassVar[str] = "NUMPY"

    def new_buffer(self, spec: TensorSpec, location: Location) -> Any:
        if spec.dtype == STRING:
            return np.empty(spec.shape, object)
        return as_flat(lasting_zeros(spec.nbytes), spec.dtype).reshape(spec.shape)


class CuPyEngine(_ArrayEngine):
    """Arrays in the memory of a GPU."""

    name: ClassVar[str] = "CUPY"
    device_types: ClassVar[tuple[int, ...]] = (PROTO_CUDA,)

    def available(self) -> bool:
        return gpu_count() > 0

    def why_unavailable(self) -> str:
        return "it needs CuPy and an NVIDIA GPU; pip install 'netbuilder[gpu]'"

    def new_buffer(self, spec: TensorSpec, location: Location) -> Any:
        if spec.dtype == STRING:  # strings stay on the host
            return np.empty(spec.shape, object)
        with gpu(location[1]) as there:
            return there.xp.zeros(spec.shape, spec.dtype)


def _bind_copy(inputs: Any, outputs: Any, scratch: Any) -> Any:
    source, target = inputs[0], outputs[0]

    def call() -> None:
        target[...] = source

    return call
