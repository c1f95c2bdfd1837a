"""A stack for handlers of signals, which must not use that of a kernel.

The matrix products of oneDNN 3.2 for AVX2, of 253 terms or more, let the stack pointer point to memory from malloc. A
handler of a signal that comes meanwhile, such as SIGTERM or Ctrl-C, writes before that memory, into that of others, and
the process ends later, in ``free()``. Python's handlers take the alternate stack of the thread if there is one. Linux
gives a signal to the main thread, unless that one is handling another at that moment, so the main thread gets one.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from typing import Any

__all__ = ["give_signals_a_stack"]

_BYTES = 64 << 10  # Python's handlers only take notes; the registers of AVX-512 and AMX that Linux saves are 11 KiB
_DISABLED = 2  # SS_DISABLE


class _Stack(ctypes.Structure):
    """``stack_t`` of Linux."""

    _fields_ = (("address", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


def give_signals_a_stack() -> None:
    """Give the main thread an alternate stack for signals, unless it has one, such as that of ``faulthandler``."""
    if sys.platform != "linux":
        return
    if threading.current_thread() is threading.main_thread():
        _give()
    else:
        ctypes.pythonapi.Py_AddPendingCall(_give_later, None)  # called in the main thread


def _give(argument: Any = None) -> int:
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    found = _Stack()
    if not libc.sigaltstack(None, ctypes.byref(found)) and found.flags & _DISABLED:
        # Never freed: signals come until the process has ended, after the interpreter.
        address = libc.malloc(ctypes.c_size_t(_BYTES))
        if address:
            libc.sigaltstack(ctypes.byref(_Stack(address, 0, _BYTES)), None)
    return 0


_give_later = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(_give)
