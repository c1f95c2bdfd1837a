"""cuDNN as an engine: its kernels, fusions and layouts for GPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from netbuilder.engines.cudnn import library
from netbuilder.engines.engine import HOST, Engine, Location
from netbuilder.engines.fusion import Fusion, Unstored
from netbuilder.engines.gpu import gpu
from netbuilder.ops.core.contexts import Prepared
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto import PROTO_CUDA, DeviceError

__all__ = ["CudnnEngine"]


class CudnnEngine(Engine):
    """cuDNN, NVIDIA's library of kernels for neural nets, with channels last and elements of 16 bits.

    Source: https://docs.nvidia.com/cudnn
    """

    name: ClassVar[str] = "CUDNN"
    device_types: ClassVar[tuple[int, ...]] = (PROTO_CUDA,)
    precisions: ClassVar[tuple[str, ...]] = ("float32", "bfloat16", "float16")

    def available(self) -> bool:
        return library.available()

    def why_unavailable(self) -> str:
        return library.why_unavailable()

    def kernels(self) -> Mapping[str, Callable[..., Prepared | None]]:
        from netbuilder.engines.cudnn.table import KERNELS

        return KERNELS

    def fusions(self) -> Sequence[Fusion]:
        from netbuilder.engines.cudnn.fusions import FUSIONS

        return FUSIONS

    def unstored(self) -> Sequence[Unstored]:
        from netbuilder.engines.cudnn.unstored import UNSTORED

        return UNSTORED

    def finish_kernels(self) -> bool:
        from netbuilder.engines.cudnn.compiled import finish_graphs

        return finish_graphs()

    def release_kernels(self) -> None:
        from netbuilder.engines.cudnn.compiled import release_graphs

        release_graphs()
        library.free_handles()

    def new_buffer(self, spec: TensorSpec, location: Location) -> Any:
        _on_gpu(location)
        with gpu(location[1]) as there:
            return there.xp.zeros(spec.nbytes, np.uint8)

    def prepare_reorder(self, ctx: Any, source: TensorSpec, target: TensorSpec, location: Location) -> Prepared:
        from netbuilder.engines.cudnn.reorders import reorder

        _on_gpu(location)
        return reorder(source, target)


def _on_gpu(location: Location) -> None:
    if location[0] == HOST[0]:
        raise DeviceError("cuDNN's layouts are for values in the memory of GPUs, not in the host's")
