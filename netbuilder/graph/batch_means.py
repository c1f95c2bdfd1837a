"""Means over the samples of a batch in a net: which ones the data divide, and how the shares of a batch combine them.

A mean whose divisor follows from the data (a sum of weights, a count of valid labels, a number of rows that an operator
chose) has another divisor on each share of a batch. ``split_means`` makes it a mean over all shares: MeanDivisor, the
sum of the divisors, and WholeBatchMean. What a net computes from a mean by other arithmetic than that of a mean cannot
be combined; ``BatchMeans`` says which operator does it.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

from netbuilder.graph.defuse import dependencies, with_earlier
from netbuilder.ops.core.operator import BatchMean, InBatch, Operator, decode
from netbuilder.ops.core.registry import find, is_registered
from netbuilder.ops.core.renaming import subgraphs
from netbuilder.proto import NetError, OperatorDef
from netbuilder.proto.arguments import arguments, make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["BatchMeans", "Divisor", "Kind", "Rows", "SplitMeans", "split_means", "sums_first"]


class Kind(enum.IntEnum):
    """What a blob holds, with respect to the samples of a batch."""

    CONSTANT = 0  #: nothing that depends on the samples
    ROWS = 1  #: values of samples
    MEAN = 2  #: a mean over all samples, or what is linear in such means
    SUM = 3  #: a sum over all samples
    MIXED = 4  #: what depends on a mean or a sum over the samples in another way


class _Extents(enum.IntEnum):
    """Whether the extents of a blob depend on the elements of others."""

    FIXED = 0
    COUNTED = 1  #: those of all shares add up to those of the whole batch
    OTHER = 2  #: they do not


@dataclass(frozen=True)
class Rows:
    """A number that the data determine: of rows, or a sum of weights; and the version of the blob it is computed from.

    Args:
        of: "sum", of weights, a mask or lengths, or "rows".
        blob, version: the blob, and how often the net had written it.
    """

    of: str
    blob: str
    version: int


@dataclass(frozen=True)
class _State:
    kind: Kind = Kind.CONSTANT
    extents: _Extents = _Extents.FIXED
    rows: Rows | None = None
    why: str = ""
    means: frozenset[int] = frozenset()  # the combined means that it depends on
    total: Rows | None = None  # of a sum: what it sums


_CONSTANT, _SAMPLES = _State(), _State(Kind.ROWS)


class BatchMeans:
    """The means over samples in a forward pass, found by one walk over its operators.

    Args:
        ops: operators in the order in which they run.
        constants: blobs that do not depend on the samples: parameters, and what the init net fills.
        scale: the loss scale, by which a sum over samples may be multiplied and stays one.

    Attributes:
        combined: index of an operator -> its mean, for those whose divisor the data determine.
        rows: index of such an operator -> what its number of rows is computed from, if it is not its input.
    """

    def __init__(self, ops: Sequence[OperatorDef], constants: Collection[str], scale: float = 1.0) -> None:
        self.combined: dict[int, BatchMean] = {}
        self.rows: dict[int, Rows] = {}
        self._divisors: dict[int, Rows] = {}  # of combined means that divide by a sum
        self._versions: dict[str, int] = {}
        self._scale = scale
        self._states: dict[str, _State] = dict.fromkeys(constants, _CONSTANT)
        for index, op in enumerate(ops):
            inputs = [self._states.get(name, _SAMPLES) for name in op.input]
            found = self._outputs(index, op, inputs)
            for name, state in zip(op.output, found):
                self._versions[name] = self._versions.get(name, 0) + 1
                self._states[name] = state

    def kind(self, blob: str) -> Kind:
        """Return what a blob holds after the last operator."""
        return self._states.get(blob, _SAMPLES).kind

    def why(self, blob: str) -> str:
        """Return why a blob is not a mean over the samples of all shares; "" if nothing speaks against it."""
        state = self._states.get(blob, _SAMPLES)
        return state.why if state.kind >= Kind.SUM else ""

    def leave_mixed(self, losses: Iterable[str]) -> None:
        """Leave the means as they are on which losses depend in no linear way."""
        mixed, linear = set[int](), set[int]()
        for loss in losses:
            state = self._states.get(loss, _SAMPLES)
            (mixed if state.kind == Kind.MIXED else linear).update(state.means)
        for index in mixed - linear:
            del self.combined[index]

    def reads(self, index: int, op: OperatorDef) -> list[str]:
        """Return the blobs that the divisor of the mean of an operator, number ``index``, is computed from."""
        rows = self.rows.get(index)
        return [rows.blob] if rows is not None else [op.input[slot] for slot in self.combined[index].inputs]

    def _outputs(self, index: int, op: OperatorDef, inputs: Sequence[_State]) -> list[_State]:
        operator = _decoded(op)
        kind = max((state.kind for state in inputs), default=Kind.CONSTANT)
        if operator is None:
            return [_SAMPLES] * len(op.output)
        if kind == Kind.CONSTANT:
            reads = operator.dynamic or operator.waits or operator.stateful and not operator.draws
            return [_SAMPLES if reads and not _updates(op) else _CONSTANT] * len(op.output)
        if InBatch.EXTENTS_ONLY in operator.in_batch:
            extents = max(state.extents for state in inputs)
            same = InBatch.SAME_ROWS in operator.in_batch
            return [_State(Kind.CONSTANT, extents if same else _Extents.FIXED)] * len(op.output)
        if kind == Kind.ROWS or _divides_by_sum(operator, inputs):
            return self._of_rows(index, op, operator, inputs)
        return [self._of_means(op, operator, inputs)] * len(op.output)

    def _of_rows(self, index: int, op: OperatorDef, operator: Operator, inputs: Sequence[_State]) -> list[_State]:
        extents = _extents(op, operator, inputs)
        rows = [self._rows(op, operator, slot, inputs) if extents else None for slot in range(len(op.output))]
        found = [_State(Kind.ROWS, extents, each) for each in rows]
        mean = operator.batch_mean()
        if inner := _mean_inside(op):
            why = f"{_describe(op)} has {inner} in its subgraph, where shares of a batch cannot exchange its divisor"
            return [_State(Kind.MIXED, why=why)] * len(op.output)
        if mean is not None:
            if not mean.axes or 0 in mean.axes:
                found[mean.output] = self._of_mean(index, op, mean, inputs)
        elif InBatch.SUM in operator.in_batch and not arguments(op).get("axes"):
            why = f"{_describe(op)} is a sum over samples; use a mean, such as AveragedLoss"
            total = Rows("sum", op.input[0], self._versions.get(op.input[0], 0))
            found = [_State(Kind.SUM, why=why, total=total)] * len(op.output)
        elif InBatch.OVER_SAMPLES in operator.in_batch and not arguments(op).get("axes"):
            found = [_State(Kind.MIXED, why=f"{_describe(op)} is over all samples")] * len(op.output)
        elif op.type == "Size" and inputs[0].extents:
            why = f"{_describe(op)} is a number of rows that the data determine"
            found = [_State(Kind.SUM, why=why)] * len(op.output)
        return found

    def _of_mean(self, index: int, op: OperatorDef, mean: BatchMean, inputs: Sequence[_State]) -> _State:
        read = [inputs[slot] for slot in mean.inputs]
        extents = max(state.extents for state in read)
        if mean.by_values and all(state.kind == Kind.CONSTANT for state in read) and not extents:
            return _State(Kind.MEAN)
        if not mean.of:
            return _State(Kind.MIXED, why=f"{_describe(op)} has a divisor of its own for each element")
        if not mean.by_values and extents == _Extents.OTHER:
            why = f"{_describe(op)} is a mean over rows, padding included, whose number depends on the longest sample"
            return _State(Kind.MIXED, why=why)
        if mean.by_values or extents:
            self.combined[index] = mean
            if mean.of == "sum" and len(mean.inputs) == 1 and not (mean.least or mean.offset):
                blob = op.input[mean.inputs[0]]
                self._divisors[index] = Rows("sum", blob, self._versions.get(blob, 0))
            rows = read[0].rows if not mean.by_values else None
            if rows is not None and self._versions.get(rows.blob, 0) == rows.version:
                self.rows[index] = rows
            return _State(Kind.MEAN, means=frozenset({index}))
        elif mean.axes:  # axis 0 may be that of time
            return _SAMPLES
        return _State(Kind.MEAN)

    def _rows(self, op: OperatorDef, operator: Operator, slot: int, inputs: Sequence[_State]) -> Rows:
        """Return what the number of rows of an output is computed from: as little as possible."""
        by = operator.rows_chosen_by
        if by is not None and slot == 0:
            return Rows("sum", op.input[by], self._versions.get(op.input[by], 0))
        if InBatch.ROW_BY_ROW in operator.in_batch:
            given = [state.rows for state in inputs if state.extents]
        else:
            given = [inputs[1].rows] if op.type == "Gather" and not arguments(op).get("axis") else []
        if given and given[0] is not None:
            return given[0]
        return Rows("rows", op.output[slot], self._versions.get(op.output[slot], 0) + 1)

    def _of_means(self, op: OperatorDef, operator: Operator, inputs: Sequence[_State]) -> _State:
        """Return the state of the outputs of an operator that reads a mean or a sum over samples."""
        if op.type == "Mul" and (undone := self._undone(op, inputs)) is not None:
            return undone
        means = frozenset[int]().union(*(state.means for state in inputs))
        return dataclasses.replace(self._combined_state(op, operator, inputs), means=means)

    def _undone(self, op: OperatorDef, inputs: Sequence[_State]) -> _State | None:
        """Return the state of a mean times its own divisor, which is a sum; the mean then stays that of a share."""
        for mean, count in zip(inputs, inputs[::-1]):
            for index in mean.means if mean.kind == Kind.MEAN and count.total is not None else ():
                if self._divisors.get(index) == count.total and len(mean.means) == 1:
                    del self.combined[index]
                    why = f"{_describe(op)} multiplies the mean of a share by its own divisor"
                    for name, state in self._states.items():
                        if index in state.means:
                            self._states[name] = _State(Kind.MIXED, why=why)
                    return _State(Kind.SUM, why=f"{_describe(op)} is a sum over samples; scale it by their number")
        return None

    def _combined_state(self, op: OperatorDef, operator: Operator, inputs: Sequence[_State]) -> _State:
        first = next((state for state in inputs if state.kind == Kind.MIXED), None)
        if first is not None:
            return first
        kinds = [state.kind for state in inputs]
        known = {kinds[slot] for slot in _linear_slots(op, operator, kinds)}
        others = {kind for slot, kind in enumerate(kinds) if slot not in _linear_slots(op, operator, kinds)}
        if not known or Kind.ROWS in known or others - {Kind.CONSTANT}:
            why = f"{_describe(op)} is not linear in the mean or sum over samples that it reads"
            return _State(Kind.MIXED, why=why)
        if Kind.SUM not in known or self._rescales(op):
            return _State(Kind.MEAN)
        return next(state for state in inputs if state.kind == Kind.SUM)

    def _rescales(self, op: OperatorDef) -> bool:
        """Whether an operator divides a sum by a number of the script's own, which may be that of the samples."""
        if op.type in ("Div", "Mul", "WeightedSum"):
            return True
        return op.type == "Scale" and abs(arguments(op).get("scale", 1.0) - self._scale) > 1e-6 * self._scale


