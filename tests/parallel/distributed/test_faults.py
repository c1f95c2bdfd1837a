"""Ranks that fail, hang or are stopped while they train: every job ends soon, and says who and why.

``python tests/fault_runs.py`` tries many more moments than these.
"""

import re

import pytest

from fault_program import STEPS
from fault_runs import run_with_faults
from mpi_runs import needs_mpi

SOON = (
    15.0  # seconds from a fault to the end of the job, after the time limit, on a machine that does other things, too
)


@needs_mpi
@pytest.mark.parametrize(
    "faults, options",
    [
        (["slow@3", "hang@6"], {"limit": 4.0}),
        (["stop@5.3"], {"launcher": True, "rank": 0}),
        (["stuck@5"], {"launcher": True}),
        (["loader@5"], {"launcher": True}),
        (["disk@4"], {"rank": 0}),
        (["kill@4.5"], {"rank": 0}),
        (["never@0"], {"launcher": True, "first": 3.0}),
    ],
    ids=str,
)
def test_a_job_with_a_fault_ends(faults, options, tmp_path):
    found = run_with_faults(tmp_path, *faults, **options)
    assert not found.wrong(*(each.partition("@")[0] for each in faults)), found.text
    assert found.seconds < options.get("limit", 2.0) + SOON, found.text
    assert "has finished\n" not in found.text


@needs_mpi
@pytest.mark.parametrize("launcher", [False, True], ids=["mpiexec", "netbuilder-launch"])
def test_a_rank_that_is_stopped_at_the_end_ends_the_job(launcher, tmp_path):
    """The others wait for it without a limit as long as it answers."""
    found = run_with_faults(tmp_path, f"stop@{STEPS}", launcher=launcher)
    assert found.status not in (0, None) and found.seconds < 2.0 + SOON, found.text
    assert "in the end of the program; missing: rank 1 does not answer" in found.text
    assert re.search(r"; it has begun \w+ of '.*, as all ranks have", found.text), found.text
    assert "rank 1 has finished" not in found.text
