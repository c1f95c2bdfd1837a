"""The process manager of one rank: a program that answers MPI from a store, and ends a rank whose job has failed.

A rank that no manager has started starts this program, see ``start_over_store``. It is a process, as MPI's start lets
no thread of Python run, and as it sees the end of its rank, however that comes.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import sys
import time
from contextlib import suppress
from typing import IO

if __name__ == "__main__":  # run by its path, with the module path of the rank
    _told = sys.stdin.buffer
    sys.path[:] = json.loads(_told.readline())

from netbuilder.distributed.transport.pmi_server import Beginning, PmiServer
from netbuilder.proto.errors import DistributedError
from netbuilder.proto.threads import Thread

__all__ = ["ENDED", "LEAVES"]

ENDED = "ended"
"""Key that is there once a rank has failed, with the reason; ``ended/RANK`` says which one."""
LEAVES = b"leaves\n"
"""What a rank writes to its manager when it needs the others no more: nothing ends it from then on."""

_LOOK = 0.4  # seconds between two looks at the store
_TERMINATING = 3.0  # seconds between SIGTERM and SIGKILL


class _Manager:
    """Looks after one rank, which is the parent of this process."""

    def __init__(self, beginning: Beginning, told: IO[bytes]) -> None:
        self._given, self._told, self._process = beginning, told, os.getppid()
        self._server = PmiServer(beginning, self._report)
        self._leaves = False

    def run(self, connection: socket.socket) -> None:
        Thread(target=self._listen, daemon=True).start()
        Thread(target=self._watch, daemon=True).start()
        self._server.serve(connection)
        self._ended()

    def _listen(self) -> None:
        """Wait for what the rank says by the pipe; its end is the end of the rank, or of all that hold the pipe."""
        self._leaves = self._told.readline() == LEAVES

    def _watch(self) -> None:
        """End the rank once another one has failed; end with the rank."""
        while not self._is_over():
            if self._given.ends_rank and (problem := self._problem()) and not (self._done() or self._is_over()):
                self._end_rank(problem)
            time.sleep(_LOOK)
        self._ended()

    def _problem(self) -> str:
        try:
            reason = self._given.store.peek(ENDED)
        except DistributedError as error:
            time.sleep(1.0)  # the rank that serves it may have ended as this one ends
            return f"the rank that serves the store has ended, or its host is gone ({error})"
        return "" if reason is None else reason.decode()

    def _done(self) -> bool:
        return self._leaves or self._server.finalized

    def _is_over(self) -> bool:
        return os.getppid() != self._process

    def _report(self, reason: str) -> None:
        """Tell the other ranks' managers that this rank has failed; the first reason holds."""
        store = self._given.store
        where = f"rank {self._given.rank} of {self._given.size} ({socket.gethostname()}, process {self._process})"
        with suppress(DistributedError):  # the store has ended, which the others see, too
            if store.add("failures") == 1:
                store.set(ENDED, f"{where}: {reason}".encode())
            store.set(f"{ENDED}/{self._given.rank}", b"1")

    def _ended(self) -> None:
        """End this process; the rank has ended, or closed its connection, as it does where MPI starts no more."""
        while not self._is_over():
            time.sleep(_LOOK)
        if not self._done():
            self._report("it has ended before the end of its exchanges with the others")
        os._exit(0)

    def _end_rank(self, reason: str) -> None:
        print(f"rank {self._given.rank}: the job ends; {reason}", file=sys.stderr, flush=True)
        end = time.monotonic() + _TERMINATING
        os.kill(self._process, signal.SIGTERM)
        while not self._is_over():
            if time.monotonic() > end:
                os.kill(self._process, signal.SIGKILL)
            time.sleep(0.05)
        os._exit(0)


if __name__ == "__main__":
    _Manager(pickle.load(_told), _told).run(socket.socket(fileno=int(sys.argv[1])))