def _divides_by_sum(operator: Operator, inputs: Sequence[_State]) -> bool:
    """Whether an operator reads sums over samples only as the divisor of its mean, as a count of objects."""
    mean = operator.batch_mean()
    if mean is None or mean.of != "sum":
        return False
    allowed = [Kind.ROWS if slot not in mean.inputs else Kind.SUM for slot in range(len(inputs))]
    return all(state.kind in (Kind.CONSTANT, Kind.ROWS, kind) for state, kind in zip(inputs, allowed))


def _linear_slots(op: OperatorDef, operator: Operator, kinds: Sequence[Kind]) -> Sequence[int]:
    """Return the inputs in which an operator is linear, if the others are constant."""
    if op.type == "Mul":
        return [slot for slot, kind in enumerate(kinds) if kind != Kind.CONSTANT][: 1 if Kind.CONSTANT in kinds else 0]
    if op.type in ("Div", "WeightedSum"):
        return range(0, len(kinds), 2)
    return range(len(kinds)) if InBatch.LINEAR in operator.in_batch else ()


def _describe(op: OperatorDef) -> str:
    """Return an operator's type and outputs, and the line that added it."""
    place = f", at {op.debug_info}," if op.debug_info else ""
    return f"{op.type} {', '.join(map(repr, op.output))}{place}"


