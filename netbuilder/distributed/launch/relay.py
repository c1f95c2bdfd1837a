"""Output of a job by way of the launcher: ranks and mpiexec end where they cannot write, and the launcher does not."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from netbuilder.engines.copy_stream import copy_stream
from netbuilder.engines.unread import wait_until_read
from netbuilder.proto.threads import Thread

__all__ = ["Relay", "relayed"]

_SECONDS = 2.0  # for the last output; what a process has started may keep a pipe open for ever


class Relay:
    """Pipes whose content is copied to standard output and standard error of this process.

    Attributes:
        out, err: descriptors for other processes to write to.
    """

    def __init__(self, out: int, err: int) -> None:
        self.out, self.err = out, err

    def drain(self) -> None:
        """Wait until what ended processes have written is copied."""
        wait_until_read(self.out, self.err, seconds=_SECONDS)


@contextlib.contextmanager
def relayed() -> Iterator[Relay]:
    """Yield pipes, and copy what comes through them until the block ends."""
    pipes = [os.pipe(), os.pipe()]
    threads = [
        Thread(target=copy_stream, args=(reader, number), name="netbuilder-output", daemon=True)
        for number, (reader, _) in enumerate(pipes, 1)
    ]
    for thread in threads:
        thread.start()
    try:
        yield Relay(*(writer for _, writer in pipes))
    finally:
        for _, writer in pipes:
            os.close(writer)
        for (reader, _), thread in zip(pipes, threads):
            thread.join(_SECONDS)
            if not thread.is_alive():
                os.close(reader)
