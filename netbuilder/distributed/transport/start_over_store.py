"""The start of MPI in processes that no process manager has started: they find one another in a store."""

from __future__ import annotations

import json
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, NoReturn

from netbuilder.distributed.stores.store import Store
from netbuilder.distributed.transport import process_manager
from netbuilder.distributed.transport.launchers import has_process_manager, job_store
from netbuilder.distributed.transport.mpi import require_mpi4py
from netbuilder.distributed.transport.pmi_server import PLACE, Beginning, announce
from netbuilder.distributed.transport.start import meet
from netbuilder.distributed.transport.time_limits import time_limits
from netbuilder.proto.errors import DeviceError, DistributedError
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.proto.threads import Thread

__all__ = [
    "begin_over_store",
    "ended_over_store",
    "leave_manager",
    "started_over_store",
]


@dataclass(frozen=True)
class _Begun:
    """The process manager of this rank: the number of the connection of MPI to it, and a pipe to it."""

    store: Store
    connection: int
    pipe: IO[bytes]


_begun: _Begun | None = None


def begin_over_store(store: Store, size: int, rank: int) -> None:
    """Start the process manager of this rank, which tells the others when the rank ends; a second call does nothing.

    Args:
        store: one that all ranks see, with a prefix of this run.
        size, rank: the number of ranks, and that of this one.

    Raises:
        DistributedError: another process has the same rank.
        DeviceError: the store cannot be reached from another process, or mpi4py is missing.
    """
    global _begun
    if _begun is not None or has_process_manager(os.environ, size):
        return
    require_mpi4py()  # before this rank waits for the others
    store = store.with_prefix("mpi")
    _require_first(store, size, rank)
    by_launcher = job_store(os.environ) is not None  # which ends all ranks when one fails
    beginning = Beginning(store, size, rank, time_limits().first, not by_launcher)
    _begun = _start_manager(beginning)
    announce(beginning)


@contextmanager
def started_over_store(store: Store, size: int, rank: int) -> Iterator[None]:
    """Wait until all ranks have come; in the block, MPI starts with them.

    Args:
        store, size, rank: see ``begin_over_store``.

    Raises:
        StoreTimeoutError: some have not come in time; the message names them.
        DistributedError: a rank has ended, or another process has the same rank.
        DeviceError: the store cannot be reached from another process, or mpi4py or MPI is missing.
    """
    begin_over_store(store, size, rank)
    assert _begun is not None
    meet(_begun.store, size, rank)
    outer = {name: os.environ.get(name) for name in PLACE}
    os.environ.update(zip(PLACE, (str(_begun.connection), str(rank), str(size))))
    try:
        yield
    finally:  # processes that this one starts are no ranks
        for name, value in outer.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


def ended_over_store(size: int) -> list[int]:
    """Return the ranks that have ended, as their process managers say; none if they have none of ours."""
    if _begun is None or _begun.store.peek(process_manager.ENDED) is None:
        return []
    return [rank for rank in range(size) if _begun.store.peek(f"{process_manager.ENDED}/{rank}") is not None]


def leave_manager() -> None:
    """Tell the process manager of this rank, if it has one, that it needs the other ranks no more."""
    if _begun is not None:
        with suppress(OSError, ValueError):
            _begun.pipe.write(process_manager.LEAVES)
            _begun.pipe.flush()


def _require_first(store: Store, size: int, rank: int) -> None:
    place = f"{socket.gethostname()}, process {os.getpid()}"
    if store.add(f"starts/{rank}") == 1:
        store.set(f"place/{rank}", place.encode())
        return
    other = (store.peek(f"place/{rank}") or b"another process").decode()
    raise DistributedError(
        f"CreateCommonWorld: rank {rank} of {size} is used by {other} and by {place} in {store}, or an earlier run has "
        "left it there; give each process its own rank (shard id), and each run its own run_id or folder"
    )


def _start_manager(beginning: Beginning) -> _Begun:
    """Start the process manager of this rank."""
    try:
        text = json.dumps(sys.path).encode() + b"\n" + pickle.dumps(beginning)
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        raise DeviceError(
            f"{beginning.store} is in this process only, and {beginning.size} processes are to meet in it; give one "
            f"that all of them see: a folder, a Redis server, or tcp://HOST:PORT ({error})"
        ) from error
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, process_manager.__file__, str(theirs.fileno())]
        manager = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[theirs.fileno()], start_new_session=True)
    assert manager.stdin is not None
    manager.stdin.write(text)
    manager.stdin.flush()
    Thread(target=_end_with, args=[manager, beginning.rank], daemon=True).start()
    # MPI writes to the connection at exit, after Python has closed its sockets
    return _Begun(beginning.store, ours.detach(), manager.stdin)


def _end_with(manager: subprocess.Popen[bytes], rank: int) -> NoReturn:
    """End this process when its manager has ended, so that no failure of another rank leaves it waiting."""
    manager.wait()
    print(f"rank {rank}: the process manager of this rank has ended, so this one ends", file=sys.stderr, flush=True)
    os._exit(1)
