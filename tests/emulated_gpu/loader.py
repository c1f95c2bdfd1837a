"""Makes the CuPy of this process use the emulated GPU."""

from __future__ import annotations

import ctypes
import inspect
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from emulated_gpu.kernels import build
from emulated_gpu.machine import Touches, call

__all__ = ["install"]


def install() -> None:
    """Replace NVRTC by g++, and the sorts of Thrust, which are machine code in CuPy's wheel, by NumPy's."""
    import cupy
    from cupy.cuda import compiler, thrust

    if not _SIGNATURE:  # a program that records kernels replaces the compiler once more
        _SIGNATURE.append(inspect.signature(compiler._compile_with_cache_cuda))
        compiler._compile_with_cache_cuda = _compile
        thrust.sort, thrust.argsort, thrust.lexsort = _sort, _argsort, _lexsort
    assert cupy.cuda.is_available()


_SIGNATURE: list[inspect.Signature] = []


def _compile(*args: Any, **kwargs: Any) -> Any:
    from cupy.cuda.function import Module

    bound = _SIGNATURE[0].bind(*args, **kwargs)
    bound.apply_defaults()
    requested = bound.arguments
    if requested["to_ltoir"] or requested["enable_cooperative_groups"]:
        raise NotImplementedError("the emulated GPU has neither LTO nor cooperative groups")
    names = list(requested["name_expressions"] or ())
    library, mapping = build(requested["source"], (*requested["options"], "-ftz=true"), names)
    module = Module()
    module._set_mapping(mapping)
    module.load(b"emulated:" + os.fsencode(library) + b"\0")
    return module


def _array(address: int, dtype: Any, shape: Sequence[int]) -> np.ndarray[Any, Any]:
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_char * size).from_address(address), dtype=dtype).reshape(shape)


def _do(name: str, do: Callable[[], object], reads: Sequence[Any], writes: Sequence[Any]) -> None:
    """Let the current stream do what Thrust does with arrays, and wait for it, as Thrust does."""
    import cupy

    stream = cupy.cuda.get_current_stream()
    touches = Touches(*([(array.ctypes.data, array.nbytes) for array in some] for some in (reads, writes)))
    call(stream.ptr, f"thrust.{name}", do, touches)
    stream.synchronize()


def _sort(dtype: Any, data: int, keys: int, shape: Any) -> None:
    values = _array(data, dtype, tuple(shape))
    _do("sort", lambda: values.sort(axis=-1), [values], [values])


def _argsort(dtype: Any, indices: int, data: int, keys: int, shape: Any) -> None:
    values, places = _array(data, dtype, tuple(shape)), _array(indices, "intp", tuple(shape))

    def do() -> None:
        places[...] = values.argsort(axis=-1, kind="stable")
        values[...] = np.take_along_axis(values.copy(), places, axis=-1)  # Thrust sorts the data, too

    _do("argsort", do, [values], [places, values])


def _lexsort(dtype: Any, indices: int, keys: int, k: int, n: int) -> None:
    columns, places = _array(keys, dtype, (k, n)), _array(indices, "intp", (n,))

    def do() -> None:
        places[...] = np.lexsort(columns)

    _do("lexsort", do, [columns], [places])
