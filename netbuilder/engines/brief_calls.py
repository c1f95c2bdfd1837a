"""C functions that take microseconds, called without releasing the interpreter's lock (GIL).

A call that releases the lock gives it to a thread that waits for it, if there is one, and then waits itself until it
gets the lock back. These two switches take longer than such a function: threads that run small nets at the same time
would be slower than one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

__all__ = ["brief_call"]


def brief_call(library: str | ctypes.CDLL, name: str, result: Any = None) -> Callable[..., Any]:
    """Return a function of a library that keeps the lock while it runs; it must never wait for a thread of Python.

    Its arguments are integers, which are passed as C's int, and pointers as ctypes has them. They are not converted,
    which would take as long as the rest of the call.

    Args:
        library: its path, or the library as ctypes has loaded it.
        name: of the function.
        result: the type of its result, of ctypes.

    Raises:
        OSError: the library cannot be loaded.
        AttributeError: it has no such function.
    """
    loaded = ctypes.PyDLL(library) if isinstance(library, str) else ctypes.PyDLL(library._name, handle=library._handle)
    function = loaded[name]
    function.restype = result
    return function
