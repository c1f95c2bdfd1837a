"""Several processes train what one does: real ones, started by mpiexec."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import process_training
from parallel_models import distance
from process_training import CASES, CASES_OF_FOUR, DEVICES, train_case

pytest.importorskip("mpi4py")

MPIEXEC = shutil.which("mpiexec", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
AS_ROOT = {  # Open MPI refuses root, and more processes than cores, without
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}
SECONDS = 120  # for all cases of a start


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A function that returns what rank 0 of so many processes has after a case; they are started once."""
    folders = {}

    def start(processes):
        for _ in range(2):  # MPICH's mpiexec itself fails now and then on a busy machine
            folders[processes] = folder = tmp_path_factory.mktemp("trained")
            program = [sys.executable, process_training.__file__, str(folder)]
            command, environment = [str(MPIEXEC), "-n", str(processes), *program], {**os.environ, **AS_ROOT}
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS)
            if "process manager error" not in done.stderr:
                break
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.count("has finished") == processes

    def load(processes, name):
        if processes not in folders:
            start(processes)
        return dict(np.load(folders[processes] / f"{name}.npz"))

    return load


@pytest.fixture(scope="module")
def alone():
    """A function that returns what one process has after a case."""
    found = {}

    def train(name):
        if name not in found:
            found[name] = train_case(CASES[name], DEVICES)[-1]
        return found[name]

    return train


@pytest.mark.skipif(MPIEXEC is None, reason="there is no mpiexec")
@pytest.mark.parametrize(
    "processes, name", [(2, name) for name in CASES] + [(4, name) for name in CASES_OF_FOUR], ids=str
)
def test_processes_get_the_parameters_of_one(processes, name, trained, alone):
    got, want = trained(processes, name), alone(name)
    assert got.keys() == want.keys()
    assert distance([got[each] for each in want], list(want.values())) < 1e-6
    for each, value in want.items():
        if not ("bn_s" in want and each == "conv_b"):  # its gradient is zero, but for rounding
            assert distance([got[each]], [value]) < 1e-6, each
