"""What a process has written to a pipe or a terminal, and nobody has read yet."""

from __future__ import annotations

import fcntl
import math
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


def wait_until_read(*numbers: int, seconds: float, still: float = math.inf) -> bool:
    """Wait until nothing is unread, for so many seconds at most; return whether that is so.

    Args:
        numbers: file descriptors.
        seconds: to wait at most.
        still: seconds after which nobody reads, if nothing has been read meanwhile.
    """
    begin = since = time.monotonic()
    left = sum(map(unread, numbers))
    while left:
        now = time.monotonic()
        if now > begin + seconds or now > since + still:
            return False
        time.sleep(_PAUSE)
        before, left = left, sum(map(unread, numbers))
        since = since if left == before else now
    return True
