"""Runs of training in which one rank has a fault; ``python tests/fault_runs.py --times 20`` measures many of them."""

from __future__ import annotations

import argparse
import itertools
import os
import random
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import fault_program
from mpi_runs import JobHangs, run_over_mpi

__all__ = ["FAULTS", "Outcome", "run_with_faults"]

PROGRAM = Path(fault_program.__file__)

FAULTS = {
    "slow": r"missing: rank \d has finished .*; it gives up after",
    "hang": r"for the other ranks in Barrier.*; missing: rank \d has finished .* this_never_ends",
    "stop": r"has waited .*; missing: rank \d does not answer",
    "stuck": r"has been inside MPI for .* does not return|does not answer by MPI, but sends heartbeats",
    "kill": r"SIGKILL|signal 9|signal: 9|Killed",
    "kill-sum": r"SIGKILL|signal 9|signal: 9|Killed",
    "stop-sum": r"has waited .* in AllreduceBucket .*; missing: rank \d does not answer",
    "raise": "ValueError: an error of this rank",
    "exit": r"sys\.exit\(3\), which ends the job",
    "loader": "ValueError: .*a broken image",
    "disk": "OSError: .*File too large",
    "never": r"shard \d of \d did not come|which has not begun to make a common world|Timeout \(0:00:",
}
"""What is printed when a rank has a fault; but for "slow", the job ends."""


@dataclass(frozen=True)
class Outcome:
    """How a job has ended.

    Args:
        status: its exit status; None: it has not ended in time, and was killed.
        text: what it has printed.
        seconds: from the last fault to the end of the job.
    """

    status: int | None
    text: str
    seconds: float

    def wrong(self, *faults: str) -> str:
        """Return what is not as it should be after these faults, the last of which ends the job; "" if all is."""
        if self.status is None:
            when = f"{self.seconds:.0f} s after the fault" if self.seconds else "before the fault"
            return f"the job did not end, and was killed {when}"
        missing = [fault for fault in faults if not re.search(FAULTS[fault], self.text, re.DOTALL)]
        if missing:
            return f"nothing is printed of {', '.join(missing)}"
        return "" if (self.status == 0) == (faults[-1] == "slow") else f"the status is {self.status}"


def run_with_faults(
    folder: Path, *faults: str, rank: int = 1, count: int = 2, limit: float = 2.0, first: float = 30.0,
    launcher: bool = False, timeout: float = 120.0,
) -> Outcome:  # fmt: skip
    """Run a job in which a rank has faults.

    Args:
        folder: an empty one.
        faults: each a name in ``FAULTS`` and a step: "hang@3"; see fault_program.
        rank: the rank.
        count: the number of processes.
        limit, first: time limits of collectives, in seconds.
        launcher: by netbuilder-launch; otherwise by mpiexec alone.
        timeout: seconds from the start after which the job is killed.
    """
    limits = {"NETBUILDER_COLLECTIVE_TIMEOUT": str(limit), "NETBUILDER_FIRST_COLLECTIVE_TIMEOUT": str(first)}
    status: int | None
    given = [str(folder), str(rank), *faults]
    try:
        status, text, _ = run_over_mpi(count, PROGRAM, *given, launcher=launcher, timeout=timeout, **limits)
    except JobHangs as hung:
        status, text = None, hung.text
    end, noted = time.monotonic(), folder / "fault"
    return Outcome(status, text, end - float(noted.read_text()) if noted.exists() else 0.0)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Give ranks faults at random steps, and measure how jobs end.")
    parser.add_argument("--times", type=int, default=5, help="jobs for each fault, each number of processes and way")
    parser.add_argument("--processes", type=int, nargs="*", default=[2])
    help_ = f"of {', '.join(FAULTS)}; or with a step, such as stop@{fault_program.STEPS}, the end of the program"
    parser.add_argument("--faults", type=_fault, nargs="*", default=list(FAULTS), metavar="FAULT", help=help_)
    parser.add_argument("--by", nargs="*", default=list(_WAYS), choices=list(_WAYS), help="what starts the processes")
    parser.add_argument("--limit", type=float, default=5.0, help="seconds that a collective waits")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds after which a job is killed, as wrong")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    rng, failures = random.Random(options.seed), 0
    print(f"time limit {options.limit:g} s; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print("fault, processes, started by: seconds from the fault to the end of the job (median, most), jobs as expected")
    for fault, count, by in itertools.product(options.faults, options.processes, options.by):
        seconds, good = [], 0
        for _ in range(options.times):
            found, wrong = _one_job(fault, count, _WAYS[by], rng, options)
            seconds.append(found.seconds)
            good += not wrong
        failures += options.times - good
        times = f"{statistics.median(seconds):.1f}, {max(seconds):.1f}"
        print(f"{fault}, {count}, {by}: {times}; {good} of {options.times}", flush=True)
    return min(failures, 1)


_WAYS = {"mpiexec": False, "netbuilder-launch": True}


def _fault(text: str) -> str:
    name, at, step = text.partition("@")
    if name not in FAULTS or (at and not re.fullmatch(r"\d+(\.\d+)?", step)):
        raise argparse.ArgumentTypeError(f"must be one of {', '.join(FAULTS)}, or FAULT@STEP, got {text!r}")
    return text


def _one_job(
    fault: str, count: int, launcher: bool, rng: random.Random, options: argparse.Namespace
) -> tuple[Outcome, str]:
    """Run a job with a fault on one rank; return how it has ended, and what is wrong, having printed it."""
    name, _, step = fault.partition("@")
    rank = 0 if name == "disk" else rng.randrange(count)
    moment = 0 if name == "never" else rng.uniform(2, fault_program.STEPS - 1)
    if name not in ("kill", "stop"):
        moment = int(moment)
    given, first = f"{name}@{step or moment}", options.limit if name == "never" else 60.0
    with tempfile.TemporaryDirectory() as folder:
        found = run_with_faults(
            Path(folder), given, rank=rank, count=count, limit=options.limit, first=first, launcher=launcher,
            timeout=options.timeout,
        )  # fmt: skip
    if wrong := found.wrong(name):
        print(f"  {given} of rank {rank}: {wrong}\n{found.text[-3000:]}", flush=True)
    return found, wrong


if __name__ == "__main__":
    sys.exit(main())
