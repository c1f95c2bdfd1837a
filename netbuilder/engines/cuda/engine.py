"""Our own CUDA kernels, and cuBLAS, as an engine: elementwise operators, updates, rows, normalization, products."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from netbuilder.engines.arrays import gpu_count
from netbuilder.engines.described_gpu import described_gpu
from netbuilder.engines.engine import Engine
from netbuilder.engines.fusion import Fusion
from netbuilder.engines.gpu_packages import how_to_install
from netbuilder.engines.joined_updates import JoinedUpdates, UpdateForm
from netbuilder.ops.core.contexts import PlanContext, Prepared
from netbuilder.ops.core.operator import Operator, TensorSpec
from netbuilder.proto import PROTO_CUDA

__all__ = ["CudaEngine"]


class CudaEngine(Engine):
    """Our own kernels for NVIDIA GPUs, which CuPy compiles, and cuBLAS for products of matrices."""

    name: ClassVar[str] = "CUDA"
    priority: ClassVar[int] = 10
    device_types: ClassVar[tuple[int, ...]] = (PROTO_CUDA,)

    def available(self) -> bool:
        return gpu_count() > 0 or described_gpu() is not None

    def why_unavailable(self) -> str:
        return f"it needs CuPy and an NVIDIA GPU; {how_to_install()}"

    def kernels(self) -> Mapping[str, Callable[..., Prepared | None]]:
        from netbuilder.engines.cuda.table import KERNELS

        return KERNELS

    def fusions(self) -> Sequence[Fusion]:
        from netbuilder.engines.cuda.table import FUSIONS

        return FUSIONS

    def release_kernels(self) -> None:
        from netbuilder.engines.cuda.cublas import free_handles

        free_handles()

    def update_form(self, op: Operator, *specs: TensorSpec) -> UpdateForm | None:
        from netbuilder.engines.traced import update_form

        return update_form(op, specs, is_gpu=True)

    def join_updates(self, ctx: PlanContext, updates: JoinedUpdates) -> Prepared | None:
        from netbuilder.engines.cuda.updates import join_updates

        return join_updates(ctx, updates)

    def is_elementwise(self, op: Operator, *specs: TensorSpec) -> bool:
        from netbuilder.engines.traced import ELEMENTWISE, chainable_program

        return op.type in ELEMENTWISE and chainable_program(op, specs, is_gpu=True) is not None

    def join_elementwise(self, ctx: PlanContext, chain: JoinedUpdates) -> Prepared | None:
        from netbuilder.engines.cuda.elementwise import join_elementwise

        return join_elementwise(ctx, chain)
