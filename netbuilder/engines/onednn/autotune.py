"""Autotuning: the choice between equivalent kernels is measured once, and stored in a file for the machine.

Nothing is measured while a plan is compiled: a choice that is not known is the first candidate, and is noted as open.
The runtime measures open choices in rounds, for a limited time before a net's first run and then between its runs (see
``netbuilder.runtime.execute.measuring``).

The file is ``choices-*.json`` in the folder ``NETBUILDER_CACHE``, by default the folder ``netbuilder`` in the user's
cache folder; if it cannot be written, the choices hold for the process. With ``NETBUILDER_MEASURE=0`` nothing is
measured or read: each choice is the kernel that is fastest on most machines.
"""

from __future__ import annotations

import functools
import itertools
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from netbuilder.data.forking import loading
from netbuilder.engines import choices
from netbuilder.engines.arrays import as_flat
from netbuilder.engines.choices import CACHE_VARIABLE, SWITCH_VARIABLE, Choices, turned_off
from netbuilder.engines.onednn.library import dnnl, threads
from netbuilder.engines.open_choice import Lend, OpenChoice
from netbuilder.ops.core.contexts import Call, PlanContext, Prepared
from netbuilder.ops.core.operator import TensorSpec

__all__ = [
    "CACHE_VARIABLE",
    "FIRST_RATE",
    "ROUNDS",
    "ROUNDS_OF_ALL",
    "SWITCH_VARIABLE",
    "OpenFastest",
    "cache_file",
    "fastest",
    "may_measure",
    "rates",
    "seconds",
    "take_open",
    "time_of_fastest",
    "turned_off",
]

ROUNDS = 5
_CLEARLY_FASTER = 0.97  # of the first candidate's time; a candidate that takes longer does not replace it
ROUNDS_OF_ALL = 2  # after which those that are far slower than another one are not measured any more
_FAR_SLOWER = 1.5  # of the fastest one's shortest time
_ALIGNMENT = 64  # bytes
_CACHE_BYTES = 32 << 20  # about the size of a processor's caches
_CACHES = "/sys/devices/system/cpu/cpu0/cache/index{}/size"
_FORMAT = 5  # version of the file and of the meaning of its names

Candidates = Mapping[str, Callable[[], Sequence[Prepared]]]
"""Name -> function that returns the kernel, followed by other kernels that the choice requires; [] if unavailable."""


def may_measure(ctx: PlanContext) -> bool:
    """Whether a choice between kernels may depend on times: in no net whose runs must be equal to the bit."""
    return ctx.enabled("measured_choices") and not turned_off()


def fastest(key: str, candidates: Candidates, ctx: PlanContext, *, flops: int, worth: int | None = None) -> str:
    """Return the name of the fastest candidate; the first one if that is not known, which is noted as open.

    Where nothing may be measured, that is the first one.

    Args:
        key: describes the computation and its shapes; it is measured once for each machine and number of threads.
        candidates: the candidates; the first one must be available.
        ctx: of the plan.
        flops: floating-point operations of the computation.
        worth: those that the choice decides on, if the computation stands for others.
    """
    default = next(iter(candidates))
    if not may_measure(ctx):
        return default
    full = f"{key}, threads {ctx.threads}"
    name = _choices().get(full)
    if isinstance(name, str) and name in candidates:
        return name
    _note(OpenFastest(full, candidates, ctx.threads, flops), flops if worth is None else worth)
    return default


def time_of_fastest(key: str, ctx: PlanContext) -> float | None:
    """Return the time in seconds of the candidate that ``fastest`` returns; None if it is not known.

    Args:
        key, ctx: see ``fastest``.
    """
    found = _choices().get(_time_key(f"{key}, threads {ctx.threads}")) if may_measure(ctx) else None
    return found if isinstance(found, float) else None


def _time_key(key: str) -> str:
    return f"time of {key}"


def seconds(
    key: str, make: Callable[[], Prepared | None], n: int, *, flops: int, differs: Callable[[], bool]
) -> float | None:
    """Return the time of a kernel in seconds, with its inputs in the caches; infinity if there is no kernel.

    None: it is not known, which is noted as open.

    Args:
        key, flops: see ``fastest``; the two functions do not share keys.
        n: number of threads.
        make: makes the kernel.
        differs: whether a plan that is compiled now would be another one, by the times that are known now.
    """
    full = f"seconds of {key}, threads {n}"
    found = _choices().get(full)
    if isinstance(found, float):
        return found
    _note(_OpenTime(full, make, n, flops, differs), flops)
    return None


