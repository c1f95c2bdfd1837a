"""Products with a matrix that stays the same, such as the weights of a predictor, which is stored in panels once.

Element (k, n) of the matrix is at ``(n // LANES, k, n % LANES)``. Some rows of the other factor are multiplied by a
panel at a time, with their sums in registers: first the products of the first ``_DEEP`` columns, then those of the
next, so that what is read again stays in the cache. The sum of such a block is added to those before it, which rounds
less than one long sum. The first is added to the bias, and to a matrix that is to be added to the product. Threads have
panels of their own, or rows if these are more to read than the matrix: a sum's order is the same for any number of
them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from netbuilder.engines.fusion import Condition, Fusion
from netbuilder.engines.llvm import machine
from netbuilder.engines.llvm.argument_rows import call_of_threads, shares
from netbuilder.engines.llvm.emitter import LANES, Emitter, vector
from netbuilder.engines.llvm.panels import Multiplying
from netbuilder.ops.core.contexts import Call, PlanContext, Prepared
from netbuilder.ops.core.given_numbers import machine_memory
from netbuilder.ops.core.operator import TensorSpec

__all__ = ["PRODUCTS", "PRODUCT_FUSIONS", "PRODUCT_WORDS", "Panels", "may_be_copied", "product_row", "reorder"]

_ROWS = {False: (6, 4, 2, 1), True: (12, 6, 4, 2, 1)}
"""Rows that are multiplied together, as many as there are registers for, then those that are left: of AVX2, AVX-512."""

_PANELS = {False: 1, True: 2}
"""Panels that they are multiplied by; one that is left alone is multiplied as one that ends within a vector is."""

_FEWEST = {False: 4, True: 1}
"""Fewer rows do not use the registers of AVX2: other kernels serve."""

_DEEP, _AHEAD = 384, 12  # rows of a panel: those whose products are added at once; those fetched before they are read
_CHUNK = 3 << 15
"""Elements of the rows that are multiplied by all panels before the next rows, at most: they stay in the cache."""

_SHARE_COPIED = 64
"""A matrix may take one part in so many of the memory, since there are two copies of it then.

