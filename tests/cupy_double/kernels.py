"""Our own CUDA kernels on the double: it knows what memory a launch reads and writes, and computes nothing.

What a kernel writes is NaN, and 0 for integers. One copies what it reads, so that nets on plain kernels have their
numbers: the check of indices. Numbers of the others show where CuPy compiles them (``make test-emulated``).
"""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from cupy_double.machine import Region
from netbuilder.ops.engines.cuda.code import BFLOAT16
from netbuilder.ops.engines.cuda.kernel import Kernel

__all__ = ["launch"]

_MOST = 1 << 20
"""Bytes of an array that become NaN: of large ones the beginning is enough to show that they were used."""


@functools.cache
def _is_read(source: str) -> tuple[bool, ...]:
    """Whether each of a kernel's parameters is only read."""
    (parameters,) = re.findall(r"__global__ void \w+\(([^)]*)\)", source)
    return tuple("*" not in parameter or "const " in parameter for parameter in parameters.split(","))


def _in_tables(kernel: Kernel, rows: Any) -> Iterator[tuple[int, int, bool]]:
    """The address, the bytes and the use of each tensor that a kernel finds by a table: whether it is only read."""
    title = kernel.name.removeprefix("nb_").rpartition("_")[0]
    if title == "copies":
        for x, y, size, change, *_ in rows:
            given, wanted = kernel.model[change]
            yield x, size * _itemsize(given), True
            yield y, size * _itemsize(wanted), False
    elif title == "all_finite":
        for address, size, kind in rows:
            yield address, size * _itemsize(kernel.model[kind]), True
    else:
        for part, row in zip(kernel.model.parts, rows):
            for load in part.program.loads() if part.size else ():
                size = (1 if load.shape == () else part.size) * load.stride
                yield row[load.input], size * _itemsize(part.stored[load.input]), True
            for j, dtype in enumerate(part.program.dtypes if part.size else ()):
                yield row[len(part.reads) + j], part.size * part.program.values_of(j) * dtype.itemsize, False


def _itemsize(storage: Any) -> int:
    return 2 if storage == BFLOAT16 else np.dtype(storage).itemsize


def launch(kernel: Kernel, cupy: Any, blocks: int, arguments: Sequence[Any], *, threads: int = 0) -> None:
    """Do on the double what a launch of a kernel does."""
    if not blocks:
        return
    reads: list[Region] = []
    writes: dict[Region, int] = {}  # and the byte that all of it becomes
    for array, is_read in zip(arguments, _is_read(kernel.source), strict=True):
        if not isinstance(array, cupy.ndarray):
            assert isinstance(array, np.generic), f"{kernel}: an argument is a {type(array)}"
            continue
        assert array.flags.c_contiguous, f"{kernel}: an argument is not contiguous"
        cupy.ndarray._check([array])
        if is_read:
            reads.append(array._region)
        else:
            writes[array._region] = 0xFF if array.dtype.kind == "f" or array.dtype == np.uint8 else 0
    in_tables = "i64* rows, const int* blocks" in kernel.source
    for address, nbytes, is_read in _in_tables(kernel, arguments[0]._values.tolist()) if in_tables else ():
        region = cupy.machine.region_at(address, nbytes)
        if is_read:
            reads.append(region)
        else:
            writes[region] = 0xFF

    def do() -> None:
        for (_, begin, end), byte in writes.items():
            ctypes.memset(int(begin), byte, min(int(end - begin), _MOST))
        if kernel.name.startswith("nb_checked_"):
            arguments[1]._values[...] = arguments[0]._values

    cupy.machine.launch(kernel.name, reads, writes, do=do)
