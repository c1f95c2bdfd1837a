"""A rank of netbuilder-launch that leaves with status 0 before its first check ends the others in seconds, by name."""

import os
import re
import subprocess
import sys

import pytest

from house import ROOT
from netbuilder.distributed.transport import launchers

PROGRAM = """
import os, sys, time
from netbuilder.distributed.transport import launchers
from netbuilder.distributed import Rendezvous, preflight
rendezvous = Rendezvous.from_environment()
assert launchers.job_store(os.environ) is rendezvous.store  # one connection a process
if rendezvous.shard_id == 1:
    exec(sys.argv[1])
begin = time.monotonic()
try:
    preflight(rendezvous, name="first", timeout=100)
finally:
    print(f"after {time.monotonic() - begin:.3f} s", flush=True)
"""


@pytest.mark.one_in(2)
@pytest.mark.parametrize("leave", ["sys.exit(0)", "os._exit(0)"])
def test_a_rank_that_leaves_before_the_first_check(leave, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-m", "netbuilder.tools.launch", "-n", "2", "--engine", "NCCL", str(tmp_path / "program.py"),
         leave], env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=90,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert "preflight: rank 1 (status 0) of 2 ended before having come to this check of all processes" in done.stderr
    (seconds,) = re.findall(r"after ([\d.]+) s", done.stdout)
    assert float(seconds) < 5


def test_other_processes_know_of_no_ended_ranks():
    assert launchers.ended_ranks({}, 0, 2) == {}
    assert launchers.ended_ranks({"PMI_RANK": "0", "PMI_SIZE": "2"}, 0, 2) == {}
