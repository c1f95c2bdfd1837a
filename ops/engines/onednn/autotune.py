"""Choices between kernels that do the same: measured once, and remembered in a file for the machine.

The file is ``choices-*.json`` in the folder that ``NETBUILDER_CACHE`` names, else in netbuilder's folder among the
user's caches; where it cannot be written, the choices are kept for the process. ``NETBUILDER_MEASURE=0`` leaves each
choice to what is fastest on most machines, and reads no file.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from netbuilder.data.forking import new_lock
from netbuilder.ops.core.contexts import Call, Prepared
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.engines.arrays import aligned_empty, as_flat
from netbuilder.ops.engines.onednn.library import dnnl, threads

__all__ = ["CACHE_VARIABLE", "SWITCH_VARIABLE", "cache_file", "fastest", "seconds", "turned_off"]

CACHE_VARIABLE = "NETBUILDER_CACHE"
SWITCH_VARIABLE = "NETBUILDER_MEASURE"

_ROUNDS = 5
_CLEARLY = 0.97  # in how much of the first candidate's time another one has to be through to take its place
_CACHES = 32 << 20  # bytes, about what the caches of a processor hold
_FORMAT = 3  # of the file, and of what the names of choices mean

Candidates = Mapping[str, Callable[[], Sequence[Prepared]]]
"""Name -> makes the kernel and, behind it, whatever else a step needs if it is chosen; nothing if it cannot serve."""


def turned_off() -> bool:
    """Whether nothing is to be measured, so that every process chooses alike."""
    return os.environ.get(SWITCH_VARIABLE, "1").strip().lower() in ("0", "off", "no", "false")


def fastest(key: str, candidates: Candidates, n: int) -> str:
    """Return the name of the candidate that takes least time, the first one if nothing is measured.

    Args:
        key: what is computed, on which shapes: the same key is measured once a machine and number of threads.
        candidates: what there is; the first one has to serve.
        n: threads.
    """
    default = next(iter(candidates))
    if turned_off():
        return default
    known = _Known.of_machine()
    full = f"{key}, threads {n}"
    name = known.get(full)
    if not isinstance(name, str) or name not in candidates:
        name = _measured(candidates, n)
        known.put(full, name)
    return name


def seconds(key: str, make: Callable[[], Prepared | None], n: int) -> float:
    """Return what a kernel takes, in seconds, with what it reads in the caches; infinity if there is none.

    Args:
        key, n: see ``fastest``; keys of the two functions are apart.
        make: makes the kernel.
    """
    known = _Known.of_machine()
    full = f"seconds of {key}, threads {n}"
    found = known.get(full)
    if isinstance(found, float):
        return found
    with threads(n):
        kernel = make()
        times = [float("inf")]
        if kernel is not None:
            call = _bound(kernel)
            call()
            times = [_seconds_of_one(call, cold=False) for _ in range(_ROUNDS)]
    result = statistics.median(times)
    known.put(full, result)
    return result


def _seconds_of_one(call: Call, *, cold: bool = True) -> float:
    """Return what a call takes; if ``cold``, as in a net whose other operators have filled the caches."""
    if cold:
        _others().fill(0)
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


@functools.cache
def _others() -> np.ndarray[Any, Any]:
    return np.empty(_CACHES, np.uint8)


def _measured(candidates: Candidates, n: int) -> str:
    with threads(n):
        made = {name: make() for name, make in candidates.items()}
        calls = {name: [_bound(part) for part in parts] for name, parts in made.items() if parts}
        if len(calls) == 1:
            return next(iter(calls))
        times: dict[str, list[float]] = {name: [] for name in calls}
        for name in (*calls, *list(calls) * _ROUNDS):  # in turn: what else the machine does meets all of them
            times[name].append(sum(map(_seconds_of_one, calls[name])))
    medians = {name: statistics.median(times[name][1:]) for name in calls}
    default, best = next(iter(calls)), min(medians, key=medians.__getitem__)
    return best if medians[best] < _CLEARLY * medians[default] else default


def _bound(kernel: Prepared) -> Call:
    """Return the call of a kernel on memory of zeroes."""
    inputs, outputs = ([_zeroes(spec) for spec in specs] for specs in (kernel.inputs, kernel.outputs))
    return kernel.bind(inputs, outputs, _filled(kernel.scratch))


def _zeroes(spec: TensorSpec | None) -> Any:
    if spec is None:
        return None
    memory = _filled(spec.nbytes)
    return memory if spec.layout is not None else as_flat(memory, spec.dtype).reshape(spec.shape)


def _filled(nbytes: int) -> Any:
    memory = aligned_empty(nbytes)
    memory[:] = 0
    return memory


class _Known:
    """The choices made so far on this machine: those in the file, and those of this process."""

    def __init__(self, path: Path | None, machine: str) -> None:
        self._path, self._machine = path, machine
        self._lock = new_lock()
        self._choices = self._read()

    @staticmethod
    def of_machine() -> _Known:
        """Return what is known on this machine, for the folder that the environment names now."""
        return _known(cache_file())

    def get(self, key: str) -> str | float | None:
        return self._choices.get(key)

    def put(self, key: str, found: str | float) -> None:
        """Remember a choice or a time; those that other processes have written in the meantime are kept."""
        with self._lock:
            self._choices = {**self._choices, **self._read(), key: found}
            self._write()

    def _read(self) -> dict[str, str | float]:
        """Return what the file says; nothing if it is not there, not readable or about another machine."""
        if self._path is None:
            return {}
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
            if found["machine"] != self._machine:
                return {}
            return {key: value for key, value in found["choices"].items() if isinstance(value, (str, float))}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}

    def _write(self) -> None:
        if self._path is None:
            return
        text = json.dumps({"machine": self._machine, "choices": self._choices}, indent=1, sort_keys=True)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self._path.parent, prefix=self._path.name)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(name, self._path)
        except OSError:
            self._path = None  # from now on for this process only


@functools.lru_cache(8)
def _known(path: Path | None) -> _Known:
    return _Known(path, _machine())


def cache_file() -> Path | None:
    """Return where the choices of this machine are kept; None if there is no place."""
    folder = os.environ.get(CACHE_VARIABLE) or ""
    if not folder:
        caches = os.environ.get("XDG_CACHE_HOME") or ""
        home = os.path.expanduser("~")
        if not caches and home == "~":
            return None
        folder = os.path.join(caches or os.path.join(home, ".cache"), "netbuilder")
    return Path(folder) / f"choices-{hashlib.sha256(_machine().encode()).hexdigest()[:12]}.json"


@functools.cache
def _machine() -> str:
    """Return what the choices depend on, besides threads: processor, instruction set, library."""
    library = dnnl()
    version = ".".join(map(str, library.version))
    isa = library.lib.dnnl_get_effective_cpu_isa()
    return f"{_FORMAT}; {_processor()}; {os.cpu_count()} cores; instruction set {isa:#x}; oneDNN {version}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    wanted = ("model name", "cpu family", "model", "stepping")
    found = dict.fromkeys(line for line in lines if line.split("\t")[0].split(":")[0].strip() in wanted)
    return ", ".join(" ".join(line.split(":", 1)[1].split()) for line in found)
