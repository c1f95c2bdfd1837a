"""netbuilder's own CUDA kernels: their source, compiled when first used, and their launch."""

from __future__ import annotations

import hashlib
import threading
import weakref
from collections.abc import Sequence
from typing import Any

from netbuilder.engines.arrays import array_module
from netbuilder.proto import PROTO_CUDA

__all__ = ["BLOCK_SUM", "OPTIONS", "THREADS", "Kernel", "known_kernels"]

OPTIONS = ("-fmad=false", "--std=c++17")
"""Options of the compiler: products are rounded before they are added, as on the CPU. These kernels wait for memory."""

THREADS = 256
"""Threads of a block."""

_compiled: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()
_known: dict[str, Kernel] = {}
_lock = threading.Lock()


class Kernel:
    """One of netbuilder's own CUDA kernels.

    Args:
        title: the beginning of its name; the rest says which variant it is.
        source: CUDA C++ with one ``extern "C"`` kernel, whose name is ``NAME``.
        model: what its source was made from, for those who launch it, and for test doubles of GPUs where a table says
            which tensors it reads and writes.
    """

    def __init__(self, title: str, source: str, model: Any = None) -> None:
        digest = hashlib.blake2b(source.encode(), digest_size=5).hexdigest()
        self.name = f"nb_{title}_{digest}"
        self.source = source.replace("NAME", self.name)
        self.model = model
        with _lock:
            _known.setdefault(self.name, self)

    def __repr__(self) -> str:
        return f"Kernel({self.name})"

    def __call__(self, blocks: int, arguments: Sequence[Any], *, threads: int = THREADS) -> None:
        """Launch the kernel on the current stream of the current GPU.

        Args:
            blocks: number of blocks; 0: nothing is launched.
            arguments: arrays of that GPU, and NumPy's numbers of the parameters' types.
            threads: of a block.
        """
        if blocks:
            self.function()((blocks,), (threads,), arguments)

    def function(self) -> Any:
        """Return CuPy's kernel, which it compiles at its first launch on each kind of GPU, or finds in its cache."""
        xp = array_module(PROTO_CUDA)
        kernels = _compiled.get(xp)
        if kernels is None:
            kernels = _compiled.setdefault(xp, {})
        found = kernels.get(self.name)
        if found is None:
            found = kernels[self.name] = xp.RawKernel(self.source, self.name, options=OPTIONS)
        return found


def known_kernels() -> dict[str, Kernel]:
    """Return all kernels that this process has made so far, by name."""
    with _lock:
        return dict(_known)


BLOCK_SUM = f"""
__device__ __forceinline__ double block_sum(double own, double* shared) {{
    shared[threadIdx.x] = own;
    __syncthreads();
    for (int half = {THREADS} / 2; half > 0; half /= 2) {{
        if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
        __syncthreads();
    }}
    const double found = shared[0];
    __syncthreads();
    return found;
}}
"""
"""CUDA: the sum over a block of a number of each of its threads, in double, the same in all of them."""