def _note(choice: _Open, worth: int) -> None:
    """Note a choice as open; each time that it is asked for, it is worth more."""
    _open.setdefault(choice.key, choice).worth += worth


def take_open() -> list[OpenChoice]:
    """Return the choices that were noted as open since the last call."""
    found: list[OpenChoice] = [*_open.values()]
    _open.clear()
    return found


_open: dict[str, _Open] = {}  # plans are compiled one at a time
FIRST_RATE = 5e-11  # seconds of a thread for an operation: a slow kernel, until kernels have been measured
rates: list[float] = []  # seconds for an operation in the last rounds that were measured


class _Open:
    """An open choice (see ``OpenChoice``): candidates, and their times in the rounds measured so far."""

    cold = True  # with other data in the caches when a round begins, as after other operators of a net

    def __init__(self, key: str, candidates: Candidates, n: int, flops: int) -> None:
        self.key, self.worth, self._flops = key, 0, flops
        self._candidates, self._threads = candidates, n
        self._found: str | float | None = None
        self._kernels: dict[str, Sequence[Prepared]] | None = None  # those still compared
        self._times: dict[str, list[float]] = {}

    def settled(self) -> str | float | None:
        """Return what was found, here or for another plan."""
        return self._found if self._found is not None else self.accepted(_choices().get(self.key))

    def accepted(self, found: str | float | None) -> str | float | None:
        """Return what was stored if it is of use."""
        raise NotImplementedError

    def result(self) -> str | float | None:
        """Return what the times so far tell; None if another round is needed."""
        raise NotImplementedError

    def stored(self, found: str | float) -> dict[str, str | float]:
        """Return what is stored for a result, by key."""
        return {self.key: found}

    @property
    def differs(self) -> bool:
        """Whether a plan that is compiled now would be another one, by this choice."""
        raise NotImplementedError

    @property
    def known(self) -> bool:
        return self.settled() is not None

    @property
    def started(self) -> bool:
        return self._kernels is not None

    @property
    def expected(self) -> float:
        count = len(self._candidates if self._kernels is None else self._kernels)
        rate = _median(rates) if rates else FIRST_RATE / self._threads
        return rate * count * self._flops

    def advance(self, lend: Lend, limit: float) -> None:
        """Measure rounds: in each, each candidate once, so that other load affects all of them equally."""
        start = time.perf_counter()
        with loading, threads(self._threads):
            if self._kernels is None:
                made = {name: make() for name, make in self._candidates.items()}
                self._kernels = {name: parts for name, parts in made.items() if parts}
                self._times = {name: [] for name in self._kernels}
            found = self.result()
            if found is None:
                with self._bound(lend) as measured:
                    while found is None:
                        began, operations = time.perf_counter(), max(1, len(self._kernels) * self._flops)
                        measured()
                        now = time.perf_counter()
                        rates[:] = [*rates[-ROUNDS:], (now - began) / operations]
                        found = self.result()
                        if now - start + self.expected > limit:
                            break
        if found is not None:
            self._found, self._kernels = found, {}
            _choices().note(self.stored(found))

    def keep(self) -> None:
        _choices().save()

    @contextmanager
    def _bound(self, lend: Lend) -> Iterator[Callable[[], None]]:
        """Return a function that measures a round, in memory that is lent: each kernel has its own."""
        assert self._kernels is not None
        parts = [part for each in self._kernels.values() for part in each]
        starts = [0, *itertools.accumulate(map(_nbytes, parts))]
        with lend(starts[-1] + (_displacing_bytes() if self.cold else 0)) as memory:
            own, other = memory[: starts[-1]], memory[starts[-1] :]
            own.fill(0)  # and zeros it stays: all kernels are linear
            bound = iter([_bound(part, own[start:]) for part, start in zip(parts, starts)])
            calls = {name: [next(bound) for _ in each] for name, each in self._kernels.items()}

            def measure() -> None:
                assert self._kernels is not None
                other.fill(0)
                for name in self._kernels:
                    self._times[name].append(sum(map(_seconds_of_one, calls[name])))

            yield measure


