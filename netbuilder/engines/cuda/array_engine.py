"""CuPy, the array engine of GPUs: memory, and what runs there besides kernels: captures, checks, ordered sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import numpy as np

from netbuilder.engines.array_engines import ArrayEngine
from netbuilder.engines.arrays import array_module, gpu_count
from netbuilder.engines.captures import CapturedCalls
from netbuilder.engines.cuda.capture import Graph, between_captures, capture
from netbuilder.engines.cuda.noted_errors import checked_range, raise_noted
from netbuilder.engines.cuda.pixels import normalized_images
from netbuilder.engines.cuda.row_updates import update_rows
from netbuilder.engines.cuda.run_numbers import NumberTable, RunNumbers, noting
from netbuilder.engines.cuda.segments import add_sorted
from netbuilder.engines.engine import Location
from netbuilder.engines.gpu import gpu
from netbuilder.engines.gpu_packages import how_to_install
from netbuilder.ops.core.operator import STRING, TensorSpec
from netbuilder.proto import PROTO_CUDA

__all__ = ["CuPyEngine"]


class _GraphWithNumbers:
    """A CUDA graph, and the numbers that the host computes for each of its runs."""

    __slots__ = ("_graph", "_table")

    def __init__(self, graph: Graph, table: NumberTable | None) -> None:
        self._graph, self._table = graph, table

    def upload(self) -> None:
        if self._table is not None:
            self._table.upload()

    def launch(self) -> None:
        self._graph.launch()


class CuPyEngine(ArrayEngine):
    """Arrays in the memory of a GPU."""

    name: ClassVar[str] = "CUPY"
    device_types: ClassVar[tuple[int, ...]] = (PROTO_CUDA,)

    def available(self) -> bool:
        return gpu_count() > 0

    def why_unavailable(self) -> str:
        return f"it needs CuPy and an NVIDIA GPU; {how_to_install()}"

    def new_buffer(self, spec: TensorSpec, location: Location) -> Any:
        if spec.dtype == STRING:  # strings stay on the host
            return np.empty(spec.shape, object)
        with gpu(location[1]) as there:
            return there.xp.zeros(spec.shape, spec.dtype)

    def adopt(self, value: Any) -> Any:
        xp = array_module(PROTO_CUDA)
        array = value if isinstance(value, xp.ndarray) else xp.asarray(value)
        there = gpu(array.device.id)
        with between_captures(there, wait=True):  # who waits for a whole GPU ends captures, and gets an error
            array.device.synchronize()
        with there:
            copy = array.copy()
        there.synchronize()  # after this the owner may overwrite the array
        return copy

    def noting_numbers(self) -> AbstractContextManager[list[RunNumbers]]:
        return noting()

    def capture(
        self, number: int, calls: Sequence[Callable[[], object]], numbers: Sequence[RunNumbers]
    ) -> CapturedCalls | None:
        table = NumberTable(gpu(number), numbers) if numbers else None
        with table.used() if table is not None else nullcontext():
            graph = capture(number, calls)
        return None if graph is None else _GraphWithNumbers(graph, table)

    def raise_noted(self, number: int) -> None:
        raise_noted(number)

    def checked_range(self, run: Any, values: Any, lowest: int, extent: int, error: Callable[[int], Exception]) -> Any:
        return checked_range(run, values, lowest, extent, error)

    def update_rows(self, run: Any, op: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> bool:
        return update_rows(run, op, inputs, outputs)

    def normalized_images(self, op: Any, pixels: Any, dtype: str) -> Any:
        return normalized_images(op, pixels, dtype)

    def add_in_order(self, matrix: Any, rows: Any, values: Any) -> None:
        add_sorted(matrix, rows, values)
