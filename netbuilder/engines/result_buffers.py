"""Results of plain kernels on a GPU, allocated in the buffers where the plan keeps them.

A plain kernel returns new arrays. With the same shapes it makes the same allocations in the same order, so a call
notes which of its allocations become results, and in the next call CuPy is given the buffers for these. Then nothing is
copied. A result that comes otherwise (a view of an input, an array in another order) is copied, as in the first call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from netbuilder.engines.gpu import gpu

__all__ = ["ResultBuffers", "overlap"]

Array = Any


def overlap(a: Array, b: Array) -> bool:
    """Whether two contiguous arrays on GPUs have memory in common."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return a is b
    return bool(a.data.ptr < b.data.ptr + b.nbytes and b.data.ptr < a.data.ptr + a.nbytes)


class ResultBuffers:
    """The buffers on one GPU for the results of one kernel; none of them overlaps an input of the kernel.

    Args:
        number: the GPU.
        buffers: contiguous arrays; None for a result that is elsewhere.
    """

    def __init__(self, number: int, buffers: Sequence[Array | None]) -> None:
        self._cuda = gpu(number).xp.cuda
        self._buffers = buffers
        self._of_allocation: dict[int, int] = {}  # number of an allocation in a call -> index of a buffer

    def run(self, kernel: Callable[[], Sequence[Array]]) -> list[Array]:
        """Run the kernel; return its results, each of them the buffer itself if it was computed there."""
        pool = self._cuda.get_allocator()
        addresses: list[int] = []

        def allocate(nbytes: int) -> Any:
            index = self._of_allocation.get(len(addresses))
            buffer = None if index is None else self._buffers[index]
            memory = buffer.data if buffer is not None and buffer.nbytes == nbytes else pool(nbytes)
            addresses.append(memory.ptr)
            return memory

        with self._cuda.using_allocator(allocate):
            results = list(kernel())
        for index, (buffer, result) in enumerate(zip(self._buffers, results)):
            if buffer is not None and not isinstance(result, np.ndarray):
                results[index] = self._in_place(index, buffer, result, addresses)
        return results

    def _in_place(self, index: int, buffer: Array, result: Array, addresses: Sequence[int]) -> Array:
        fits = result.nbytes == buffer.nbytes and result.dtype == buffer.dtype and result.flags.c_contiguous
        address, start = result.data.ptr, buffer.data.ptr
        if fits and address == start:
            return buffer if result.shape == buffer.shape else result
        self._of_allocation = {number: of for number, of in self._of_allocation.items() if of != index}
        if fits and address in addresses:
            last = len(addresses) - 1 - addresses[::-1].index(address)  # earlier ones at this address were freed
            self._of_allocation.setdefault(last, index)
        # A view, in another order, of what was computed in the buffer.
        return result.copy() if start <= address < start + buffer.nbytes else result
