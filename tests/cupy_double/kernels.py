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

from netbuilder.ops.core.registry import plain_kernel
from netbuilder.ops.engines.cuda.code import BFLOAT16
from netbuilder.ops.engines.cuda.kernel import Kernel
from netbuilder.ops.engines.cuda.tracing import Constant, HostNumber, Load, Program, Uniform
from netbuilder.ops.engines.random import first_counter, uniform

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
        return [value(expression, dtype) for expression, dtype in zip(program.outputs, program.dtypes)]


def _elementwise(machine: Any, kernel: Kernel, blocks: int, arguments: Sequence[Any]) -> None:
    built = kernel.model
    arrays, program = arguments[: len(built.read) + len(built.program.outputs)], built.program
    given = dict(zip(built.read, arrays))
    outputs = arrays[len(built.read) :]
    words = arguments[len(arrays) : len(arrays) + bool(program.numbers)]

    def do() -> None:
        numbers = _numbers(program.numbers, words)

        def load(what: Load) -> Any:
            return _elements(given[what.input], built.inputs[what.input]).reshape(what.shape)

        for array, result, storage in zip(outputs, evaluate(program, load, numbers), built.outputs):
            _store(array, storage, np.broadcast_to(result, program.shape))

    reads = [array._region for array in (*given.values(), *words)]
    machine.launch(kernel.name, reads, [array._region for array in outputs], do=do)


def _numbers(numbers: Sequence[Any], words: Sequence[Any]) -> list[Any]:
    """Return the numbers of the run, from the array that holds them, if there is one."""
    return [
        word if isinstance(number, Uniform) else word.view(np.float64)
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


def _updates(machine: Any, kernel: Kernel, blocks: int, arguments: Sequence[Any]) -> None:
    joined, (rows, _, *words) = kernel.model, arguments
    reads, writes = [array._region for array in arguments], []
    chains = [(chain, row) for chain, row in zip(joined.chains, rows._values.tolist()) if row[joined.width]]
    for chain, row in chains:
        size = row[joined.width]
        reads += [
            machine.region_at(row[what.input], (1 if what.shape == () else size) * np.dtype(what.dtype).itemsize)
            for what in chain.program.loads()
        ]
        writes += [
            machine.region_at(row[len(chain.reads) + j], size * np.dtype(dtype).itemsize)
            for j, dtype in enumerate(chain.program.dtypes)
        ]

    def do() -> None:
        numbers = _numbers(joined.numbers, words)
        for chain, row in chains:
            size, own = row[joined.width], [numbers[joined.position(number)] for number in chain.program.numbers]

            def load(what: Load, row: Any = row, size: int = size) -> Any:
                return at(row[what.input], what.dtype, 1 if what.shape == () else size)

            found = evaluate(chain.program, load, own)
            for j, dtype in enumerate(chain.program.dtypes):
                at(row[len(chain.reads) + j], dtype, size)[...] = found[j]

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


def _softmax(machine: Any, kernel: Kernel, blocks: int, arguments: Sequence[Any]) -> None:
    """Softmax of rows, and its gradient."""
    rows, (*inputs, out) = kernel.model, arguments

    def do() -> None:
        given = [
            _elements(array, rows.elements).reshape(rows.rows, rows.columns).astype(np.float32) for array in inputs
        ]
        with np.errstate(all="ignore"):
            if len(given) == 2:
                y, dy = given
                return _store(out, rows.elements, y * (dy - (y * dy).sum(axis=1, keepdims=True)))
            powers = np.exp(given[0] - given[0].max(axis=1, keepdims=True))
            return _store(out, rows.elements, powers / powers.sum(axis=1, keepdims=True))

    machine.launch(kernel.name, [array._region for array in inputs], [out._region], do=do)


def _lstm_unit(machine: Any, kernel: Kernel, blocks: int, arguments: Sequence[Any]) -> None:
    """LSTMUnit and its gradient, by their plain kernels on NumPy."""
    op, (*arrays, _, _, _, step) = kernel.model, arguments
    inputs, outputs = arrays[: -3 if op.backward else -2], arrays[-3 if op.backward else -2 :]
    context, plain = SimpleNamespace(xp=np, host=np.asarray), plain_kernel(op.type, 0)

    def do() -> None:
        found = [array._values.copy() for array in inputs]
        if op.backward:
            cell, d_hidden, d_cell, gates, *lengths = found
            given = [None, cell, gates, *lengths, step, None, None, d_hidden, d_cell]
        else:
            given = [*found, step]
        for array, result in zip(outputs, plain(op, context, *given)):
            array._values[...] = result

    machine.launch(kernel.name, [array._region for array in inputs], [array._region for array in outputs], do=do)


Equivalent = Callable[[Any, Kernel, int, Sequence[Any]], None]

EQUIVALENTS: dict[str, Equivalent] = {
    "checked": _checked,
    "lstm_unit": _lstm_unit,
    "lstm_unit_gradient": _lstm_unit,
    "rows_reduced": _rows_reduced,
    "rows_spread": _rows_spread,
    "softmax": _softmax,
    "softmax_gradient": _softmax,
    "updates": _updates,
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
    title = kernel.name.removeprefix("nb_").rpartition("_")[0]
    EQUIVALENTS.get(title, _elementwise)(cupy.machine, kernel, blocks, arguments)
