"""A process that fails ends the job under plain mpiexec, where the others would wait for ever."""

import os
import socket
import subprocess
import sys

import pytest

from house import ROOT
from netbuilder.distributed.failure import abort
from netbuilder.distributed.launch.installed_mpi import installed_mpi
from netbuilder.distributed.transport.mpi_abort import abort_mpi
from netbuilder.proto import DeviceError

try:
    MPI = installed_mpi()
except DeviceError:
    MPI = None

PROGRAM = """
import sys, threading, time
from mpi4py import MPI
from netbuilder.distributed.failure.abort import install
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


BEFORE_MPI = """
import os, subprocess, sys, threading, time
import netbuilder
from netbuilder.distributed.transport.launchers import place_in
rank = place_in(os.environ).rank
if rank == 1:
    time.sleep(1)  # mpiexec of Open MPI 5.0.11 may hang if another process starts MPI at this moment
    if sys.argv[1] == "raise":
        raise ValueError("this rank fails")
    if sys.argv[1] == "exit":
        sys.exit(3)
    # What ends no job: another process that fails, and an exception in a thread before the first common world.
    program = [sys.executable, "-c", "import netbuilder, sys; sys.exit(5)"]
    assert [subprocess.run(program, close_fds=close).returncode for close in (True, False)] == [5, 5]
    if os.fork() == 0:
        sys.exit(6)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 6
    threading.excepthook = lambda args: None
    threading.Thread(target=lambda: 1 // 0, name="loader").start()
from mpi4py import MPI
MPI.COMM_WORLD.Barrier()
"""

WITH_A_WORLD = """
import sys, time
from netbuilder import Workspace
from netbuilder.proto.arguments import make_op
workspace = Workspace()
workspace.run_operator_once(make_op("CreateCommonWorld", [], ["world"]))
if workspace.fetch("world").rank == 1:
    sys.exit(3)
time.sleep(100)
"""


NO_WORLD = """
import os
from netbuilder.distributed import ProcessGroup, Rendezvous
place = Rendezvous.from_environment()
if place.shard_id == 1:
    os._exit(0)
ProcessGroup(place)
"""


def run_in_two(program, folder, *arguments, by=None):
    (folder / "program.py").write_text(program)
    started = [*MPI.command(2), sys.executable] if by is None else by
    command = [*started, str(folder / "program.py"), *arguments]
    environment = os.environ | MPI.environment() | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=50)


@pytest.mark.one_in(4)
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
    run = run_in_two(PROGRAM, tmp_path, mode)
    assert run.returncode == status, run.stderr
    assert said in run.stderr


@pytest.mark.one_in(4)
@pytest.mark.skipif(MPI is None, reason="needs mpi4py with an MPI library")
@pytest.mark.parametrize("mode, status", [("raise", 1), ("exit", 3), ("nothing", 0)])
def test_a_failure_before_mpi_is_initialized_ends_the_job(mode, status, tmp_path):
    """The other process waits in MPI's initialization meanwhile."""
    run = run_in_two(BEFORE_MPI, tmp_path, mode)
    assert run.returncode == status, run.stderr
    assert ("ValueError: this rank fails" in run.stderr) == (mode == "raise")


@pytest.mark.one_in(2)
@pytest.mark.skipif(MPI is None or MPI.is_open_mpi, reason="needs mpi4py with MPICH")
@pytest.mark.parametrize("launcher", ["mpiexec", "netbuilder-launch"])
def test_a_process_that_ends_well_before_mpi_ends_the_job(launcher, tmp_path):
    """The others wait for it in MPI's initialization, which would end after 10 minutes."""
    by = [sys.executable, "-m", "netbuilder.tools.launch", "-n", "2"] if launcher == "netbuilder-launch" else None
    run = run_in_two(NO_WORLD, tmp_path, by=by)
    assert run.returncode == 1, run.stderr
    if by:
        assert "CreateCommonWorld: rank 1 of 2 has ended without one" in run.stderr
    else:
        assert "rank 0: MPI cannot start, as rank 1 ended without starting it; the job ends" in run.stderr


@pytest.mark.skipif(MPI is None, reason="needs mpi4py with an MPI library")
def test_an_exit_with_a_status_does_not_wait_for_ranks_that_compute(tmp_path):
    assert run_in_two(WITH_A_WORLD, tmp_path).returncode == 3


def test_a_single_process_is_left_alone():
    before = sys.excepthook, sys.exit
    abort.install(0, 1, os._exit)
    assert (sys.excepthook, sys.exit) == before


def test_a_process_that_no_manager_has_started_is_left_alone(monkeypatch):
    before = sys.excepthook, sys.exit
    ours, other = socket.socketpair()
    with ours, other, open(os.devnull) as file:  # the other end belongs to this process, not to its parent
        for number in ("", "x", "99999", str(file.fileno()), str(ours.fileno())):
            for name, value in {"PMI_FD": number, "PMI_RANK": "0", "PMI_SIZE": "2"}.items():
                monkeypatch.setenv(name, value)
            abort.install_before_mpi()
            abort_mpi(3)
    assert (sys.excepthook, sys.exit) == before
