"""Rank and number of processes, and the store of their run, as launchers state them in the environment."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import suppress
from pathlib import Path

from netbuilder.distributed.stores.secret import SECRET, secret_in
from netbuilder.distributed.stores.store import Store
from netbuilder.distributed.stores.tcp import TcpStore
from netbuilder.proto.errors import NetError, counted
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "ATTEMPT",
    "BY_RANK",
    "ENGINE",
    "GPUS",
    "LOCAL_RANK",
    "LOCAL_SIZE",
    "MEMORY",
    "RANK",
    "REGROUP",
    "RUN_ID",
    "SECRET",
    "STOPPING",
    "STORE",
    "WANTED",
    "WORLD_SIZE",
    "Place",
    "ended_ranks",
    "has_process_manager",
    "is_of_outer_job",
    "job_store",
    "own_gpus",
    "parents",
    "place_in",
    "place_variables",
    "see_own_gpus",
    "warned",
]

_log = logging.getLogger("netbuilder")

RANK = "NETBUILDER_RANK"
WORLD_SIZE = "NETBUILDER_WORLD_SIZE"
LOCAL_RANK = "NETBUILDER_LOCAL_RANK"
LOCAL_SIZE = "NETBUILDER_LOCAL_SIZE"
RUN_ID = "NETBUILDER_RUN_ID"
ENGINE = "NETBUILDER_ENGINE"
STORE = "NETBUILDER_STORE"
"""Host and port of the store of netbuilder-launch: HOST:PORT."""
ATTEMPT = "NETBUILDER_ATTEMPT"
"""How often the job has been started before: 0 at first."""

GPUS = "CUDA_VISIBLE_DEVICES"
"""The GPUs that a process sees, in the order of their numbers."""

_CONNECT_TIMEOUT = 5.0  # seconds; the store was there before the processes were started

BY_RANK = "a launcher with torchrun's variables"
"""The launcher where RANK and WORLD_SIZE are there, and what else torchrun sets is not."""

STOPPING = "job/stopping"
"""Key in the store of netbuilder-launch that is there once all processes are to end, with the signal and the time."""

REGROUP = 75
"""Exit status of the processes of an elastic job that want to be started again, in as many as there are then."""
MEMORY = "NETBUILDER_MEMORY"
"""Variable with the descriptors of the memory that an elastic job keeps on this host."""
WANTED = "wanted"
"""Key in the store that is there once processes wait to join an elastic job."""


@dataclass(frozen=True)
class Place:
    """The place of a process among all.

    Args:
        launcher: what started it, for messages.
        rank: its number among all processes, from 0 on.
        size: how many there are.
        local_rank: its number among those of its host.
        local_size: how many its host has.
        run_id: text that another run does not have; "" where the launcher gives none.
    """

    launcher: str
    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    run_id: str = ""


@dataclass(frozen=True)
class _Launcher:
    """Variables that a launcher sets; it has started the process if the first two are there.

    Args:
        processes: names of the programs that it runs as the parents of the processes, or parts of their commands.
    """

    name: str
    rank: str
    size: str
    local_rank: str
    local_size: str
    run_id: tuple[str, ...] = ()
    processes: tuple[str, ...] = ()

    def place(self, environment: Mapping[str, str]) -> Place:
        rank, size = self._number(environment, self.rank), self._number(environment, self.size)
        if not 0 <= rank < size:
            raise NetError(
                f"{self.rank}={rank} in the environment, set by {self.name}, must lie in [0, {size}), since "
                f"{self.size}={size}"
            )
        local_rank, local_size = self._local(environment)
        run_id = ".".join(environment[name] for name in self.run_id if environment.get(name))
        return Place(self.name, rank, size, local_rank, local_size, run_id)

    def _number(self, environment: Mapping[str, str], name: str) -> int:
        text = environment.get(name)
        if not text:
            raise NetError(f"{self.rank} is set in the environment, as by {self.name}, but {name} is not; set both")
        try:
            return int(text)
        except ValueError:
            raise NetError(f"{name} in the environment must be a whole number, got {text!r}") from None

    def _local(self, environment: Mapping[str, str]) -> tuple[int, int]:
        """Return rank and number of processes on this host; (0, 1) where the launcher does not state them."""
        if not environment.get(self.local_rank):
            return 0, 1
        rank = self._number(environment, self.local_rank)
        if not environment.get(self.local_size):
            return rank, rank + 1
        if self.name == "srun":
            return rank, max(rank + 1, _tasks_here(environment, self.local_size))
        return rank, max(rank + 1, self._number(environment, self.local_size))


_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_BY_TORCH = ("/torchrun", "torch.distributed.run", "torch.distributed.launch")

# The innermost first, as far as the variables alone tell: mpiexec and torchrun run inside steps of Slurm, torchrun
# under an mpiexec that starts it once on each host, and RANK without torchrun is in the specification of a container.
_LAUNCHERS = (
    _Launcher(
        "netbuilder-launch", RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_SIZE, (RUN_ID, ATTEMPT), ("/launch/rank_process.py",)
    ),
    _Launcher(
        "torchrun",
        *_TORCHRUN,
        ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
        _BY_TORCH,
    ),
    _Launcher(
        "mpiexec of Open MPI",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        ("PMIX_NAMESPACE",),
        ("prted", "orted", "prterun", "orterun", "mpirun", "mpiexec"),
    ),
    _Launcher("mpiexec (PMI)", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", (), ("hydra_pmi_proxy",)),
    _Launcher(
        "srun",
        "SLURM_PROCID",
        "SLURM_STEP_NUM_TASKS",  # in a step only: a batch script has SLURM_PROCID=0 and is one process
        "SLURM_LOCALID",
        "SLURM_STEP_TASKS_PER_NODE",
        ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"),
        ("slurmstepd",),
    ),
    _Launcher(BY_RANK, *_TORCHRUN, (), _BY_TORCH),
)


def place_variables() -> set[str]:
    """Return the names of all variables by which launchers state a place."""
    return {
        name
        for launcher in _LAUNCHERS
        for name in (launcher.rank, launcher.size, launcher.local_rank, launcher.local_size)
    }


def place_in(environment: Mapping[str, str]) -> Place:
    """Return the place that a launcher's variables state; without any, this is the only process.

    Raises:
        NetError: a variable is missing or wrong; the message names it and the launcher.
    """
    launcher = _innermost(environment)
    return launcher.place(environment) if launcher is not None else Place("no launcher")


def _innermost(environment: Mapping[str, str]) -> _Launcher | None:
    """Return the launcher that has started this process, and not one that has started that launcher."""
    found = [launcher for launcher in _LAUNCHERS if _started_by(launcher, environment)]
    if len(found) > 1 and environment is os.environ:  # the variables are of this process: it knows its parents
        for words in parents():
            for launcher in found:
                if _is_of(launcher, words):
                    return launcher
    return found[0] if found else None


def has_process_manager(environment: Mapping[str, str], size: int) -> bool:
    """Whether a process manager of MPI, that of mpiexec or of srun, has started a process among ``size`` ones."""
    given = ""
    if any(name in environment for name in ("PMI_FD", "PMI_PORT")):
        given = environment.get("PMI_SIZE", "")
    elif "PMIX_RANK" in environment:
        given = environment.get("OMPI_COMM_WORLD_SIZE") or environment.get("SLURM_STEP_NUM_TASKS", "")
    return given == str(size)


def is_of_outer_job(environment: Mapping[str, str]) -> bool:
    """Return whether variables of netbuilder-launch are those of a job, a process of which has started another one."""
    inner = _innermost(environment) if environment.get(RANK) else None
    return inner is not None and inner.rank != RANK


def parents() -> list[Sequence[str]]:
    """Return the name and command of each process that this one descends from, the nearest first."""
    found: list[Sequence[str]] = []
    number = os.getppid()
    with suppress(OSError, ValueError, IndexError):  # one that has ended, or is outside of this container
        while number > 0:
            folder = Path(f"/proc/{number}")
            name, _, rest = (folder / "stat").read_text(errors="replace").partition("(")[2].rpartition(")")
            command = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            found.append([name, *command[:4]])
            number = int(rest.split()[1])
    return found


def _is_of(launcher: _Launcher, words: Sequence[str]) -> bool:
    name, *command = words
    files = tuple(part for part in launcher.processes if part.startswith("/"))
    return name in launcher.processes or any(word in launcher.processes or word.endswith(files) for word in command)


def own_gpus(environment: Mapping[str, str], place: Place, count: int, *, of_host: bool = False) -> str:
    """Return the value of CUDA_VISIBLE_DEVICES with which a process sees its own GPUs alone, as numbers from 0 on.

    So the nets of all processes name the same devices. If the variable names enough GPUs for all processes of the host,
    or is not there, this one gets its part, by its local rank; if it names as many as one needs, they are its own.

    Args:
        environment: of the process.
        place: of the process.
        count: number of GPUs of each process.
        of_host: the variable is that of all processes of the host.

    Raises:
        NetError: the variable names another number of GPUs.

    >>> own_gpus({}, Place("", local_rank=1, local_size=2), 2), own_gpus({GPUS: "5"}, Place("", local_size=4), 1)
    ('2,3', '5')
    """
    text = environment.get(GPUS)
    if text is None:
        first = place.local_rank * count
        return ",".join(map(str, range(first, first + count)))
    named = [name.strip() for name in text.split(",") if name.strip()]
    if len(named) >= place.local_size * count:
        named = named[place.local_rank * count :]
    elif of_host or len(named) != count:
        raise NetError(
            f"{GPUS}={text} in the environment names {counted(len(named), 'GPU')}, and each of the {place.local_size} "
            f"processes of this host needs {count}; name {place.local_size * count}"
        )
    return ",".join(named[:count])


def see_own_gpus(environment: MutableMapping[str, str], place: Place, count: int) -> None:
    """Let a process see its own GPUs alone, see ``own_gpus``; before it uses any."""
    environment[GPUS] = own_gpus(environment, place, count)


def _tasks_here(environment: Mapping[str, str], name: str) -> int:
    """Return the number of tasks on this node from Slurm's list, such as "2(x3),1"; 0 if it cannot be read."""
    counts: list[int] = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", environment[name]):
        counts += [int(count)] * int(times or 1)
    node = environment.get("SLURM_NODEID", "")
    return counts[int(node)] if node.isdecimal() and int(node) < len(counts) else 0


