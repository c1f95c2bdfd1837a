"""The first value that differs between two runs of a net, on other numbers of devices or with other settings."""

from __future__ import annotations

import dataclasses
import enum
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from netbuilder.graph.gradient_shares import is_backward
from netbuilder.graph.replicas import Replicas
from netbuilder.parallel.shares import SHARE_WEIGHT
from netbuilder.proto import NetError
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.runtime.execute.recorded_run import RecordedRun, Written

__all__ = ["Comparison", "Difference", "difference_from_file", "distance", "first_difference"]

Array = np.ndarray[Any, np.dtype[Any]]

_ROUNDING = 0.1
"""What is at most this times the bound, relative to what the values are sums of, may consist of rounding errors."""

_LEAST = 1e-6  # smallest root mean square of the elements to which differences are relative


@dataclass(frozen=True)
class Difference:
    """A value that differs between two runs.

    Args:
        blob: its name, without the replicas' scopes if it is one of theirs.
        what: which values were compared.
        absolute: largest absolute difference of two elements.
        relative: ||a - b|| / max(||a||, 1e-6 sqrt(n)), a being the first run's value with n elements.
        bound: what ``relative`` must not exceed.
        where: the operator that wrote it in the second run; "": it was there before the run.
        operator: that operator's index; None: it was there before.
        op_type: its type, or "".
        source: the line of the user's code that made the operator, or "".
        where_first: the operator that wrote it in the first run, or "".
    """

    blob: str
    what: str
    absolute: float
    relative: float
    bound: float
    where: str = ""
    operator: int | None = None
    op_type: str = ""
    source: str = ""
    where_first: str = ""

    def __str__(self) -> str:
        return (
            f"{self.blob!r} differs ({self.what}): by {self.absolute:.3g}, relative {self.relative:.3g}, the bound is "
            f"{self.bound:.3g}; " + (f"made by {self.where}" if self.where else "it differs before the run")
        )


def distance(first: Array, second: Array) -> tuple[float, float]:
    """Return the largest absolute difference of two elements, and ||a - b|| / max(||a||, 1e-6 sqrt(n)).

    Elements that are NaN, or the same infinity, in both arrays are equal.

    >>> distance(np.array([3.0, 4.0]), np.array([3.0, 4.5]))
    (0.5, 0.1)
    """
    a, b = (np.ravel(array).astype(np.float64) for array in (first, second))
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(all="ignore"):
        delta = np.where(same, 0.0, a - b)
    if not np.isfinite(delta).all():
        return float("inf"), float("inf")
    finite = a[np.isfinite(a)]
    norm = max(float(np.linalg.norm(finite)), _LEAST * float(np.sqrt(max(a.size, 1))))
    return float(np.abs(delta).max(initial=0)), float(np.linalg.norm(delta)) / norm


def first_difference(
    first: RecordedRun,
    second: RecordedRun,
    *,
    records: tuple[Replicas | None, Replicas | None] = (None, None),
    bound: float = 1e-4,
) -> Difference | None:
    """Return the first value, in the order in which the first run wrote them, that differs in the second run.

    See ``Comparison``, for one step.
    """
    return Comparison(records, bound=bound).step(first, second)


