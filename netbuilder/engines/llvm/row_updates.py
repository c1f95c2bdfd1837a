"""Updates of the rows of tables that indices name, as machine code: the formula, traced, is called for each row.

So a row that occurs several times is updated each time, in order. One function goes through the indices and calls
another one, that of the formula, with the places of each row. The indices are checked first. If one is wrong, nothing
is written, and the plain kernel raises the error.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from netbuilder.engines.llvm import machine
from netbuilder.engines.llvm.argument_rows import address_of, call_of_threads, made, shares
from netbuilder.engines.llvm.checked_indices import BRIEF, OF_A_THREAD, CheckedIndices, checked_call
from netbuilder.engines.llvm.code import Code
from netbuilder.engines.llvm.copies import copying
from netbuilder.engines.llvm.emitter import Emitter
from netbuilder.engines.llvm.reductions import ReducedCode, reduced_code
from netbuilder.engines.programs import HostNumber, NotTraced
from netbuilder.engines.remembered import Remembered
from netbuilder.engines.traced import kernel_title, operator_key
from netbuilder.engines.tracing import Symbol, Tracer
from netbuilder.ops.core.contexts import Call, PlanContext, Prepared
from netbuilder.ops.core.indexing import no_row
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["ROW_UPDATES"]

_POINTERS = ("indices", "status", "row", "places", "effective")
_INTEGERS = ("extent", "count", "pointers", "bytes", "low", "high")


class _Code(CheckedIndices):
    """Writes the function that calls another one for each index.

    Its arguments: the addresses of the indices, of the status, of the other function's row of arguments, and of what
    its ``pointers`` follow from, three words each: the address for row 0, the bytes from a row to the next, and whether
    rows are those of the table, else those of the gradient. Then the address of the output that is no table, and the
    bytes of a row of it, which become 0 where an index names no row; 0: there is none. The function updates rows from
    ``low`` to ``high``.
    """

    def __init__(self, indices: np.dtype[Any]) -> None:
        self._indices, self._entry, self._body = indices, Emitter("e"), Emitter("v")

    def text(self) -> str:
        b, none = self._body, no_row(self._indices)
        b.declared.add("declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
        self._arguments(_POINTERS, _INTEGERS)
        wrong = self._variable("i64", "0")
        with self._for("0", "%count", 1) as i:
            index = self._integer("%indices", self._indices, i)
            outside = b.let(f"icmp uge i64 {index}, %extent")
            is_row = b.let(f"icmp ne i64 {index}, {none}")
            found = b.let(f"zext i1 {b.let(f'and i1 {outside}, {is_row}')} to i64")
            self._set(wrong, "i64", b.let(f"or i64 {self._get(wrong, 'i64')}, {found}"))
        self._end_if(b.let(f"icmp ne i64 {self._get(wrong, 'i64')}, 0"))
        function = b.let("load ptr, ptr %row, align 8")
        with self._for("0", "%count", 1) as i:
            index = self._integer("%indices", self._indices, i)
            with self._if(b.let(f"icmp eq i64 {index}, {none}")):
                target = b.let(f"getelementptr i8, ptr %effective, i64 {b.let(f'mul i64 {i}, %bytes')}")
                b.add(f"call void @llvm.memset.p0.i64(ptr {target}, i8 0, i64 %bytes, i1 false)")
            above, below = b.let(f"icmp sge i64 {index}, %low"), b.let(f"icmp slt i64 {index}, %high")
            with self._if(b.let(f"and i1 {above}, {below}")):
                self._place(i, index, self._ahead("%indices", self._indices, i, "%count"))
                b.add(f"call void {function}(ptr %row)")
        return self._function()

    def _place(self, position: str, index: str, later: str) -> None:
        """Write the addresses into the other function's row of arguments; the table's row ``later`` is needed soon."""
        b = self._body
        with self._for("0", "%pointers", 1) as k:
            first = b.let(f"getelementptr i64, ptr %places, i64 {b.let(f'mul i64 {k}, 3')}")
            base, step, by_index = (
                b.let(f"load i64, ptr {b.let(f'getelementptr i64, ptr {first}, i64 {word}')}, align 8")
                for word in range(3)
            )
            of_table = b.let(f"icmp ne i64 {by_index}, 0")
            number = b.let(f"select i1 {of_table}, i64 {index}, i64 {position}")
            with self._if(of_table):
                place = b.let(f"add i64 {base}, {b.let(f'mul i64 {later}, {step}')}")
                self._prefetch(b.let(f"inttoptr i64 {place} to ptr"), step)
            found = b.let(f"add i64 {base}, {b.let(f'mul i64 {number}, {step}')}")
            word = b.let(f"add i64 {k}, 1")
            b.add(f"store i64 {found}, ptr {b.let(f'getelementptr i64, ptr %row, i64 {word}')}, align 8")


@functools.cache
def _driver(indices: np.dtype[Any]) -> Code:
    return Code(_Code(indices).text(), (), (), (), 0)


@dataclass(frozen=True, eq=False)
class _Formula:
    """The function of a row, its arguments, and the numbers that the host computes."""

    code: Code
    numbers: Sequence[HostNumber]


_formulas = Remembered[_Formula](256)


def _traced(op: Any, specs: Sequence[TensorSpec], outs: Sequence[TensorSpec]) -> _Formula:
    """Return the function that updates one row.

    Raises:
        NotTraced: there is none.
    """
    if op.pairs:
        raise NotTraced("pairs of values")
    tracer, first = Tracer(is_gpu=False), specs[type(op).must_inplace[0][0]]
    width = math.prod(first.shape[1:])
    row = (1, width) if width != 1 else (1,)

    def symbol(i: int) -> Any:
        if op.input_location(i) == "host":
            return tracer.host_input(i)
        found = tracer.input(i, specs[i].with_shape(_shape_of_row(op, i, specs[i], row)))
        return found.astype(np.float32) if specs[i].dtype.char == "e" and i not in op.numbers else found

    states = [symbol(i) for i in op.tables]
    g = None if op.gradient_input is None else symbol(op.gradient_input)
    given = [symbol(i) for i in op.numbers]
    try:
        reduced = None
        if op.reduced is not None:
            measured = op.measure(tracer, states, g, given)
            reduced = measured.reshape(1, width).sum(axis=1)
            reduced = reduced / width if op.reduced == "mean" else reduced
        results = [*op.update(tracer, states, g, given, reduced)]
    except (AttributeError, IndexError, OverflowError, TypeError, ValueError) as error:
        raise NotTraced(f"{op.type}: {error}") from error
    order = [j for _, j in type(op).must_inplace] + ([] if op.effective is None else [op.effective])
    found = dict(zip(order, results))
    symbols = [_stored(found[j], outs[j]) for j in sorted(found)]
    if op.reduced is None:
        numbers = [number for number in tracer.numbers if isinstance(number, HostNumber)]
        if len(numbers) < len(tracer.numbers):
            raise NotTraced("random numbers")
        return _Formula(made(tracer.program(symbols)), numbers)
    if tracer.numbers or width == 1:
        raise NotTraced("numbers that the host computes, or nothing to reduce")
    code = reduced_code(symbols)
    _check_in_place(op, code, sorted(found))
    return _Formula(code, ())


def _check_in_place(op: Any, code: ReducedCode, outputs: Sequence[int]) -> None:
    """Raise NotTraced unless each table that is read may be overwritten."""
    pairs = {(i, outputs[j]) for i, j in code.inplace}
    if any(pair not in pairs for pair in type(op).must_inplace if pair[0] in code.read):
        raise NotTraced("a table that is read after it is written")


def _shape_of_row(op: Any, i: int, spec: TensorSpec, row: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of what an input has for one row."""
    if i == op.gradient_input:
        return row
    if i not in op.tables:
        return (1,) if op.is_by_row(i) else ()
    return row if math.prod(spec.shape[1:]) == row[-1] else (1,)