def _started_by(launcher: _Launcher, environment: Mapping[str, str]) -> bool:
    if not environment.get(launcher.rank):
        _warn_of(launcher.rank, environment, "it is empty")
        return False
    has_size = bool(environment.get(launcher.size))
    if launcher.rank == "RANK":
        if not has_size:
            _warn_of("RANK", environment, "WORLD_SIZE is not set, as torchrun would")
        return has_size and (launcher.name == BY_RANK or "TORCHELASTIC_RUN_ID" in environment)
    if launcher.rank == "SLURM_PROCID":
        return has_size
    # srun --mpi=pmi2 sets PMI_RANK, too, without the place on the host
    by_srun = environment.get("SLURM_PROCID") == environment[launcher.rank]
    return launcher.rank != "PMI_RANK" or bool(environment.get(launcher.local_rank)) or not by_srun


def _warn_of(name: str, environment: Mapping[str, str], reason: str) -> None:
    if name in environment and name not in warned:
        warned.add(name)
        _log.warning("%s=%s in the environment is ignored: %s", name, environment[name], reason)


warned = set[str]()


def job_store(environment: Mapping[str, str]) -> Store | None:
    """Return the store that netbuilder-launch serves, without a prefix; None if it has not started this process.

    It is the same one at each call, until it is closed.

    Raises:
        NetError: a variable is wrong.
        DistributedError: the store does not answer: the launcher has ended.
    """
    address = environment.get(STORE)
    if not address or is_of_outer_job(environment):
        return None
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise NetError(f"{STORE} in the environment must be HOST:PORT, got {address!r}")
    key = address, secret_in(environment)
    found = _stores.get(key)
    if found is None or found.closed:
        found = _stores[key] = TcpStore(host, int(port), secret=key[1], connect_timeout=_CONNECT_TIMEOUT)
    return found


_stores: dict[tuple[str, bytes | None], TcpStore] = {}  # of this process, which has one connection to each


def ended_ranks(environment: Mapping[str, str], rank: int, size: int) -> dict[int, int]:
    """Return the ranks of a job of netbuilder-launch that have ended, with their exit statuses.

    None where this process is no rank of one, or has another rank or size there than the given ones.

    Raises:
        DistributedError: the store does not answer: the launcher has ended.
    """
    if not environment.get(RANK) or is_of_outer_job(environment):
        return {}
    place, store = place_in(environment), job_store(environment)
    if store is None or (place.rank, place.size) != (rank, size):
        return {}
    store = store.with_prefix(environment.get(ATTEMPT, "0"))
    if not int(store.peek("ended") or 0):
        return {}
    found = {each: store.peek(f"ended/{each}") for each in range(size)}
    return {each: int(status) for each, status in found.items() if status is not None}
