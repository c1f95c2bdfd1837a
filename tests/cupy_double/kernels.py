"""Our own CUDA kernels on the double: it cannot run their source, so NumPy computes what they are the kernels of.

Programs that were traced are interpreted; other kernels have an equivalent here, by the title of the kernel. Whether
the CUDA is right shows where CuPy compiles it (``make test-emulated``, ``make test-gpu``).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from cupy_double.channels import CHANNEL_KERNELS, over_channels
from netbuilder.ops.core.registry import plain_kernel
from netbuilder.ops.engines.cuda.code import BFLOAT16
from netbuilder.ops.engines.cuda.kernel import Kernel
from netbuilder.ops.engines.cuda.sums import Stage
from netbuilder.ops.engines.cuda.tracing import Constant, HostNumber, Load, Program, Stacked, Sum, Uniform
from netbuilder.ops.engines.random import first_counter, uniform
from netbuilder.ops.updates.row_updates import no_row, update_rows

__all__ = ["EQUIVALENTS", "evaluate", "launch"]


def evaluate(program: Program, load: Callable[[Load], Any], numbers: Sequence[Any]) -> list[Any]:
    """Return the outputs of a program, each of its shape or one that broadcasts to it."""
    found: dict[int, Any] = {}
    position = {id(number): k for k, number in enumerate(program.numbers)}

    def value(expression: Any, dtype: Any) -> Any:
        if isinstance(expression, Constant):
            return np.asarray(expression.value).astype(dtype)
        if isinstance(expression, HostNumber):
            return np.asarray(numbers[position[id(expression)]]).astype(dtype)
        if isinstance(expression, Uniform):
            key = int(numbers[position[id(expression)]]) - first_counter(0, 0)
            drawn = uniform(np, key, (program.size,))
            if expression.moved is not None:
                outer, middle, inner = expression.moved
                drawn = drawn.reshape(middle, outer, inner).transpose(1, 0, 2)
            return drawn.reshape(program.shape).astype(dtype)
        given = load(expression) if isinstance(expression, Load) else found[id(expression)]
        return given.astype(dtype)

    with np.errstate(all="ignore"):
        for step in program.steps():
            if step.function == "where":
                condition, x, y = step.operands
                made = np.where(value(condition, bool), value(x, step.compute), value(y, step.compute))
            elif step.function == "positive":  # a cast
                made = value(step.operands[0], step.compute)
            else:
                made = getattr(np, step.function)(*(value(operand, step.compute) for operand in step.operands))
            found[id(step)] = made.astype(step.dtype)

        def whole(expression: Any, dtype: Any) -> Any:
            if not isinstance(expression, Stacked):
                return value(expression, dtype)
            return np.stack(np.broadcast_arrays(*(value(part, dtype) for part in expression.values)), axis=-1)

        return [whole(expression, dtype) for expression, dtype in zip(program.outputs, program.dtypes)]


def _elementwise(machine: Any, kernel: Kernel, blocks: int, arguments: Sequence[Any]) -> None:
    built = kernel.model
    arrays, program = arguments[: len(built.read) + len(built.program.outputs)], built.program
    given = dict(zip(built.read, arrays))
    outputs = arrays[len(built.read) :]
    words = arguments[len(arrays) : len(arrays) + bool(program.numbers)]

    def do() -> None:
        numbers = _numbers(program.numbers, words)

        def load(what: Load) -> Any:
            return _elements(given[what.input], built.inputs[what.input])[what.offset :: what.stride].reshape(
                what.shape
            )

        for j, (array, result, storage) in enumerate(zip(outputs, evaluate(program, load, numbers), built.outputs)):
            stacked = (program.values_of(j),) if program.values_of(j) > 1 else ()
            _store(array, storage, np.broadcast_to(result, program.shape + stacked))

    reads = [array._region for array in (*given.values(), *words)]
    machine.launch(kernel.name, reads, [array._region for array in outputs], do=do)


def _numbers(numbers: Sequence[Any], words: Sequence[Any]) -> list[Any]:
    """Return the numbers of the run, from the array that holds them, if there is one."""
    return [
        word if isinstance(number, Uniform) else word.view(number.stored)
        for array in words
        for number, word in zip(numbers, array._values)
    ]


def _elements(array: Any, storage: Any) -> Any:
    """Return the elements of an array, whose bytes may be those of a value in a layout."""
    if storage == BFLOAT16:
        return (array._values.reshape(-1).view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return array._values.reshape(-1).view(storage)


def _store(array: Any, storage: Any, values: Any) -> None:
    """Write elements into an array."""
    if storage == BFLOAT16:
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16
        values, storage = np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16), np.uint16
    array._values.reshape(-1).view(storage)[...] = values.reshape(-1)


def at(address: int, dtype: Any, size: int) -> Any:
    """Return the elements at an address."""
    raw = (ctypes.c_char * (size * np.dtype(dtype).itemsize)).from_address(address)
    return np.frombuffer(raw, dtype)


def _at(address: int, storage: Any, size: int) -> Any:
    """Return the values of elements at an address."""
    if storage == BFLOAT16:
        return (at(address, np.uint16, size).astype(np.uint32) << 16).view(np.float32)
    return at(address, storage, size)


def _many_tensors(machine: Any, kernel: Kernel, blocks: int, arguments: Sequence[Any]) -> None:
    joined, (rows, _, *words) = kernel.model, arguments
    reads, writes = [array._region for array in arguments], []
    parts = [(part, row) for part, row in zip(joined.parts, rows._values.tolist()) if part.size]
    for part, row in parts:
        reads += [
            machine.region_at(
                row[what.input],
                (1 if what.shape == () else part.size) * what.stride * _itemsize(part.stored[what.input]),
            )
            for what in part.program.loads()
        ]
        writes += [
            machine.region_at(
                row[len(part.reads) + j], part.size * part.program.values_of(j) * np.dtype(dtype).itemsize
            )
            for j, dtype in enumerate(part.program.dtypes)
        ]

    def do() -> None:
        numbers = _numbers(joined.numbers, words)
        for part, row in parts:
            assert part.size == row[joined.width]
            own = [numbers[joined.position(number)] for number in part.program.numbers]

            def load(what: Load, part: Any = part, row: Any = row) -> Any:
                size = (1 if what.shape == () else part.size) * what.stride
                return _at(row[what.input], part.stored[what.input], size)[what.offset :: what.stride]

            found = evaluate(part.program, load, own)
            for j, dtype in enumerate(part.program.dtypes):
                values = part.program.values_of(j)
                at(row[len(part.reads) + j], dtype, part.size * values)[...] = found[j].reshape(-1)

    machine.launch(kernel.name, reads, writes, do=do)


def _itemsize(storage: Any) -> int:
    return 2 if storage == BFLOAT16 else np.dtype(storage).itemsize


def _copies(machine: Any, kernel: Kernel, blocks: int, arguments: Sequence[Any]) -> None:
    """Copies to another order or element type."""
    rows, pieces = (array._values.tolist() for array in arguments)
    assert sorted({row for row, _ in pieces}) == [k for k, row in enumerate(rows) if row[2]]
    reads, writes = [array._region for array in arguments], []
    for x, y, size, change, *_ in rows:
        given, wanted = kernel.model[change]
        reads.append(machine.region_at(x, size * _itemsize(given)))
        writes.append(machine.region_at(y, size * _itemsize(wanted)))

    def do() -> None:
        for x, y, size, change, channels, pixels, new_channels, new_pixels in rows:
            given, wanted = kernel.model[change]
            values = _at(x, given, size).reshape(-1, pixels, channels).swapaxes(1, 2).reshape(-1)
            values = values.reshape(-1, new_channels, new_pixels).swapaxes(1, 2).reshape(-1)
            target = np.frombuffer((ctypes.c_char * (size * _itemsize(wanted))).from_address(y), np.uint8)
            _store(SimpleNamespace(_values=target), wanted, values)

    machine.launch(kernel.name, reads, writes, do=do)


def _taps(pool: Any) -> Any:
    """Return the extents of padded images, their part inside the images, and the places of each element of a window."""
    axes = zip(pool.x, pool.before, pool.y, pool.strides, pool.kernel)
    reach = [max(n + before, (out - 1) * stride + k) for n, before, out, stride, k in axes]
    inside = tuple(slice(b, b + n) for b, n in zip(pool.before, pool.x))
    places = [
        tuple(slice(t, t + (o - 1) * s + 1, s) for t, o, s in zip(tap, pool.y, pool.strides))
        for tap in np.ndindex(*pool.kernel)
    ]
    return reach, (slice(None), *inside), [(slice(None), *place) for place in places]


def _pool(machine: Any, kernel: Kernel, blocks: int, arguments: Sequence[Any]) -> None:
    """MaxPool, AveragePool and their gradients over images with channels last."""
    pool, title, (*inputs, out) = kernel.model, kernel.name.rpartition("_")[0], arguments
    (reach, inside, places), is_max, backward = _taps(pool), "max_pool" in title, "gradient" in title

    def images(array: Any, extents: Any) -> Any:
        return _elements(array, pool.elements).reshape(pool.images, *extents, pool.channels).astype(np.float32)

    def padded(values: Any, fill: float) -> Any:
        made = np.full((pool.images, *reach, pool.channels), fill, np.float32)
        made[inside] = values
        return made

    def sizes() -> Any:
        return sum(padded(np.ones((pool.images, *pool.x, pool.channels)), float(pool.whole))[place] for place in places)

    def do() -> None:
        if not backward:
            x = padded(images(inputs[0], pool.x), -np.inf if is_max else 0.0)
            parts = [x[place] for place in places]
            found = np.maximum.reduce(parts) if is_max else sum(parts) / sizes()
            return _store(out, pool.elements, found)
        total = padded(0.0, 0.0)
        dy = images(inputs[-1], pool.y)
        x, y = (padded(images(inputs[0], pool.x), np.nan), images(inputs[1], pool.y)) if is_max else (None, None)
        for place in places:
            total[place] += dy * (x[place] == y) if is_max else dy / sizes()
        return _store(out, pool.elements, total[inside])

    machine.launch(kernel.name, [array._region for array in inputs], [out._region], do=do)


def _report(note: Any, slot: int, wrong: Any) -> None:
    if wrong.size and not note._values[0]:
        note._values[:] = slot, wrong.reshape(-1)[0]


def _checked(machine: Any, kernel: Kernel, blocks: int, arguments: Sequence[Any]) -> None:
    given, safe, lowest, extent, size, slot, note = arguments

    def do() -> None:
        values = given._values
        bad = (values < lowest) | (values >= extent)
        _report(note, slot, values[bad])
        safe._values[...] = np.where(bad, max(lowest, 0), values)

    machine.launch(kernel.name, [given._region, note._region], [safe._region, note._region], do=do)


def _rows_reduced(machine: Any, kernel: Kernel, blocks: int, arguments: Sequence[Any]) -> None:
    how, weighted, indexed = kernel.model
    arrays = list(arguments[: 3 + weighted + indexed])
    segments, width, rows, slot, note = arguments[len(arrays) :]

    def do() -> None:
        x, *given, offsets, y = [array._values for array in arrays]
        wide = np.float64 if x.dtype == np.float64 else np.float32
        matrix = x.reshape(rows, width).astype(wide)
        indices = given[-1] if indexed else np.arange(offsets[-1])
        bad = (indices < 0) | (indices >= rows)
        _report(note, slot, indices[bad])
        found = np.zeros((offsets[-1], width), wide)
        found[~bad] = matrix[indices[~bad]]
        if weighted:
            found *= given[0].astype(wide)[:, None]
        for s, (begin, end) in enumerate(zip(offsets, offsets[1:])):
            part = found[begin:end]
            total = part.max(axis=0, initial=-np.inf) if how == "max" else part.sum(axis=0)
            y.reshape(segments, width)[s] = 0 if begin == end else total / (end - begin if how == "mean" else 1)

    memories = [array._region for array in arrays]
    machine.launch(kernel.name, [*memories[:-1], note._region], [memories[-1], note._region], do=do)


def _rows_spread(machine: Any, kernel: Kernel, blocks: int, arguments: Sequence[Any]) -> None:
    how, weighted = kernel.model
    arrays = list(arguments[: 3 + weighted])
    segments, width = arguments[len(arrays) :]

    def do() -> None:
        dy, *weights, offsets, dx = [array._values for array in arrays]
        counts = np.diff(offsets)
        share = dy.reshape(segments, width).astype(np.float64 if dy.dtype == np.float64 else np.float32)
        if how == "mean":
            share = share / np.maximum(counts, 1)[:, None].astype(share.dtype)
        rows = np.repeat(share, counts, axis=0)
        if weighted:
            rows = rows * weights[0].astype(rows.dtype)[:, None]
        dx.reshape(-1, width)[: len(rows)] = rows

    memories = [array._region for array in arrays]
    machine.launch(kernel.name, memories[:-1], memories[-1:], do=do)


class _Rows:
    """The arguments of a kernel over rows, by the names in its source."""

    def __init__(self, kernel: Kernel, arguments: Sequence[Any]) -> None:
        text = kernel.source[kernel.source.index("__global__") :]
        parameters = text[text.index("(") + 1 : text.index(")")].split(", ")
        self.values = dict(zip((parameter.rsplit("* ")[-1].rsplit(" ")[-1] for parameter in parameters), arguments))
        pointers = {parameter.rsplit("* ")[1]: parameter for parameter in parameters if "* " in parameter}
        self.reads = [self.values[name]._region for name, text in pointers.items() if text.startswith("const ")]
        self.writes = [self.values[name]._region for name, text in pointers.items() if not text.startswith("const ")]
        self.variant = v = kernel.model
        self.extents = [int(self.values[name]) for name in ("rows", "columns", "inner")]
        self.wide = np.dtype(np.float64 if v.wide == "double" else np.float32)
        self.types = {"label": v.label, "weight": v.weight, "dy": v.dy, "sum": np.float64}

    def numbers(self, name: str) -> Any:
        return _elements(self.values[name], self.types.get(name, self.variant.x)).astype(self.wide)

    def matrix(self, name: str) -> Any:
        rows, columns, inner = self.extents
        return self.numbers(name).reshape(-1, columns, inner).transpose(0, 2, 1).reshape(rows, columns)

    def store(self, name: str, found: Any, storage: Any = None) -> None:
        _store(self.values[name], storage or self.variant.out, np.asarray(found))

    def store_matrix(self, name: str, found: Any) -> None:
        rows, columns, inner = self.extents
        self.store(name, found.reshape(-1, inner, columns).transpose(0, 2, 1))

    def labels(self) -> tuple[Any, Any]:
        """The labels, with 0 for those that are no classes; and which are not -1, where that is ignored."""
        given = _elements(self.values["label"], self.variant.label).astype(np.int64)
        known = given != -1 if self.variant.ignored else np.ones(len(given), bool)
        wrong = known & ((given < 0) | (given >= self.extents[1]))
        _report(self.values["note"], self.values["slot"], given[wrong])
        return np.where(wrong | ~known, 0, given), known

    def targets(self) -> Any:
        if self.variant.by_class:
            return self.matrix("label")
        return (np.arange(self.extents[1]) == self.labels()[0][:, None]).astype(self.wide)

    def weights(self) -> Any:
        known = self.labels()[1] if self.variant.ignored else np.ones(self.extents[0])
        return known.astype(self.wide) * (1 if self.variant.weight is None else self.numbers("weight"))


def _softmax_of(x: Any) -> tuple[Any, Any, Any]:
    shifted = x - x.max(axis=1, keepdims=True)
    powers = np.exp(shifted)
    sums = powers.sum(axis=1, keepdims=True)
    return powers / sums, shifted, sums


def _clamped(x: Any) -> Any:
    return np.maximum(x, x.dtype.type(1e-20))


def _softmax(rows: _Rows) -> None:
    rows.store_matrix("y", _softmax_of(rows.matrix("x"))[0])


def _softmax_gradient(rows: _Rows) -> None:
    y, dy = rows.matrix("y"), rows.matrix("dy")
    rows.store_matrix("dx", y * (dy - (y * dy).sum(axis=1, keepdims=True)))


def _softmax_with_loss(rows: _Rows) -> None:
    v, targets = rows.variant, rows.targets()
    p, shifted, sums = _softmax_of(rows.matrix("x"))
    logs = np.log(_clamped(p)) if v.by_class else np.log(sums) - np.take_along_axis(
        shifted, targets.argmax(axis=1)[:, None], axis=1
    )  # fmt: skip
    losses = -(targets * logs).sum(axis=1) if v.by_class else logs[:, 0]
    weights = rows.weights()
    divisor = weights.sum() if v.weighted_mean else rows.values["divisor"]
    rows.store_matrix("p", p)
    rows.store("loss", (losses * weights).sum() * rows.values["scale"] / divisor if divisor > 0 else 0.0)


def _softmax_with_loss_gradient(rows: _Rows) -> None:
    divisor = rows.numbers("sum")[0] if rows.variant.weighted_mean else rows.values["divisor"]
    factor = rows.numbers("dy")[0] * rows.wide.type(rows.values["scale"] / divisor) if divisor > 0 else 0
    rows.store_matrix("dx", (rows.matrix("p") - rows.targets()) * (factor * rows.weights())[:, None])


def _accuracy(rows: _Rows) -> None:
    p, labels, columns = rows.matrix("p"), _elements(rows.values["label"], rows.variant.label), rows.extents[1]
    known = (labels >= 0) & (labels < columns)
    own = np.where(known, labels, 0).astype(np.int64)[:, None]
    score = np.take_along_axis(p, own, axis=1)
    better = ((p > score) | ((p == score) & (np.arange(columns) < own))).sum(axis=1)
    rows.store("y", (known & (better < rows.values["top_k"])).mean())


def _label_cross_entropy(rows: _Rows) -> None:
    chosen = np.take_along_axis(rows.matrix("x"), rows.labels()[0][:, None], axis=1)
    rows.store("y", -np.log(_clamped(chosen)))


def _label_cross_entropy_gradient(rows: _Rows) -> None:
    slopes = -rows.numbers("dy")[:, None] / _clamped(rows.matrix("x"))
    rows.store_matrix("dx", np.where(rows.targets() == 1, slopes, 0))


def _cross_entropy(rows: _Rows) -> None:
    rows.store("y", -(rows.matrix("label") * np.log(_clamped(rows.matrix("x")))).sum(axis=1))


_ROWS: dict[str, Callable[[_Rows], None]] = {
    "accuracy": _accuracy,
    "cross_entropy": _cross_entropy,
    "label_cross_entropy": _label_cross_entropy,
    "label_cross_entropy_gradient": _label_cross_entropy_gradient,
    "averaged_loss": lambda rows: rows.store("y", rows.numbers("x").mean()),
    "softmax": _softmax,
    "softmax_gradient": _softmax_gradient,
    "softmax_with_loss": _softmax_with_loss,
    "softmax_with_loss_gradient": _softmax_with_loss_gradient,
    "weights_sum": lambda rows: rows.store("sum", rows.weights().sum(), np.float64),
}


def _over_rows(machine: Any, kernel: Kernel, blocks: int, arguments: Sequence[Any]) -> None:
    """Softmax, losses and accuracy of rows."""
    rows = _Rows(kernel, arguments)

    def do() -> None:
        with np.errstate(all="ignore"):
            _ROWS[_title(kernel)](rows)

    machine.launch(kernel.name, rows.reads, rows.writes, do=do)


def _title(kernel: Kernel) -> str:
    return kernel.name.removeprefix("nb_").rpartition("_")[0]


def _recurrent_unit(machine: Any, kernel: Kernel, blocks: int, arguments: Sequence[Any]) -> None:
    """LSTMUnit, GRUUnit and their gradients, by their plain kernels on NumPy."""
    op, (*arrays, _, _, _, step) = kernel.model, arguments
    count = op.states + op.backward
    inputs, outputs = arrays[:-count], arrays[-count:]
    context, plain = SimpleNamespace(xp=np, host=np.asarray), plain_kernel(op.type, 0)

    def do() -> None:
        found = [array._values.copy() for array in inputs]
        if op.backward and op.gates == 3:
            hidden, d_hidden, gates, *lengths = found
            given = [hidden, gates, *lengths, step, None, d_hidden]
        elif op.backward:
            cell, d_hidden, d_cell, gates, *lengths = found
            given = [None, cell, gates, *lengths, step, None, None, d_hidden, d_cell]
        else:
            given = [*found, step]
        for array, result in zip(outputs, plain(op, context, *given)):
            array._values[...] = result

    machine.launch(kernel.name, [array._region for array in inputs], [array._region for array in outputs], do=do)


def _nothing(machine: Any, kernel: Kernel, blocks: int, arguments: Sequence[Any]) -> None:
    """The counts of a sort, which its equivalent does not need."""
    written = arguments[0 if len(arguments) == 2 else 1]
    machine.launch(kernel.name, [arguments[0]._region], [written._region], do=lambda: None)


def _row_order_place(machine: Any, kernel: Kernel, blocks: int, arguments: Sequence[Any]) -> None:
    keys, positions, new_keys, new_positions, _, count, rows, shift, slot, note = arguments
    given, absent = kernel.model
    first = given is not None

    def do() -> None:
        found = keys._values.reshape(-1)
        if first:
            wrong = found[(found < 0) | (found >= rows)]
            _report(note, slot, wrong[wrong != np.iinfo(found.dtype).min] if absent else wrong)
            found = np.where((found < 0) | (found >= rows), rows, found)
        order = np.argsort(found >> shift & 15, kind="stable")
        new_keys._values[...] = found[order]
        new_positions._values[...] = order if first else positions._values[order]

    reads = [keys._region] if first else [keys._region, positions._region]
    machine.launch(kernel.name, reads, [new_keys._region, new_positions._region], do=do)


def _row_updates(machine: Any, kernel: Kernel, blocks: int, arguments: Sequence[Any]) -> None:
    """Updates of rows, by the loop of the plain kernel on NumPy."""
    op, form, of_run = kernel.model
    rows, positions, *others = arguments[:-3]
    tables = [others.pop(0) for _ in form.tables]
    grad = None if form.grad is None else others.pop(0)
    numbers = {i: others.pop(0) for i, _ in form.numbers}
    effective = None if form.effective is None else others.pop(0)

    def do() -> None:
        values = _numbers(of_run, others)
        derived = {number.function.__name__: value.item() for number, value in zip(of_run, values)}
        context = SimpleNamespace(
            xp=np, is_gpu=False, host=np.asarray, derived=lambda function, *others: derived[function.__name__]
        )
        keys, indices = rows._values, np.empty(rows.size, np.int64)
        height = int(arguments[-2])
        indices[positions._values] = np.where(keys < height, keys, np.int64(no_row(np.int64)))
        given, outputs = [None] * op.n_in, [None] * op.n_out
        for table, array in zip(form.tables, tables):
            outputs[table.output] = array._values
        given[op.indices_input] = indices
        if grad is not None:
            given[op.gradient_input] = grad._values.copy()
        for i, array in numbers.items():
            given[i] = array._values
        if effective is not None:
            outputs[op.effective] = effective._values
        with np.errstate(all="ignore"):
            update_rows(op, context, given, outputs)

    reads = [array._region for array in (rows, positions, *tables, *numbers.values(), *others)]
    reads += [] if grad is None else [grad._region]
    writes = [array._region for array in (*tables, *([] if effective is None else [effective]))]
    machine.launch(kernel.name, reads, writes, do=do)


def _rows_gathered(machine: Any, kernel: Kernel, blocks: int, arguments: Sequence[Any]) -> None:
    x, indices, y, _, count, extent, inner, lowest, slot, note = arguments

    def do() -> None:
        found = indices._values.reshape(-1)
        wrong = (found < lowest) | (found >= extent)
        _report(note, slot, found[wrong])
        source = x._values.reshape(-1, int(extent), int(inner))
        y._values.reshape(-1, found.size, int(inner))[...] = source[:, np.where(wrong, 0, found)]

    machine.launch(kernel.name, [x._region, indices._region], [y._region], do=do)


def _row_sums(machine: Any, kernel: Kernel, blocks: int, arguments: Sequence[Any]) -> None:
    rows, positions, values, distinct, sums, count, height, width, none = arguments

    def do() -> None:
        keys = rows._values
        leads = (np.diff(keys, prepend=-1) != 0) & (keys < height)
        distinct._values[...] = np.where(leads, keys, none)
        total = np.zeros((int(count), int(width)), np.result_type(values._values, np.float32))
        given = values._values.reshape(int(count), int(width))[positions._values]
        np.add.at(total, np.searchsorted(keys, keys), np.where((keys < height)[:, None], given, 0))
        sums._values.reshape(total.shape)[...] = total

    machine.launch(
        kernel.name, [rows._region, positions._region, values._region], [distinct._region, sums._region], do=do
    )


def _rows_added(machine: Any, kernel: Kernel, blocks: int, arguments: Sequence[Any]) -> None:
    rows, positions, values, y, count, height, width = arguments

    def do() -> None:
        keys = rows._values
        valid = keys < height
        keys, order = keys[valid], positions._values[valid]
        kind = values._values.dtype
        total = np.zeros((int(height), int(width)), np.promote_types(kind, "f4") if kind.kind == "f" else kind)
        np.add.at(total, keys, values._values.reshape(int(count), int(width))[order])
        if kernel.model == "mean":
            total /= np.maximum(np.bincount(keys, minlength=int(height)), 1)[:, None]
        present = np.unique(keys)
        y._values.reshape(total.shape)[present] = total[present]

    machine.launch(kernel.name, [rows._region, positions._region, values._region], [y._region], do=do)


def _rows_scattered(machine: Any, kernel: Kernel, blocks: int, arguments: Sequence[Any]) -> None:
    rows, positions, table, factor, *pairs, count, height, width = arguments

    def do() -> None:
        keys = rows._values
        valid = keys < height
        keys, order = keys[valid], positions._values[valid]
        matrix = table._values.reshape(int(height), int(width))
        powers = float(factor._values.item()) ** np.bincount(keys, minlength=int(height))
        total = np.zeros(matrix.shape, np.result_type(matrix, np.float32))
        for x, weight in zip(pairs[::2], pairs[1::2]):
            given = x._values.reshape(int(count), int(width)).astype(total.dtype)
            np.add.at(total, keys, given[order] * weight._values.reshape(()).astype(matrix.dtype))
        matrix[...] = (matrix * powers[:, None]).astype(matrix.dtype) + total

    reads = [array._region for array in (rows, positions, table, factor, *pairs)]
    machine.launch(kernel.name, reads, [table._region], do=do)


def _parts_copied(machine: Any, kernel: Kernel, blocks: int, arguments: Sequence[Any]) -> None:
    x, y, size, run, x_begin, x_stride, y_begin, y_stride = arguments

    def do() -> None:
        number, at = np.divmod(np.arange(size), run)
        values = x._values.reshape(-1)[x_begin + number * x_stride + at]
        y._values.reshape(-1)[y_begin + number * y_stride + at] = values

    machine.launch(kernel.name, [x._region], [y._region], do=do)


def _transposed(machine: Any, kernel: Kernel, blocks: int, arguments: Sequence[Any]) -> None:
    x, y, _, *numbers = arguments
    extents, strides = np.split(np.array(numbers), 2)

    def do() -> None:
        places = np.ravel(sum(np.ix_(*(np.arange(n) * s for n, s in zip(extents, strides)))))
        y._values.reshape(-1)[...] = x._values.reshape(-1)[places]

    machine.launch(kernel.name, [x._region], [y._region], do=do)


def _padded(machine: Any, kernel: Kernel, blocks: int, arguments: Sequence[Any]) -> None:
    x, y, _, *numbers = arguments
    shape, begins, extents, _ = np.split(np.array(numbers), 4)

    def do() -> None:
        whole = y._values.reshape(shape)
        whole[...] = 0
        part = tuple(slice(begin, begin + extent) for begin, extent in zip(begins, extents))
        whole[part] = x._values.reshape(extents)

    machine.launch(kernel.name, [x._region], [y._region], do=do)


def _with_sums(machine: Any, kernel: Kernel, blocks: int, arguments: Sequence[Any]) -> None:
    """Operators with sums over axes; large sums are those of one launch, and what depends on them that of another."""
    stage = kernel.model
    work = stage.sums
    inputs = dict(zip(work.read, arguments))
    outputs = dict(zip(stage.outputs, arguments[len(inputs) :]))
    others = arguments[len(inputs) + len(outputs) :]
    totals = others[0] if work.extents.several_blocks else None

    def do() -> None:
        found = {total: totals._values[k] for total, k in work.number.items()} if totals is not None else {}

        def load(what: Load) -> Any:
            if isinstance(what.input, Sum):
                return np.asarray(found[what.input], what.dtype).reshape(what.shape)
            elements = _elements(inputs[what.input], work.inputs[what.input])
            return elements[what.offset :: what.stride].reshape(what.shape)

        for level, sums in enumerate(work.levels):
            if totals is None or level == stage.level:
                for total in sums:
                    program = Program(total.shape, (total.value,), (total.dtype,), ())
                    values = np.broadcast_to(evaluate(program, load, ())[0], total.shape)
                    found[total] = values.sum(axis=total.axes, dtype=np.float64)
                    if totals is not None:
                        totals._values[work.number[total]] = found[total]
        made = []
        for j in outputs:
            program = work.outputs[j].program()
            stacked = (program.values_of(0),) if program.values_of(0) > 1 else ()
            made.append(np.broadcast_to(evaluate(program, load, ())[0], program.shape + stacked))
        for (j, array), values in zip(outputs.items(), made):
            _store(array, work.outputs[j].dtype, values)

    reads = [array._region for array in (*inputs.values(), *([] if totals is None else [totals]))]
    writes = [array._region for array in outputs.values()]
    machine.launch(kernel.name, reads, [*writes, *([] if totals is None else [totals._region])], do=do)


Equivalent = Callable[[Any, Kernel, int, Sequence[Any]], None]


def _set_flag(machine: Any, kernel: Kernel, blocks: int, arguments: Sequence[Any]) -> None:
    (flag,) = arguments

    def do() -> None:
        flag._values[...] = True

    machine.launch(kernel.name, [], [flag._region], do=do)


def _all_finite(machine: Any, kernel: Kernel, blocks: int, arguments: Sequence[Any]) -> None:
    rows, pieces, flag = arguments
    given = [(address, size, kernel.model[kind]) for address, size, kind in rows._values.tolist()]
    stored = [np.dtype(np.uint16 if kind == BFLOAT16 else kind) for _, _, kind in given]
    reads = [machine.region_at(a, size * dtype.itemsize) for (a, size, _), dtype in zip(given, stored)]

    def do() -> None:
        for (address, size, kind), dtype in zip(given, stored):
            values = at(address, dtype, size)
            infinite = (values & 0x7F80) == 0x7F80 if kind == BFLOAT16 else ~np.isfinite(values)
            flag._values[...] &= not infinite.any()

    machine.launch(kernel.name, [*reads, rows._region, pieces._region, flag._region], [flag._region], do=do)


EQUIVALENTS: dict[str, Equivalent] = {
    "all_finite": _all_finite,
    "checked": _checked,
    "copies": _copies,
    "gru_unit": _recurrent_unit,
    "gru_unit_gradient": _recurrent_unit,
    "lstm_unit": _recurrent_unit,
    "lstm_unit_gradient": _recurrent_unit,
    "packed": _many_tensors,
    "padded": _padded,
    "parts_copied": _parts_copied,
    "transposed": _transposed,
    "row_order_count": _nothing,
    "row_order_place": _row_order_place,
    "row_order_scan": _nothing,
    "row_sums": _row_sums,
    "row_updates": _row_updates,
    "rows_added": _rows_added,
    "rows_gathered": _rows_gathered,
    "rows_scattered": _rows_scattered,
    "rows_reduced": _rows_reduced,
    "rows_spread": _rows_spread,
    "running_statistics": _many_tensors,
    "set_flag": _set_flag,
    "updates": _many_tensors,
    **dict.fromkeys(_ROWS, _over_rows),
    **{title: over_channels(title, _elements, _store) for title in CHANNEL_KERNELS},
    **{f"{kind}_pool{suffix}": _pool for kind in ("max", "average") for suffix in ("", "_gradient")},
}
"""What kernels compute, by their titles: ``equivalent(machine, kernel, blocks, arguments)``."""


def launch(kernel: Kernel, cupy: Any, blocks: int, arguments: Sequence[Any], *, threads: int = 0) -> None:
    """Do on the double what a launch of a kernel does."""
    if not blocks:
        return
    for array in arguments:
        if isinstance(array, cupy.ndarray):
            assert array.flags.c_contiguous, f"{kernel}: an argument is not contiguous"
            cupy.ndarray._check([array])
        else:
            assert isinstance(array, np.generic), f"{kernel}: an argument is a {type(array)}"
    otherwise = _with_sums if isinstance(kernel.model, Stage) else _elementwise
    EQUIVALENTS.get(_title(kernel), otherwise)(cupy.machine, kernel, blocks, arguments)
