"""Shape and type inference for nets that run one after the other."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from netbuilder.graph.blob import blob_name
from netbuilder.graph.message import message_of
from netbuilder.graph.versions import EXTERNAL, number_versions
from netbuilder.ops.core.operator import Operator, TensorSpec, spec_of
from netbuilder.ops.core.registry import find, is_registered
from netbuilder.ops.core.renaming import shares_names, subgraphs
from netbuilder.ops.core.shared_operators import shared_operator
from netbuilder.proto import NetDef, NetError, OperatorDef, ShapeError
from netbuilder.proto.arguments import made_at
from netbuilder.proto.errors import unsaid_cause
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["InferredShapes", "ShapeConflict", "infer_shapes", "shape_conflicts"]


class ShapeConflict(ShapeError):
    """Shapes of a net that contradict each other.

    Args:
        where: describes the operator.
        reason: what is wrong.
        number: the position of the net among the nets of the call.
        index: the operator's position in its net.
    """

    def __init__(self, where: str, reason: str, number: int, index: int) -> None:
        super().__init__(f"{where}: {reason}")
        self.reason, self.number, self.index = reason, number, index


@dataclass(frozen=True)
class InferredShapes:
    """Inferred shapes and types of the blobs of some nets after all nets have run.

    Args:
        shapes: shape of each known blob.
        dtypes: its element type; ``ops.core.operator.STRING`` for strings and for values that are not tensors.
        unknown: the other blobs, in order of first appearance.
    """

    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, np.dtype[Any]]
    unknown: list[str]

    def spec(self, blob: Any) -> TensorSpec | None:
        """Return shape and type of a blob, None if it is unknown."""
        name = blob_name(blob)
        return TensorSpec(self.shapes[name], self.dtypes[name]) if name in self.shapes else None


def infer_shapes(nets: Iterable[Any], blob_specs: Mapping[Any, Any] | None = None) -> InferredShapes:
    """Infer the shapes and types of the blobs of nets that run in this order, such as init net and main net.

    Outputs whose shape depends on data, or on inputs of unknown shape, are unknown. For some operators (Sum) the
    shapes of inputs are inferred from those of outputs and other inputs.

    Args:
        nets: nets or their messages; unchanged.
        blob_specs: known shapes: blob -> TensorSpec, array, or only a shape, of blobs that exist before the nets run
            or that cannot be inferred. If only a shape is given the type is float32, or an integer type or bool if an
            operator that reads the blob requires it.

    Raises:
        ShapeError: shapes contradict each other; the message names the net, the operator, its line and its blobs.
        ArgumentError: an operator's arguments are wrong.
        TypeError: ``nets`` is not a list, or a value of ``blob_specs`` is of another type.
    """
    if not isinstance(nets, Iterable):
        raise TypeError(f"infer_shapes: nets must be a list of nets, got {nets!r}")
    inference = _Inference([message_of(net) for net in nets], blob_specs or {})
    try:
        inference.run()
    except NetError as error:
        raise error.with_traceback(None) from unsaid_cause(error)
    return inference.result()


def shape_conflicts(
    nets: Sequence[NetDef], blob_specs: Mapping[Any, Any]
) -> tuple[list[ShapeConflict], list[tuple[int, int, dict[str, Any]]]]:
    """Infer shapes as ``infer_shapes`` does, but continue after conflicts, and after operators with wrong arguments.

    What such an operator writes is of unknown shape, so that nothing is reported that only follows from it.

    Returns:
        The conflicts, in the order of the nets; and, for each operator with subgraphs that use the blobs around them by
        name (If, While), the position of its net, its own, and what is known of blobs before it, as ``blob_specs``.

    Raises:
        TypeError: a value of ``blob_specs`` is of another type.
    """
    conflicts: list[ShapeConflict] = []
    inference = _Inference(nets, blob_specs, conflicts)
    inference.run()
    return sorted(conflicts, key=lambda found: (found.number, found.index)), list(inference.around_subgraphs())


def _as_spec(blob: Any, value: Any) -> TensorSpec:
    if isinstance(value, TensorSpec):
        return value.plain
    if hasattr(value, "dtype"):
        return spec_of(value)
    if not isinstance(value, Iterable) or not all(hasattr(extent, "__index__") for extent in value):
        raise TypeError(f"blob {str(blob)!r}: blob_specs must have a TensorSpec, an array or a shape, got {value!r}")
    return TensorSpec(tuple(map(int, value)), _ASSUMED)


_ASSUMED = np.dtype(np.float32)
_MOST_RETYPED = 3  # inputs of one operator
_OTHER_TYPES = (np.dtype(np.int32), np.dtype(np.int64), np.dtype(np.bool_))

Specs = Sequence[TensorSpec | None]


class _Inference:
    """An inference over nets; with ``conflicts`` it continues after them, and adds them to this list."""

    def __init__(
        self, nets: Sequence[NetDef], blob_specs: Mapping[Any, Any], conflicts: list[ShapeConflict] | None = None
    ) -> None:
        self._nets = nets
        self._given = {blob_name(blob): _as_spec(blob, spec) for blob, spec in blob_specs.items()}
        self._untyped = {blob_name(blob) for blob, spec in blob_specs.items() if not hasattr(spec, "dtype")}
        self._conflicts = conflicts
        self._places = [(number, index) for number, net in enumerate(nets) for index in range(len(net.op))]
        self._ops = [op for net in nets for op in net.op]
        self._operators: dict[int, Operator | None] = {}
        self._versions = number_versions(self._ops)
        self._specs: list[TensorSpec | None] = [None] * len(self._versions.names)

    def run(self) -> None:
        """Visit each operator, and visit it again when more of its inputs or outputs become known."""
        versions, queue = self._versions, deque(range(len(self._ops)))
        self._queued = set(queue)
        for value, writer in enumerate(versions.writers):
            if writer == EXTERNAL:
                self._specs[value] = self._given.get(versions.names[value])
        self._work(queue)
        for value, name in enumerate(versions.names):
            if self._specs[value] is None and name in self._given:
                self._specs[value] = self._given[name]
                self._enqueue(queue, value)
                self._work(queue)

    def _work(self, queue: deque[int]) -> None:
        while queue:
            index = queue.popleft()
            self._queued.discard(index)
            self._visit(index, queue)

    def _enqueue(self, queue: deque[int], value: int, seen_by: int = EXTERNAL) -> None:
        """Enqueue the writer and the readers of a value, except for the operator that made it known."""
        for index in (self._versions.writers[value], *self._versions.readers[value]):
            if index not in (EXTERNAL, seen_by) and index not in self._queued:
                self._queued.add(index)
                queue.append(index)

    def _visit(self, index: int, queue: deque[int]) -> None:
        operator = self._operator(index)
        if operator is None:
            return
        values = self._versions.inputs[index], self._versions.outputs[index]
        reads, writes = ([self._specs[value] for value in group] for group in values)
        try:
            found = operator.infer_partial(reads, writes)
        except NotImplementedError:
            return
        except ShapeError as error:
            retyped = self._with_other_types(operator, values[0], reads, writes, queue)
            if retyped is None:
                self._report(index, str(error), error)
                return
            found = retyped
        for group, specs in zip(values, found):
            for value, spec in zip(group, specs):
                before = self._specs[value]
                if spec is None:
                    continue
                if before is None:
                    self._specs[value] = spec.plain
                    self._enqueue(queue, value, index)
                elif before.shape == spec.shape:
                    if before.dtype != spec.dtype and self._versions.writers[value] == index:
                        self._specs[value] = spec.plain  # the type of an input was corrected
                        self._enqueue(queue, value, index)
                else:
                    self._report(
                        index,
                        f"blob {self._versions.names[value]!r} has shape {spec.shape} according to this operator, and "
                        f"{before.shape} according to other operators",
                    )
                    return

    def _with_other_types(
        self, operator: Operator, values: Sequence[int], reads: Specs, writes: Specs, queue: deque[int]
    ) -> tuple[Specs, Specs] | None:
        """Infer with other types for inputs of which only the shapes were given, as few as possible; None: none fit."""
        open_slots = [
            slot for slot, value in enumerate(values) if reads[slot] and self._versions.names[value] in self._untyped
        ]
        for count in range(1, min(len(open_slots), _MOST_RETYPED) + 1):
            for slots in itertools.combinations(open_slots, count):
                for dtypes in itertools.product(_OTHER_TYPES, repeat=count):
                    tried = list(reads)
                    for slot, dtype in zip(slots, dtypes):
                        spec = tried[slot]
                        assert spec is not None
                        tried[slot] = spec.with_dtype(dtype)
                    try:
                        found = operator.infer_partial(tried, writes)
                    except ShapeError:
                        continue
                    for slot in slots:
                        self._untyped.discard(self._versions.names[values[slot]])
                        self._specs[values[slot]] = tried[slot]
                        self._enqueue(queue, values[slot])
                    return found
        return None

    def _operator(self, index: int) -> Operator | None:
        if index not in self._operators:
            op = self._ops[index]
            try:
                self._operators[index] = shared_operator(find(op.type), op) if is_registered(op.type) else None
            except NetError as error:
                if self._conflicts is None:
                    raise type(error)(f"{self._where(index)}: {error}") from error
                self._operators[index] = None
        return self._operators[index]

    def _report(self, index: int, reason: str, error: ShapeError | None = None) -> None:
        """Raise a conflict, or add it to those found and leave the operator out of what follows."""
        found = ShapeConflict(self._where(index), reason, *self._places[index])
        if self._conflicts is None:
            raise found from error
        self._conflicts.append(found)
        self._operators[index] = None

    def around_subgraphs(self) -> Iterator[tuple[int, int, dict[str, Any]]]:
        """Yield the place of each operator with subgraphs that share names, and what is known of blobs before it."""
        values: dict[str, int] = {}
        for index, op in enumerate(self._ops):
            reads, writes = self._versions.inputs[index], self._versions.outputs[index]
            values.update((self._versions.names[value], value) for value in reads)
            if any(True for _ in subgraphs(op)) and shares_names(op):
                known: dict[str, Any] = dict(self._given)
                known.update((name, self._specs[value]) for name, value in values.items())
                for name in self._untyped & known.keys():
                    known[name] = known[name] and known[name].shape
                yield *self._places[index], {name: spec for name, spec in known.items() if spec is not None}
            values.update((self._versions.names[value], value) for value in writes)

    def _where(self, index: int) -> str:
        number, place = self._places[index]
        net = self._nets[number].name
        op: OperatorDef = self._ops[index]
        reads, writes = self._versions.inputs[index], self._versions.outputs[index]
        return f"net {net!r}, operator {place} {op.type} {self._shown(reads)} -> {self._shown(writes)}{made_at(op)}"

    def _shown(self, values: Sequence[int]) -> str:
        return "[" + ", ".join(f"{self._versions.names[v]} {self._shape(v)}" for v in values) + "]"

    def _shape(self, value: int) -> str:
        spec = self._specs[value]
        return "unknown" if spec is None else str(spec.shape)

    def result(self) -> InferredShapes:
        """Return the result for the last version of each blob."""
        specs = {name: self._specs[value] for name, value in self._versions.last.items()}
        for net in self._nets:
            for name in net.external_input:
                specs.setdefault(name, self._given.get(name))
        for name, spec in self._given.items():
            specs.setdefault(name, spec)
        known = {name: spec for name, spec in specs.items() if spec is not None}
        return InferredShapes(
            {name: spec.shape for name, spec in known.items()},
            {name: spec.dtype for name, spec in known.items()},
            [name for name, spec in specs.items() if spec is None],
        )