class Comparison:
    """Compares runs step by step.

    With equal numbers of replicas, values of the same operators are compared. Otherwise those of the replicas are put
    together: parameters, and gradients after their reduction, must be the same on all replicas; gradients before it
    add up to those of the whole batch; other values are joined along the axis of the samples or, if they have none,
    are equal, or have the same sum or mean. Values that only one of the runs has, such as those inside a fused kernel,
    and those whose shapes do not fit, are not compared.

    The rounding errors of a sum have no relation to its size if that is zero in theory, such as the gradient of a bias
    before a batch normalization. So differences do not count if they are at most ``bound / 10`` of the root mean square
    of the largest gradient, for gradients of parameters, or of the largest input of the operator, for values of the
    forward pass. Of gradients that are smaller than that in both runs many optimizers make steps of the usual size, so
    their parameters, with momenta, are not compared after the update. ``aligned`` has the values with which the next
    step of the second run has to start. With ``bound=0`` all differences count.

    Args:
        records: the records of replicas of the nets of both runs; None: the net has no replicas.
        bound: what relative differences must not exceed.

    Attributes:
        aligned: blob of the second run -> the value of the first run that it has to get before the next step.
    """

    def __init__(self, records: tuple[Replicas | None, Replicas | None] = (None, None), *, bound: float = 1e-4) -> None:
        self._records, self._bound = records, bound
        self._counts = [1 if record is None else len(record) for record in records]
        self.aligned: dict[str, Array] = {}

    def step(self, first: RecordedRun, second: RecordedRun) -> Difference | None:
        """Return the first value, in the order in which the first run wrote them, that differs in the second run.

        Args:
            first, second: runs from the same values, on the same batch.
        """
        runs = list(zip((first, second), self._records))
        floors = _floors(first, self._records[0], self._bound)
        exempt = _updated_by_zero(runs, self._bound)
        if self._counts[0] == self._counts[1]:
            pairs = _same_operators(first, second)
        else:
            pairs = _gathered(first, second, self._records)
        ignored = set(exempt)
        for pair in pairs:
            if pair.relative > self._bound:
                if not _is_rounding(pair, self._records[0], floors, exempt):
                    return pair.difference(self._bound)
                ignored.add(_short(pair.blob, self._records[0]))
        self.aligned = self._to_align(first, second, ignored)
        return None

    def _to_align(self, first: RecordedRun, second: RecordedRun, names: Collection[str]) -> dict[str, Array]:
        last = {_short(written.name, self._records[0]): written.value for written in first.written}
        found = {}
        for blob, before in second.before.items():
            short = _short(blob, self._records[1])
            value = last.get(short) if short in names else None
            if value is not None and value.shape == before.shape:
                found[blob] = value
        return found


def _is_rounding(pair: _Pair, record: Replicas | None, floors: Mapping[str, float], exempt: Collection[str]) -> bool:
    """Whether the difference of values that the runs have written is one of rounding, see ``Comparison``."""
    short = _short(pair.blob, record)
    return pair.was_written and (short in exempt or pair.absolute <= floors.get(short, 0.0))


def _short(name: str, record: Replicas | None) -> str:
    return name if record is None else record.devices.short_name(name)


def _rms(value: Array) -> float:
    """Return the root mean square; 0 for values that are not floating-point numbers."""
    if value.dtype.kind != "f" or not value.size:
        return 0.0
    return float(np.linalg.norm(np.ravel(value).astype(np.float64)) / np.sqrt(value.size))


def _gradient_sizes(run: RecordedRun, record: Replicas | None) -> dict[str, float]:
    """Return the root mean squares of the dense gradients of parameters, by name without scope."""
    sizes: dict[str, float] = {}
    names = {group.values for group in record.gradients if not group.is_sparse} if record is not None else ()
    for written in run.written:
        short = _short(written.name, record)
        if short in names and (written.exchanged or is_backward(written.maker.op_def)):
            sizes[short] = _rms(written.value)
    return sizes


def _floors(run: RecordedRun, record: Replicas | None, bound: float) -> dict[str, float]:
    """Return the differences that are rounding errors, by the values' names without scopes."""
    sizes = {name: _rms(value) for name, value in run.before.items()}
    floors: dict[str, float] = {}
    for written in run.written:
        if is_backward(written.maker.op_def):
            break
        largest = max((sizes.get(name, 0.0) for part in written.parts for name in part.inputs), default=0.0)
        sizes[written.name] = _rms(written.value)
        short = _short(written.name, record)
        floors[short] = max(floors.get(short, 0.0), _ROUNDING * bound * largest)
    gradients = _gradient_sizes(run, record)
    largest = max(gradients.values(), default=0.0)
    return {**floors, **dict.fromkeys(gradients, _ROUNDING * bound * largest)}


