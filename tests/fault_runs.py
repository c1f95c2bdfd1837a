"""Runs of training in which one rank has a fault; ``python tests/fault_runs.py --times 20`` measures many of them."""

from __future__ import annotations

import argparse
import os
import random
import re
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import fault_program
from mpi_runs import run_over_mpi

__all__ = ["FAULTS", "Outcome", "run_with_faults"]

PROGRAM = Path(fault_program.__file__)

FAULTS = {
    "slow": r"missing: rank \d has finished .*; it gives up after",
    "hang": r"for the other ranks in Barrier.*; missing: rank \d has finished .* this_never_ends",
    "stop": r"has waited .*; missing: rank \d does not answer",
    "stuck": r"has been inside MPI for .* does not return|does not answer by MPI, but sends heartbeats",
    "kill": r"SIGKILL|signal 9|signal: 9|Killed",
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
        status: its exit status.
        text: what it has printed.
        seconds: from the last fault to the end of the job.
    """

    status: int
    text: str
    seconds: float

    def wrong(self, *faults: str) -> str:
        """Return what is not as it should be after these faults, the last of which ends the job; "" if all is."""
        missing = [fault for fault in faults if not re.search(FAULTS[fault], self.text, re.DOTALL)]
        if missing:
            return f"nothing is printed of {', '.join(missing)}"
        return "" if (self.status == 0) == (faults[-1] == "slow") else f"the status is {self.status}"


def run_with_faults(
    folder: Path, *faults: str, rank: int = 1, count: int = 2, limit: float = 2.0, first: float = 30.0,
    launcher: bool = False,
) -> Outcome:  # fmt: skip
    """Run a job in which a rank has faults.

    Args:
        folder: an empty one.
        faults: each a name in ``FAULTS`` and a step: "hang@3"; see fault_program.
        rank: the rank.
        count: the number of processes.
        limit, first: time limits of collectives, in seconds.
        launcher: by netbuilder-launch; otherwise by mpiexec alone.
    """
    limits = {"NETBUILDER_COLLECTIVE_TIMEOUT": str(limit), "NETBUILDER_FIRST_COLLECTIVE_TIMEOUT": str(first)}
    status, text, _ = run_over_mpi(count, PROGRAM, str(folder), str(rank), *faults, launcher=launcher, **limits)
    end, noted = time.monotonic(), folder / "fault"
    return Outcome(status, text, end - float(noted.read_text()) if noted.exists() else 0.0)


def main() -> int:
    parser = argparse.ArgumentParser(description="Give ranks faults at random steps, and measure how jobs end.")
    parser.add_argument("--times", type=int, default=5, help="jobs for each fault, each number of processes and way")
    parser.add_argument("--processes", type=int, nargs="*", default=[2])
    parser.add_argument("--faults", nargs="*", default=list(FAULTS), choices=list(FAULTS))
    parser.add_argument("--limit", type=float, default=5.0, help="seconds that a collective waits")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng, failures = random.Random(options.seed), 0
    print(f"time limit {options.limit:g} s; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print("fault, processes, started by: seconds from the fault to the end of the job (median, most), jobs as expected")
    for fault in options.faults:
        for count in options.processes:
            for launcher in (False, True):
                seconds, good = [], 0
                for _ in range(options.times):
                    rank = 0 if fault == "disk" else rng.randrange(count)
                    moment = 0 if fault == "never" else rng.uniform(2, fault_program.STEPS - 1)
                    if fault not in ("kill", "stop"):
                        moment = int(moment)
                    with tempfile.TemporaryDirectory() as folder:
                        first = options.limit if fault == "never" else 60.0
                        given = f"{fault}@{moment}"
                        found = run_with_faults(
                            Path(folder), given, rank=rank, count=count, limit=options.limit, first=first,
                            launcher=launcher,
                        )  # fmt: skip
                    seconds.append(found.seconds)
                    if wrong := found.wrong(fault):
                        print(f"  {given} of rank {rank}: {wrong}\n{found.text[-3000:]}")
                    good += not wrong
                failures += options.times - good
                by = "netbuilder-launch" if launcher else "mpiexec"
                times = f"{statistics.median(seconds):.1f}, {max(seconds):.1f}"
                print(f"{fault}, {count}, {by}: {times}; {good} of {options.times}", flush=True)
    return min(failures, 1)


if __name__ == "__main__":
    sys.exit(main())
