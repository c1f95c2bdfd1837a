"""Updates of rows of tables as one kernel after a sort of the indices: the formulas are those of the operators, traced.

The first of the sorted positions of a row leads: its threads apply the update for each occurrence, in order. Where a
row has a number of its own, or a formula needs a mean or a sum over it, a block computes a row; else a thread computes
an element.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from netbuilder.engines.cuda.code import body, c_type, numbers_read, register_type, stored, value_of, with_prelude
from netbuilder.engines.cuda.elementwise import numbers_of_run
from netbuilder.engines.cuda.kernel import BLOCK_SUM, THREADS, Kernel
from netbuilder.engines.cuda.noted_errors import slot_of
from netbuilder.engines.cuda.row_order import RowOrder
from netbuilder.engines.cuda.sums import prepare_sums
from netbuilder.engines.gpu import gpu
from netbuilder.engines.programs import Load, NotTraced, Program
from netbuilder.engines.traced import kernel_title, trace_inputs
from netbuilder.engines.tracing import Symbol, Tracer
from netbuilder.ops.core.contexts import PlanContext, Prepared
from netbuilder.ops.core.extensions import CAPTURABLE, Capturable
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto import ShapeError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["joint_update", "row_update", "update_rows"]

_MOST_BLOCKS = 1 << 16
_ALIGNMENT = 256
_GRADIENT, _REDUCED = -1, -2  # loads that are no inputs of the operator
_HALVES = 1000  # the second values of the pairs of table k are load k + 1000


@dataclass(frozen=True)
class _Table:
    """A table: its input, the output that it is, its type, and how many values an element has, 0: one a row."""

    input: int
    output: int
    dtype: np.dtype[Any]
    values: int


@dataclass(frozen=True)
class _Form:
    """What a kernel depends on besides the operator.

    Args:
        tables: the tables.
        indexed: axes of the rows of the tables: 1, or 0 for rows of one element.
        grad: the type of the gradients; None: there are none.
        effective: that of the output that is no table; None: there is none.
        numbers: the types of the inputs on the GPU that are numbers, by input.
    """

    tables: tuple[_Table, ...]
    indexed: int
    grad: np.dtype[Any] | None
    effective: np.dtype[Any] | None
    numbers: tuple[tuple[int, np.dtype[Any]], ...]


def _form(op: Any, given: Sequence[Any], outputs: Sequence[Any]) -> _Form | None:
    """Return the form for inputs and outputs, or their specs; None: a table has another shape than these kernels know.

    Inputs that are tables are not read.
    """
    tables = []
    pairs = type(op).must_inplace
    first = outputs[pairs[0][1]]
    narrow = first.size == first.shape[0]
    for k, (i, j) in enumerate(pairs):
        table = outputs[j]
        if k in op.pairs:
            values = 2
        elif narrow or table.shape == first.shape:
            values = 1
        elif table.size == first.shape[0]:
            values = 0
        else:
            return None
        tables.append(_Table(i, j, np.dtype(table.dtype), values))
    grad = None if op.gradient_input is None else np.dtype(given[op.gradient_input].dtype)
    effective = None if op.effective is None else np.dtype(outputs[op.effective].dtype)
    numbers = tuple((i, np.dtype(given[i].dtype)) for i in op.numbers if op.input_location(i) != "host")
    return _Form(tuple(tables), int(not narrow), grad, effective, numbers)


@dataclass(frozen=True)
class _Traced:
    """The programs of an update: what it reduces over a row, None if nothing, and the new values."""

    measure: Program | None
    update: Program


def _trace(op: Any, form: _Form) -> _Traced:
    """Return the programs of an update.

    Raises:
        NotTraced: its formula is not elementwise.
    """
    tracer = Tracer()
    row = (2, 3)[: 1 + form.indexed]  # stands for any

    def widened(number: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Symbol:
        symbol = tracer.input(number, TensorSpec(shape, dtype))
        return symbol.astype(np.float32) if dtype.char == "e" else symbol

    states = []
    for table in form.tables:
        states.append(widened(table.input, table.dtype, row if table.values else row[:1]))
        if table.values == 2:
            states.append(widened(table.input + _HALVES, table.dtype, row))
    g = None if form.grad is None else widened(_GRADIENT, form.grad, row)
    dtypes, numbers = dict(form.numbers), []
    for i in op.numbers:
        if op.input_location(i) == "host":
            numbers.append(tracer.host_input(i))
        else:
            numbers.append(tracer.input(i, TensorSpec(row[:1] if op.is_by_row(i) else (), dtypes[i])))
    try:
        measure = reduced = None
        if op.reduced is not None:
            symbol = op.measure(tracer, states, g, numbers)
            measure = Program(row, (symbol.expression,), (symbol.dtype,), ())
            reduced = tracer.input(_REDUCED, TensorSpec(row[:1], symbol.dtype))
        results = [*op.update(tracer, states, g, numbers, reduced)]
    except (AttributeError, IndexError, OverflowError, TypeError, ValueError) as error:
        raise NotTraced(f"{op.type}: {error}") from error
    kinds = [table.dtype for table in form.tables for _ in range(max(table.values, 1))]
    kinds += [] if form.effective is None else [form.effective]
    found = [symbol.astype(dtype).expression for symbol, dtype in zip(results, kinds)]
    return _Traced(measure, Program(row, tuple(found), tuple(kinds), tuple(tracer.numbers)))


@functools.lru_cache(maxsize=256)
def _kernel(op: Any, form: _Form) -> tuple[Kernel, _Traced] | None:
    """Return the kernel of an update; None if its formula cannot be traced."""
    try:
        traced = _trace(op, form)
    except NotTraced:
        return None
    text = _by_rows(op, form, traced) if _has_blocks(form, traced) else _by_elements(op, form, traced)
    return Kernel("row_updates", with_prelude(text)), traced


def _has_blocks(form: _Form, traced: _Traced) -> bool:
    """Whether a block computes a row: its threads have a number of the row in common, which is read or computed."""
    return traced.measure is not None or any(table.values == 0 for table in form.tables)


def _parameters(form: _Form, traced: _Traced) -> str:
    parameters = ["const int* rows", "const int* positions"]
    parameters += [f"{c_type(table.dtype)}* t{table.input}" for table in form.tables]
    parameters += [f"const {c_type(form.grad)}* grad"] if form.grad is not None else []
    parameters += [f"const {c_type(dtype)}* x{i}" for i, dtype in form.numbers]
    parameters += [f"{c_type(form.effective)}* effective"] if form.effective is not None else []
    parameters += ["const u64* numbers"] if traced.update.numbers else []
    return ", ".join([*parameters, "i64 count", "i64 height", "i64 width"])


def _places(op: Any, form: _Form) -> dict[int, str]:
    """Return where each input's element is, for the row ``row``, the column ``c`` and the position ``from``."""
    places = {_GRADIENT: "grad[from * width + c]"}
    for table in form.tables:
        at = {0: "row", 1: "row * width + c", 2: "2 * (row * width + c)"}[table.values]
        places[table.input] = f"t{table.input}[{at}]"
        places[table.input + _HALVES] = f"t{table.input}[{at} + 1]"
    for i, _ in form.numbers:
        places[i] = f"x{i}[{'row' if op.is_by_row(i) else '0'}]"
    return places


