"""Handles of libraries for GPUs: each thread has its own for each GPU, which is freed after the thread has ended.

Freeing one makes the library wait for the whole GPU, which nobody may do while something is captured there. So the
handles of ended threads are kept in a list, and freed when a thread makes one, a net is bound or a workspace is reset.
A CUDA graph keeps those that it was captured with, whose memory its kernels may use.
"""

from __future__ import annotations

import collections
import os
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from netbuilder.data.forking import renew_after_fork
from netbuilder.engines.cuda.capture import between_captures, keep_for_graph
from netbuilder.engines.gpu import GPU

__all__ = ["ThreadHandles"]

T = TypeVar("T")


class _Owned(Generic[T]):
    """A handle of a thread, which goes to the list of those to be freed when the thread has ended."""

    __slots__ = ("ended_handles", "_gpu", "_process", "handle")

    def __init__(self, here: GPU, handle: T, ended: collections.deque[tuple[GPU, T]]) -> None:
        self.handle = handle
        self._gpu, self.ended_handles, self._process = here, ended, os.getpid()

    def __del__(self) -> None:
        if os.getpid() == self._process:  # in a forked process it is the parent's
            self.ended_handles.append((self._gpu, self.handle))


class ThreadHandles(Generic[T]):
    """The handles of a library.

    Args:
        make: returns a new handle, for the current GPU.
        free: frees one, of the current GPU.
    """

    def __init__(self, make: Callable[[GPU], T], free: Callable[[T], object]) -> None:
        self._make, self._free = make, free
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Forget all handles: after a fork they belong to the parent."""
        self.of_thread: Any = threading.local()
        self.ended_handles: collections.deque[tuple[GPU, T]] = collections.deque()

    def get(self, here: GPU) -> T:
        """Return this thread's handle for the current GPU."""
        owned: dict[GPU, _Owned[T]] = self.of_thread.__dict__
        own = owned.get(here)
        if own is None:
            self.free_ended()
            own = owned[here] = _Owned(here, self._make(here), self.ended_handles)
        keep_for_graph(own)
        return own.handle

    def free_ended(self) -> None:
        """Free the handles of threads that have ended, but for those of GPUs for which something is captured now."""
        for _ in range(len(self.ended_handles)):
            try:
                here, handle = self.ended_handles.popleft()
            except IndexError:  # another thread frees them, too
                return
            with between_captures(here) as free:
                if not free:
                    self.ended_handles.append((here, handle))
                    continue
                with here:
                    self._free(handle)
