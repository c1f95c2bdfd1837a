"""The end of a job whose processes wait at the start of MPI for one of their host that has ended without starting it.

MPI's start waits for all processes, names none, and lets no other thread of Python run meanwhile. So a process that
waits there starts this file as a program, which needs a process manager that is the parent of all processes of a host:
that of MPICH's mpiexec, or of srun. It imports nothing of netbuilder, so it starts fast.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["watched_start"]

_MANAGERS = ("hydra_pmi_proxy", "slurmstepd")
_LOOK, _LOOKS = 0.25, 8  # seconds between two looks, and how many in a row miss a process that has ended
_PRINTING, _ENDING = 0.3, 1.0  # seconds in which a manager prints the message, and ends all processes
_RANKS = (("MPI_LOCALRANKID", "PMI_RANK"), ("SLURM_LOCALID", "SLURM_PROCID"))
"""Variables with the number of a process on its host, and among all."""


@contextmanager
def watched_start(local_size: int) -> Iterator[None]:
    """In the block, end the job if a process of this host has ended; a process starts MPI in it.

    Args:
        local_size: number of processes of this host.
    """
    manager = _Process(os.getppid())
    if local_size == 1 or manager.name not in _MANAGERS:
        yield
        return
    connection = os.environ.get("PMI_FD", "")
    watch = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, str(local_size)],
        stdin=subprocess.DEVNULL,
        pass_fds=[int(connection)] if connection.isdecimal() else [],
    )
    try:
        yield
    finally:
        watch.kill()
        watch.wait()


class _Process:
    """What the system tells of a process; nothing of one that has ended."""

    def __init__(self, number: int) -> None:
        self.number, self.name, self.parent = number, "", 0
        with suppress(OSError):
            name, _, rest = Path(f"/proc/{number}/stat").read_text().partition("(")[2].rpartition(")")
            self.name, self.parent = name, int(rest.split()[1])

    def read_ranks(self) -> tuple[int, int]:
        """Return its number on the host, and among all; (-1, -1) if it has ended, or has none."""
        with suppress(OSError):
            lines = Path(f"/proc/{self.number}/environ").read_text(errors="replace").split("\0")
            values = dict(line.partition("=")[::2] for line in lines)
            for names in _RANKS:
                local, rank = (values.get(name, "") for name in names)
                if local.isdecimal() and rank.isdecimal():
                    return int(local), int(rank)
        return -1, -1


def main(local_size: int) -> None:
    """Watch over the start of MPI in the process that has started this one."""
    program = _Process(os.getppid())
    local, rank = program.read_ranks()
    missed = 0
    while os.getppid() == program.number and local >= 0:
        others = [_Process(int(path.name)) for path in Path("/proc").iterdir() if path.name.isdecimal()]
        there = dict(each.read_ranks() for each in others if each.parent == program.parent)
        missing = [each for each in range(local_size) if each not in there]
        missed = missed + 1 if missing else 0
        if missed == _LOOKS:
            in_order = all(there[each] - each == rank - local for each in there if each >= 0)
            names = [f"rank {rank + each - local}" if in_order else f"process {each} of this host" for each in missing]
            print(
                f"rank {rank}: MPI cannot start, as {' and '.join(names)} ended without starting it; the job ends",
                file=sys.stderr,
                flush=True,
            )
            _end(program.number)
        time.sleep(_LOOK)


def _end(program: int) -> None:
    """Ask the manager to end the job, as MPI's Abort does, and end the process that waits."""
    time.sleep(_PRINTING)
    with suppress(OSError, ValueError), socket.socket(fileno=os.dup(int(os.environ.get("PMI_FD", "")))) as connection:
        connection.sendall(b"cmd=abort exitcode=1\n")
        time.sleep(_ENDING)
    with suppress(ProcessLookupError):
        os.kill(program, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]))