def _loaded(program: Program, places: Mapping[int, str]) -> Callable[[Load], str]:
    return lambda load: value_of(places[load.input], load.dtype)


def _targets(form: _Form) -> list[tuple[int, np.dtype[Any], bool]]:
    """Return the load, the type, and whether there is one for each row, of each result that is a part of a table."""
    found = []
    for table in form.tables:
        found.append((table.input, table.dtype, table.values == 0))
        if table.values == 2:
            found.append((table.input + _HALVES, table.dtype, False))
    return found


_LEADS = """
const i64 row = rows[s];
if (row >= height) { NONE continue; }
if (s > 0 && rows[s - 1] == row) continue;
"""


def _by_elements(op: Any, form: _Form, traced: _Traced) -> str:
    """Return the kernel in which a thread updates an element of a row, all occurrences of it."""
    places, targets, program = _places(op, form), _targets(form), traced.update
    own = {**places, **{load: f"s{load}" for load, *_ in targets}}  # the table's elements stay in registers
    lines = body(
        program,
        lambda load: own[load.input] if load.input in dict.fromkeys(t for t, *_ in targets)
        else value_of(own[load.input], load.dtype),
        lambda j, text, at: f"const {register_type(program.dtypes[j])} q{j} = {text};",
    )  # fmt: skip
    lines += [f"s{load} = q{j};" for j, (load, *_) in enumerate(targets)]
    none = ""
    if form.effective is not None:
        lines.append(f"effective[from * width + c] = {stored(f'q{len(targets)}', form.effective)};")
        none = "effective[positions[s] * width + c] = 0;"
    return "\n".join([
        f'extern "C" __global__ void NAME({_parameters(form, traced)}) {{',
        *numbers_read(program.numbers),
        f"const i64 size = count * width, threads = gridDim.x * (i64){THREADS};",
        f"for (i64 k = blockIdx.x * (i64){THREADS} + threadIdx.x; k < size; k += threads) {{",
        "const i64 s = k / width, c = k % width;",
        _LEADS.replace("NONE", none),
        *(f"{register_type(dtype)} s{load} = {value_of(places[load], dtype)};" for load, dtype, _ in targets),
        "for (i64 j = s; j < count && rows[j] == row; j++) {",
        "const i64 from = positions[j];",
        *lines,
        "}",
        *(f"{places[load]} = {stored(f's{load}', dtype)};" for load, dtype, _ in targets),
        "}}",
    ])  # fmt: skip


