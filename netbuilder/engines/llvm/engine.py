"""LLVM as an engine: which operators have machine code for the CPU, which is made when it is first needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from netbuilder.engines.engine import Engine, Location
from netbuilder.engines.fusion import Fusion, Unstored
from netbuilder.engines.joined_updates import JoinedUpdates, UpdateForm
from netbuilder.engines.large_pages import lasting_zeros
from netbuilder.engines.llvm import machine
from netbuilder.engines.traced import ELEMENTWISE, update_form
from netbuilder.ops.core.contexts import PlanContext, Prepared
from netbuilder.ops.core.operator import Operator, TensorSpec
from netbuilder.ops.core.registry import CPU, prepare_table

__all__ = ["LlvmEngine"]

_ABOVE_LIBRARIES = 15
"""The priority of kernels that are chosen before those of libraries, where they serve."""


class LlvmEngine(Engine):
    """Kernels that LLVM compiles for this CPU, from traces of plain kernels or written for it.

    Source: https://llvm.org, https://llvmlite.readthedocs.io
    """

    name: ClassVar[str] = "LLVM"
    priority: ClassVar[int] = 5

    def available(self) -> bool:
        return machine.available()

    def why_unavailable(self) -> str:
        return "it needs llvmlite; pip install llvmlite"

    def describe(self) -> str:
        return machine.describe()

    def kernels(self) -> Mapping[str, Callable[..., Prepared | None]]:
        from netbuilder.engines.llvm.attention import attention, attention_gradient
        from netbuilder.engines.llvm.chosen_elements import CHOSEN_ELEMENTS
        from netbuilder.engines.llvm.copies import COPIES
        from netbuilder.engines.llvm.deformed_windows import DEFORMED_WINDOWS
        from netbuilder.engines.llvm.elementwise import elementwise, with_reductions
        from netbuilder.engines.llvm.extrema import EXTREMA
        from netbuilder.engines.llvm.indexed_rows import INDEXED_ROWS
        from netbuilder.engines.llvm.label_losses import LABEL_LOSSES
        from netbuilder.engines.llvm.recurrent_units import RECURRENT_UNITS
        from netbuilder.engines.llvm.reducing import REDUCING
        from netbuilder.engines.llvm.repeated_rows import sum_repeated_rows
        from netbuilder.engines.llvm.row_updates import ROW_UPDATES
        from netbuilder.engines.llvm.running_sums import running_sums
        from netbuilder.engines.llvm.sampling import grid_sample
        from netbuilder.engines.llvm.segments import SEGMENTS
        from netbuilder.engines.llvm.top_k import top_k

        return {
            **dict.fromkeys(REDUCING, with_reductions),
            **dict.fromkeys(ELEMENTWISE, elementwise),
            **CHOSEN_ELEMENTS,
            **COPIES,
            **DEFORMED_WINDOWS,
            **EXTREMA,
            **INDEXED_ROWS,
            **LABEL_LOSSES,
            **RECURRENT_UNITS,
            **ROW_UPDATES,
            **SEGMENTS,
            "Attention": attention,
            "AttentionGradient": attention_gradient,
            "GridSample": grid_sample,
            "CumSum": running_sums,
            "SumRepeatedRows": sum_repeated_rows,
            "TopK": top_k,
        }

    def register_kernels(self) -> None:
        super().register_kernels()
        if self.available():
            from netbuilder.engines.llvm.products import PRODUCTS

            prepare_table(PRODUCTS, device=CPU, engine=self.name, priority=_ABOVE_LIBRARIES)

    def fusions(self) -> Sequence[Fusion]:
        from netbuilder.engines.llvm.batch_norm import BATCH_NORM_FUSIONS
        from netbuilder.engines.llvm.products import PRODUCT_FUSIONS

        return *PRODUCT_FUSIONS, *BATCH_NORM_FUSIONS

    def unstored(self) -> Sequence[Unstored]:
        from netbuilder.engines.llvm.batch_norm import UNSTORED_BATCH_NORM

        return (UNSTORED_BATCH_NORM,)

    def new_buffer(self, spec: TensorSpec, location: Location) -> Any:
        return lasting_zeros(spec.nbytes)

    def prepare_reorder(self, ctx: Any, source: TensorSpec, target: TensorSpec, location: Location) -> Prepared:
        from netbuilder.engines.llvm.products import reorder

        return reorder(ctx, source, target)

    def update_form(self, op: Operator, *specs: TensorSpec) -> UpdateForm | None:
        return update_form(op, specs, is_gpu=False)

    def join_updates(self, ctx: PlanContext, updates: JoinedUpdates) -> Prepared | None:
        from netbuilder.engines.llvm.updates import join_updates

        return join_updates(ctx, updates)

    def is_elementwise(self, op: Operator, *specs: TensorSpec) -> bool:
        from netbuilder.engines.llvm.elementwise import is_chainable

        return op.type in ELEMENTWISE and is_chainable(op, specs)

    def join_elementwise(self, ctx: PlanContext, chain: JoinedUpdates) -> Prepared | None:
        from netbuilder.engines.llvm.elementwise import join_elementwise

        return join_elementwise(ctx, chain)
