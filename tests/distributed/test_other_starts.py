"""Starts by programs that are no part of netbuilder's environment: torchrun, Ray and Slurm; each trains as one process.

``PEER_PYTHON`` names an interpreter with torch, ``RAY_PYTHON`` one with Ray, of the same version as this one. Of Slurm
the test needs a cluster on which jobs see the folders of this machine: ``slurmctld`` and a ``slurmd`` suffice.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import store_started
from launched import free_port
from mpi_runs import environment, needs_mpi
from netbuilder.distributed.launch.installed_mpi import installed_mpi
from netbuilder.distributed.stores.secret import SECRET
from parallel_models import distance

PROGRAM = (sys.executable, store_started.__file__)
needs_torch = pytest.mark.skipif("PEER_PYTHON" not in os.environ, reason="PEER_PYTHON names no interpreter with torch")
needs_ray = pytest.mark.skipif("RAY_PYTHON" not in os.environ, reason="RAY_PYTHON names no interpreter with Ray")
needs_slurm = pytest.mark.skipif(
    shutil.which("sinfo") is None or subprocess.run(["sinfo"], capture_output=True).returncode != 0,
    reason="no Slurm cluster here",
)
pytestmark = [needs_mpi, pytest.mark.slow]

RAY = """
import os, sys
import ray

@ray.remote(num_cpus=0)
class Trainer:
    def train(self, folder, **variables):
        os.environ.update(variables)
        import numpy as np
        from netbuilder.distributed import Rendezvous
        from store_started import parameters
        place = Rendezvous.from_environment()
        np.savez(f"{folder}/{place.shard_id}.npz", **parameters(place))

ray.init(num_cpus=2, include_dashboard=False, log_to_driver=True)
folder, port = sys.argv[1:]
shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
trainers = [Trainer.remote() for _ in range(2)]
ray.get([each.train.remote(folder, RANK=str(rank), LOCAL_RANK=str(rank), **shared)
         for rank, each in enumerate(trainers)])
"""


@pytest.fixture(scope="module")
def alone():
    """The parameters after training on two devices of one process."""
    if installed_mpi().is_open_mpi:
        pytest.skip("Open MPI does not start over a store")
    return store_started.parameters(None, range(2))


def check(folder: Path, alone: dict[str, np.ndarray], command: Sequence[str], **variables: str) -> None:
    """Run a command that trains in two processes, and compare what they leave in the folder."""
    done = subprocess.run(
        command, env=environment(**variables), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    for rank in range(2):
        got = dict(np.load(folder / f"{rank}.npz"))
        assert distance([got[name] for name in alone], list(alone.values())) < 1e-6


@needs_torch
def test_torchrun(tmp_path, alone):
    torchrun = [os.environ["PEER_PYTHON"], "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    check(tmp_path, alone, [*torchrun, "--no-python", *PROGRAM, str(tmp_path)])


@needs_ray
def test_actors_of_ray(tmp_path, alone):
    command = [os.environ["RAY_PYTHON"], "-c", RAY, str(tmp_path), str(free_port())]
    patience = {"RAY_raylet_start_wait_time_s": "200"}
    check(tmp_path, alone, command, LD_LIBRARY_PATH=f"{sys.prefix}/lib", **patience)  # MPI is in this environment only


@needs_slurm
@pytest.mark.parametrize("manager", ["none", "pmi2"])
@pytest.mark.parametrize("batch", [False, True], ids=["srun", "sbatch"])
def test_slurm(batch, manager, tmp_path, alone):
    """By MPI's process manager in Slurm, and without one: then the processes meet in a store that rank 0 serves."""
    command = ["srun", "--ntasks=2", f"--mpi={manager}", "--kill-on-bad-exit=1", *PROGRAM, str(tmp_path)]
    if batch:
        script = tmp_path / "job.sh"
        script.write_text(f"#!/bin/sh\n{shlex.join(command)}\n")
        command = ["sbatch", "--wait", "--ntasks=2", str(script)]
    check(tmp_path, alone, command, **{SECRET: "a secret of 16 bytes or more"})