def _updated_by_zero(runs: Sequence[tuple[RecordedRun, Replicas | None]], bound: float) -> frozenset[str]:
    """Return what updates make of gradients that may consist of rounding errors in all runs, by name without scope."""
    small = []
    for run, record in runs:
        sizes = _gradient_sizes(run, record)
        least = _ROUNDING * bound * max(sizes.values(), default=0.0)
        small.append(frozenset(name for name, size in sizes.items() if size < least))
    return _updated_by(*runs[0], frozenset.intersection(*small))


def _updated_by(run: RecordedRun, record: Replicas | None, gradients: Collection[str]) -> frozenset[str]:
    """Return the values that the update makes of gradients: parameters, their momenta and averages."""
    if record is None or not gradients:
        return frozenset()
    every = {group.values for group in record.gradients}
    shapes: dict[str, set[tuple[int, ...]]] = {}  # value -> the shapes of the gradients that it is made of
    found: set[str] = set()
    for written in run.written:
        short = _short(written.name, record)
        if short in gradients:
            shapes[short] = {written.value.shape}
        elif short not in every and not is_backward(written.maker.op_def):
            reads = (shapes.get(_short(name, record), set()) for name in written.maker.inputs)
            if any(written.value.shape in each for each in reads):
                shapes[short] = {written.value.shape}
                found.add(short)
    return frozenset(found)


def difference_from_file(
    run: RecordedRun, stored: Mapping[str, Array], *, record: Replicas | None = None, bound: float = 1e-4
) -> Difference | None:
    """Return the first blob whose last value in a run differs from a stored one, in the order of their last writes.

    Differences of rounding do not count, see ``Comparison``.

    Args:
        run: the run.
        stored: name -> value of blobs after it, for example those that Caffe2 computed.
        record: the record of the net's replicas; None: it has none.
        bound: what relative differences must not exceed.

    Raises:
        NetError: the run has written none of the stored blobs.
    """
    last = {written.name: written for written in run.written if written.step < 0}
    common = [written for written in run.written if last.get(written.name) is written and written.name in stored]
    if not common:
        raise NetError(f"the run has written none of the stored blobs, {sorted(stored)[:8]}")
    others = [
        dataclasses.replace(written, value=stored[written.name])
        if last.get(written.name) is written and written.name in stored
        else written
        for written in run.written
    ]
    floors = _floors(run, record, bound)
    exempt = _updated_by_zero([(run, record), (RecordedRun(run.nets, run.before, others), record)], bound)
    for written in common:
        pair = _Pair(written.name, "the stored value and the last of the run", stored[written.name], written.value,
                     None, written)  # fmt: skip
        if pair.relative > bound and not _is_rounding(pair, record, floors, exempt):
            return pair.difference(bound)
    return None


class _Pair:
    """Two values to compare."""

    def __init__(
        self, blob: str, what: str, a: Array, b: Array, first: Written | None = None, second: Written | None = None
    ) -> None:
        self.blob, self.what, self._first, self._second = blob, what, first, second
        if a.shape != b.shape:
            self.what, self.absolute, self.relative = f"shapes {a.shape} and {b.shape}", float("inf"), float("inf")
        else:
            self.absolute, self.relative = distance(a, b)

    @property
    def was_written(self) -> bool:
        """Whether the run has written the values."""
        return self._second is not None

    def difference(self, bound: float) -> Difference:
        made = self._second
        return Difference(
            self.blob, self.what, self.absolute, self.relative, bound,
            where=made.where if made is not None else "",
            operator=made.maker.index if made is not None else None,
            op_type=made.maker.op_def.type if made is not None else "",
            source=made.maker.op_def.debug_info if made is not None else "",
            where_first=self._first.where if self._first is not None else "",
        )  # fmt: skip


