"""The program of processes that train models of process_training over emulated GPUs, by NCCL: without MPI.

``nccl_training.py FOLDER GPUS``: each process has so many GPUs, and stores what it has trained.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from mpi_runs import environment
from nccl_double.processes import NcclOfProcesses
from netbuilder.distributed import ProcessGroup, Rendezvous
from netbuilder.engines import nccl
from process_training import CASES, train_case

__all__ = ["NAMES", "launched", "on_gpus", "take_gpus"]

NAMES = (
    "dense",
    "dense, each gradient alone, in the order of ranks",
    "convnet",
    "normalization over all",
    "normalization over all, uneven",
    "plain normalization",
    "dropout",
    "tables inside, uneven",
    "uneven",
    "micro-batches",
    "updates on one device",
)
"""The cases that are trained."""


def launched(folder: Path, processes: int, program: str, *arguments: object) -> subprocess.Popen[str]:
    """Start a program in processes with emulated GPUs, where MPI is not installed; return what started them.

    Args:
        folder: for files of the start.
        program: a Python file that calls ``take_gpus``.
    """
    (folder / "mpi4py").mkdir(exist_ok=True)
    (folder / "mpi4py" / "__init__.py").write_text("raise ImportError('mpi4py is not installed here')\n")
    variables = environment()
    variables["PYTHONPATH"] = os.pathsep.join([str(folder), variables["PYTHONPATH"]])
    command = [sys.executable, "-m", "netbuilder.tools.launch", "-n", str(processes), "--engine", "NCCL"]
    command += ["-m", "emulated_gpu", program, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=variables)


def on_gpus(name: str):
    return dataclasses.replace(CASES[name], on_gpus=True)


def take_gpus() -> None:
    """Let the emulated GPUs exchange values with those of other processes: without MPI."""
    assert "mpi4py" not in sys.modules
    double = NcclOfProcesses()
    nccl.nccl_module = lambda: double


def main() -> None:
    folder, count = Path(sys.argv[1]), int(sys.argv[2])
    place = Rendezvous.from_environment()
    assert place.engine == "NCCL"
    take_gpus()
    group = ProcessGroup(place)
    assert group.sum(place.shard_id, 1.5) == [sum(range(group.size)), 1.5 * group.size]
    assert group.broadcast({"epoch": 3} if group.is_first else None) == {"epoch": 3}
    for name in NAMES:
        *_, values = train_case(on_gpus(name), count, place)
        np.savez(folder / f"{name} {place.shard_id}.npz", **values)
    created = len(nccl.nccl().created) if place.shard_id == 0 else 0
    assert "mpi4py" not in sys.modules
    print(f"rank {place.shard_id} has finished, communicators of {created} ids")


if __name__ == "__main__":
    main()
