"""Elastic jobs that lose processes and hosts, and that others join; and the same course resumed by hand.

``elastic_jobs.py COURSE OPTIONS...`` is what one process runs: a job of netbuilder-train that notes its worlds in the
folder COURSE, and in which the file ``COURSE/WORLD`` says what happens: a rank, a step, and SIGKILL (of the process),
SIGSTOP, HOST (the launcher and its processes, unless it is the first), or JOIN (another launcher starts; SIGKILL if
the job has --max processes).
``python tests/elastic_jobs.py POINTS SEED`` tries so many random losses and joins, and compares.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from netbuilder.distributed import Rendezvous
from netbuilder.distributed.transport import launchers
from netbuilder.exchange import Checkpoint, read_checkpoint
from netbuilder.tools import imagenet_trainer
from netbuilder.tools.training.run import Run
from netbuilder.tools.training.saving import Saving
from netbuilder.tools.training.stopping import Stopping

__all__ = ["ElasticJob", "by_hand", "worlds_of"]

_OPTIONS = ["--cpu", "--model=mlp", "--batch=64", "--learning-rate=0.02", "--mixup=0.2", "--keep=3"]
STEPS = 23  # of an epoch
_SECONDS = 200.0  # of one world, from its first step to that of the next one

# The second launcher of a host counts as lost soon.
_LAUNCHER = """
import sys
from netbuilder.distributed.launch import node
from netbuilder.tools.launch import main
node.SIGN, node.SILENCE = 0.2, 5.0
sys.exit(main())
"""


class ElasticJob:
    """An elastic job whose hosts are launchers on this machine.

    Args:
        folder: an empty one.
        least, most: processes.
        processes: that each launcher offers.
        epochs: of the run.
        restarts: after losses.
    """

    def __init__(
        self, folder: Path, *, least: int, most: int, processes: int = 1, epochs: int = 2, restarts: int = 40
    ) -> None:
        self.folder, self.course, self.most = folder, folder / "course", most
        self.course.mkdir()
        secret = folder / "secret"
        secret.write_text("only these tests know it")
        secret.chmod(0o600)
        with socket.socket() as server:
            server.bind(("", 0))
            port = server.getsockname()[1]
        self._launch = [sys.executable, "-c", _LAUNCHER, "-n", str(processes), "--min", str(least), "--max", str(most),
                        "--hosts", "127.0.0.1", "--port", str(port), "--secret-file", str(secret), "--threads", "1",
                        "--restarts", str(restarts)]  # fmt: skip
        self._program = [__file__, str(self.course), *_OPTIONS, f"--epochs={epochs}", f"--checkpoint={folder / 'last'}"]
        self.launchers: list[subprocess.Popen[str]] = []
        self.files: list[Any] = []

    def start(self, hosts: int = 1) -> None:
        """Start launchers: the first one leads, the others join."""
        for _ in range(hosts):
            number = len(self.launchers)
            join = ["--join"] if number else []
            self.files.append(open(self.folder / f"log-{number}", "w+"))
            self.launchers.append(
                subprocess.Popen(
                    [*self._launch, *join, *self._program], stdout=self.files[-1], stderr=subprocess.STDOUT, text=True
                )
            )

    @property
    def text(self) -> str:
        """What all launchers have printed."""
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("log-*")))

    def happens(self, world: int, what: str, rank: int = 0, step: int = 1) -> None:
        """Let something happen after a step of a world, counted from its first."""
        place = self.course / f"planned-{world}"
        place.with_suffix(".new").write_text(json.dumps({"what": what, "rank": rank, "step": step, "most": self.most}))
        place.with_suffix(".new").rename(place)

    def end(self) -> int:
        """Start the launchers that come, until the job has ended; return its status."""
        try:
            worlds, limit = 0, time.monotonic() + _SECONDS
            while self.launchers[0].poll() is None:
                for wanted in self.course.glob("join-*"):
                    wanted.unlink()
                    self.start()
                if (now := len(_texts(self.course))) > worlds:
                    worlds, limit = now, time.monotonic() + _SECONDS
                assert time.monotonic() < limit, self.text
                time.sleep(0.05)
            for launcher in self.launchers[1:]:
                launcher.wait(30)
            return self.launchers[0].returncode
        finally:
            for launcher in self.launchers:
                launcher.kill()
                launcher.wait()
            for file in self.files:
                file.close()


def worlds_of(course: Path) -> list[tuple[int, int]]:
    """Return of each world the processes, and the steps of the run that were done when it began."""
    found = sorted(map(json.loads, _texts(course)), key=lambda each: each["world"])
    return [(each["processes"], each["begins"]) for each in found]


def _texts(course: Path) -> list[str]:
    return [path.read_text() for path in course.glob("world-*")]


def by_hand(folder: Path, worlds: Sequence[tuple[int, int]], epochs: int) -> dict[str, Any]:
    """Run the same course by hand: in each world's processes from its first step to that of the next one.

    Args:
        folder: for the checkpoints.
        worlds: as from ``worlds_of``.
        epochs: of the run.
    """
    ends = [begins for _, begins in worlds[1:]] + [epochs * STEPS]
    for (processes, begins), end in zip(worlds, ends):
        if begins == end and end < epochs * STEPS:
            continue
        options = [*_OPTIONS, f"--epochs={epochs}", f"--checkpoint={folder}", "--resume=auto"]
        command = [sys.executable, "-m", "netbuilder.tools.launch", "-n", str(processes), "--threads", "1"]
        done = subprocess.run([*command, __file__, f"until-{end}", *options], capture_output=True, text=True)
        assert done.returncode in (0, 1) and _last(folder).step == end, done.stdout + done.stderr
    return at_end(folder, epochs)


def at_end(folder: Path, epochs: int) -> dict[str, Any]:
    """Return what the last checkpoint of a run holds."""
    found = _last(folder)
    assert found.step == epochs * STEPS
    return dict(found.blobs)


def _last(folder: Path) -> Checkpoint:
    return read_checkpoint(max(folder.glob("step-*.minidb")))


def main() -> int:
    place, *options = sys.argv[1:]
    if place.isdecimal():
        return prove(int(place), int(options[0]))
    if place.startswith("until-"):
        with _stopped_at(int(place.removeprefix("until-"))):
            return imagenet_trainer.main(options)
    with _noted(Path(place)):
        return imagenet_trainer.main(options)


@contextlib.contextmanager
def _stopped_at(steps: int) -> Iterator[None]:
    """In the block, let a run stop after so many steps; at the end of an epoch, after its evaluation."""
    rest, after_epoch = steps % STEPS, Saving.after_epoch

    def stops(stopping: Stopping, run: Run) -> bool:
        return bool(rest) and run.steps_done == steps

    def stop_after(saving: Saving, run: Run, results: Any) -> None:
        after_epoch(saving, run, results)
        run.stopped = run.stopped or (run.steps_done == steps and run.epochs_done < run.options.epochs)

    with mock.patch.object(Stopping, "stops", stops), mock.patch.object(Saving, "after_epoch", stop_after):
        yield


def _noted(course: Path) -> AbstractContextManager[Any]:
    """Return a context in which a run notes its world, and in which what is planned for it happens."""
    place, world = Rendezvous.from_environment(), int(os.environ[launchers.ATTEMPT])
    before, after = Saving.before_training, Saving.after_step
    begins = 0

    def note(saving: Saving, run: Run) -> None:
        nonlocal begins
        before(saving, run)
        begins = run.steps_done
        if place.shard_id == 0:
            found = {"world": world, "processes": place.num_shards, "begins": begins, "at": time.monotonic()}
            (course / f"world-{world}").write_text(json.dumps(found))

    def happen(saving: Saving, run: Run) -> None:
        after(saving, run)
        planned = course / f"planned-{world}"
        if planned.exists():
            given = json.loads(planned.read_text())
            full = given["what"] == "JOIN" and place.num_shards >= given["most"]
            chosen = place.shard_id == given["rank"] % place.num_shards
            if chosen and run.steps_done == begins + given["step"]:
                _happen(course, "SIGKILL" if full else given["what"])

    return _patched(note, happen)


@contextlib.contextmanager
def _patched(note: Any, happen: Any) -> Iterator[None]:
    patched = mock.patch.object
    with patched(Saving, "before_training", note), patched(Saving, "after_step", happen):
        yield


def _happen(course: Path, what: str) -> None:
    print(f"FAULT {os.environ[launchers.ATTEMPT]} {what} {time.monotonic()}", file=sys.stderr, flush=True)
    if what == "JOIN":
        _let_join(course)
        return
    watcher = os.getppid()
    launcher = int(Path(f"/proc/{watcher}/stat").read_text().rpartition(")")[2].split()[1])
    if what == "HOST" and b"--join" in Path(f"/proc/{launcher}/cmdline").read_bytes():  # the first one leads
        os.kill(launcher, signal.SIGKILL)
        os.kill(watcher, signal.SIGKILL)  # this process ends with it
    os.kill(os.getpid(), signal.SIGSTOP if what == "SIGSTOP" else signal.SIGKILL)
    time.sleep(60)


def _let_join(course: Path) -> None:
    """Let another launcher start, and wait until the first one has seen it: an epoch is over sooner."""
    store = launchers.job_store(os.environ)
    assert store is not None
    comes = int(store.peek("hosts") or 0) + 1
    (course / f"join-{time.monotonic_ns()}").touch()
    store.get(f"offer/{comes}", 50)  # a process that rests is wanted, too
    store.with_prefix(os.environ[launchers.ATTEMPT]).get(launchers.WANTED, 50)


def prove(points: int, seed: int) -> int:
    """Let things happen at random; return 1 if the run does not end as the one by hand."""
    chance, epochs = random.Random(seed), 2 + points // 2
    with tempfile.TemporaryDirectory() as place:
        job = ElasticJob(Path(place), least=2, most=4, processes=2, epochs=epochs)
        for world in range(points):
            what = chance.choice(["SIGKILL", "SIGKILL", "HOST", "JOIN"])
            rank = chance.randrange(4) if what == "SIGKILL" else 2 + chance.randrange(2) if what == "HOST" else 0
            job.happens(world, what, rank, chance.randrange(1, 9))
        job.start(2)
        status = job.end()
        worlds = worlds_of(job.course)
        print(job.text if status else "", f"status {status}, worlds (processes, first step): {worlds}", flush=True)
        faults = dict(re.findall(r"FAULT (\d+ \w+) ([\d.]+)", job.text))
        begun = {each["world"]: each["at"] for each in map(json.loads, _texts(job.course))}
        for fault, at in sorted(faults.items(), key=lambda each: float(each[1])):
            after = begun.get(int(fault.split()[0]) + 1)
            print(f"world {fault}: {after - float(at):.1f} s to the next one" if after else f"world {fault}: the last")
        got = at_end(Path(place) / "last", epochs)
        want = by_hand(Path(place) / "by hand", worlds, epochs)
        names = sorted(got.keys() | want.keys())
        differ = [name for name in names if not np.array_equal(got.get(name), want.get(name))]
        print(f"{points} points, {len(worlds)} worlds: {f'DIFFERENT in {differ}' if differ else 'equal to the bit'}")
        return 0 if not differ and not status and len(worlds) > points else 1


if __name__ == "__main__":
    sys.exit(main())
