"""Products of matrices in the cache: functions that other functions of a module call.

The right factor is stored in panels: element (k, n) is at ``(n // LANES, k, n % LANES)``, so that a product reads it in
order. Panels are filled from a matrix or from a transposed one. ``_ROWS`` rows of a product are computed together.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import numpy as np

from netbuilder.engines.llvm.emitter import LANES, Emitter, vector
from netbuilder.engines.llvm.loops import Loops

__all__ = ["PANELS", "SLACK", "Multiplying", "panel_functions", "transposed"]

_ROWS = 4
"""Rows of a product that are computed together, with one panel or several: the sums fit in the registers of AVX2."""

_PANELS = {False: (1,), True: (3, 1)}
"""Panels that rows are multiplied by together, then those that are left: of AVX2, AVX-512."""

SLACK = LANES * LANES
"""Elements after the panels of a transposed matrix that may be overwritten."""

_F = np.dtype(np.float32)

PANELS = {
    "rows": "ptr %a, i64 %lda, ptr %b, i64 %deep, ptr %c, i64 %ldc, i64 %m, i64 %count, i64 %k",
    "columns": "ptr %a, i64 %lda, ptr %b, i64 %deep, ptr %c, i64 %ldc, i64 %m, i64 %count, i64 %k",
    "pack": "ptr %x, i64 %ld, i64 %k, i64 %n, ptr %y",
    "pack_transposed": "ptr %x, i64 %ld, i64 %k, i64 %n, ptr %y",
    "dots": "ptr %a, ptr %x, i64 %k, i64 %n, ptr %y",
    "weighted": "ptr %a, ptr %x, i64 %k, i64 %n, ptr %y",
}
"""The functions and their parameters.