def _by_rows(op: Any, form: _Form, traced: _Traced) -> str:
    """Return the kernel in which a block updates a row."""
    places, targets, program = _places(op, form), _targets(form), traced.update
    own = {**places, _REDUCED: "reduced"} | {load: f"s{load}" for load, _, each in targets if each}
    held = {load for load, _, each in targets if each} | {_REDUCED}

    def element(load: Load) -> str:
        return own[load.input] if load.input in held else value_of(own[load.input], load.dtype)

    lines = body(program, element, lambda j, text, at: f"const {register_type(program.dtypes[j])} q{j} = {text};")
    once = list[str]()
    for j, (load, dtype, each) in enumerate(targets):
        line = f"{places[load]} = {stored(f'q{j}', dtype)};"
        (once if each else lines).append(line)
    lines += [f"if (c == 0) {{ {' '.join(once)} }}"] if once else []
    none = ""
    if form.effective is not None:
        lines.append(f"effective[from * width + c] = {stored(f'q{len(targets)}', form.effective)};")
        none = f"for (i64 c = threadIdx.x; c < width; c += {THREADS}) effective[positions[s] * width + c] = 0;"
    each_column = f"for (i64 c = threadIdx.x; c < width; c += {THREADS}) {{"
    reduced = []
    if traced.measure is not None:
        kind = register_type(traced.measure.dtypes[0])
        measured = body(traced.measure, element, lambda j, text, at: f"total += (double)({text});")
        reduced = ["double total = 0;", each_column, *measured, "}", "total = block_sum(total, shared);"]
        reduced.append(f"const {kind} reduced = ({kind})({'total / width' if op.reduced == 'mean' else 'total'});")
    return "\n".join([
        BLOCK_SUM if traced.measure is not None else "",
        f'extern "C" __global__ void NAME({_parameters(form, traced)}) {{',
        f"__shared__ double shared[{THREADS}];" if traced.measure is not None else "",
        *numbers_read(program.numbers),
        "for (i64 s = blockIdx.x; s < count; s += gridDim.x) {",
        _LEADS.replace("NONE", none),
        "for (i64 j = s; j < count && rows[j] == row; j++) {",
        "const i64 from = positions[j];",
        *(f"const {register_type(dtype)} s{load} = {value_of(places[load], dtype)};" for load, dtype, each in targets
          if each),
        *reduced,
        "__syncthreads();",
        each_column,
        *lines,
        "}",
        "__syncthreads();",
        "}}}",
    ])  # fmt: skip


