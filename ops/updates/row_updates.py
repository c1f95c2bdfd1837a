"""Updates of the rows of tables that indices name: what these operators share, and their plain kernels.

Their cost grows with the number of these rows, not with the tables.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from netbuilder.ops.core.contexts import Call, PlanContext, Prepared, RunContext
from netbuilder.ops.core.half import narrow, widen
from netbuilder.ops.core.indexing import no_row
from netbuilder.ops.core.operator import Operator, TensorSpec
from netbuilder.ops.core.registry import CPU, kernel, prepare
from netbuilder.ops.core.segment_groups import as_rows
from netbuilder.ops.updates.update_rules import in_place
from netbuilder.proto import ShapeError
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "PIECE",
    "JointUpdate",
    "RowUpdate",
    "add_joint_kernels",
    "add_row_kernels",
    "update_rows",
    "updating",
]

Rows = Sequence[Any]
_SQUARES = "grad_squares?"


@dataclass(frozen=True)
class RowUpdate(Operator, abc.ABC):
    """Base: updates the rows ``indices`` of the tables that ``must_inplace`` names. No gradient.

    A row whose index occurs several times is updated each time, in order; ``no_row`` names none. The first table
    says how wide a row is; another one has as many elements, or one number, or (``pairs``) two for each. The inputs
    besides tables, indices and ``grad`` are numbers. An output that is no table gets the last result of ``update``, in
    the shape of ``grad``; it is 0 for ``no_row``.

    Class attributes:

    by_row: the names of numbers of which there is one for each row of the tables.
    pairs: numbers of the tables with two values for each element, which ``update`` takes and returns one after another.
    reduced: whether ``update`` is given the mean or the sum of ``measure`` over a row; None: neither.
    reads_gradient: whether the input ``grad`` is read, if there is one.
    """

    by_row: ClassVar[tuple[str, ...]] = ()
    pairs: ClassVar[tuple[int, ...]] = ()
    reduced: ClassVar[Literal["mean", "sum"] | None] = None
    reads_gradient: ClassVar[bool] = True

    @abc.abstractmethod
    def update(self, ctx: RunContext, rows: Rows, g: Any, numbers: Rows, reduced: Any) -> Rows:
        """Return the new rows of the tables, and what another output gets; all in float32 or float64.

        Args:
            rows: of the tables, distinct rows.
            g: their gradients; None if there are none.
            numbers: the other inputs; of those ``by_row``, the numbers of these rows.
            reduced: of each row; None without ``reduced``.
        """

    def measure(self, ctx: RunContext, rows: Rows, g: Any, numbers: Rows) -> Any:
        """Return what is reduced over each row."""
        raise NotImplementedError

    @property
    def tables(self) -> tuple[int, ...]:
        """The inputs that are tables."""
        return tuple(i for i, _ in type(self).must_inplace)

    @property
    def gradient_input(self) -> int | None:
        """The input that has a gradient for each index; None: there is none."""
        names = type(self).inputs
        return names.index("grad") if self.reads_gradient and "grad" in names else None

    @property
    def indices_input(self) -> int:
        return type(self).inputs.index("indices")

    @property
    def numbers(self) -> tuple[int, ...]:
        """The inputs that are numbers, of those that there are."""
        others = {*self.tables, self.indices_input, self.gradient_input}
        names = type(self).inputs
        return tuple(i for i in range(self.n_in) if i not in others and names[i].rstrip("?") != "grad")

    @property
    def effective(self) -> int | None:
        """The output that is no table; None: there is none."""
        tables = {j for _, j in type(self).must_inplace}
        return next((j for j in range(self.n_out) if j not in tables), None)

    def is_by_row(self, number: int) -> bool:
        """Whether an input has a number for each row of the tables."""
        return type(self).inputs[number].rstrip("?") in self.by_row


PIECE = 1 << 15
"""Number of elements of the rows updated at a time: the temporaries of an update then fit a core's L2 cache."""