def _decoded(op: OperatorDef) -> Operator | None:
    """Return the operator; None if it is unknown, or wrong, which is found elsewhere."""
    if not is_registered(op.type):
        return None
    try:
        return decode(find(op.type), op)
    except NetError:
        return None


def _updates(op: OperatorDef) -> bool:
    """Whether an operator changes a blob, such as a counter, in place."""
    return not set(op.input).isdisjoint(op.output)


def _extents(op: OperatorDef, operator: Operator, inputs: Sequence[_State]) -> _Extents:
    if (
        InBatch.NOT_ADDITIVE in operator.in_batch
        or op.type == "PackSegments"
        and arguments(op).get("max_length", -1) < 0
    ):
        return _Extents.OTHER
    if operator.rows_chosen_by is not None:
        return _Extents.COUNTED
    if any(True for _ in subgraphs(op)):
        return _Extents.FIXED
    of_segments = _lengths(op, operator)
    if of_segments is not None:
        return inputs[of_segments].extents if of_segments < len(inputs) else _Extents.FIXED
    if op.type == "Gather" and not arguments(op).get("axis"):
        return inputs[1].extents
    widest = max(state.extents for state in inputs)
    chosen = operator.dynamic and not operator.has_side_effects and InBatch.SAME_ROWS not in operator.in_batch
    return max(widest, _Extents.COUNTED) if chosen else widest


