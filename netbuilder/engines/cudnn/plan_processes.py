"""Processes that build plans of cuDNN, each some of those that are missing, and keep them on file.

They use no GPU: cuDNN compiles for one that is described to it. Whatever goes wrong in them, the process that has
started them finds no file, and builds the plan itself. Of several processes that miss plans, such as the ranks of a
job, one has them built while the others wait.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

if __name__ == "__main__":  # run by its path, with the module path of its parent
    sys.path[:] = json.loads(sys.stdin.buffer.readline())

from netbuilder.engines.cudnn import library
from netbuilder.engines.cudnn.kept_plans import KeptPlan
from netbuilder.engines.cudnn.plans import Wanted, build_plan
from netbuilder.proto.errors import counted

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["FEWEST", "build_in_processes", "work"]

_log = logging.getLogger("netbuilder")

FEWEST = 4
"""Plans for which processes are started: that takes as long as building two."""
_PATIENCE = 60.0  # seconds for a process to start, and for each of its plans


def build_in_processes(properties: str, name: str, wanted: Mapping[KeptPlan, Wanted]) -> None:
    """Build plans and keep them, as many at the same time as there are cores; say so in the log.

    Args:
        properties: of the GPU, as cuDNN writes them.
        name: of the GPU.
        wanted: the graphs, with the files of their plans, all in one folder.
    """
    if len(wanted) < FEWEST:
        return
    folder = next(kept.path for kept in wanted if kept.path is not None).parent
    with _alone(folder):
        missing = {kept: graph for kept, graph in wanted.items() if kept.read() is None}
        count = min(_cores(), len(missing) // 2)
        if not missing:
            return
        _log.warning(
            "cuDNN compiles kernels for %s: %s in %s; later runs find them in %s",
            name, counted(len(missing), "graph"), counted(max(count, 1), "process", "processes"), folder,
        )  # fmt: skip
        if count > 1:
            _build(properties, [[*missing.items()][number::count] for number in range(count)])


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other processes from building plans; where they cannot be kept from it, several build the same ones."""
    with contextlib.ExitStack() as stack:
        if fcntl is not None:
            with contextlib.suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True)
                file = stack.enter_context(open(folder / ".lock", "a"))
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    _log.warning("waits for another process, which compiles cuDNN's kernels")
                    fcntl.flock(file, fcntl.LOCK_EX)
        yield


Share = Sequence[tuple[KeptPlan, Wanted]]


def _build(properties: str, shares: Sequence[Share]) -> None:
    """Start a process for each share of the plans, and wait for all of them."""
    with contextlib.ExitStack() as stack:
        started = [(share, stack.enter_context(_process(properties, share))) for share in shares]
        for share, (process, errors) in started:
            try:
                process.wait(_PATIENCE * (1 + len(share)))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            lost = sum(kept.read() is None for kept, _ in share)
            if process.returncode and lost:
                errors.seek(0)
                said = errors.read().decode(errors="replace").strip().splitlines()
                _log.warning(
                    "a process that compiles cuDNN's kernels has ended with status %d (%s): %s built here, one after "
                    "another", process.returncode, said[-1] if said else "it said nothing",
                    counted(lost, "graph is", "graphs are"),
                )  # fmt: skip


@contextlib.contextmanager
def _process(properties: str, share: Share) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
    """Start a process; yields it, and the file of its errors. At the end it does not run any more."""
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as errors:
        given.write(json.dumps(sys.path).encode() + b"\n" + pickle.dumps((properties, share)))
        given.seek(0)
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}  # a GPU would give each process some of its memory
        with subprocess.Popen(command(), stdin=given, stdout=errors, stderr=errors, env=environment) as process:
            try:
                yield process, errors
            finally:
                process.kill()


def command() -> list[str]:
    """Return the command of a process."""
    return [sys.executable, __file__]


def work(given: tuple[str, Share]) -> None:
    """Build the plans of a share, in a process of its own; at the end exit with the first error, if there was any."""
    properties, share = given
    gpu, failed = library.cudnn().create_device_properties(properties), list[Exception]()
    for kept, wanted in share:
        try:
            builder: Any = build_plan(wanted, device_property=gpu)
            if builder is not None:
                kept.write(bytes(builder.graph.serialize()))
        except Exception as error:
            failed.append(error)
    if failed:
        raise SystemExit(f"{type(failed[0]).__name__}: {failed[0]}")


if __name__ == "__main__":
    work(pickle.load(sys.stdin.buffer))
