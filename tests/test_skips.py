"""A run says why tests were skipped, and fails with ``--complete`` for most reasons."""

import subprocess
import sys

import pytest

from house import ROOT
from skips import not_allowed

ALLOWED = "needs CuPy and NVIDIA GPUs, 2 or more; found 0"
SKIPS = """
import pytest


@pytest.mark.parametrize("number", range(3))
def test_of_a_tool(number):
    pytest.skip({reason!r})


@pytest.mark.skipif(True, reason={allowed!r})
def test_of_gpus():
    raise AssertionError


def test_that_runs():
    pass
"""


def run(folder, reason, *options):
    """Run the tests above with the settings of this project's tests, whatever the number of processes."""
    (folder / "test_some.py").write_text(SKIPS.format(reason=reason, allowed=ALLOWED))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-n",
        "2",
        "-p",
        "no:cacheprovider",
        "-p",
        "conftest",
        "--rootdir",
        folder,
    ]
    done = subprocess.run([*command, *options, folder], capture_output=True, text=True, cwd=ROOT / "tests")
    return done.returncode, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reason", "options", "status"),
    [("no server here", (), 0), ("no server here", ("--complete", "-n", "2"), 1), (ALLOWED, ("--complete",), 0)],
)
def test_a_run_ends_with_the_reasons(tmp_path, reason, options, status):
    found, text = run(tmp_path, reason, *options)
    assert found == status, text
    _, _, summary = text.partition("skipped, by reason")
    counts = {ALLOWED: 4} if reason == ALLOWED else {reason: 3, ALLOWED: 1}
    assert [f"{count:6}  {each}" for each, count in counts.items()] == summary.splitlines()[1 : 1 + len(counts)]
    assert ("not allowed with --complete" in text) == (status == 1)


def test_what_is_allowed_is_matched_whole():
    assert not_allowed([ALLOWED, f"{ALLOWED}, or a browser", "needs a browser"]) == [
        f"{ALLOWED}, or a browser",
        "needs a browser",
    ]
