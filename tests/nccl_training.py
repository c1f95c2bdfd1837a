"""The program of processes that train models of process_training over emulated GPUs, by NCCL: without MPI.

``nccl_training.py FOLDER GPUS``: each process has so many GPUs, and stores what it has trained.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import numpy as np

import emulated_gpu
from nccl_double.processes import NcclOfProcesses
from netbuilder import parallel
from netbuilder.ops.engines import nccl
from netbuilder.parallel.distributed import ProcessGroup, Rendezvous
from netbuilder.runtime import Workspace
from process_training import CASES, build_case, results, train_steps

__all__ = ["NAMES", "on_gpus", "take_gpus"]

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


def on_gpus(name: str):
    return dataclasses.replace(CASES[name], on_gpus=True)


def take_gpus() -> None:
    """Let this process use the emulated GPUs, which exchange values with those of other processes: without MPI."""
    assert "mpi4py" not in sys.modules
    emulated_gpu.install()
    double = NcclOfProcesses()
    nccl._module = lambda: double


def main() -> None:
    folder, count = Path(sys.argv[1]), int(sys.argv[2])
    place = Rendezvous.from_environment()
    assert place.engine == "NCCL"
    take_gpus()
    group = ProcessGroup(place)
    assert group.sum(place.shard_id, 1.5) == [sum(range(group.size)), 1.5 * group.size]
    assert group.broadcast({"epoch": 3} if group.is_first else None) == {"epoch": 3}
    for name in NAMES:
        case = on_gpus(name)
        model, record = build_case(case, count, place)
        workspace = Workspace(threads=2, seed=0 if case.same_seed else place.shard_id)
        parallel.RunInitNet(model, workspace=workspace)
        train_steps(case, model, record, workspace, True)
        np.savez(folder / f"{name} {place.shard_id}.npz", **results(record, workspace))
    created = len(nccl.nccl().created) if place.shard_id == 0 else 0
    assert "mpi4py" not in sys.modules
    print(f"rank {place.shard_id} has finished, communicators of {created} ids")


if __name__ == "__main__":
    main()