Without panels a library packs the matrix in each run, which takes as long as the product where there are few rows.
"""

_BRIEF, _OF_A_THREAD = 1 << 17, 1 << 17  # multiplications
_F = np.dtype(np.float32)
_ZEROS = np.zeros(max(_PANELS.values()) * LANES, _F)
_POINTERS = ("a", "b", "bias", "added", "y")
_INTEGERS = ("m", "n", "k", "chunk", "begin", "end", "biases")
PRODUCT_WORDS = {name: number for number, name in enumerate((*_POINTERS, *_INTEGERS), 1)}
"""Where a row of ``product_row`` has its arguments."""


class Panels:
    """The layout of a matrix in panels; equal layouts are the same object (see ``panels``).

    Args:
        rows, columns: of the matrix, before it is transposed.
        transposed: whether it is transposed first.
    """

    engine, itemsize, filled = "LLVM", 4, True
    __slots__ = ("columns", "nbytes", "rows", "transposed")

    def __init__(self, rows: int, columns: int, transposed: bool) -> None:
        self.rows, self.columns, self.transposed = rows, columns, transposed
        n, k = (rows, columns) if transposed else (columns, rows)
        self.nbytes = -(-n // LANES) * LANES * k * _F.itemsize

    def __repr__(self) -> str:
        return f"<panels of {'the transposed ' if self.transposed else ''}{self.rows}x{self.columns}>"

    def loops(self, shape: tuple[int, ...]) -> None:
        """See ``netbuilder.ops.core.contexts.Layout``: it is for products alone."""
        return

    def parts(self, matrix: Any, memory: Any) -> list[tuple[Any, Any]]:
        """Return parts of a matrix, each with its place in ``memory``; zeros are for the rest of the last panel."""
        plain = matrix.reshape(self.rows, self.columns)
        plain = plain.T if self.transposed else plain
        k, n = plain.shape
        found = memory.view(_F).reshape(-(-n // LANES), k, LANES)
        whole = n // LANES
        steps = plain.strides
        inside = as_strided(plain, (whole, k, LANES), (steps[1] * LANES, *steps))
        pairs = [(inside, found[:whole])] if whole else []
        if rest := n % LANES:
            zeros = np.broadcast_to(np.zeros(1, _F), (k, LANES - rest))
            pairs += [(plain[:, whole * LANES :], found[whole, :, :rest]), (zeros, found[whole, :, rest:])]
        return pairs


panels = functools.lru_cache(1024)(Panels)


def may_be_copied(ctx: PlanContext, input: int, layout: Panels) -> bool:
    """Return whether an input that stays the same may be stored in panels, too: there is memory for it."""
    return ctx.is_constant(input) and layout.nbytes <= machine_memory() // _SHARE_COPIED


def reorder(ctx: PlanContext, source: TensorSpec, target: TensorSpec) -> Prepared:
    """Return the prepared copy of a plain matrix into panels.

    Raises:
        ValueError: the source is not plain, or the target not in panels.
    """
    if source.layout is not None or not isinstance(target.layout, Panels):
        raise ValueError(f"only plain matrices are copied, and into panels only: {source} cannot become {target}")
    layout = target.layout

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        pairs = layout.parts(inputs[0], outputs[0])

        def copy() -> None:  # by NumPy: it runs once, so machine code would take longer to make than it saves
            for source, place in pairs:
                np.copyto(place, source)

        return copy

    return Prepared([source], [target], bind, name="panels")


class _Code(Multiplying):
    """Writes the function.

    ``biases`` is 1, or 0 where ``bias`` has zeros for all panels. ``added``, a matrix like the product, is read only if
    the function is for one.
    """

    def __init__(self, rows: Sequence[int], *, wide: bool, added: bool) -> None:
        self._rows, self._wide, self._added = rows, wide, added
        self._entry, self._body = Emitter("e"), Emitter("v")

    def text(self) -> str:
        b = self._body
        self._arguments(_POINTERS, _INTEGERS)
        with self._for("0", "%m", "%chunk") as first:
            last = self._least(b.let(f"add i64 {first}, %chunk"), "%m")
            whole, together = self._least("%end", b.let(f"udiv i64 %n, {LANES}")), _PANELS[self._wide]
            whole = self._most(b.let(f"sub i64 {whole}, %begin"), "0")
            whole = b.let(f"add i64 %begin, {b.let(f'and i64 {whole}, {-together}')}")
            with self._for("%begin", whole, together) as panel:
                self._of_panels(together, panel, "", first, last)
            with self._for(whole, "%end", 1) as panel:
                mask = self._lanes(b.let(f"sub i64 %n, {b.let(f'mul i64 {panel}, {LANES}')}"))
                self._of_panels(1, panel, mask, first, last)
        return self._function()

    def _of_panels(self, together: int, panel: str, mask: str, first: str, last: str) -> None:
        """Write the products of the rows from ``first`` to ``last`` with some panels, the first of them ``panel``."""
        b = self._body
        column = b.let(f"mul i64 {panel}, {LANES}")
        right = self._moved("%b", _F, b.let(f"mul i64 {column}, %k"))
        following = b.let(f"mul i64 %k, {LANES}")
        panels = [right]
        while len(panels) < together:
            panels.append(self._moved(panels[-1], _F, following))
        target = self._moved("%y", _F, column)
        self._begin(together, column, mask, target, first, last)
        with self._for("0", "%k", _DEEP) as depth:
            deepest = self._least(b.let(f"add i64 {depth}, {_DEEP}"), "%k")
            for row, count in self._in_groups(first, last, self._rows):
                self._of_rows(row, count, panels, target, mask, depth, deepest)

    def _begin(self, together: int, column: str, mask: str, target: str, first: str, last: str) -> None:
        """Write to the result what the products are added to."""
        b = self._body
        bias = self._moved("%bias", _F, b.let(f"mul i64 {column}, %biases"))
        start = [self._vector(self._moved(bias, _F, i * LANES), _F, mask) for i in range(together)]
        with self._for(first, last, 1) as row:
            first_of_row = b.let(f"mul i64 {row}, %n")
            place = self._moved(target, _F, first_of_row)
            for i, value in enumerate(start):
                if self._added:
                    also = self._moved("%added", _F, b.let(f"add i64 {first_of_row}, {column}"))
                    value = b.binary("fadd", value, self._vector(self._moved(also, _F, i * LANES), _F, mask))
                self._write(value, _F, self._moved(place, _F, i * LANES), mask)

    def _of_rows(
        self, row: str, count: int, panels: Sequence[str], target: str, mask: str, depth: str, deepest: str
    ) -> None:
        """Add the products of some rows with a part of some panels to the result."""
        b, kind = self._body, vector("float")
        numbers = [b.let(f"add i64 {row}, {r}") for r in range(count)]
        places = [self._moved(target, _F, b.let(f"mul i64 {number}, %n")) for number in numbers]
        left = [self._moved("%a", _F, b.let(f"mul i64 {number}, %k")) for number in numbers]
        sums = [[self._variable(kind, b.constant(0)) for _ in places] for _ in panels]
        with self._for(depth, deepest, 1) as k:
            inside = b.let(f"mul i64 {k}, {LANES}")
            rights = [self._moved(each, _F, inside) for each in panels]
            for right in rights:
                self._fetched_ahead(self._moved(right, _F, _AHEAD * LANES))
            self._add(sums, [self._moved(each, _F, k) for each in left], rights)
        for i, totals in enumerate(sums):
            for place, total in zip(places, totals):
                at = self._moved(place, _F, i * LANES)
                before = self._vector(at, _F, mask)
                self._write(b.binary("fadd", before, self._get(total, kind)), _F, at, mask)


_addresses: dict[tuple[bool, bool, bool], int | None] = {}


def _address(wide: bool, added: bool, one: bool) -> int | None:
    """Return the address of the function; for a single row of one that is made in a fraction of the time, or is there.

    Args:
        wide: registers have 512 bits.
        added: a matrix is added to the product.
        one: there is a single row.
    """
    key = wide, added, one and (wide, added, False) not in _addresses
    if key not in _addresses:
        text = _Code((1,) if key[2] else _ROWS[wide], wide=wide, added=added).text()
        _addresses[key] = machine.address_of(text)
    return _addresses[key]


def product_row(
    a: int, b: int, y: int, sizes: tuple[int, int, int], panels: tuple[int, int], *, bias: int = 0, adds: bool = False
) -> list[int] | None:
    """Return the row of arguments (see ``argument_rows``) of Y (m, n) = A (m, k) B (+ bias); None: no llvmlite.

    Args:
        a, b, y: addresses; B is in panels, the others are plain.
        sizes: m, n, k.
        panels: the first panel and the end.
        bias: the address of n elements; 0: there is none.
        adds: the product is added to Y.
    """
    (m, n, k), wide = sizes, machine.has_wide_registers()
    address = _address(wide, adds, m == 1)
    if address is None:
        return None
    return [address, a, b, bias or _ZEROS.ctypes.data, y, y, m, n, k, _chunk(m, k, wide), *panels, int(bias != 0)]


def _chunk(m: int, k: int, wide: bool) -> int:
    """Return how many rows are multiplied by all panels before the next ones."""
    together, chunks = _ROWS[wide][0], max(1, -(-m * k // _CHUNK))
    return -(-m // chunks // together) * together  # chunks of about the same size


def _product(
    op: Any,
    ctx: PlanContext,
    specs: Sequence[TensorSpec],
    sizes: tuple[int, int, int],
    layout: Panels,
    bias: bool,
    added: TensorSpec | None = None,
) -> Prepared | None:
    """Prepare Y (m, n) = A (m, k) B (+ bias), where input 0 is A, input 1 B, input 2 the bias.

    With ``added`` the last input, of that spec, is added to Y, in whose buffer it may be. None: other kernels are
    faster, or B may change.
    """
    (m, n, k), wide = sizes, machine.has_wide_registers()
    if m < _FEWEST[wide] or not k or not may_be_copied(ctx, 1, layout) or ctx.precision != "float32":
        return None
    if any(spec.dtype != _F for spec in specs[: 2 + bias]):
        return None
    plain = [spec.plain for spec in specs]
    made = list(op.infer(*plain))
    if added is not None and added.plain != made[0]:
        return None
    address = _address(wide, added is not None, m == 1)
    if address is None:
        return None
    count, cost = -(-n // LANES), m * n * k
    by_rows = m * (n + k) > n * k
    together = _ROWS[wide][0]
    units = -(-m // together) if by_rows else count
    threads = max(1, min(ctx.threads, units, cost // _OF_A_THREAD))
    chunk = _chunk(m, k, wide)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        buffers = [inputs[0], inputs[1], inputs[2] if bias else _ZEROS, outputs[0] if added is None else inputs[-1]]
        a, matrix, start, also = (buffer.ctypes.data for buffer in buffers)
        y = outputs[0].ctypes.data
        words = []
        for begin, end in shares(units, threads):
            first, last = (min(together * unit, m) for unit in (begin, end)) if by_rows else (0, m)
            moved = first * n * _F.itemsize
            places = [a + first * k * _F.itemsize, matrix, start, also + moved, y + moved]
            bounds = (0, count) if by_rows else (begin, end)
            words.append(np.array([address, *places, last - first, n, k, chunk, *bounds, int(bias)], np.int64))
        return call_of_threads(ctx, words, (inputs, outputs), brief=cost < _BRIEF)

    expected: list[TensorSpec | None] = [plain[0], specs[1].with_layout(layout), *([plain[2]] if bias else [])]
    expected += [None] * (len(specs) - len(expected))  # of further inputs only the shapes are used
    if added is None:
        return Prepared(expected, made, bind, name="llvm product")
    return Prepared([*expected, made[0]], made, bind, name="llvm product and sum", inplace=((len(expected), 0),))


def _fc(
    op: Any, ctx: PlanContext, x: TensorSpec, w: TensorSpec, b: TensorSpec, added: TensorSpec | None = None
) -> Prepared | None:
    m, n, k = op.sizes(x, w)
    layout = panels(k, n, False) if op._transposed else panels(n, k, True)
    return _product(op, ctx, [x, w, b], (m, n, k), layout, True, added)


def _matmul(op: Any, ctx: PlanContext, a: TensorSpec, b: TensorSpec, *shape_only: TensorSpec) -> Prepared | None:
    if op.trans_a:
        return None
    m, k = (math.prod(part) for part in (a.shape[: op.axis_a], a.shape[op.axis_a :]))
    rows, columns = (math.prod(part) for part in (b.shape[: op.axis_b], b.shape[op.axis_b :]))
    n = rows if op.trans_b else columns
    return _product(op, ctx, [a, b, *shape_only], (m, n, k), panels(rows, columns, bool(op.trans_b)), False)


def _batch_matmul(op: Any, ctx: PlanContext, a: TensorSpec, b: TensorSpec) -> Prepared | None:
    if op.trans_a or a.ndim < 2 or b.ndim < 2 or math.prod(b.shape[:-2]) != 1:
        return None
    if b.ndim > a.ndim:
        return None
    m, k = math.prod(a.shape[:-1]), a.shape[-1]
    n = b.shape[-2 if op.trans_b else -1]
    return _product(op, ctx, [a, b], (m, n, k), panels(*b.shape[-2:], bool(op.trans_b)), False)


PRODUCTS: Mapping[str, Callable[..., Prepared | None]] = {
    "BatchMatMul": _batch_matmul,
    "FC": _fc,
    "FCTransposed": _fc,
    "MatMul": _matmul,
}
"""By operator type."""

PRODUCT_FUSIONS = tuple(
    Fusion(
        f"{product}: x w b -> a; {addition}: {{a c}} -> y",
        "x w b c -> y",
        _fc,
        place=1,
        conditions={"w": Condition.CONSTANT},
    )
    for product in ("FC", "FCTransposed")
    for addition in ("Sum", "Add")
)
"""What is added to a product is added by its kernel."""
