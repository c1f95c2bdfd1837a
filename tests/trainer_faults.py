"""netbuilder-train with a fault on one rank, and the proof that a resumed run ends as an undisturbed one.

``trainer_faults.py FAULT RANK STEP DELAY OPTIONS...`` is what one process runs: after so many steps and seconds the
rank gets a signal (SIGKILL, SIGSTOP, SIGTERM), or its thread that reads images fails (ERROR).
``trainer_faults.py POINTS SEED [SIGNAL [PROCESSES]]`` kills or stops a random rank at a random moment, POINTS times; it
prints the seconds from there to the end of the job, and compares what the resumed runs have at the end.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from netbuilder.distributed import Rendezvous
from netbuilder.exchange import read_checkpoint
from netbuilder.tools import imagenet_trainer
from netbuilder.tools.training.images import Images
from netbuilder.tools.training.run import Run
from netbuilder.tools.training.saving import Saving
from parallel_models import distance

__all__ = ["OPTIONS", "STEPS", "blobs_at_end", "fault_at", "resumable", "start_processes"]

OPTIONS = ["--cpu", "--model=mlp", "--batch=64", "--epochs=2", "--learning-rate=0.02", "--mixup=0.2", "--keep=100"]
_LIMIT = 5  # seconds that a collective waits
STEPS = 46
"""Steps of a whole run with these options."""


def start_processes(
    folder: Path,
    *arguments: str,
    processes: int = 2,
    fault: Sequence[str] = ("", "0", "0", "0"),
    launch: Sequence[str] = (),
) -> subprocess.Popen[str]:
    """Start a run in several processes; checkpoints go to the folder, where it resumes."""
    command = [sys.executable, "-m", "netbuilder.tools.launch", "-n", str(processes), *launch]
    command += [__file__, *fault, *OPTIONS, *resumable(folder), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def resumable(folder: Path) -> list[str]:
    """Return the options for checkpoints in a folder, from which a run resumes."""
    return [f"--checkpoint={folder}", "--checkpoint-every-steps=3", "--resume=auto"]


def blobs_at_end(folder: Path, steps: int = STEPS) -> dict[str, Any]:
    """Return what the last checkpoint of a run holds; it must be that of the last of so many steps."""
    path = sorted(folder.glob("step-*.minidb"))[-1]
    found = read_checkpoint(path)
    assert found.step == steps, path
    return dict(found.blobs)


def main() -> int:
    if len(sys.argv) < 6:
        points, seed, *more = sys.argv[1:]
        return prove(int(points), random.Random(int(seed)), *more[:1], processes=int((more[1:] or ["2"])[0]))
    fault, rank, step, delay = sys.argv[1:5]
    chosen = fault and Rendezvous.from_environment().shard_id == int(rank)
    with fault_at(fault, int(step), float(delay)) if chosen else nullcontext():
        return imagenet_trainer.main(sys.argv[5:])


def fault_at(fault: str, step: int, delay: float = 0.0) -> AbstractContextManager[Any]:
    """Return a context in which this process has a fault: after a step of a run, or, for ERROR, in a batch."""
    if fault == "ERROR":
        batches = Images.batches

        def failing(images: Images, *arguments: Any, **options: Any) -> Any:
            for number, batch in enumerate(batches(images, *arguments, **options)):
                if number == step:
                    raise OSError("the disk with the images is gone")
                yield batch

        return mock.patch.object(Images, "batches", failing)
    after_step = Saving.after_step

    def send() -> None:
        print(f"FAULT {time.monotonic()}", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.Signals[fault])

    def counted(saving: Saving, run: Run) -> None:
        after_step(saving, run)
        if run.steps_done == step:
            threading.Timer(delay, send).start() if delay else send()

    return mock.patch.object(Saving, "after_step", counted)


def prove(points: int, chance: random.Random, signal_name: str = "SIGKILL", processes: int = 2) -> int:
    """Kill or stop ranks at random points; return the number of runs that end differently."""
    wrong, seconds = 0, []
    devices = ",".join(map(str, range(processes)))
    with tempfile.TemporaryDirectory() as place:
        whole = Path(place) / "whole"
        assert start_processes(whole, processes=processes).wait() == 0
        want = blobs_at_end(whole)
        for number in range(points):
            folder = Path(place) / str(number)
            rank, step, delay = chance.randrange(processes), chance.randrange(1, STEPS), chance.random() * 0.02
            fault = (signal_name, str(rank), str(step), str(delay))
            job = start_processes(folder, processes=processes, fault=fault, launch=[f"--collective-timeout={_LIMIT}"])
            out, _ = job.communicate()
            ended = time.monotonic()  # the same clock in all processes
            times = [float(line.rpartition(" ")[2]) for line in out.splitlines() if "FAULT" in line]
            status = 128 + signal.SIGKILL if signal_name == "SIGKILL" else 1
            assert times and job.returncode == status, out
            assert signal_name == "SIGKILL" or f"missing: rank {rank} does not answer" in out, out
            seconds.append(ended - times[0])
            if seconds[-1] > (5 if signal_name == "SIGKILL" else _LIMIT + 5):
                print(out)
            reached = [path.stem for path in sorted(folder.glob("step-*.minidb"))]
            resumed = 1 if number % 2 == 0 else processes
            again = start_processes(folder, *([f"--devices={devices}"] if resumed == 1 else []), processes=resumed)
            out, _ = again.communicate()
            assert again.returncode == 0, out
            got = blobs_at_end(folder)
            same = got.keys() == want.keys() and all(np.array_equal(got[name], want[name]) for name in want)
            apart = 0.0 if same else distance([got[name] for name in want], list(want.values()))
            wrong += apart > (1e-5 if resumed < processes > 2 else 0)  # more than two are added in another order
            print(
                f"rank {rank} got {signal_name} {delay * 1e3:.0f} ms after step {step}: ended in {seconds[-1]:.1f} s; "
                f"resumed from {reached[-1] if reached else 'the beginning'} in {resumed} processes: "
                f"{'equal to the bit' if same else f'relative distance {apart:.1g}'}",
                flush=True,
            )
    print(f"{points} points in {processes} processes: {min(seconds):.1f} to {max(seconds):.1f} s, {wrong} different")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
