"""Nets within nets beyond the depth that protobuf and Python stop at by themselves."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator

from netbuilder.proto.netbuilder_pb2 import NetDef

__all__ = ["FRAMES", "MOST_NESTED", "deep_nets", "nesting"]

MOST_NESTED = 1_000
"""How deep nets may lie within one another: so deep, files are read and nets are run."""

# Some nine Python frames for each of 1,000 nets within one another that run; C's stack of 8 MiB holds them.
FRAMES = 10_000

_lock = threading.Lock()
_users = 0
_frames_before = 0


def nesting(net: NetDef) -> int:
    """Return how deep nets lie within a net: 0 if its operators hold none."""
    deepest, left = 0, [(net, 0)]
    while left:
        inside, depth = left.pop()
        deepest = max(deepest, depth)
        for op in inside.op:
            for argument in op.arg:
                if argument.HasField("n"):
                    left.append((argument.n, depth + 1))
                left.extend((held, depth + 1) for held in argument.nets)
    return deepest


@contextlib.contextmanager
def deep_nets() -> Iterator[None]:
    """Let messages nest deeper than protobuf's 100, and Python's calls deeper than 1,000, within the block.

    Both limits are the process's: they come back when the last thread leaves its block. Bytes are parsed
    in such a block only after their depth was checked, since protobuf without its limit ends the process
    on bytes that nest some 30,000 messages.
    """
    global _users, _frames_before
    with _lock:
        if _users == 0:
            _frames_before = sys.getrecursionlimit()
            sys.setrecursionlimit(max(_frames_before, FRAMES))
            _lift(True)
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                _lift(False)
                with contextlib.suppress(RecursionError):  # the block may end far down in a caller's own recursion
                    sys.setrecursionlimit(_frames_before)


def _lift(lifted: bool) -> None:
    try:
        from google._upb import _message  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except ImportError:  # protobuf's parser in Python, which has Python's limit alone
        return
    _message.SetAllowOversizeProtos(lifted)
