"""Forked processes: nets, queues, readers and loaders of the parent work in the child, or say what to do."""

import multiprocessing
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from waiting import HANG

CASES = Path(__file__).with_name("fork_cases.py")
ROOT = CASES.parents[3]

pytestmark = pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork on this system")


@pytest.mark.one_in(12)
@pytest.mark.parametrize("case", re.findall(r"^def (\w+)\(folder\)", CASES.read_text(encoding="utf-8"), re.MULTILINE))
def test_fork(case, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "2"}
    # Python 3.12 and later warn of any fork of a process with threads, which is tested here.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", str(CASES), case, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 0, done.stderr
