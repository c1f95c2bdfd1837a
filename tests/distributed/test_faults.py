"""Ranks that fail, hang or are stopped while they train: every job ends soon, and says who and why.

``python tests/fault_runs.py`` tries many more moments than these.
"""

import re
import uuid

import pytest

import fault_runs
import mpi_runs
from fault_program import STEPS
from fault_runs import run_with_faults
from mpi_runs import JobHangs, needs_mpi, run_over_mpi

SOON = (
    15.0  # seconds from a fault to the end of the job, after the time limit, on a machine that does other things, too
)
BY = [pytest.param(False, id="mpiexec"), pytest.param(True, id="netbuilder-launch", marks=pytest.mark.slow)]
"""What starts the processes. In short the launcher has other faults, and those of test_launcher."""


@pytest.mark.one_in(8)
@needs_mpi
@pytest.mark.parametrize(
    "faults, options",
    [
        (["slow@3", "hang@6"], {"limit": 3.0}),
        (["stop@5.3"], {"launcher": True, "rank": 0, "limit": 1.0}),
        (["stuck@5"], {"launcher": True, "limit": 1.0}),
        (["loader@5"], {"launcher": True}),
        (["disk@4"], {"rank": 0}),
        (["kill@4.5"], {"rank": 0}),
        (["kill-sum@6"], {"launcher": True, "rank": 0}),
        (["stop-sum@6"], {"limit": 1.0}),
        (["never@0"], {"launcher": True, "first": 1.5}),
    ],
    ids=str,
)
def test_a_job_with_a_fault_ends(faults, options, tmp_path):
    found = run_with_faults(tmp_path, *faults, **options)
    assert not found.wrong(*(each.partition("@")[0] for each in faults)), found.text
    assert found.seconds < options.get("limit", 2.0) + SOON, found.text
    assert "has finished\n" not in found.text


@needs_mpi
@pytest.mark.parametrize("launcher", BY)
def test_a_rank_that_is_stopped_at_the_end_ends_the_job(launcher, tmp_path):
    """The others wait for it without a limit as long as it answers."""
    found = run_with_faults(tmp_path, f"stop@{STEPS}", launcher=launcher, limit=1.0)
    assert found.status not in (0, None) and found.seconds < 1.0 + SOON, found.text
    assert "in the end of the program; missing: rank 1 does not answer" in found.text
    assert re.search(r"; it has begun \w+ of '.*, as all ranks have", found.text), found.text
    assert "rank 1 has finished" not in found.text


@needs_mpi
@pytest.mark.parametrize("launcher", BY)
def test_no_process_of_a_job_that_hangs_is_left(launcher, tmp_path, monkeypatch):
    """One of them is stopped, so that a signal that can be caught does not end it."""
    own = uuid.uuid4()
    monkeypatch.setattr(mpi_runs.uuid, "uuid4", lambda: own)
    program = tmp_path / "stopped.py"
    program.write_text("import os, signal, time; print('here', flush=True)\nos.kill(os.getpid(), signal.SIGSTOP)\n")
    with pytest.raises(JobHangs, match=r"stopped\.py  ?hangs: .*"):
        run_over_mpi(2, program, launcher=launcher, timeout=3)
    assert not mpi_runs.marked_processes(f"{mpi_runs.MARK}={own.hex}")  # tests that run at the same time have others


@needs_mpi
@pytest.mark.slow
def test_runs_with_faults_count_a_job_that_hangs(capsys):
    """The time limit of an exchange is far away: the runs kill the job, and go on to the next fault."""
    options = ["--times=1", "--by=mpiexec", "--limit=200", "--timeout=30"]
    assert fault_runs.main(["--faults", "hang@2", "raise@2", *options]) == 1
    said = capsys.readouterr().out
    assert re.search(r"hang@2 of rank \d: the job did not end, and was killed \d+ s after the fault", said), said
    assert re.search(r"^hang@2, 2, mpiexec: .*; 0 of 1$", said, re.M), said
    assert re.search(r"^raise@2, 2, mpiexec: .*; 1 of 1$", said, re.M), said


def test_faults_that_do_not_exist_are_refused(capsys):
    for given in ("stopp", "stop@", "stop@end"):
        with pytest.raises(SystemExit):
            fault_runs.main(["--faults", given])
        assert f"or FAULT@STEP, got '{given}'" in capsys.readouterr().err
