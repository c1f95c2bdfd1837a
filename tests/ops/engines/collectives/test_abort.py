"""A process that fails ends the job under plain mpiexec, where the others would wait for ever."""

import os
import subprocess
import sys

import pytest

from house import ROOT
from netbuilder.launch.installed_mpi import installed_mpi
from netbuilder.ops.engines.collectives import abort
from netbuilder.proto import DeviceError

try:
    MPI = installed_mpi()
except DeviceError:
    MPI = None

PROGRAM = """
import sys, threading, time
from mpi4py import MPI
from netbuilder.ops.engines.collectives.abort import install
world = MPI.COMM_WORLD
install(world.rank, world.size, world.Abort)
if world.rank == 1:
    if sys.argv[1] == "raise":
        raise ValueError("this rank fails")
    if sys.argv[1] == "exit":
        sys.exit(3)
    if sys.argv[1] == "SystemExit":
        try:
            raise SystemExit(7)
        except SystemExit as error:
            assert error.code == 7  # a program that reads it does not end
        raise SystemExit(4)
    threading.Thread(target=lambda: 1 // 0, name="loader").start()
world.Barrier()
time.sleep(60 if sys.argv[1] == "thread" else 0)
"""


@pytest.mark.skipif(MPI is None, reason="needs mpi4py with an MPI library")
@pytest.mark.parametrize(
    "mode, status, said",
    [
        ("raise", 1, "rank 1 of 2: uncaught exception, which ends the job\nTraceback"),
        ("exit", 3, "rank 1 of 2: sys.exit(3), which ends the job"),
        ("SystemExit", 4, "rank 1 of 2: sys.exit(4), which ends the job"),
        ("thread", 1, "rank 1 of 2: uncaught exception in thread 'loader', which ends the job\nTraceback"),
    ],
)
def test_a_failure_ends_the_job(mode, status, said, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [*MPI.command(2), sys.executable, str(tmp_path / "program.py"), mode]
    environment = os.environ | MPI.environment() | {"PYTHONPATH": str(ROOT)}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=50)
    assert run.returncode == status, run.stderr
    assert said in run.stderr


def test_a_single_process_is_left_alone():
    before = sys.excepthook, sys.exit
    abort.install(0, 1, os._exit)
    assert (sys.excepthook, sys.exit) == before
