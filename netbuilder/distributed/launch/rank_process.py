"""One rank of a job of netbuilder-launch: its program runs in a child, and this process watches over it.

The launcher, or MPI's mpiexec under it, runs this file by its path: it imports little, and starts fast.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

__all__ = ["Rank", "main"]

if __name__ == "__main__":
    # In place of this folder, whose modules are not to be found by their bare names: the one that has the package.
    sys.path[0] = str(Path(__file__).resolve().parents[3])

from netbuilder.distributed.stores.store import Store
from netbuilder.distributed.transport import launchers
from netbuilder.distributed.transport.pmi_server import PLACE, Beginning, PmiServer, announce
from netbuilder.distributed.transport.time_limits import time_limits
from netbuilder.engines.copy_stream import copy_stream
from netbuilder.engines.unread import wait_until_read
from netbuilder.proto.errors import DistributedError
from netbuilder.proto.threads import Thread

_SET_PARENT_DEATH_SIGNAL = 1  # prctl
_LOOK = 5.0  # seconds that one question to the store waits
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NETBUILDER_DECODING_THREADS")
# MPICH's mpiexec drops what it has not printed when a rank has failed: its seconds to read it, and to print it.
_READING, _PRINTING = 10.0, 0.5
_PIPE_TIMEOUT = 2.0  # seconds that a pipe may stay open after the program's end
_AFTER_LAUNCHER = 5.0  # seconds that a program has to end when the launcher is gone


def main(arguments: list[str]) -> int:
    """Run the program of a rank to its end; return its status, 128 and the signal's number if a signal ended it.

    Args:
        arguments: options as JSON (``prefix``: streams whose lines get the rank; ``only_first``: whether the output of
            other ranks than 0 is left out; ``grace``: seconds; ``threads``: number or None; ``gpus``: of each rank, or
            None: all are seen; ``pin``: whether each rank has cores of its own), then the command.
    """
    options, command = json.loads(arguments[0]), arguments[1:]
    place = launchers.place_in(os.environ)
    rank = Rank(place, options, command)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, rank.passed_on)
    return rank.run()


class Rank:
    """The program of one rank, and what its end means for the job."""

    def __init__(self, place: launchers.Place, options: dict[str, Any], command: list[str]) -> None:
        store = launchers.job_store(os.environ)
        assert store is not None  # the launcher sets its variables
        self.place, self.options = place, options
        attempt = os.environ.get(launchers.ATTEMPT, "0")
        self.store: Store = store.with_prefix(attempt)
        self.stopping = False
        self._kill_at = float("inf")
        cores = sorted(os.sched_getaffinity(0))
        share = max(1, len(cores) // place.local_size)
        if options["pin"]:
            first = place.local_rank * share
            os.sched_setaffinity(0, cores[first : first + share] or cores)
        mpi, connection = self._serve_mpi()
        self._child = subprocess.Popen(
            command,
            env=os.environ
            | _variables(place)
            | _threads(options["threads"], share)
            | _gpus(place, options["gpus"])
            | mpi,
            stdin=None if place.rank == 0 else subprocess.DEVNULL,
            stdout=self._stream("stdout"),
            stderr=self._stream("stderr"),
            close_fds=False,  # MPI gives its processes an open connection
            preexec_fn=_end_with_parent,
        )
        if connection is not None:
            connection.close()

    def _serve_mpi(self) -> tuple[dict[str, str], socket.socket | None]:
        """Be the process manager of the program, unless mpiexec is; return variables for it, and its connection."""
        place = self.place
        if os.environ.get(launchers.ENGINE) != "MPI" or launchers.has_process_manager(os.environ, place.size):
            return {}, None
        ours, theirs = socket.socketpair()
        theirs.set_inheritable(True)
        given = Beginning(self.store.with_prefix("mpi"), place.size, place.rank, time_limits().first)
        announce(given)
        server = PmiServer(given, lambda reason: print(f"rank {place.rank}: {reason}", file=sys.stderr, flush=True))
        Thread(target=server.serve, args=[ours], daemon=True).start()
        return dict(zip(PLACE, (str(theirs.fileno()), str(place.rank), str(place.size)))), theirs

    def _stream(self, name: str) -> int | None:
        if name == "stdout" and self.options["only_first"] and self.place.rank:
            return subprocess.DEVNULL
        return subprocess.PIPE if name in self.options["prefix"] else None

    def run(self) -> int:
        prefix = f"[rank {self.place.rank}] ".encode()
        pumps = [
            Thread(target=copy_stream, args=(pipe.fileno(), number, prefix), daemon=True)
            for pipe, number in ((self._child.stdout, 1), (self._child.stderr, 2))
            if pipe is not None
        ]
        for thread in (*pumps, Thread(target=self.obey, daemon=True)):
            thread.start()
        while self._child.poll() is None:
            if time.monotonic() > self._kill_at:
                self._child.kill()
            try:
                self._child.wait(0.05 if self.stopping else 0.5)
            except subprocess.TimeoutExpired:
                pass
        for thread in pumps:
            thread.join(_PIPE_TIMEOUT)  # a process that the program has started may keep the pipe open
        pipes = [pipe.fileno() for pipe in (self._child.stdout, self._child.stderr) if pipe is not None]
        wait_until_read(*pipes, seconds=_READING)
        status = self._child.returncode
        self._report(status)
        return status if status >= 0 else 128 - status

    def passed_on(self, number: int, frame: object) -> None:
        """Pass a signal on to the program."""
        self._signal(number, self.options["grace"])

    def _signal(self, number: int, grace: float) -> None:
        self.stopping = True
        self._kill_at = min(self._kill_at, time.monotonic() + grace)
        if self._child.poll() is None:
            self._child.send_signal(number)

    def obey(self) -> None:
        """Wait until the launcher stops the job, or is gone."""
        while True:
            try:
                text = self.store.get(launchers.STOPPING, _LOOK)
            except TimeoutError:
                continue
            except DistributedError as error:
                if isinstance(error.__cause__, TimeoutError) and self.place.local_size == self.place.size:
                    continue  # the launcher is stopped, by Ctrl-Z say: its end would have closed the connection
                if not self.stopping:
                    self._signal(signal.SIGTERM, _AFTER_LAUNCHER)
                return
            order = json.loads(text)
            self._signal(order["signal"], order["grace"])
            return

    def _report(self, status: int) -> None:
        """Tell the launcher how the program has ended; where the job was stopping before, wait for the other ranks.

        mpiexec ends all processes as soon as one of them has failed, and a rank that stops on a signal may end while
        others still write their checkpoints. After a failure there is nothing to wait for: the others may be waiting
        for this rank.
        """
        stopping = self.stopping
        try:
            if status not in (0, launchers.REGROUP):
                wait_until_read(1, 2, seconds=_READING)
                time.sleep(_PRINTING)
            if status not in (0, launchers.REGROUP) and not stopping and self.store.add("failures") == 1:
                found = {"rank": self.place.rank, "status": status, "host": socket.gethostname()}
                self.store.set("failed", json.dumps(found).encode())
            self.store.set(f"ended/{self.place.rank}", str(status).encode())
            self.store.add("ended")
            while stopping and time.monotonic() < self._kill_at:
                if int(self.store.peek("ended") or 0) >= self.place.size:
                    return
                time.sleep(0.02)
        except DistributedError:
            pass  # the launcher is gone, and knows nothing more


def _variables(place: launchers.Place) -> dict[str, str]:
    return {
        launchers.RANK: str(place.rank),
        launchers.WORLD_SIZE: str(place.size),
        launchers.LOCAL_RANK: str(place.local_rank),
        launchers.LOCAL_SIZE: str(place.local_size),
    }


def _gpus(place: launchers.Place, count: int | None) -> dict[str, str]:
    """Return the variable by which the program sees its own GPUs; nothing if their number is not given."""
    return {} if count is None else {launchers.GPUS: launchers.own_gpus(os.environ, place, count, of_host=True)}


def _threads(given: int | None, share: int) -> dict[str, str]:
    """Return the variables that set numbers of threads; what the user has set stays, unless a number is given."""
    return {name: str(given or share) for name in _THREADS if given or name not in os.environ}


_libc = ctypes.CDLL(None)


def _end_with_parent() -> None:
    """Let the system kill the program when this process is killed."""
    _libc.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