def _stored(symbol: Symbol, out: TensorSpec) -> Symbol:
    return symbol.astype(out.dtype)


def _row_update(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    """Prepare an update of rows; None where its formula cannot be traced."""
    plain = [spec.plain for spec in specs]
    outs, pairs = list(op.infer(*plain)), type(op).must_inplace
    if not machine.available() or not plain[pairs[0][0]].size:
        return None
    try:
        formula = _formulas(operator_key(op, plain), lambda: _traced(op, plain, outs))
        function, driver = address_of(formula.code), address_of(_driver(plain[op.indices_input].dtype))
    except NotTraced:
        return None

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        return _bound(op, ctx, formula, (driver, function), inputs, outputs)

    return Prepared(plain, outs, bind, inplace=(*type(op).inplace, *pairs), name=f"llvm rows {kernel_title(op.type)}")


def _bound(
    op: Any, ctx: PlanContext, formula: _Formula, addresses: tuple[int, int], inputs: Sequence[Any],
    outputs: Sequence[Any],
) -> Call:  # fmt: skip
    pairs, code, (driver, function) = type(op).must_inplace, formula.code, addresses
    indices, first = inputs[op.indices_input], outputs[pairs[0][1]]
    extent, width = first.shape[0], math.prod(first.shape[1:])
    tables = {i: outputs[j] for i, j in pairs}
    places = [_place(op, i, tables.get(i, inputs[i]), width) for i in code.read]
    written = sorted([j for _, j in pairs] + ([] if op.effective is None else [op.effective]))
    places += [_place_of_output(op, j, outputs[j], width) for j in written]
    effective, nbytes = (0, 0) if op.effective is None else places[len(code.read) + written.index(op.effective)][:2]
    work = 4 * indices.size * width * len(places)
    threads = ctx.threads if work >= OF_A_THREAD else 1
    begin, end = (0, 1) if isinstance(code, ReducedCode) else (0, width)
    rest = [0] * len(formula.numbers) + [*code.extents, begin, end, *code.constants]
    rows = [np.array([function, *[0] * len(places), *rest], np.int64) for _ in range(threads)]
    status, table = np.zeros(threads, np.int64), np.array(places, np.int64)
    words = [
        np.array(
            [driver, indices.ctypes.data, status.ctypes.data + 8 * thread, rows[thread].ctypes.data, table.ctypes.data,
             effective, extent, indices.size, len(places), nbytes, *share], np.int64,
        )
        for thread, share in enumerate(shares(extent, threads))
    ]  # fmt: skip
    call = call_of_threads(ctx, words, (inputs, outputs, status, rows, table), brief=work < BRIEF)
    found = checked_call(call, op, ctx, inputs, status)
    copies = [(inputs[i], outputs[j]) for i, j in pairs if not np.may_share_memory(inputs[i], outputs[j])]
    before: list[Call] = [copying(ctx, copies)] if copies else []
    first_number = 1 + len(places)

    def run() -> None:
        for k, number in enumerate(formula.numbers):
            value = number.value(inputs).view(np.int64)
            for row in rows:
                row[first_number + k] = value
        for each in before:
            each()
        found()

    return run if before or formula.numbers else found


def _place(op: Any, i: int, array: Any, width: int) -> tuple[int, int, int]:
    """Return where an input is for each row, see ``_Code``."""
    size = array.dtype.itemsize
    if i == op.gradient_input:
        return array.ctypes.data, width * size, 0
    if i in op.tables or op.is_by_row(i):
        return array.ctypes.data, math.prod(array.shape[1:]) * size, 1
    return array.ctypes.data, 0, 0


def _place_of_output(op: Any, j: int, array: Any, width: int) -> tuple[int, int, int]:
    if j == op.effective:
        return array.ctypes.data, width * array.dtype.itemsize, 0
    return array.ctypes.data, math.prod(array.shape[1:]) * array.dtype.itemsize, 1


ROW_UPDATES: Mapping[str, Callable[..., Prepared | None]] = dict.fromkeys(
    ("RowWiseSparseAdagrad", "RowWiseSparseAdam", "SparseAdadelta", "SparseAdagrad", "SparseAdam",
     "SparseMomentumSGDUpdate"), _row_update,
)  # fmt: skip
"""By operator type."""