def _lengths(op: OperatorDef, operator: Operator) -> int | None:
    """Return the index of the lengths of an operator with a row of its output for each of them; None: it has none."""
    if operator.dynamic or "Lengths" not in op.type and op.type not in ("LambdaRankNdcg", "PairWiseLoss"):
        return None
    names = [name.rstrip("?").lower() for name in operator.inputs]
    return next((slot for slot, name in enumerate(names) if name in ("lengths", "session_lengths")), None)


def _mean_inside(op: OperatorDef) -> str:
    """Return a description of a mean in a subgraph whose divisor the elements of its inputs determine; "": none."""
    for subgraph in subgraphs(op):
        for inner in subgraph.op:
            operator = _decoded(inner)
            mean = operator.batch_mean() if operator is not None else None
            if mean is not None and mean.by_values:
                return _describe(inner)
            if found := _mean_inside(inner):
                return found
    return ""


@dataclass(frozen=True)
class Divisor:
    """The blobs of a divisor: that of the share, and that for all shares."""

    own: str
    total: str


@dataclass(frozen=True)
class SplitMeans:
    """Operators in which means are combined, and for each of their divisors its blobs."""

    ops: list[OperatorDef]
    divisors: list[Divisor] = field(default_factory=list)


def split_means(
    ops: Iterable[OperatorDef],
    found: BatchMeans,
    taken: Collection[str],
    *,
    parts: int = 1,
    part: int = 1,
    weights: Sequence[tuple[str, str]] = (),
) -> SplitMeans:
    """Return the operators with the means of shares turned into means over all shares.

    Before each mean comes the divisor of the share, which is copied to the blob that gets the sum over all shares; the
    caller adds the operators that sum it. A divisor that several means have in common is computed once.

    Args:
        ops: a forward pass.
        found: the means in it.
        taken: names that new blobs must not have.
        parts, part: the number of shares, and by what it is divided.
        weights: for each replica the scope of its blobs, and the blob with the weight of its share.
    """
    return _Split(found, set(taken), {"parts": float(parts), "part": float(part)}, weights).run(ops)


