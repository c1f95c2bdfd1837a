"""oneDNN as an engine: its kernels, fusions, layouts, and the threads that it computes with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from netbuilder.engines import onednn
from netbuilder.engines.engine import HOST, Engine, Location
from netbuilder.engines.fusion import Fusion
from netbuilder.engines.large_pages import lasting_zeros
from netbuilder.engines.open_choice import OpenChoice
from netbuilder.ops.core.contexts import Prepared
from netbuilder.ops.core.operator import Operator, TensorSpec
from netbuilder.proto import DeviceError

__all__ = ["OneDnnEngine"]


class OneDnnEngine(Engine):
    """oneDNN, a library of kernels for CPUs, with blocked layouts and bfloat16.

    Source: https://uxlfoundation.github.io/oneDNN
    """

    name: ClassVar[str] = "ONEDNN"
    precisions: ClassVar[tuple[str, ...]] = ("float32", "bfloat16")

    def available(self) -> bool:
        return onednn.available()

    def why_unavailable(self) -> str:
        return onednn.why_unavailable()

    def describe(self) -> str:
        return onednn.describe()

    def register_kernels(self) -> None:
        onednn.register_kernels()

    def check_precision(self, precision: str) -> None:
        if precision == "bfloat16":
            onednn.warn_without_bfloat16()

    def fusions(self) -> Sequence[Fusion]:
        from netbuilder.engines.onednn import fusions

        return fusions.FUSIONS

    def best_image_order(
        self, convolutions: Sequence[tuple[Operator, Sequence[TensorSpec]]], threads: int, precision: str
    ) -> str | None:
        from netbuilder.engines.onednn.image_order import best_image_order

        return best_image_order(convolutions, threads, precision)

    def take_open_choices(self) -> list[OpenChoice]:
        from netbuilder.engines.onednn.autotune import take_open

        return take_open()

    def convert(self, source: Any, out: Any, *, add: bool = False) -> bool:
        from netbuilder.engines.onednn.conversions import converted

        return converted(source, out, add=add)

    def thread_setter(self, threads: int) -> Callable[[], object] | None:
        return onednn.thread_setter(threads)

    def release_kernels(self) -> None:
        onednn.release_primitives()

    @property
    def owns_threads(self) -> bool:
        return True

    def new_buffer(self, spec: TensorSpec, location: Location) -> Any:
        _on_host(location)
        return lasting_zeros(spec.nbytes)

    def prepare_reorder(self, ctx: Any, source: TensorSpec, target: TensorSpec, location: Location) -> Prepared:
        from netbuilder.engines.onednn.reorders import reorder

        _on_host(location)
        return reorder(ctx, source, target)


def _on_host(location: Location) -> None:
    if location != HOST:
        raise DeviceError(f"oneDNN's layouts are for values in the host's memory, not at {location}")