class _RowUpdates:
    """The sort and the kernel of an update for given sizes.

    Args:
        op: the operator.
        kernel, traced: its kernel.
        form: of its inputs.
        order: the sort.
        shape: of the first table.
    """

    def __init__(self, op: Any, kernel: Kernel, traced: _Traced, form: _Form, order: RowOrder, shape: Any) -> None:
        self.op, self.kernel, self.traced, self.form, self.order = op, kernel, traced, form, order
        self.width = math.prod(shape[1:])
        self.blocks = min(
            order.count if _has_blocks(form, traced) else -(-order.count * self.width // THREADS), _MOST_BLOCKS
        )

    def bind(
        self, run: Any, given: Sequence[Any], outputs: Sequence[Any], scratch: Any, once: bool
    ) -> Callable[[], object]:
        """Return the call for some buffers; ``once``: it is called once, and its numbers are those of now."""
        op, order, here = self.op, self.order, gpu(scratch.device.id)

        def error(index: int) -> Exception:
            return ShapeError(f"{op.type}: indices must lie in [0, {order.rows}), got {index}")

        slot = slot_of(run, here, ("rows", order.rows), error)
        sort, rows, positions = order.bind(given[op.indices_input], scratch, slot)
        arrays = [rows, positions, *(outputs[table.output] for table in self.form.tables)]
        arrays += [given[op.gradient_input]] if self.form.grad is not None else []
        arrays += [given[i] for i, _ in self.form.numbers]
        arrays += [outputs[op.effective]] if self.form.effective is not None else []
        extents = [np.int64(n) for n in (order.count, order.rows, self.width)]
        numbers = self.traced.update.numbers
        if not numbers:
            arguments = (*arrays, *extents)

            def call() -> None:
                sort()
                self.kernel(self.blocks, arguments)

            return call
        if once:
            now = [number.value(given).view(np.uint64) for number in numbers]
            words = here.xp.asarray(np.array(now, np.uint64))
        else:
            of_run = numbers_of_run(numbers, given, [scratch])

        def call_with_numbers() -> None:
            sort()
            self.kernel(self.blocks, (*arrays, words if once else of_run.words(), *extents))

        return call_with_numbers


def _made(op: Any, given: Sequence[Any], outputs: Sequence[Any]) -> _RowUpdates | None:
    """Return the update for inputs and outputs, or their specs; None: these kernels do not serve it."""
    first, indices = outputs[type(op).must_inplace[0][1]], given[op.indices_input]
    if not indices.size or not first.size or first.shape[0] >= 2**31 - 1 or indices.size >= 2**31:
        return None
    form = _form(op, given, outputs)
    found = None if form is None else _kernel(op, form)
    if form is None or found is None:
        return None
    order = RowOrder(indices.size, first.shape[0], np.dtype(indices.dtype))
    return _RowUpdates(op, *found, form, order, first.shape)


def update_rows(run: Any, op: Any, given: Sequence[Any], outputs: Sequence[Any]) -> bool:
    """Update rows of tables on a GPU; see ``RunContext.update_rows``."""
    made = _made(op, given, outputs)
    if made is None:
        return False
    with gpu(outputs[0].device.id) as here:
        xp = here.xp
        plain = [x if op.input_location(i) == "host" or x is None else xp.ascontiguousarray(x) for i, x in
                 enumerate(given)]  # fmt: skip
        if not all(y.flags.c_contiguous for y in outputs):
            return False
        made.bind(run, plain, outputs, xp.empty(made.order.scratch, np.uint8), True)()
    return True


def _copied_first(pairs: Sequence[tuple[Any, Any]], call: Callable[[], object]) -> Callable[[], object]:
    """Return the call after copies of tables to those that it updates, where these are others."""
    copies = [(source, target) for source, target in pairs if source.data.ptr != target.data.ptr]
    if not copies:
        return call

    def copy_first() -> None:
        for source, target in copies:
            target[...] = source
        call()

    return copy_first


def row_update(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    """Prepare an update of rows of tables, in place."""
    if any(spec is None for spec in specs):
        return None
    plain = [spec.plain for spec in specs]
    outs = list(op.infer(*plain))
    made = _made(op, plain, outs)
    if made is None:
        return None
    pairs = type(op).must_inplace
    host = {i for i in op.numbers if op.input_location(i) == "host"}

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Callable[[], object]:
        call = made.bind(ctx.run, inputs, outputs, scratch, False)
        return _copied_first([(inputs[i], outputs[j]) for i, j in pairs], call)

    read = {*op.tables, op.indices_input, op.gradient_input, *op.numbers}
    return Prepared(
        [spec if i in read else None for i, spec in enumerate(plain)],
        outs,
        bind,
        scratch=made.order.scratch,
        inplace=(*pairs, *type(op).inplace),
        name=f"cuda {made.kernel.name}",
        extensions=(Capturable(frozenset(host)),),
    )


def joint_update(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    """Prepare an update of rows whose numbers depend on all gradients: their kernel, the sort, and the update."""
    plain = [spec.plain for spec in specs]
    *tables, state = op.infer(*plain)
    tracer = Tracer()
    try:
        found = op.all_numbers(tracer, trace_inputs(tracer, op, plain))
        kinds = [state if symbol is found[-1] else TensorSpec((1,), symbol.dtype) for symbol in found]
        symbols = [symbol.reshape(kind.shape) for symbol, kind in zip(found, kinds)]
        numbers = prepare_sums(kernel_title(op.type), symbols, plain, kinds)
    except (AttributeError, NotTraced, TypeError, ValueError):
        return None
    step = op.step()
    made = _made(step.with_arity(len(step.inputs), len(tables)), op.of_step(plain, kinds[:-1]), tables)
    if made is None:
        return None
    pairs, count = type(op).must_inplace, len(kinds) - 1
    begin = -(-numbers.scratch // _ALIGNMENT) * _ALIGNMENT
    after = begin + count * _ALIGNMENT

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Callable[[], object]:
        places = [scratch[begin + k * _ALIGNMENT :][: spec.nbytes] for k, spec in enumerate(kinds[:-1])]
        arrays = [place.view(spec.dtype) for place, spec in zip(places, kinds)]
        compute = numbers.bind(inputs, [*arrays, outputs[-1]], scratch)
        update = made.bind(ctx.run, op.of_step(inputs, arrays), outputs[:-1], scratch[after:], False)

        def call() -> None:
            compute()
            update()

        return _copied_first([(inputs[i], outputs[j]) for i, j in pairs[:-1]], call)

    return Prepared(
        plain,
        [*tables, state],
        bind,
        scratch=after + made.order.scratch,
        inplace=pairs,
        name=f"cuda {made.kernel.name}",
        extensions=CAPTURABLE,
    )
