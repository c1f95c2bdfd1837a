"""A campaign: a worker process at a time, begun again after each death and hang, and what came of all inputs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from fuzz.judge import Finding
from fuzz.worker import State

__all__ = ["Outcome", "campaign"]

_START = 300.0  # seconds in which a worker is ready, on a machine with much to do
_POLL = 0.1  # seconds between checks of a worker
_TESTS = Path(__file__).resolve().parent.parent


@dataclass
class Outcome:
    """What came of a campaign: how many inputs of each kind were answered, and the findings."""

    counts: dict[str, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def places(self) -> dict[tuple[str, str], list[Finding]]:
        """Return the findings by kind and place."""
        found: dict[tuple[str, str], list[Finding]] = {}
        for each in self.findings:
            found.setdefault((each.kind, each.where), []).append(each)
        return found


def campaign(
    names: list[str], *, seconds: float, seed: str = "0", hang: float = 30.0, first: int = 0, most: int = 2**62,
    table: str = "fuzz.kinds",
) -> Outcome:  # fmt: skip
    """Run inputs for a while.

    Args:
        names: the kinds of input.
        seconds: how long.
        seed: other seeds give other inputs.
        hang: seconds after which an input counts as hanging.
        first: number of the first input of each kind.
        most: number before which to stop.
        table: the module whose KINDS prepare them.
    """
    place = Path(tempfile.mkdtemp(prefix="fuzz-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    state = State(place / "state", len(names))
    for index in range(len(names)):
        state.set(index, first, 0)
    state.kind = len(names) - 1
    outcome, until = Outcome(), time.time() + seconds
    try:
        while _goes_on([state.get(index)[0] for index in range(len(names))], first, most, until):
            how = _run_worker(names, place, state, seed, until, first, most, hang, table)
            if how is None:
                break
            index = state.kind
            outcome.findings.append(Finding(names[index], state.get(index)[0] - 1, how, how.split(":")[0]))
        noted = place / "findings"
        if noted.exists():
            outcome.findings += [Finding(**json.loads(line)) for line in noted.read_text().splitlines()]
        outcome.counts = {name: state.get(index)[0] - first for index, name in enumerate(names)}
    finally:
        state.close()
        shutil.rmtree(place, ignore_errors=True)
    return outcome


def _goes_on(following: list[int], first: int, most: int, until: float) -> bool:
    """Whether kinds have inputs left, and time too; each kind gets at least one input."""
    return min(following) < most and (time.time() < until or min(following) == first)


def _run_worker(
    names: list[str], place: Path, state: State, seed: str, until: float, first: int, most: int, hang: float,
    table: str,
) -> str | None:  # fmt: skip
    """Run a worker to its end; return what it died of, None if it came through."""
    given = {"names": names, "folder": str(place), "seed": seed, "until": until, "first": first, "most": most,
             "table": table}  # fmt: skip
    paths = [str(_TESTS), str(_TESTS.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1",
                   "OPENBLAS_NUM_THREADS": "1", "NETBUILDER_MEASURE": "0"}  # fmt: skip
    state.ready = False
    with open(place / "stderr", "w+b") as said:
        worker = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-m", "fuzz.worker", json.dumps(given)],
            env=environment, stdout=said, stderr=said,
        )  # fmt: skip
        quiet, seen = 0.0, None  # seconds, of which those do not count in which this process did not run either
        while worker.poll() is None:
            time.sleep(_POLL)
            now = [state.get(index) for index in range(len(names))]
            quiet = quiet + _POLL if now == seen else 0.0
            seen = now
            if quiet > (hang if state.ready else _START):
                worker.send_signal(signal.SIGABRT)  # it says where it hangs
                worker.wait()
                return f"hang: more than {hang:.0f} s; {_tail(said)}"
        if worker.returncode == 0:
            return None
        if worker.returncode > 0:
            raise RuntimeError(f"the worker cannot run: {_tail(said)}")
        return f"death by {signal.Signals(-worker.returncode).name}: {_tail(said)}"


def _tail(file: object) -> str:
    file.flush()  # type: ignore[attr-defined]
    file.seek(0)  # type: ignore[attr-defined]
    text = file.read().decode(errors="replace").strip()  # type: ignore[attr-defined]
    return text[:700] + (" ... " + text[-300:] if len(text) > 1000 else text[700:])
