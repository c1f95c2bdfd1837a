"""Commands with too little memory, or that may write too little: one line that says so, and nothing left behind."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from command_lines import VALID
from house import ROOT

RUN = """
import importlib, resource, sys
from pathlib import Path
command = importlib.import_module(f"netbuilder.tools.{sys.argv[1]}")
kind, limit = getattr(resource, sys.argv[2]), int(sys.argv[3])
if kind == resource.RLIMIT_AS:  # beyond what is mapped by now
    limit += int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(kind, (limit, limit))
sys.exit(command.main(sys.argv[4:]))
"""
MIB = 1 << 20
OF_A_LIBRARY = "OpenBLAS|libgomp|terminate called|runtime error"  # it ends the process; oneDNN says no more
WORDS = re.compile(rf"not enough memory|memory allocation|cannot allocate memory|{OF_A_LIBRARY}", re.IGNORECASE)


def limited(command, kind, limit):
    line = [sys.executable, "-c", RUN, command, kind, str(limit), *VALID[command]]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",  # under a limit of the size of files Python leaves half of it
    }
    return subprocess.run(line, env=environment, capture_output=True, text=True, timeout=120)


@pytest.mark.one_in(4)
@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
@pytest.mark.parametrize(
    "command, mebibytes",
    [
        ("predict", 1),
        ("profile", 1),
        ("predict", 8),
        *(
            pytest.param(command, size, marks=pytest.mark.slow)
            for command in ("extract_predictor_net", "predict", "profile", "simulate", "seq2seq", "compare", "char_lm")
            for size in (1, 4, 16, 32, 64)
        ),
    ],
)
def test_short_of_memory(command, mebibytes, place):
    ended = limited(command, "RLIMIT_AS", mebibytes * MIB)
    assert "Traceback" not in ended.stderr, ended.stderr
    assert "pip install" not in ended.stderr, ended.stderr
    assert ended.returncode == 0 or WORDS.search(ended.stderr), ended.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
@pytest.mark.parametrize(
    "command, output", [("extract_predictor_net", "again"), pytest.param("char_lm", "lm", marks=pytest.mark.slow)]
)
def test_a_folder_that_nothing_could_be_written_into_is_removed(command, output, place):
    ended = limited(command, "RLIMIT_FSIZE", 100)
    assert ended.returncode != 0 and "Traceback" not in ended.stderr, ended.stderr
    assert "File too large" in ended.stderr, ended.stderr
    assert not Path(output).exists()
