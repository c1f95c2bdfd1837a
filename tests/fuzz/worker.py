"""The process that runs inputs, and may die of one: it notes each before it runs it, in a file that outlives it."""

from __future__ import annotations

import importlib
import json
import mmap
import os
import random
import resource
import signal
import struct
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from fuzz.judge import Finding, fault

__all__ = ["State", "work"]

_FIELDS = struct.Struct("<qq")  # per kind: the next input, and how many are done
_FIRST = 16  # bytes before those: the kind that runs, and whether the worker is ready
ROOM = 1 << 30  # bytes of address space that a worker may have more than it has when it begins
GROWTH = 300 << 20  # bytes by which the memory in use may grow by one damaged file
SLICE = 0.25  # seconds, after which it is the turn of the next kind


class State:
    """What a worker notes in a file: the kind that it runs, for each kind the next input and how many are done."""

    def __init__(self, path: Path, kinds: int) -> None:
        size = _FIRST + kinds * _FIELDS.size
        if not path.exists():
            path.write_bytes(bytes(size))
        self._file = open(path, "r+b")
        self._map = mmap.mmap(self._file.fileno(), size)

    @property
    def kind(self) -> int:
        return int(struct.unpack_from("<q", self._map)[0])

    @kind.setter
    def kind(self, index: int) -> None:
        struct.pack_into("<q", self._map, 0, index)

    @property
    def ready(self) -> bool:
        """Whether the worker has prepared its kinds."""
        return bool(self._map[8])

    @ready.setter
    def ready(self, value: bool) -> None:
        self._map[8] = value

    def get(self, index: int) -> tuple[int, int]:
        """Return the next input of a kind, and how many are done."""
        following, done = _FIELDS.unpack_from(self._map, _FIRST + index * _FIELDS.size)
        return following, done

    def set(self, index: int, following: int, done: int) -> None:
        _FIELDS.pack_into(self._map, _FIRST + index * _FIELDS.size, following, done)

    def close(self) -> None:
        self._map.close()
        self._file.close()


def work(
    names: list[str], kinds: dict[str, Callable[[Path], Callable[[random.Random], None]]], folder: Path, seed: str,
    until: float, first: int, most: int,
) -> None:  # fmt: skip
    """Run inputs of these kinds by turns.

    Args:
        names: the kinds, in the order of the state file.
        kinds: what prepares them.
        folder: of the campaign, with its state file.
        seed: of the campaign.
        until: when to stop, by the clock, if each kind had an input by then.
        first: number of the first input of each kind.
        most: inputs of each kind.
    """
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    state = State(folder / "state", len(names))
    place, sandbox = folder / f"files-{os.getpid()}", folder / f"sandbox-{os.getpid()}"
    place.mkdir()
    sandbox.mkdir()
    os.chdir(sandbox)
    trials = {}
    for name in names:
        (place / name.replace(" ", "_")).mkdir()
        trials[name] = kinds[name](place / name.replace(" ", "_"))
    limit_memory()
    state.ready = True
    for index in _turns(len(names), state, until, first, most):
        following, done = state.get(index)
        state.kind = index
        state.set(index, following + 1, done)
        finding = judge(names[index], trials[names[index]], seed, following, sandbox)
        state.set(index, following + 1, done + 1)
        if finding is not None:
            with open(folder / "findings", "a", encoding="utf-8") as file:
                file.write(json.dumps(finding.__dict__) + "\n")


def _turns(count: int, state: State, until: float, first: int, most: int) -> Iterator[int]:
    """Yield which kind is run next, beginning with the one after that which ran last."""
    order = [(state.kind + 1 + k) % count for k in range(count)]
    while True:
        left = [index for index in order if state.get(index)[0] < most]
        if not left:
            return
        for index in left:
            end = time.time() + SLICE
            while state.get(index)[0] < most:
                yield index
                if (now := time.time()) >= until and all(state.get(other)[0] > first for other in range(count)):
                    return
                if now >= min(end, until):
                    break


def limit_memory() -> None:
    """Limit this process's address space, so that an absurd size in a file does not exhaust the machine's memory."""
    with open("/proc/self/statm") as file:
        have = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (have + ROOM, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _most_memory() -> int:
    """Return the most bytes that this process has had in memory; ``getrusage`` counts what it was started from, too."""
    with open("/proc/self/status", "rb") as file:
        return int(file.read().split(b"VmHWM:")[1].split()[0]) << 10


def judge(name: str, trial: Callable[[random.Random], None], seed: str, number: int, sandbox: Path) -> Finding | None:
    """Run one input; return a description of the finding, or None."""
    before = _most_memory()
    wrong = None
    try:
        trial(random.Random(f"{seed}/{name}/{number}"))
    except BaseException as error:
        wrong = fault(error, getattr(trial, "named", ""), may_lack_memory=name == "operators")
    grown = _most_memory() - before
    if wrong is None and name != "operators":
        if grown > GROWTH:
            wrong = f"took {grown >> 20} MiB for a file that is small", name
        elif left := os.listdir(sandbox):
            wrong = f"wrote the files {left}", name
            for entry in left:
                os.unlink(sandbox / entry)
    return wrong and Finding(name, number, wrong[0][:600], wrong[1])


def main(arguments: list[str]) -> None:
    """Run as a process of its own, which reads its inputs as JSON."""
    given = json.loads(arguments[0])
    kinds = importlib.import_module(given["table"]).KINDS
    work(given["names"], kinds, Path(given["folder"]), given["seed"], given["until"], given["first"], given["most"])


if __name__ == "__main__":
    main(sys.argv[1:])
