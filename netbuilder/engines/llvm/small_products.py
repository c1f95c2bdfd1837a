"""Small products of matrices that change with each run: those of a small FC and of its gradient, as one call each.

Rows of the left factor, whose elements may be anywhere, are multiplied by vectors of the rows of the right one, with
the sums in registers. A right factor that is stored transposed is copied to panels first (see ``panels``). One thread
does all: the others would not have started before it has finished.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from netbuilder.engines.llvm import machine
from netbuilder.engines.llvm.argument_rows import call_of_threads, one_row
from netbuilder.engines.llvm.emitter import LANES, Emitter, vector
from netbuilder.engines.llvm.panels import SLACK, Multiplying, panel_functions
from netbuilder.ops.core.contexts import Call, PlanContext, Prepared
from netbuilder.ops.core.operator import TensorSpec

__all__ = ["small_fc", "small_fc_dx", "small_fc_gradient"]

_MOST, _MOST_FORWARD = 1 << 18, 1 << 17
"""Multiplications of a product of a gradient, and of an FC, at most: with more, libraries are as fast."""

_DEEPEST = 2048
"""Products that are added up to one sum, at most."""

_FEWEST = 4
"""With fewer rows, copying a transposed factor takes longer than the product of a library."""

_ROWS = {False: (6, 2, 1), True: (12, 4, 1)}
_VECTORS = {False: 1, True: 2}
"""Rows and vectors of the result that are computed together, of AVX2, AVX-512; vectors that are left one by one."""

_F = np.dtype(np.float32)
_POINTERS = ("a", "b", "bias", "y")
_INTEGERS = ("m", "n", "k", "row", "inner", "deep", "panel")


class _Code(Multiplying):
    """Writes the function that computes a product, Y (m, n) = A B, with a bias or a Relu.

    Element (i, k) of A is ``i * row + k * inner`` elements after the first one. Vector j of row k of B is
    ``j * panel + k * deep`` elements after the first.
    """

    def __init__(self, *, bias: bool, relu: bool, wide: bool) -> None:
        self._bias, self._relu, self._wide = bias, relu, wide
        self._entry, self._body = Emitter("e"), Emitter("v")

    def text(self) -> str:
        b = self._body
        self._arguments(_POINTERS, _INTEGERS)
        together = _VECTORS[self._wide]
        whole = b.let(f"and i64 {b.let(f'udiv i64 %n, {LANES}')}, {-together}")
        with self._for("0", whole, together) as number:
            self._of_vectors(number, together, "")
        with self._for(whole, b.let(f"udiv i64 {b.let(f'add i64 %n, {LANES - 1}')}, {LANES}"), 1) as number:
            self._of_vectors(number, 1, self._lanes(b.let(f"sub i64 %n, {b.let(f'mul i64 {number}, {LANES}')}")))
        return self._function()

    def _of_vectors(self, number: str, together: int, mask: str) -> None:
        """Write some vectors of all rows, the first of them ``number``."""
        b = self._body
        column = b.let(f"mul i64 {number}, {LANES}")
        rights = [self._moved("%b", _F, b.let(f"mul i64 {number}, %panel"))]
        while len(rights) < together:
            rights.append(self._moved(rights[-1], _F, "%panel"))
        start = [b.constant(0)] * together
        if self._bias:
            bias = self._moved("%bias", _F, column)
            start = [self._vector(self._moved(bias, _F, i * LANES), _F, mask) for i in range(together)]
        target = self._moved("%y", _F, column)
        for row, count in self._in_groups("0", "%m", _ROWS[self._wide]):
            self._of_rows(row, count, rights, start, target, mask)

    def _of_rows(
        self, row: str, count: int, rights: Sequence[str], start: Sequence[str], target: str, mask: str
    ) -> None:
        b, kind = self._body, vector("float")
        numbers = [b.let(f"add i64 {row}, {r}") for r in range(count)]
        places = [self._moved(target, _F, b.let(f"mul i64 {number}, %n")) for number in numbers]
        left = [self._moved("%a", _F, b.let(f"mul i64 {number}, %row")) for number in numbers]
        sums = [[self._variable(kind, value) for _ in numbers] for value in start]
        with self._for("0", "%k", 1) as k:
            inner, deep = (b.let(f"mul i64 {k}, {each}") for each in ("%inner", "%deep"))
            at = [self._moved(right, _F, deep) for right in rights]
            self._add(sums, [self._moved(each, _F, inner) for each in left], at, mask)
        for i, totals in enumerate(sums):
            for place, total in zip(places, totals):
                value = self._get(total, kind)
                if self._relu:
                    kept = b.compare("uge", value, b.constant(0))
                    value = b.select(kept, value, b.constant(0))
                self._write(value, _F, self._moved(place, _F, i * LANES), mask)


class _Copy(Multiplying):
    """Writes the function that copies a matrix of ``n`` rows and ``k`` columns to the panels of the transposed one."""

    def __init__(self) -> None:
        self._entry, self._body = Emitter("e"), Emitter("v")

    def text(self, wide: bool) -> str:
        functions, declared = panel_functions("pack_transposed", wide=wide)
        self._body.declared |= declared
        self._arguments(("x", "y"), ("n", "k"))
        self._body.add("call void @pack_transposed(ptr %x, i64 %k, i64 %k, i64 %n, ptr %y)")
        return f"{functions}\n{self._function()}"


@functools.cache
def _copy_text(wide: bool) -> str:
    return _Copy().text(wide)


@functools.cache
def _text(bias: bool, relu: bool, wide: bool) -> str:
    return _Code(bias=bias, relu=relu, wide=wide).text()


class _Product(NamedTuple):
    """One product of a call, whose factors are inputs: Y (m, n) = A B.

    Args:
        a: which input A is; None: ones.
        b: which input B is.
        y: which output the result is.
        m, n, k: the extents: of Y, and of the sums.
        turned_a, turned_b: whether a factor is stored transposed.
        bias: which input is added to each row; None: none.
        relu: whether a Relu follows.
    """

    a: int | None
    b: int
    y: int
    m: int
    n: int
    k: int
    turned_a: bool = False
    turned_b: bool = False
    bias: int | None = None
    relu: bool = False

    @property
    def copied(self) -> int:
        """Bytes of the panels that B is copied to."""
        return (-(-self.n // LANES) * LANES * self.k + SLACK) * _F.itemsize if self.turned_b else 0

    def rows(self, inputs: Sequence[Any], outputs: Sequence[Any], copy: int, wide: bool) -> list[list[int]]:
        """Return the rows of words of the functions that compute it; ``copy`` is the address of the panels."""
        m, n, k = self.m, self.n, self.k
        right = inputs[self.b].ctypes.data
        found = [[_address(_copy_text(wide)), right, copy, n, k]] if self.turned_b else []
        places = [
            _ONE.ctypes.data if self.a is None else inputs[self.a].ctypes.data,
            copy if self.turned_b else right,
            0 if self.bias is None else inputs[self.bias].ctypes.data,
            outputs[self.y].ctypes.data,
        ]
        steps = (0, 0) if self.a is None else (1, m) if self.turned_a else (k, 1)
        of_panels = (LANES, LANES * k) if self.turned_b else (n, LANES)
        address = _address(_text(self.bias is not None, self.relu, wide))
        return [*found, [address, *places, m, n, k, *steps, *of_panels]]


_ONE = np.ones(1, _F)


def _address(text: str) -> int:
    found = machine.address_of(text)
    assert found is not None, "whoever prepares a product has seen that there is a compiler"
    return found


def _prepared(
    ctx: PlanContext, expected: Sequence[TensorSpec | None], made: Sequence[TensorSpec], products: Sequence[_Product]
) -> Prepared | None:
    """Return the call of some products; None: libraries are faster, or there is no compiler."""
    if not ctx.uses_engine("LLVM") or any(spec is not None and spec.dtype != _F for spec in expected):
        return None
    if any(not 0 < each.m * each.n * each.k <= _MOST or each.k > _DEEPEST for each in products):
        return None
    wide = machine.has_wide_registers()
    texts = {_text(each.bias is not None, each.relu, wide) for each in products}
    if any(machine.address_of(text) is None for text in texts):
        return None

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        copy = 0 if scratch is None else scratch.ctypes.data
        rows = [row for each in products for row in each.rows(inputs, outputs, copy, wide)]
        return call_of_threads(ctx, [one_row(rows)], (inputs, outputs, scratch), brief=True)

    scratch = max(each.copied for each in products)
    return Prepared(list(expected), list(made), bind, scratch, name="llvm small product")


def small_fc(op: Any, ctx: PlanContext, x: TensorSpec, w: TensorSpec, b: TensorSpec, *, relu: bool) -> Prepared | None:
    """Prepare a small FC, or FCTransposed, with the Relu that may follow it: X, W, b -> Y."""
    m, n, k = op.sizes(x, w)
    if m * n * k > _MOST_FORWARD or (not op._transposed and m < _FEWEST):
        return None
    product = _Product(0, 1, 0, m, n, k, turned_b=not op._transposed, bias=2, relu=relu)
    return _prepared(ctx, [x.plain, w.plain, b.plain], [TensorSpec(op.y_shape(x, n), x.dtype)], [product])


def small_fc_gradient(op: Any, ctx: PlanContext, x: TensorSpec, w: TensorSpec, dy: TensorSpec) -> Prepared | None:
    """Prepare a small FCGradient or FCTransposedGradient: X, W, dY -> dW, db, [dX]."""
    rows, columns, inner = op.sizes(x, w)
    weights = _Product(2, 0, 0, columns, inner, rows, turned_a=True)
    if op._transposed:
        weights = _Product(0, 2, 0, inner, columns, rows, turned_a=True)
    products, made = [weights, _Product(None, 2, 1, 1, columns, rows)], [w.plain, TensorSpec((columns,), w.dtype)]
    expected = [x.plain, None, dy.plain]
    if op.n_out > 2:
        products.append(_dx(op, x, w, 2))
        made.append(x.plain)
        expected[1] = w.plain
    return _prepared(ctx, expected, made, products)


def small_fc_dx(op: Any, ctx: PlanContext, x: TensorSpec, w: TensorSpec, dy: TensorSpec) -> Prepared | None:
    """Prepare dX alone: X, W, dY -> dX; X is not read."""
    return _prepared(ctx, [None, w.plain, dy.plain], [x.plain], [_dx(op, x, w, 0)])


def _dx(op: Any, x: TensorSpec, w: TensorSpec, output: int) -> _Product:
    rows, columns, inner = op.sizes(x, w)
    return _Product(2, 1, output, rows, inner, columns, turned_b=op._transposed)