def _same_operators(first: RecordedRun, second: RecordedRun) -> Iterator[_Pair]:
    for name, value in first.before.items():
        if name in second.before:
            yield _Pair(name, "the values before the run", value, second.before[name])
    keys = _keys_by_position if _programs_agree(first, second) else _keys_by_count
    found = dict(zip(keys(second), second.written))
    for key, written in zip(keys(first), first.written):
        other = found.get(key)
        if other is not None:
            yield _Pair(written.name, "the values of the two runs", written.value, other.value, written, other)


Key = tuple[Any, ...]


def _keys_by_position(run: RecordedRun) -> Iterator[Key]:
    """Yield for each value the position of its operator and of the output; names may differ between the runs."""
    for written in run.written:
        outputs = written.maker.outputs
        slot = outputs.index(written.name) if written.name in outputs else written.name
        yield _net_of(run, written), written.maker.index, slot, written.step


def _keys_by_count(run: RecordedRun) -> Iterator[Key]:
    """Yield for each value its name, and how often the name was written before."""
    counts: dict[tuple[str, int], int] = defaultdict(int)
    for written in run.written:
        counts[written.name, written.step] += 1
        yield written.name, written.step, counts[written.name, written.step]


def _net_of(run: RecordedRun, written: Written) -> int | str:
    """Return the number of the net that has an operator, or the name of a subgraph."""
    return run.nets.index(written.net) if written.net in run.nets else written.net


def _programs_agree(first: RecordedRun, second: RecordedRun) -> bool:
    """Whether operators of one position have the same type in both runs, as far as they are recorded."""
    types = [
        {(_net_of(run, written), part.index): part.op_def.type for written in run.written for part in written.parts}
        for run in (first, second)
    ]
    return all(types[1].get(place, op_type) == op_type for place, op_type in types[0].items())


class _Phase(enum.Enum):
    """What a value is: of a parameter's gradient, before and after its reduction over the replicas, or another one."""

    OTHER = "other"
    LOCAL = "local"
    REDUCED = "reduced"
    CHANGED = "changed"  #: by weight decay or the update


class _Copies:
    """The values of one run, by the blob's name without scope; of each the copies in the order of the replicas."""

    def __init__(self, run: RecordedRun, record: Replicas | None, gradients: Collection[str]) -> None:
        self._devices = record.devices if record is not None else None
        self.before: dict[str, list[Array]] = defaultdict(list)
        for name in sorted(run.before, key=self._replica):
            self.before[self._short(name)].append(run.before[name])
        histories: dict[tuple[str, int], list[tuple[int, Written]]] = defaultdict(list)
        for order, written in enumerate(run.written):
            if not self._hides_its_replica(written, in_subgraph=written.net not in run.nets):
                histories[written.name, written.step].append((order, written))
        found: dict[Key, list[tuple[int, Written]]] = defaultdict(list)
        for (name, step), history in histories.items():
            short = self._short(name)
            phases = _of_gradient if short in gradients and step < 0 else _of_other
            for phase, number, place in phases([written for _, written in history]):
                found[short, step, phase, number].append(history[place])
        self.written: dict[Key, list[Written]] = {}
        for key, copies in sorted(found.items(), key=lambda item: item[1][0][0]):  # in the order of the run
            copies.sort(key=lambda copy: self._replica(copy[1].name))  # which may go through the replicas backwards
            self.written[key] = [written for _, written in copies]

    @property
    def weights(self) -> list[float]:
        """The weights of the replicas' shares of the batch, one on average; [] if they are equal."""
        found = [float(np.ravel(value)[0]) for value in self.before.get(SHARE_WEIGHT, ())]
        mean = sum(found) / max(len(found), 1)
        return [weight / mean for weight in found] if len(set(found)) > 1 else []

    def _replica(self, name: str) -> int:
        return (self._devices.replica_of(name) if self._devices is not None else None) or 0

    def _hides_its_replica(self, written: Written, *, in_subgraph: bool) -> bool:
        """Whether a value belongs to a replica, and its name does not say to which: parts of sums, and of step nets."""
        if self._devices is None or self._devices.replica_of(written.name) is not None:
            return False
        reads = (*written.maker.inputs, *written.maker.outputs)
        return in_subgraph or any(self._devices.replica_of(name) is not None for name in reads)

    def _short(self, name: str) -> str:
        return self._devices.short_name(name) if self._devices is not None else name