def _distinct(op: Operator, ctx: RunContext, indices: Any, rows: int, width: int) -> Iterator[Any]:
    """Yield selections of positions in ``indices`` (flat) without repeated rows: first occurrences, then second ones.

    Selections on the CPU are so small that their rows fit a cache.

    Raises:
        ShapeError: an index lies outside the table.
    """
    if indices.size == 0:
        return
    xp = ctx.xp
    low, high = int(indices.min()), int(indices.max())
    kept = None
    if low == no_row(indices.dtype):
        kept = xp.flatnonzero(indices != low)
        indices = indices[kept]
        if kept.size == 0:
            return
        low = int(indices.min())
    if low < 0 or high >= rows:
        raise ShapeError(f"{op.type}: indices must lie in [0, {rows}), got {low if low < 0 else high}")
    order = xp.argsort(indices, kind="stable")
    ordered = indices[order]
    occurrence = xp.arange(indices.size) - xp.searchsorted(ordered, ordered)  # how often the row occurred before
    together = max(1, PIECE // max(width, 1)) if not ctx.is_gpu else indices.size
    if kept is None and int(occurrence.max()) == 0:
        yield from (slice(begin, begin + together) for begin in range(0, indices.size, together))
        return
    by_occurrence = order[xp.argsort(occurrence, kind="stable")]
    positions = by_occurrence if kept is None else kept[by_occurrence]
    ends = np.cumsum(ctx.host(xp.bincount(occurrence)))
    start = 0
    for end in ends.tolist():
        yield from (positions[begin : min(begin + together, end)] for begin in range(start, end, together))
        start = end


def update_rows(
    op: RowUpdate, ctx: RunContext, given: Rows, outputs: Rows, gradients: Callable[[Any], Any] | None = None
) -> None:
    """Update rows of the tables among ``outputs``, which hold their values, in place, and write the other output.

    Args:
        op: what is computed.
        ctx: the run context.
        given: the inputs; tables are not read.
        outputs: of the operator.
        gradients: returns the gradients for a selection of the indices, in place of the input ``grad``.
    """
    if ctx.is_gpu:
        if gradients is not None:
            assert op.gradient_input is not None
            given = [gradients(slice(None)) if i == op.gradient_input else x for i, x in enumerate(given)]
        if ctx.update_rows(op, given, outputs):
            return
    tables = [outputs[j] for _, j in type(op).must_inplace]
    shape = tables[0].shape
    indices = given[op.indices_input].reshape(-1)
    grad = None
    if gradients is None and op.gradient_input is not None:
        grad = given[op.gradient_input].reshape((-1, *shape[1:]))
        gradients = grad.__getitem__
    numbers = [(op.is_by_row(i), given[i]) for i in op.numbers]
    effective = None if op.effective is None else outputs[op.effective].reshape((-1, *shape[1:]))
    absent = indices == no_row(indices.dtype) if effective is not None else None
    for positions in _distinct(op, ctx, indices, shape[0], math.prod(shape[1:])):
        rows = indices[positions]
        selected = [number.reshape(-1)[rows] if by_row else number for by_row, number in numbers]
        g = None if gradients is None else widen(gradients(positions))
        states: list[Any] = []
        for k, table in enumerate(tables):
            state = widen(table[rows])
            states += [state[..., 0], state[..., 1]] if k in op.pairs else [state]
        results = [*op.update(ctx, states, g, selected, _reduced(op, ctx, states, g, selected))]
        for k, table in enumerate(tables):
            new = results.pop(0)
            if k in op.pairs:
                new = ctx.xp.stack([new, results.pop(0)], axis=-1)
            table[rows] = narrow(new, table).reshape((len(new), *table.shape[1:]))
        if effective is not None:
            effective[positions] = narrow(results[0], effective)
    if effective is not None:
        effective[absent] = 0


def _gradients_of_rows(ctx: RunContext, indices: Any, grad: Any) -> Any:
    """Return the gradients of a row update, with 0 where the index names no row."""
    lowest, indices = no_row(indices.dtype), indices.reshape(-1)
    if not ctx.is_gpu and (not indices.size or int(indices.min()) != lowest):
        return grad
    absent = (indices == lowest).reshape((-1,) + (1,) * (grad.ndim - 1))
    return ctx.xp.where(absent, grad.dtype.type(0), grad)


def _reduced(op: RowUpdate, ctx: RunContext, states: Rows, g: Any, numbers: Rows) -> Any:
    if op.reduced is None:
        return None
    values = as_rows(op.measure(ctx, states, g, numbers))
    total = values.sum(axis=1)
    return total / max(values.shape[1], 1) if op.reduced == "mean" else total


def _plain(op: RowUpdate, ctx: RunContext, *given: Any) -> tuple[Any, ...]:
    outputs: list[Any] = [None] * op.n_out
    for i, j in type(op).must_inplace:
        outputs[j] = given[i].copy()
    if op.effective is not None:
        assert op.gradient_input is not None
        outputs[op.effective] = ctx.xp.zeros_like(given[op.gradient_input])
    update_rows(op, ctx, given, outputs)
    return tuple(outputs)


def updating(op: Operator, specs: Sequence[TensorSpec], update: Callable[[Rows, Rows], object]) -> Prepared:
    """Return the kernel of an in-place update of tables.

    Args:
        op: its ``must_inplace`` pairs each table among the inputs with its output.
        specs: of the inputs.
        update: called in each run with inputs and outputs, when the outputs already hold the values of the tables.
    """
    plain, pairs, others = [spec.plain for spec in specs], type(op).must_inplace, type(op).inplace
    assert others != "one-to-one"

    def bind(inputs: Rows, outputs: Rows, scratch: Any) -> Call:
        sources, targets = [inputs[i] for i, _ in pairs], [outputs[j] for _, j in pairs]
        return in_place(sources, targets, lambda: update(inputs, outputs))

    return Prepared(plain, op.infer(*plain), bind, inplace=(*others, *pairs), name="numpy rows")


def _prepare(op: RowUpdate, ctx: PlanContext, *specs: TensorSpec) -> Prepared:
    return updating(op, specs, lambda inputs, outputs: update_rows(op, ctx.run, inputs, outputs))


def add_row_kernels(*classes: type[RowUpdate]) -> None:
    """Register the plain kernels of updates of rows, and those for the CPU that change tables in place."""
    for cls in classes:
        kernel(cls)(_plain)
        prepare(cls, device=CPU)(_prepare)


@dataclass(frozen=True)
class JointUpdate(Operator, abc.ABC):
    """Base: updates rows of tables by ``step``, whose numbers depend on the gradients of all rows and on a state.

    The last input, ``grad_squares``, is given where there are gradients of other rows of the table elsewhere: the sum
    of squares of all of them.

    Class attributes:

    step: the update of rows; its tables, indices and ``grad`` are inputs of this operator, of the same names.
    state: the name of the input that is the state, one number, which the last output replaces.
    """

    step: ClassVar[type[RowUpdate]]
    state: ClassVar[str]

    @abc.abstractmethod
    def numbers(self, ctx: RunContext, state: Any, squares: Any, lr: Any) -> Rows:
        """Return the numbers of ``step``, and then the new state, all with one element.

        Args:
            state: before the update.
            squares: the sum of squares of the gradients of all indices; float32 or float64.
            lr: the learning rate.
        """

    def all_numbers(self, ctx: RunContext, given: Rows) -> Rows:
        """Return ``numbers`` for the inputs of the operator; of tables only the shape is read."""
        named = dict(zip(type(self).inputs, given))
        if (squares := named.get(_SQUARES)) is None:
            grad = widen(named["grad"]).reshape((-1, *named["param"].shape[1:]))
            grad = _gradients_of_rows(ctx, named["indices"], grad)
            squares = (grad * grad).sum()
        else:
            squares = widen(squares).reshape(())
        *numbers, new = self.numbers(ctx, named[self.state], squares, named["lr"])
        return (*numbers, narrow(new, named[self.state]).reshape(named[self.state].shape))

    def of_step(self, given: Rows, numbers: Rows) -> list[Any]:
        """Return the inputs of ``step`` for those of the operator and the numbers."""
        named = dict(zip(type(self).inputs, given))
        of_operator = len(self.step.inputs) - len(numbers)
        return [*(named[name] for name in self.step.inputs[:of_operator]), *numbers]


def _update_jointly(op: JointUpdate, ctx: RunContext, given: Rows, outputs: Rows) -> None:
    """Update tables and state among ``outputs``, which hold their values, in place."""
    *tables, state = outputs
    *numbers, new = op.all_numbers(ctx, given)
    update_rows(op.step(), ctx, op.of_step(given, numbers), tables)
    state[...] = new


def _plain_jointly(op: JointUpdate, ctx: RunContext, *given: Any) -> tuple[Any, ...]:
    outputs = tuple(given[i].copy() for i, _ in type(op).must_inplace)
    _update_jointly(op, ctx, given, outputs)
    return outputs


def _prepare_jointly(op: JointUpdate, ctx: PlanContext, *specs: TensorSpec) -> Prepared:
    return updating(op, specs, lambda inputs, outputs: _update_jointly(op, ctx.run, inputs, outputs))


def add_joint_kernels(*classes: type[JointUpdate]) -> None:
    """Register the plain kernels of joint updates, and those for the CPU that change tables in place."""
    for cls in classes:
        kernel(cls)(_plain_jointly)
        prepare(cls, device=CPU)(_prepare_jointly)
