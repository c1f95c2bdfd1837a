"""Collectives over MPI, in real processes: a few starts, each of which tests much (see tests/mpi_program.py)."""

import os
import sys
from pathlib import Path

import pytest

from mpi_runs import needs_mpi, run_over_mpi
from netbuilder.distributed.transport.mpi import mpi
from netbuilder.proto import DeviceError, DistributedError

PROGRAM = Path(__file__).resolve().parents[2] / "mpi_program.py"


def start(count, function):
    return run_over_mpi(count, PROGRAM, function)


@pytest.mark.one_in(2)
@needs_mpi
@pytest.mark.parametrize(("count", "function"), [(2, "everything"), (3, "three")])
def test_every_operator_and_every_disagreement(count, function):
    code, output, _ = start(count, function)
    assert code == 0, output
    assert all(f"rank {rank} is done" in output for rank in range(count)), output
    assert ("rank 0: Allreduce of 'x'" in output) == (function == "everything"), "rank 1 ends its program: no hang"
    assert ("share the" in output) == (count > (os.cpu_count() or 1)), output


@needs_mpi
def test_ctrl_c_during_a_wait_ends_all_processes():
    code, output, seconds = start(2, "interrupted")
    assert "interrupted after" in output and code != 0, output
    assert seconds < 50, "the other rank sleeps for 60 s"


def test_without_mpi4py_the_error_names_the_extra(monkeypatch):
    mpi.cache_clear()
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(DeviceError, match=r"mpi4py is missing: pip install 'netbuilder-nn\[mpi\]'"):
        mpi()
    monkeypatch.undo()
    mpi.cache_clear()


def test_mpi_without_threads_is_refused(monkeypatch):
    class Library:
        THREAD_SERIALIZED = 2

        @staticmethod
        def Query_thread():
            return 1

    mpi.cache_clear()
    monkeypatch.setitem(sys.modules, "mpi4py", Library)
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", Library)
    with pytest.raises(DistributedError, match="set mpi4py.rc.thread_level = 'serialized'"):
        mpi()
    monkeypatch.undo()
    mpi.cache_clear()
