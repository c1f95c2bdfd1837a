"""Autotuning: the choice between equivalent kernels is measured once, and stored in a file for the machine.

The file is ``choices-*.json`` in the folder ``NETBUILDER_CACHE``, by default the folder ``netbuilder`` in the user's
cache folder; if it cannot be written, the choices hold for the process. With ``NETBUILDER_MEASURE=0`` nothing is
measured or read: each choice is the kernel that is fastest on most machines.
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
_CLEARLY_FASTER = 0.97  # of the first candidate's time; a candidate that takes longer does not replace it
_CACHE_BYTES = 32 << 20  # about the size of a processor's caches
_FORMAT = 3  # version of the file and of the meaning of its names

Candidates = Mapping[str, Callable[[], Sequence[Prepared]]]
"""Name -> function that returns the kernel, followed by other kernels that the choice requires; [] if unavailable."""


def turned_off() -> bool:
    """Whether measuring is switched off, so that every process makes the same choices."""
    return os.environ.get(SWITCH_VARIABLE, "1").strip().lower() in ("0", "off", "no", "false")


def fastest(key: str, candidates: Candidates, n: int) -> str:
    """Return the name of the fastest candidate, or the first one if measuring is switched off.

    Args:
        key: describes the computation and its shapes; it is measured once for each machine and number of threads.
        candidates: the candidates; the first one must be available.
        n: number of threads.
    """
    default = next(iter(candidates))
    if turned_off():
        return default
    known = _Choices.of_machine()
    full = f"{key}, threads {n}"
    name = known.get(full)
    if not isinstance(name, str) or name not in candidates:
        name = _measured(candidates, n)
        known.put(full, name)
    return name


def seconds(key: str, make: Callable[[], Prepared | None], n: int) -> float:
    """Return the time of a kernel in seconds, with its inputs in the caches; infinity if there is no kernel.

    Args:
        key, n: see ``fastest``; the two functions do not share keys.
        make: makes the kernel.
    """
    known = _Choices.of_machine()
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
    """Return the time of a call; if ``cold``, with other data in the caches, as after other operators of a net."""
    if cold:
        _other_data().fill(0)
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


@functools.cache
def _other_data() -> np.ndarray[Any, Any]:
    return np.empty(_CACHE_BYTES, np.uint8)


def _measured(candidates: Candidates, n: int) -> str:
    with threads(n):
        made = {name: make() for name, make in candidates.items()}
        calls = {name: [_bound(part) for part in parts] for name, parts in made.items() if parts}
        if len(calls) == 1:
            return next(iter(calls))
        times: dict[str, list[float]] = {name: [] for name in calls}
        for name in (*calls, *list(calls) * _ROUNDS):  # alternately, so that other load affects all of them equally
            times[name].append(sum(map(_seconds_of_one, calls[name])))
    medians = {name: statistics.median(times[name][1:]) for name in calls}
    default, best = next(iter(calls)), min(medians, key=medians.__getitem__)
    return best if medians[best] < _CLEARLY_FASTER * medians[default] else default


def _bound(kernel: Prepared) -> Call:
    """Return the call of a kernel on zeroed memory."""
    inputs, outputs = ([_zeros(spec) for spec in specs] for specs in (kernel.inputs, kernel.outputs))
    return kernel.bind(inputs, outputs, _zeroed(kernel.scratch))


def _zeros(spec: TensorSpec | None) -> Any:
    if spec is None:
        return None
    memory = _zeroed(spec.nbytes)
    return memory if spec.layout is not None else as_flat(memory, spec.dtype).reshape(spec.shape)


def _zeroed(nbytes: int) -> Any:
    memory = aligned_empty(nbytes)
    memory[:] = 0
    return memory


class _Choices:
    """The choices made so far on this machine: those in the file, and those of this process."""

    def __init__(self, path: Path | None, machine: str) -> None:
        self._path, self._machine = path, machine
        self._lock = new_lock()
        self._choices = self._read()

    @staticmethod
    def of_machine() -> _Choices:
        """Return the choices of this machine, for the present value of ``NETBUILDER_CACHE``."""
        return _choices(cache_file())

    def get(self, key: str) -> str | float | None:
        return self._choices.get(key)

    def put(self, key: str, found: str | float) -> None:
        """Store a choice or a time; those that other processes have written in the meantime are kept."""
        with self._lock:
            self._choices = {**self._choices, **self._read(), key: found}
            self._write()

    def _read(self) -> dict[str, str | float]:
        """Return the content of the file; {} if it is missing, not readable or of another machine."""
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
            self._path = None  # keep the choices for this process only


@functools.lru_cache(8)
def _choices(path: Path | None) -> _Choices:
    return _Choices(path, _machine())


def cache_file() -> Path | None:
    """Return the file with the choices of this machine; None if there is no folder for it."""
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
    """Return a description of all that choices depend on besides threads: processor, instruction set, library."""
    library = dnnl()
    version = ".".join(map(str, library.version))
    isa = library.lib.dnnl_get_effective_cpu_isa()
    return f"{_FORMAT}; {_processor()}; {os.cpu_count()} cores; instruction set {isa:#x}; oneDNN {version}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    fields = ("model name", "cpu family", "model", "stepping")
    found = dict.fromkeys(line for line in lines if line.split("\t")[0].split(":")[0].strip() in fields)
    return ", ".join(" ".join(line.split(":", 1)[1].split()) for line in found)