Phases = Iterator[tuple[_Phase, int, int]]


def _of_other(history: Sequence[Written]) -> Phases:
    """Yield for each value of a blob that compute operators write: phase, number, place in the history."""
    computed = [place for place, written in enumerate(history) if not written.exchanged]
    yield from ((_Phase.OTHER, number, place) for number, place in enumerate(computed))


def _of_gradient(history: Sequence[Written]) -> Phases:
    """Yield the values of a gradient that can be compared: phase, number, place in the history.

    The reduced value is the last that the backward pass or an exchange writes; the local one is the last that is
    computed before the exchange. Without an exchange the two are the same value, which differs as a reduced one if a
    reduction is missing. Earlier values, such as the sums of a normalization over all devices, are not compared.
    """
    ends = [place for place, written in enumerate(history) if written.exchanged or is_backward(written.maker.op_def)]
    last = local = ends[-1] if ends else 0
    while local >= 0 and history[local].exchanged:
        local -= 1
    if local >= 0:
        yield _Phase.LOCAL, 0, local
    yield _Phase.REDUCED, 0, last
    yield from ((_Phase.CHANGED, place - last, place) for place in range(last + 1, len(history)))


def _gathered(
    first: RecordedRun, second: RecordedRun, records: tuple[Replicas | None, Replicas | None]
) -> Iterator[_Pair]:
    known = next(record for record in records if record is not None)
    equal = {*known.parameters, *known.computed}
    gradients = {group.values for group in known.gradients if not group.is_sparse and known.accumulate_steps == 1}
    a, b = (_Copies(run, record, gradients) for run, record in zip((first, second), records))
    # Samples that are not on the first axis are in another order where an operator has joined the first two axes.
    others_of = _ANY_ORDER if _is_split_along_later_axis(a, b) else _ANY
    weights = a.weights, b.weights
    modes_of = {_Phase.OTHER: others_of, _Phase.LOCAL: _LOCAL, _Phase.CHANGED: _EQUAL}
    for name, values in a.before.items():
        if name in b.before:
            yield _closest(name, values, b.before[name], _EQUAL if name in equal else others_of, weights)
    for key, made in a.written.items():
        name, _, phase, _ = key
        others = b.written.get(key)
        if others is None:
            continue
        if phase is _Phase.REDUCED:  # some ways to train reduce the gradient on the first replica only
            yield _of_written(name, _reduced(made), _reduced(others), _REDUCED, weights)
        else:
            yield _of_written(name, made, others, _EQUAL if name in equal else modes_of[phase], weights)


def _reduced(copies: Sequence[Written]) -> Sequence[Written]:
    return [copy for copy in copies if copy.exchanged] or copies


Modes = tuple[str, ...]

_EQUAL: Modes = ("equal",)
_REDUCED: Modes = ("reduced",)
_LOCAL: Modes = ("sum", "equal")  # equal: computed from values of all devices
_ANY: Modes = ("joined", "equal", "sum", "mean", "weighted sum", "weighted mean")
_ANY_ORDER: Modes = (*_ANY, "sorted")

_TEXTS = {
    "equal": "the copy of each replica is compared",
    "reduced": "the gradient on each replica after the reduction",
    "sum": "the sum over the replicas",
    "mean": "the mean over the replicas",
    "weighted sum": "the sum over the replicas, weighted by their shares of the batch",
    "weighted mean": "the mean over the replicas, weighted by their shares of the batch",
    "joined": "the values of the replicas joined along axis {}",
    "sorted": "the elements of the replicas in any order",
}


Weights = tuple[list[float], list[float]]
"""Of the shares of each run's replicas, one on average; [] for a run whose shares are equal."""


