"""Programs that tests run in several processes over MPI, by mpiexec or by netbuilder-launch."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

__all__ = ["MARK", "JobHangs", "MPIEXEC", "environment", "marked_processes", "needs_mpi", "run_over_mpi"]

TESTS = Path(__file__).resolve().parent
MPIEXEC = shutil.which("mpiexec", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))

MARK = "NETBUILDER_TEST_JOB"

_OPEN_MPI = {  # it refuses root, and more processes than cores, without
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}

needs_mpi = pytest.mark.skipif(
    MPIEXEC is None or find_spec("mpi4py") is None,
    reason="mpi4py or mpiexec is missing: pip install 'netbuilder-nn[mpi]'",
)


def environment(**more: str) -> dict[str, str]:
    """Return the environment of the processes."""
    path = os.pathsep.join([str(TESTS), *filter(None, sys.path)])
    return {**os.environ, **_OPEN_MPI, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **more}


class JobHangs(AssertionError):
    """A job has not ended in time; all its processes have been killed.

    Args:
        text: what it has printed.
    """

    def __init__(self, job: str, text: str) -> None:
        super().__init__(f"{job} hangs: {text}")
        self.text = text


def run_over_mpi(
    count: int, program: str | Path, *arguments: str, launcher: bool = False, timeout: float = 120, **variables: str
) -> tuple[int, str, float]:
    """Run a program in so many processes; return the exit status, what they print, and the seconds.

    No process of the job is left.

    Args:
        count: the number of processes.
        program: a Python file.
        arguments: its arguments.
        launcher: by netbuilder-launch in place of mpiexec.
        timeout: seconds until it is a failure that the job has not ended.
        variables: of the environment.

    Raises:
        JobHangs: it has not.
    """
    by = [sys.executable, "-m", "netbuilder.tools.launch"] if launcher else [str(MPIEXEC)]
    command = [*by, "-n", str(count), *([] if launcher else [sys.executable]), str(program), *arguments]
    mark = f"{MARK}={uuid.uuid4().hex}"
    begin = time.monotonic()
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**environment(**variables), **dict([mark.split("=")])},
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)  # mpiexec ends its processes
        try:
            output, _ = process.communicate(timeout=2)
        except subprocess.TimeoutExpired:
            _kill_marked(mark)
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
        raise JobHangs(f"{program} {' '.join(arguments)}", output) from None
    finally:
        _kill_marked(mark)
    return process.returncode, output, time.monotonic() - begin


def marked_processes(mark: str) -> list[int]:
    """Return the processes of the job with this mark: each may have its own session."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it has ended meanwhile, or is another user's
            if any(text.startswith(mark.encode()) for text in path.read_bytes().split(b"\0")):
                found.append(int(path.parent.name))
    return found


def _kill_marked(mark: str) -> None:
    """Kill the processes of a job, and those that they have just started, until none is left."""
    for _ in range(100):
        left = marked_processes(mark)
        for number in left:
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        if not left:
            return
        time.sleep(0.1)
