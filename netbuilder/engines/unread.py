"""What a process has written to a pipe or a terminal, and nobody has read yet."""

from __future__ import annotations

import fcntl
import os
import stat
import sys
import termios
import time

__all__ = ["unread", "wait_until_read"]

_PAUSE = 0.005


def unread(number: int) -> int:
    """Return the bytes that were written to a file descriptor and have not been read; 0 for a file."""
    try:
        mode = os.fstat(number).st_mode
        if stat.S_ISREG(mode):
            return 0
        asked = termios.FIONREAD if stat.S_ISFIFO(mode) else termios.TIOCOUTQ
        return int.from_bytes(fcntl.ioctl(number, asked, bytes(4)), sys.byteorder)
    except OSError:  # closed, or neither
        return 0


def wait_until_read(*numbers: int, seconds: float) -> bool:
    """Wait until nothing is unread, for so many seconds at most; return whether that is so."""
    end = time.monotonic() + seconds
    while any(map(unread, numbers)):
        if time.monotonic() > end:
            return False
        time.sleep(_PAUSE)
    return True
