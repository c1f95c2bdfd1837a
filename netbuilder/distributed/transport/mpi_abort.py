"""Ending all processes of a job: by MPI, or by the process manager where MPI has not been initialized."""

from __future__ import annotations

import faulthandler
import os
import socket
import struct
import sys
from typing import Any

__all__ = ["abort_mpi", "abort_over", "managed"]

_ABORTING = 5.0  # seconds that MPI has to end all processes
_ANSWERING = 2.0  # seconds that the process manager has to answer


def abort_mpi(code: int) -> None:
    """End all processes that were started together, with an exit status.

    If MPI does not run in this one, and has not, that needs a process manager, see ``managed``.
    """
    found = sys.modules.get("mpi4py.MPI")
    if found is None or not found.Is_initialized():
        if managed():
            _abort_by_manager(code)
    elif not found.Is_finalized():
        abort_over(found.COMM_WORLD, code)


def abort_over(comm: Any, code: int) -> None:
    """End all processes; if MPI itself does not return, end this one, and mpiexec ends the others."""
    faulthandler.dump_traceback_later(_ABORTING, exit=True, file=2)
    comm.Abort(code)


def managed() -> bool:
    """Whether a process manager (MPICH's mpiexec, srun) has started this process, and listens to it.

    Its connection (PMI) has a number in the environment, which a process inherits that this one starts; so the other
    end must belong to the parent.
    """
    number = os.environ.get("PMI_FD", "")
    if not number.isdecimal() or not hasattr(socket, "SO_PEERCRED"):
        return False
    try:
        with socket.socket(fileno=os.dup(int(number))) as connection:
            peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    except OSError:  # closed, or something else
        return False
    return bool(struct.unpack("3i", peer)[0] == os.getppid())


def _abort_by_manager(code: int) -> None:
    """Ask for the end of the job as MPI's Abort does: mpiexec of MPICH lets the others run if one process ends."""
    try:
        with socket.socket(fileno=os.dup(int(os.environ["PMI_FD"]))) as connection:
            connection.settimeout(_ANSWERING)
            connection.sendall(b"cmd=init pmi_version=1 pmi_subversion=1\n")
            connection.recv(256)
            connection.sendall(f"cmd=abort exitcode={code}\n".encode())
            connection.recv(256)  # this process is ended meanwhile, too
    except OSError:
        pass  # the caller ends this process