class _Split:
    def __init__(
        self,
        found: BatchMeans,
        taken: set[str],
        parts: Mapping[str, float],
        weights: Sequence[tuple[str, str]],
    ) -> None:
        self._found, self._taken, self._parts, self._weights = found, taken, parts, weights
        self._versions: dict[str, int] = {}
        self._known: dict[Any, Divisor] = {}

    def run(self, ops: Iterable[OperatorDef]) -> SplitMeans:
        found = list[OperatorDef]()
        for index, op in enumerate(ops):
            mean = self._found.combined.get(index)
            found += [op] if mean is None else self._split(op, mean, self._found.rows.get(index))
            for name in op.output:
                self._versions[name] = self._versions.get(name, 0) + 1
        return SplitMeans(found, list(self._known.values()))

    def _split(self, op: OperatorDef, mean: BatchMean, rows: Rows | None) -> Iterator[OperatorDef]:
        weight = [blob for scope, blob in self._weights if op.output[mean.output].startswith(scope)]
        how: dict[str, Any] = {"of": mean.of, "axis": mean.axis} if mean.of == "rows" else {"of": mean.of}
        how |= {"axes": mean.axes or None}
        read = [op.input[slot] for slot in mean.inputs]
        if rows is not None:  # the ratio of the numbers of rows is that of the numbers of elements
            how, read = {"of": rows.of}, [rows.blob]
        result = op.output[mean.output]
        key = *how.items(), *((name, self._versions.get(name, 0)) for name in (*read, *weight))
        if key not in self._known:
            own = self._new(result + "_divisor")
            divisor = self._known[key] = Divisor(own, self._new(own + "_of_all"))
            yield _beside(op, "MeanDivisor", [*read, *weight], [own], weighted=bool(weight) or None, **how)
            yield _beside(op, "Copy", [own], [divisor.total])
        divisor, of_share = self._known[key], OperatorDef()
        of_share.CopyFrom(op)
        of_share.output[mean.output] = self._new(result + "_of_share")
        yield of_share
        inputs = [of_share.output[mean.output], divisor.own, divisor.total, *weight]
        more = {"least": mean.least or None, "offset": mean.offset or None}
        yield _beside(op, "WholeBatchMean", inputs, [result], **self._parts, **more)

    def _new(self, name: str) -> str:
        number, found = 0, name
        while found in self._taken:
            number, found = number + 1, f"{name}_{number + 1}"
        self._taken.add(found)
        return found


def _beside(op: OperatorDef, op_type: str, inputs: Sequence[str], outputs: Sequence[str], **more: Any) -> OperatorDef:
    """Return an operator on the device of another one, with its line."""
    made = make_op(op_type, inputs, outputs, **more)
    if op.HasField("device_option"):
        made.device_option.CopyFrom(op.device_option)
    made.debug_info = op.debug_info
    return made


def sums_first(ops: Sequence[OperatorDef], totals: Collection[str], sums: Sequence[OperatorDef]) -> list[OperatorDef]:
    """Return operators in another order: what divisors are computed from, the operators that sum them, and the others.

    Args:
        ops: a net with divisors of several shares (``split_means``).
        totals: the blobs with the copies of the divisors.
        sums: the operators that replace each of them by its sum over all shares.
    """
    copies = [index for index, op in enumerate(ops) if op.type == "Copy" and not set(totals).isdisjoint(op.output)]
    first = with_earlier(dependencies(ops), copies)
    others = [op for index, op in enumerate(ops) if index not in first]
    return [*(ops[index] for index in sorted(first)), *sums, *others]
