"""Training in several processes, which are started once for all entries of a table; and the program of each of them."""

from __future__ import annotations

import faulthandler
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from netbuilder.distributed import Rendezvous
from netbuilder.distributed.launch import Job, launch
from netbuilder.graph.memory_budget import MemoryBudgetError
from netbuilder.proto import DistributedError
from netbuilder.proto.errors import counted
from netbuilder.tools.proof.measure import Values
from netbuilder.tools.proof.table import Run

__all__ = ["main", "trained_in_processes"]

_SECONDS = 120  # for one training, after which a process ends with the stacks of its threads, and all others with it


def trained_in_processes(
    processes: int, runs: Sequence[Run], steps: int, options: Mapping[str, Any]
) -> list[list[Values]]:
    """Start processes that train all runs; return for each run the parameters of each process by name.

    A run has none if the memory budget is too small for its model. It must be called from the main thread.

    Args:
        processes: how many, two or more.
        runs: what they train together, one after the other.
        steps: number of batches.
        options: further arguments of Parallelize.

    Raises:
        DeviceError: mpi4py, or MPI, is missing.
        DistributedError: a process has failed, or a run has taken longer than two minutes.
    """
    with tempfile.TemporaryDirectory(prefix="netbuilder-prove-") as folder:
        order = {"runs": runs, "steps": steps, "options": dict(options)}
        (Path(folder) / "order.json").write_text(json.dumps(order), encoding="utf-8")
        command = [sys.executable, "-m", "netbuilder.tools.proof.processes", folder]
        if status := launch(Job(command, processes, engine="MPI", threads=1)):
            raise DistributedError(
                f"{counted(processes, 'process', 'processes')} that train together have failed, with status {status}; "
                "what they have written is above"
            )
        return [_stored(Path(folder), number, processes) for number in range(len(runs))]


def _stored(folder: Path, number: int, processes: int) -> list[Values]:
    paths = [_path(folder, number, rank) for rank in range(processes)]
    return [dict(np.load(path)) for path in paths if path.exists()]


def _path(folder: Path, number: int, rank: int) -> Path:
    return folder / f"{number}.{rank}.npz"


def main(arguments: Sequence[str]) -> int:
    """Train, as one of the processes that ``trained_in_processes`` starts; ``arguments`` are the folder of a job."""
    folder = Path(arguments[0])
    order = json.loads((folder / "order.json").read_text(encoding="utf-8"))
    place = Rendezvous.from_environment()
    for number, run in enumerate(order["runs"]):
        faulthandler.dump_traceback_later(_SECONDS, exit=True)
        try:
            found = Run(*run).trained(order["steps"], {**order["options"], "rendezvous": place})
        except MemoryBudgetError:
            continue
        np.savez(_path(folder, number, place.shard_id), **found)
    faulthandler.cancel_dump_traceback_later()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