class OpenFastest(_Open):
    """The choice of ``fastest``. The first round only fills the caches; then the slow ones drop out."""

    def accepted(self, found: str | float | None) -> str | float | None:
        return found if isinstance(found, str) and found in self._candidates else None

    def result(self) -> str | float | None:
        assert self._kernels is not None
        times = {name: self._times[name][1:] for name in self._kernels}
        rounds = min(map(len, times.values()))
        if rounds >= ROUNDS_OF_ALL:
            quickest = min(map(min, times.values()))
            self._kernels = {
                name: parts for name, parts in self._kernels.items() if min(times[name]) <= _FAR_SLOWER * quickest
            }
        if len(self._kernels) == 1:
            return next(iter(self._kernels))
        if rounds < ROUNDS:
            return None
        medians = {name: _median(times[name]) for name in self._kernels}
        first, best = next(iter(medians)), min(medians, key=medians.__getitem__)
        return best if medians[best] < _CLEARLY_FASTER * medians[first] else first

    def stored(self, found: str | float) -> dict[str, str | float]:
        times = self._times.get(str(found), [])[1:]
        return {self.key: found, **({_time_key(self.key): _median(times)} if times else {})}

    @property
    def differs(self) -> bool:
        return self.settled() not in (None, next(iter(self._candidates)))


class _OpenTime(_Open):
    """The time of ``seconds``: the shortest, since it is compared with one that was measured at another moment."""

    cold = False

    def __init__(
        self, key: str, make: Callable[[], Prepared | None], n: int, flops: int, differs: Callable[[], bool]
    ) -> None:
        def kernels() -> list[Prepared]:
            kernel = make()
            return [] if kernel is None else [kernel]

        super().__init__(key, {"": kernels}, n, flops)
        self._differs = differs

    def accepted(self, found: str | float | None) -> str | float | None:
        return found if isinstance(found, float) else None

    def result(self) -> str | float | None:
        if not self._times:
            return float("inf")
        times = self._times[""][1:]
        return min(times) if len(times) >= ROUNDS else None

    @property
    def differs(self) -> bool:
        return self._differs()


def _median(values: Sequence[float]) -> float:
    """Return the median, of an even number the greater one; the module for statistics takes long to import."""
    return sorted(values)[len(values) // 2]


@functools.cache
def _displacing_bytes() -> int:
    """Return how many bytes are written so that caches hold other data.

    A large cache of many cores holds the data of a whole net between its runs, so they stay there when it is measured.
    """
    try:
        texts = [Path(_CACHES.format(level)).read_text("ascii") for level in (2, 3)]
        own, shared = (int(text.strip().removesuffix("K")) for text in texts)
    except (OSError, ValueError):
        return _CACHE_BYTES
    return 2 * own << 10 if shared << 10 > 4 * _CACHE_BYTES else _CACHE_BYTES


def _seconds_of_one(call: Call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _bound(kernel: Prepared, memory: Any) -> Call:
    """Return the call of a kernel on memory of ``_nbytes``."""
    starts = _starts(kernel)

    def value(spec: TensorSpec | None) -> Any:
        start = next(starts)
        if spec is None:
            return None
        part = memory[start : start + spec.nbytes]
        return part if spec.layout is not None else as_flat(part, spec.dtype).reshape(spec.shape)

    inputs, outputs = ([value(spec) for spec in specs] for specs in (kernel.inputs, kernel.outputs))
    start = next(starts)
    return kernel.bind(inputs, outputs, memory[start : start + kernel.scratch])


def _starts(kernel: Prepared) -> Iterator[int]:
    """Yield where each input, each output and the scratch memory begin, and where that ends."""
    sizes = [0 if spec is None else spec.nbytes for spec in (*kernel.inputs, *kernel.outputs)]
    return itertools.accumulate((-(-size // _ALIGNMENT) * _ALIGNMENT for size in (*sizes, kernel.scratch)), initial=0)


def _nbytes(kernel: Prepared) -> int:
    """Return how much memory a kernel needs, to be measured."""
    return max(_starts(kernel))


def _choices() -> Choices:
    """Return the choices of this machine."""
    return Choices.of(_machine())


def cache_file() -> Path | None:
    """Return the file with the choices of this machine; None if there is no folder for it."""
    return choices.cache_file(_machine())


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