def _of_written(
    name: str, made: Sequence[Written], others: Sequence[Written], modes: Iterable[str], weights: Weights
) -> _Pair:
    first, second = ([written.value for written in side] for side in (made, others))
    return _closest(name, first, second, modes, weights, made[0], others)


def _closest(
    name: str,
    a: Sequence[Array],
    b: Sequence[Array],
    modes: Iterable[str],
    weights: Weights,
    first: Written | None = None,
    second: Sequence[Written] = (),
) -> _Pair:
    """Return the pair of put together values that differ least; an empty pair if the shapes do not fit."""
    if second and _is_of_the_share(a, b):
        modes = ()
    found = [
        _Pair(name, what, x, y, first, second[which] if second else None)
        for mode in modes
        for what, x, y, which in _put_together(mode, a, b, weights)
    ]
    if not found:
        return _Pair(name, "not comparable", np.zeros(0), np.zeros(0))
    return min(found, key=lambda pair: pair.relative)


def _is_split_along_later_axis(a: _Copies, b: _Copies) -> bool:
    shapes = ((a.before[name][0].shape, b.before[name][0].shape) for name in a.before if name in b.before)
    return any(len(x) == len(y) and x[:1] == y[:1] and x != y for x, y in shapes)


def _is_of_the_share(a: Sequence[Array], b: Sequence[Array]) -> bool:
    """Whether values describe a replica's share, so that they differ: shapes, lengths, and state stored as bytes."""
    return a[0].dtype == np.uint8 or (a[0].dtype.kind in "iu" and all(value.shape == a[0].shape for value in b))


def _put_together(
    mode: str, a: Sequence[Array], b: Sequence[Array], weights: Weights
) -> Iterator[tuple[str, Array, Array, int]]:
    """Yield texts, two values, and the number of the second one's operator to name."""
    text = _TEXTS[mode]
    if mode == "joined":
        for axis in range(a[0].ndim):
            if _fit(a, axis) and _fit(b, axis):
                x, y = np.concatenate(a, axis), np.concatenate(b, axis)
                if x.shape == y.shape:
                    yield text.format(axis), x, y, _worst([x] * len(b), b)
        return
    if mode == "sorted":
        x, y = (np.sort(np.concatenate([np.ravel(value) for value in values])) for values in (a, b))
        if x.shape == y.shape and a[0].ndim:
            yield text, x, y, 0
        return
    if any(value.shape != a[0].shape for value in (*a, *b)):
        return
    if mode in ("equal", "reduced"):
        pairs = [(distance(x, y)[1], number, x, y) for x in a for number, y in enumerate(b)]
        _, number, x, y = max(pairs, key=lambda pair: pair[0])
        yield text, x, y, number
        return
    if mode.startswith("weighted"):
        if not any(weights) or a[0].dtype.kind != "f":
            return
        a, b = (_weighted(values, of_run) for values, of_run in zip((a, b), weights))
    sums = [np.sum(np.stack(values).astype(np.float64), 0) for values in (a, b)]
    counts = (1, 1) if mode.endswith("sum") else (len(a), len(b))
    yield text, sums[0] / counts[0], sums[1] / counts[1], 0


def _weighted(values: Sequence[Array], weights: Sequence[float]) -> Sequence[Array]:
    if len(weights) != len(values):
        return values
    return [value * np.float64(weight) for value, weight in zip(values, weights)]


def _fit(values: Sequence[Array], axis: int) -> bool:
    shapes = {value.shape[:axis] + value.shape[axis + 1 :] for value in values if value.ndim > axis}
    return len(shapes) == 1 and all(value.ndim > axis for value in values)


def _worst(whole: Sequence[Array], parts: Sequence[Array]) -> int:
    """Return the number of the part that differs most from its share of the whole."""
    axis = next((i for i, (n, m) in enumerate(zip(whole[0].shape, parts[0].shape)) if n != m), 0)
    ends = np.cumsum([part.shape[axis] for part in parts])
    shares = np.split(whole[0], ends[:-1], axis)
    return max(range(len(parts)), key=lambda i: distance(shares[i], parts[i])[1])