``rows`` writes C = A B, where B has ``count`` panels of ``deep`` rows each, of which ``k`` are used. C needs memory for
a multiple of four rows. ``columns`` adds the product of a transposed A, of which four columns at a time are read, to C.
``pack`` fills panels from a matrix of ``k`` rows and ``n`` columns, ``pack_transposed`` from one of ``n`` rows and
``k`` columns. For a vector A, without panels: ``dots`` writes its products with the ``n`` rows of ``k`` elements of X,
``weighted`` the sum of the ``k`` rows of ``n`` elements of X, each times its element of A; Y needs memory for whole
vectors.
"""


class Multiplying(Loops):
    """Base of what multiplies rows by a panel."""

    def _add(self, sums: Sequence[Sequence[str]], left: Sequence[str], rights: Sequence[str], mask: str = "") -> None:
        """Add a row of each panel, at ``rights``, times the elements at ``left`` to the variables of the panel."""
        b, kind = self._body, vector("float")
        factors = [self._vector(right, _F, mask) for right in rights]
        for number, each in enumerate(left):
            scalar = b.splat(b.let(f"load float, ptr {each}, align 4"), "float")
            for factor, of_panel in zip(factors, sums):
                place = of_panel[number]
                self._set(place, kind, b.fma(scalar, factor, self._get(place, kind)))

    def _in_groups(self, begin: str, end: str, sizes: Sequence[int]) -> Iterator[tuple[str, int]]:
        """Write loops over numbers, as many at a time as the first size says, then as the next; the last is 1.

        Each body is written while the iterator stands at it; it is given the first number and how many there are.
        """
        b, at = self._body, self._variable("i64", begin)
        for size in sizes:
            first = self._get(at, "i64")
            left = self._most(b.let(f"sub i64 {end}, {first}"), "0")
            whole = b.let(f"sub i64 {left}, {b.let(f'urem i64 {left}, {size}')}")
            last = b.let(f"add i64 {first}, {whole}")
            with self._for(first, last, size) as number:
                yield number, size
            self._set(at, "i64", last)


class _Function(Multiplying):
    def __init__(self, name: str, wide: bool) -> None:
        self._name, self._wide, self._entry, self._body = name, wide, Emitter("e"), Emitter("v")

    def text(self) -> str:
        getattr(self, f"_write_{self._name}")()
        head = f"define internal void @{self._name}({PANELS[self._name]}) {{"
        return "\n".join(
            [head, "entry:", *self._entry.lines, "br label %body", "body:", *self._body.lines, "ret void", "}"]
        )

    @property
    def declared(self) -> set[str]:
        return self._body.declared

    def _write_rows(self) -> None:
        b = self._body
        for rights, first, places in self._blocks():
            left = [self._moved("%a", _F, b.let(f"mul i64 {self._row(first, r)}, %lda")) for r in range(_ROWS)]
            sums = [[self._variable(vector("float"), b.constant(0)) for _ in range(_ROWS)] for _ in rights]
            with self._for("0", "%k", 1) as k:
                inside = b.let(f"mul i64 {k}, {LANES}")
                elements = [self._moved(each, _F, k) for each in left]
                self._add(sums, elements, [self._moved(right, _F, inside) for right in rights])
            self._store(sums, places)

    def _write_columns(self) -> None:
        b = self._body
        for rights, first, places in self._blocks():
            sums = []
            for place in places:
                rows = [self._moved(place, _F, b.let(f"mul i64 {r}, %ldc")) for r in range(_ROWS)]
                sums.append([self._variable(vector("float"), self._vector(each, _F)) for each in rows])
            left = self._moved("%a", _F, first)
            with self._for("0", "%k", 1) as k:
                inside = b.let(f"mul i64 {k}, {LANES}")
                start = self._moved(left, _F, b.let(f"mul i64 {k}, %lda"))
                elements = [self._moved(start, _F, r) for r in range(_ROWS)]
                self._add(sums, elements, [self._moved(right, _F, inside) for right in rights])
            self._store(sums, places)

    def _blocks(self) -> Iterator[tuple[list[str], str, list[str]]]:
        """Write loops over blocks of the result: some panels, the first of some rows, where each panel's part goes."""
        b = self._body
        for panel, together in self._in_groups("0", "%count", _PANELS[self._wide]):
            with self._for("0", "%m", _ROWS) as first:
                numbers = [b.let(f"add i64 {panel}, {i}") for i in range(together)]
                yield [self._panel(each) for each in numbers], first, [self._target(each, first) for each in numbers]

    def _panel(self, number: str) -> str:
        b = self._body
        return self._moved("%b", _F, b.let(f"mul i64 {b.let(f'mul i64 {number}, %deep')}, {LANES}"))

    def _target(self, panel: str, row: str) -> str:
        b = self._body
        start = self._moved("%c", _F, b.let(f"mul i64 {row}, %ldc"))
        return self._moved(start, _F, b.let(f"mul i64 {panel}, {LANES}"))

    def _row(self, first: str, number: int) -> str:
        """Return a row of A; the last one in place of those that it does not have."""
        b = self._body
        last = b.let("sub i64 %m, 1")
        return self._least(b.let(f"add i64 {first}, {number}"), last)

    def _store(self, sums: Sequence[Sequence[str]], places: Sequence[str]) -> None:
        b = self._body
        for of_panel, place in zip(sums, places):
            for r, each in enumerate(of_panel):
                at = self._moved(place, _F, b.let(f"mul i64 {r}, %ldc"))
                self._write(self._get(each, vector("float")), _F, at)

    def _write_dots(self) -> None:
        b, kind = self._body, vector("float")
        whole = b.let(f"and i64 %k, {-LANES}")
        with self._for("0", "%n", 1) as row:
            right, total = self._moved("%x", _F, b.let(f"mul i64 {row}, %k")), self._variable(kind, b.constant(0))
            for start, end in (("0", whole), (whole, "%k")):
                with self._for(start, end, LANES) as i:
                    mask = "" if end == whole else self._lanes(b.let(f"sub i64 %k, {i}"))
                    x, y = (self._vector(self._moved(each, _F, i), _F, mask) for each in ("%a", right))
                    self._set(total, kind, b.fma(x, y, self._get(total, kind)))
            found = self._of_lanes(functools.partial(b.binary, "fadd"), self._get(total, kind))
            first = b.let(f"extractelement {kind} {found}, i64 0")
            b.add(f"store float {first}, ptr {self._moved('%y', _F, row)}, align 4")

    def _write_weighted(self) -> None:
        b, kind = self._body, vector("float")
        several = _ROWS * LANES
        whole, vectors = b.let(f"sub i64 %n, {b.let(f'urem i64 %n, {several}')}"), b.let(f"and i64 %n, {-LANES}")
        for start, end, count in (("0", whole, _ROWS), (whole, vectors, 1), (vectors, "%n", 1)):
            with self._for(start, end, count * LANES) as column:
                mask = self._lanes(b.let(f"sub i64 %n, {column}")) if end == "%n" else ""
                sums = [self._variable(kind, b.constant(0)) for _ in range(count)]
                with self._for("0", "%k", 1) as k:
                    factor = b.splat(b.let(f"load float, ptr {self._moved('%a', _F, k)}, align 4"), "float")
                    row = self._moved(self._moved("%x", _F, b.let(f"mul i64 {k}, %n")), _F, column)
                    for j, place in enumerate(sums):
                        value = self._vector(self._moved(row, _F, j * LANES), _F, mask)
                        self._set(place, kind, b.fma(factor, value, self._get(place, kind)))
                for j, place in enumerate(sums):
                    self._write(self._get(place, kind), _F, self._moved(self._moved("%y", _F, column), _F, j * LANES))

    def _write_pack(self) -> None:
        b = self._body
        with self._for("0", "%n", LANES) as column:
            mask = self._lanes(b.let(f"sub i64 %n, {column}"))
            target = self._moved("%y", _F, b.let(f"mul i64 {column}, %k"))
            source = self._moved("%x", _F, column)
            with self._for("0", "%k", 1) as k:
                value = self._vector(self._moved(source, _F, b.let(f"mul i64 {k}, %ld")), _F, mask)
                self._write(value, _F, self._moved(target, _F, b.let(f"mul i64 {k}, {LANES}")))

    def _write_pack_transposed(self) -> None:
        b = self._body
        last = b.let("sub i64 %n, 1")
        with self._for("0", "%n", LANES) as row:
            target = self._moved("%y", _F, b.let(f"mul i64 {row}, %k"))
            rows = []
            for lane in range(LANES):
                number = self._least(b.let(f"add i64 {row}, {lane}"), last)
                rows.append(self._moved("%x", _F, b.let(f"mul i64 {number}, %ld")))
            with self._for("0", "%k", LANES) as column:
                mask = self._lanes(b.let(f"sub i64 %k, {column}"))
                values = [self._vector(self._moved(each, _F, column), _F, mask) for each in rows]
                place = self._moved(target, _F, b.let(f"mul i64 {column}, {LANES}"))
                for j, value in enumerate(transposed(b, values)):
                    self._write(value, _F, self._moved(place, _F, j * LANES))


def transposed(b: Emitter, rows: list[str], element: str = "float") -> list[str]:
    """Return the columns of a matrix of ``LANES`` vectors."""
    kind, rows = vector(element), list(rows)
    distance = LANES // 2
    while distance:
        upper = [k if k & distance == 0 else LANES + k - distance for k in range(LANES)]
        lower = [k + distance if k & distance == 0 else LANES + k for k in range(LANES)]
        for i in range(LANES):
            if i & distance == 0:
                x, y = rows[i], rows[i + distance]
                texts = [", ".join(f"i32 {k}" for k in order) for order in (upper, lower)]
                rows[i], rows[i + distance] = (
                    b.let(f"shufflevector {kind} {x}, {kind} {y}, <{LANES} x i32> <{text}>") for text in texts
                )
        distance //= 2
    return rows


@functools.cache
def panel_functions(*names: str, wide: bool) -> tuple[str, frozenset[str]]:
    """Return the text of some functions, and the declarations that they need; ``wide``: registers have 512 bits."""
    made = [_Function(name, wide) for name in names]
    text = "\n".join(each.text() for each in made)
    return text, frozenset().union(*(each.declared for each in made))
