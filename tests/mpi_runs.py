"""Programs that tests run in several processes over MPI, by mpiexec or by netbuilder-launch."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

__all__ = ["MPIEXEC", "environment", "needs_mpi", "run_over_mpi"]

TESTS = Path(__file__).resolve().parent
MPIEXEC = shutil.which("mpiexec", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))

_OPEN_MPI = {  # it refuses root, and more processes than cores, without
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}

needs_mpi = pytest.mark.skipif(
    MPIEXEC is None or find_spec("mpi4py") is None, reason="mpi4py or mpiexec is missing: install netbuilder[mpi]"
)


def environment(**more: str) -> dict[str, str]:
    """Return the environment of the processes."""
    path = os.pathsep.join([str(TESTS), *filter(None, sys.path)])
    return {**os.environ, **_OPEN_MPI, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **more}


def run_over_mpi(
    count: int, program: str | Path, *arguments: str, launcher: bool = False, timeout: float = 120, **variables: str
) -> tuple[int, str, float]:
    """Run a program in so many processes; return the exit status, what they print, and the seconds.

    Args:
        count: the number of processes.
        program: a Python file.
        arguments: its arguments.
        launcher: by netbuilder-launch in place of mpiexec.
        timeout: seconds, after which the test fails.
        variables: of the environment.
    """
    by = [sys.executable, "-m", "netbuilder.tools.launch"] if launcher else [str(MPIEXEC)]
    command = [*by, "-n", str(count), *([] if launcher else [sys.executable]), str(program), *arguments]
    begin = time.monotonic()
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environment(**variables),
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)  # mpiexec ends its processes
        try:
            output, _ = process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
        pytest.fail(f"{program} {' '.join(arguments)} hangs: {output}")
    return process.returncode, output, time.monotonic() - begin
