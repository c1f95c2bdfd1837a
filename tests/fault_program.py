"""Training in which one rank has faults: ``fault_program.py FOLDER RANK FAULT@STEP...``, in each process.

Steps may be fractions: a signal comes so much of 20 ms after the step has begun; step 12 is the end of the program.
"kill-sum" and "stop-sum" come in the middle of a sum of gradients. The time of the last fault is written to FOLDER.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from netbuilder import ModelHelper, Workspace, parallel, save_checkpoint
from netbuilder.distributed import Rendezvous
from netbuilder.distributed.transport import mpi as over_mpi
from netbuilder.distributed.transport.host_sums import HostSums
from netbuilder.distributed.transport.mpi import MpiCommunicator
from parallel_models import OPTIMIZERS, no_input
from toy_models import mlp

__all__ = ["STEPS"]

STEPS = 12
LIMIT = float(os.environ.get("NETBUILDER_COLLECTIVE_TIMEOUT") or 60)
HANG = 300.0
_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


class Faults:
    """The faults of this rank, by the step."""

    def __init__(self, folder: Path, given: list[str]) -> None:
        self.folder = folder
        self.at = {float(step): fault for fault, step in (each.split("@") for each in given)}

    def note(self) -> None:
        (self.folder / "fault").write_text(repr(time.monotonic()))

    def due(self, step: int, *among: str) -> Iterator[float]:
        """Yield the moments of this step's faults of some kinds, having noted the time."""
        for moment, fault in self.at.items():
            if int(moment) == step and fault in among:
                self.note()
                yield moment - step

    def before_start(self) -> None:
        for _ in self.due(0, "never"):
            time.sleep(HANG)

    def in_loader(self, step: int) -> None:
        for _ in self.due(step, "loader"):
            raise ValueError("a broken image")

    def in_step(self, step: int) -> None:
        for name, number in _SIGNALS.items():
            for delay in self.due(step, name):
                if step == STEPS:  # the program would end before a timer
                    os.kill(os.getpid(), number)
                threading.Timer(0.02 * delay, os.kill, (os.getpid(), number)).start()
            for _ in self.due(step, f"{name}-sum"):
                HostSums._add_own = lambda *_, number=number: (os.kill(os.getpid(), number), this_never_ends())
        for _ in self.due(step, "slow"):
            time.sleep(0.65 * LIMIT)
        for _ in self.due(step, "hang"):
            this_never_ends()
        for _ in self.due(step, "stuck"):
            MpiCommunicator._allreduce = lambda *_: time.sleep(HANG)  # as a call of MPI that does not return
        for _ in self.due(step, "raise"):
            raise ValueError("an error of this rank")
        for _ in self.due(step, "exit"):
            sys.exit(3)

    def before_save(self, step: int) -> None:
        for _ in self.due(step, "disk"):
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))  # as a full disk: few bytes more


def this_never_ends() -> None:
    time.sleep(HANG)


def batches(faults: Faults) -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(3)
    for step in range(STEPS):
        faults.in_loader(step)
        yield {"data": rng.normal(size=(24, 6)).astype(np.float32), "label": rng.integers(0, 4, 24).astype(np.int32)}


def main(folder: Path, rank: int, given: list[str]) -> None:
    place = Rendezvous.from_environment()
    faults = Faults(folder, given if place.shard_id == rank else [])
    faults.before_start()
    if any("-sum@" in each for each in given):
        over_mpi.LEAST_BYTES = 0  # the ranks add all gradients without MPI
    model, workspace = ModelHelper("net"), Workspace(threads=2, seed=0)
    update = OPTIMIZERS["momentum"]
    parallel.Parallelize_CPU(model, no_input, mlp, devices=[0], rendezvous=place, optimizer_builder_fun=update)
    parallel.RunInitNet(model, workspace=workspace)
    with parallel.prefetch(model, batches(faults), blobs=["data", "label"], workspace=workspace) as steps:
        for step, _ in enumerate(steps):
            faults.in_step(step)
            parallel.RunNet(model, workspace=workspace)
            if place.shard_id == 0:
                faults.before_save(step)
                save_checkpoint(folder / "last.minidb", model, workspace=workspace)
    faults.in_step(STEPS)
    print(f"rank {place.shard_id} has finished", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
