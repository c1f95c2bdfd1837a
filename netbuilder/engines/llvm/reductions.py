"""The code of programs with sums, maxima or minima over axes: one function computes a row's reductions, then the row.

The axes that are reduced make a row; the others, the rows. Neighbors that the same inputs have are joined. Vectors are
along the last axis: if that is reduced, one row is computed at a time, and the lanes of a reduction are combined at the
end, in a fixed order; else each lane has a row of its own. So results depend neither on threads nor on other rows.

A function passes over a row once for each reduction that depends on another one, and once for the outputs that have all
elements. What follows from an exponential (or the like), and several passes need, is kept in such an output meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from netbuilder.engines.llvm.code import Code, Function, converted
from netbuilder.engines.llvm.emitter import LANES, Emitter, memory_type, register_type, vector
from netbuilder.engines.llvm.functions import FUNCTIONS
from netbuilder.engines.llvm.loops import Loops
from netbuilder.engines.programs import Constant, Load, NotTraced, Step, Sum, View
from netbuilder.engines.tracing import Symbol, reshaped_extents
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Form", "ReducedCode", "reduced_code", "reductions_of"]

_LONG = 4096
"""Sums of more elements are added in float64."""

_IDENTITY = {"add": 0.0, "maximum": -math.inf, "minimum": math.inf}


@dataclass(frozen=True, eq=False)
class ReducedCode(Code):
    """A function for a program with reductions.

    Args:
        units: into how many parts of equal size its work can be divided.
        inplace: pairs of an input and an output that may have the same memory.
    """

    units: int = 1
    inplace: tuple[tuple[int, int], ...] = ()


def reduced_code(outputs: Sequence[Symbol], loops: Sequence[tuple[int, int]] = ()) -> ReducedCode:
    """Return the code that computes some outputs, which read reductions over the same axes.

    Args:
        outputs: the outputs.
        loops: see ``Form``.

    Raises:
        NotTraced: there is none.
    """
    return _Reducing(Form(outputs, loops)).reduced()


class Form:
    """What computes some outputs, which read reductions over the same axes, in one shape.

    Every load has the extents of ``loops``, with ones for the axes that it does not have, every equal expression exists
    once, and a reduction is the load of a ``Sum`` with the shape that has the axes ``kept``.

    Args:
        outputs: the outputs.
        loops: (axis, extent) over elements of the shape ``base`` in memory, slowest first; (): in plain order.

    Attributes:
        base: the shape of what is reduced.
        values: of the outputs.
        of_elements: whether an output has all elements, or one for each row.
        sums: the reductions, in the order in which they are computed.
        level: of each of them: how many reductions it depends on, one after the other.
        axes: the joined loops, each with its extent, whether it is reduced, and the loads that have it.

    Raises:
        NotTraced: they cannot be computed so.
    """

    def __init__(self, outputs: Sequence[Symbol], loops: Sequence[tuple[int, int]] = ()) -> None:
        first = next((each for symbol in outputs for each in reductions_of(symbol.expression)), None)
        if first is None or not math.prod(first.shape):
            raise NotTraced("no reduction, or one of no elements")
        self.base = first.shape
        self.reduced = tuple(a in first.axes for a in range(len(self.base)))
        self.loops = tuple(loops) or tuple(enumerate(self.base))
        self.in_memory = tuple(n for _, n in self.loops)
        self.kept_shape = tuple(1 if reduced else n for n, reduced in zip(self.base, self.reduced))
        self._known: dict[Any, Any] = {}
        self._sums: dict[Any, Sum] = {}
        self.level: dict[Sum, int] = {}
        self.values, self.of_elements = [], []
        for symbol in outputs:
            self.of_elements.append(symbol.size == math.prod(self.base))
            self.values.append(self._canonical(symbol.expression, symbol.shape, {}))
        self.dtypes = [symbol.dtype for symbol in outputs]
        self.sums = sorted(self.level, key=self.level.__getitem__)
        self.loads = sorted(
            {node for node in self._known.values() if isinstance(node, Load) and not isinstance(node.input, Sum)},
            key=lambda load: (load.input, load.shape),
        )
        self.axes = self._joined()

    def _canonical(self, value: Any, shape: tuple[int, ...], done: dict[int, Any]) -> Any:
        """Return an expression of a shape in the shape ``base``."""
        if isinstance(value, Constant):
            return value
        if isinstance(value, View):
            return self._canonical(value.value, value.shape, {})
        if id(value) in done:
            return done[id(value)]
        found: Load | Step
        if isinstance(value, Load):
            found = self._load(value, shape)
        elif isinstance(value, Step):
            operands = tuple(self._canonical(operand, shape, done) for operand in value.operands)
            found = Step(value.function, operands, value.compute, value.dtype)
        else:
            raise NotTraced("numbers that the host computes, or several values for each element")
        key: Any = found
        if isinstance(found, Step):
            parts = [repr(x) if isinstance(x, Constant) else id(x) for x in found.operands]
            key = (found.function, found.compute, found.dtype, *parts)
        done[id(value)] = self._known.setdefault(key, found)
        return done[id(value)]

    def _load(self, load: Load, shape: tuple[int, ...]) -> Load:
        if load.stride != 1:
            raise NotTraced("several values for each element")
        kept = tuple(n for n, reduced in zip(self.base, self.reduced) if not reduced)
        if math.prod(load.shape) == 1:
            own = (1,) * len(self.base)
        elif math.prod(shape) == math.prod(self.base):
            own = reshaped_extents(load.shape, shape, self.base)
        elif math.prod(shape) == math.prod(kept):
            rows = iter(reshaped_extents(load.shape, shape, kept))
            own = tuple(1 if reduced else next(rows) for reduced in self.reduced)
        else:
            raise NotTraced("values of several sizes")
        if not isinstance(load.input, Sum):
            shape = tuple(1 if own[axis] == 1 else n for axis, n in self.loops)
            return Load(load.input, shape, load.dtype)
        total = load.input
        if math.prod(total.shape) != math.prod(self.base) or own != self.kept_shape:
            raise NotTraced("reductions of several sizes")
        marks = tuple(n if a in total.axes else 1 for a, n in enumerate(total.shape))
        if reshaped_extents(marks, total.shape, self.base) != tuple(
            n if r else 1 for n, r in zip(self.base, self.reduced)
        ):
            raise NotTraced("reductions over several axes")
        value = self._canonical(total.value, total.shape, {})
        key = (id(value) if not isinstance(value, Constant) else repr(value), total.function)
        if key not in self._sums:
            self._sums[key] = Sum(value, self.base, total.axes, total.dtype, total.function)
            below = [self.level[each] for each in reductions_of(value)]
            self.level[self._sums[key]] = max(below, default=-1) + 1
        return Load(self._sums[key], own, total.dtype)

    def _joined(self) -> list[tuple[int, bool, tuple[bool, ...]]]:
        joined: list[tuple[int, bool, tuple[bool, ...]]] = []
        for k, (axis, extent) in enumerate(self.loops):
            if extent == 1:
                continue
            own = tuple(load.shape[k] != 1 for load in self.loads)
            if joined and joined[-1][1:] == (self.reduced[axis], own):
                joined[-1] = (joined[-1][0] * extent, *joined[-1][1:])
            else:
                joined.append((extent, self.reduced[axis], own))
        return joined


def reductions_of(value: Any) -> Iterator[Sum]:
    """Yield the reductions that an expression reads."""
    left, seen = [value], set[int]()
    while left:
        node = left.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, (Step, View)):
            left += reversed(node.operands if isinstance(node, Step) else (node.value,))
        elif isinstance(node, Load) and isinstance(node.input, Sum):
            yield node.input


class _Reducing(Function, Loops):
    """Writes the function of a form."""

    def __init__(self, form: Form) -> None:
        self._form, self._loads = form, form.loads
        self._read = tuple(sorted({load.input for load in form.loads}))
        self._entry, self._body = Emitter("e"), Emitter("v")
        self._entry.declared = self._body.declared
        self._constants = {}
        self._functions = 0
        self._first_output = 1 + len(self._read)
        self._first_extent = self._first_output + len(form.values)
        self._begin = self._first_extent + len(form.axes)
        self._first_constant = self._begin + 2
        self._along = form.axes[-1][1]  # whether the lanes are along a row
        self._mask = ""
        self._of_row: list[dict[Any, str]] = []  # what has been computed for a row, by lanes
        self._now: dict[Any, str] = {}  # what has been computed for an element
        self._totals: dict[tuple[Sum, int], str] = {}
        self._kept: dict[int, int] = {}
        self._row_steps = self._of_rows()
        self._passes = self._make_passes()
        self._find_kept()
        costly = any(step.function in FUNCTIONS for step in self._steps())
        self._width = (1 if costly else 2) if self._along else (1 if costly else 4)

    # What is computed when

    def _steps(self) -> list[Step]:
        return [node for node in self._form._known.values() if isinstance(node, Step)]

    def _of_rows(self) -> set[int]:
        """Return the steps that have one result for each row."""
        found: set[int] = set()
        for node in self._steps():  # each after its operands
            if all(self._is_row(operand, found) for operand in node.operands):
                found.add(id(node))
        return found

    def _is_row(self, value: Any, rows: set[int]) -> bool:
        if isinstance(value, Load):
            reduced = (self._form.reduced[axis] for axis, _ in self._form.loops)
            return isinstance(value.input, Sum) or not any(n != 1 and r for n, r in zip(value.shape, reduced))
        return isinstance(value, Constant) or id(value) in rows

    def _make_passes(self) -> list[list[Any]]:
        """Return what each pass over a row computes: reductions, in the last one the outputs that have all elements."""
        form = self._form
        passes: list[list[Any]] = [[] for _ in range(max(form.level.values()) + 1)]
        for total in form.sums:
            passes[form.level[total]].append(total)
        outputs = [j for j, whole in enumerate(form.of_elements) if whole]
        return [*passes, outputs] if outputs else passes

    def _roots(self, made: Sequence[Any]) -> list[Any]:
        return [each.value if isinstance(each, Sum) else self._form.values[each] for each in made]

    def _of_functions(self) -> set[int]:
        """Return the steps that take an exponential, or the like, of each element."""
        found: set[int] = set()
        for node in self._steps():
            below = any(id(operand) in found for operand in node.operands)
            if (below or node.function in FUNCTIONS) and id(node) not in self._row_steps:
                found.add(id(node))
        return found

    def _find_kept(self) -> None:
        """Find the steps whose results are kept in outputs until the last pass, and the pass that makes them.

        They take exponentials, or the like, which are not computed again where there is an output for them.
        """
        outputs = [] if not self._passes or isinstance(self._passes[-1][0], Sum) else list(self._passes[-1])
        made: dict[int, int] = {}
        self._costly = self._of_functions()
        self._made_in = dict[int, int]()
        self._read_in: dict[int, int] = {}  # the last pass that reads an input
        for number, of_pass in enumerate(self._passes):
            left, seen = self._roots(of_pass), set[int]()
            while left:
                node = left.pop()
                if isinstance(node, Load) and not isinstance(node.input, Sum):
                    self._read_in[node.input] = number
                if not isinstance(node, Step) or id(node) in seen:
                    continue
                seen.add(id(node))
                costly = id(node) in self._costly
                if costly and made.get(id(node), number) < number and id(node) not in self._kept:
                    j = next(
                        (j for j in outputs if self._form.dtypes[j] == node.dtype and node.dtype.char in "fd"), None
                    )
                    if j is not None:
                        outputs.remove(j)
                        self._kept[id(node)], self._made_in[j] = j, made[id(node)]
                if id(node) in self._kept and made[id(node)] < number:
                    continue
                if costly:
                    made.setdefault(id(node), number)
                left += node.operands

    # The text

    def reduced(self) -> ReducedCode:
        form, e = self._form, self._entry
        self._sources = {i: self._argument(1 + k, "ptr") for k, i in enumerate(self._read)}
        self._targets = [self._argument(self._first_output + j, "ptr") for j in range(len(form.values))]
        self._extents = [self._argument(self._first_extent + k, "i64") for k in range(len(form.axes))]
        begin, end = self._argument(self._begin, "i64"), self._argument(self._begin + 1, "i64")
        step = LANES * self._width
        if not self._along:
            last = e.let(f"add i64 {self._extents[-1]}, {step - 1}")
            self._blocks = e.let(f"udiv i64 {last}, {step}")
        with self._for(begin, end, 1) as unit:
            if self._along:
                self._passes_over(self._pointers(unit, "0"))
            else:
                self._rows(unit, step)
        body = self._body
        lines = ["define void @kernel(ptr %arguments) {", "entry:", *self._entry.lines, "  br label %body0", "body0:"]
        text = "\n".join([*sorted(body.declared), *lines, *body.lines, "  ret void", "}", ""])
        extents = tuple(extent for extent, _, _ in form.axes)
        rows = math.prod(extent for extent, reduced, _ in form.axes if not reduced)
        units = rows if self._along else rows // extents[-1] * -(-extents[-1] // step)
        work = len(self._loads) + len(self._passes) + len(self._steps()) + 16 * self._functions // self._width
        return ReducedCode(text, self._read, tuple(bits for bits, _ in self._constants), extents, work, units,
                           self._inplace())  # fmt: skip

    def _inplace(self) -> tuple[tuple[int, int], ...]:
        """Return which inputs outputs may overwrite: those read at the same element, or not after the first write.

        An output with one element for each row is written last.
        """
        form, pairs = self._form, []
        alone = form.of_elements.count(False) == 1 and form.in_memory == form.base
        for i in self._read:
            mine = [load for load in self._loads if load.input == i]
            for j, whole in enumerate(form.of_elements):
                if (
                    not whole
                    and alone
                    and [(load.shape, load.dtype) for load in mine] == [(form.kept_shape, form.dtypes[j])]
                ):
                    pairs.append((i, j))
                fits = whole and mine[0].dtype == form.dtypes[j] and [load.shape for load in mine] == [form.in_memory]
                if fits and self._read_in.get(i, 0) <= self._made_in.get(j, len(self._passes)):
                    pairs.append((i, j))
        return tuple(pairs)

    def _rows(self, unit: str, step: int) -> None:
        """Write the code of a block of rows that are next to each other, whole or at the end."""
        b, n = self._body, self._label()
        row = b.let(f"udiv i64 {unit}, {self._blocks}")
        block = b.let(f"urem i64 {unit}, {self._blocks}")
        first = b.let(f"mul i64 {block}, {step}")
        left = b.let(f"sub i64 {self._extents[-1]}, {first}")
        b.add(f"br i1 {b.let(f'icmp sge i64 {left}, {step}')}, label %whole{n}, label %rest{n}")
        b.add(f"whole{n}:")
        self._passes_over(self._pointers(row, first))
        b.add(f"br label %end{n}")
        b.add(f"rest{n}:")
        with self._for(first, self._extents[-1], LANES) as start:
            width, self._width = self._width, 1
            self._mask = self._lanes(b.let(f"sub i64 {self._extents[-1]}, {start}"))
            self._passes_over(self._pointers(row, start))
            self._width, self._mask = width, ""
        b.add(f"br label %end{n}")
        b.add(f"end{n}:")

    def _pointers(self, row: str, first: str) -> dict[Any, str]:
        """Return where a row begins in each load's tensor, and in each output."""
        b, at = self._body, dict[int, str]()
        kept = [k for k, (_, reduced, _) in enumerate(self._form.axes) if not reduced]
        if not self._along:
            at[kept.pop()] = first
        for axis in reversed(kept):
            at[axis] = b.let(f"urem i64 {row}, {self._extents[axis]}") if axis != kept[0] else row
            row = b.let(f"udiv i64 {row}, {self._extents[axis]}") if axis != kept[0] else row
        found: dict[Any, str] = {}
        for k, load in enumerate(self._loads):
            own = [axis for axis, (_, _, flags) in enumerate(self._form.axes) if flags[k]]
            found[load] = self._moved(self._sources[load.input], load.dtype, self._offset_of(at, own))
        for j, whole in enumerate(self._form.of_elements):
            own = [axis for axis, (_, reduced, _) in enumerate(self._form.axes) if whole or not reduced]
            found[j] = self._moved(self._targets[j], self._form.dtypes[j], self._offset_of(at, own))
        return found

    def _offset_of(self, at: dict[int, str], axes: Sequence[int]) -> str:
        """Return the place of an element in an array that has some axes; it is 0 along those that ``at`` lacks."""
        b, total, stride = self._body, "0", "1"
        for axis in reversed(axes):
            if axis in at:
                total = b.let(f"add i64 {total}, {b.let(f'mul i64 {at[axis]}, {stride}')}")
            stride = b.let(f"mul i64 {stride}, {self._extents[axis]}")
        return total

    def _passes_over(self, pointers: dict[Any, str]) -> None:
        """Write the passes over a row, or over a block of rows, one for each lane."""
        form = self._form
        self._places = pointers
        lanes = 1 if self._along else self._width
        self._of_row = [{} for _ in range(lanes)]
        for number, made in enumerate(self._passes):
            self._number_of_pass = number
            for node in self._rows_read(self._roots(made)):
                for w in range(lanes):
                    self._at_row(w)
                    self._value(node, node.dtype)
            if isinstance(made[0], Sum):
                self._reduce(made)
            else:
                self._over_row(self._written)
        for j, (value, whole) in enumerate(zip(form.values, form.of_elements)):
            for w in range(0 if whole else lanes):
                self._at_row(w)
                self._store_of_row(j, w, self._value(value, form.dtypes[j]))

    def _rows_read(self, roots: Sequence[Any]) -> list[Any]:
        """Return the values of rows that a pass reads for each element."""
        found: dict[int, Any] = {}
        left, seen = list(roots), set[int]()
        while left:
            node = left.pop()
            if isinstance(node, Constant) or id(node) in seen:
                continue
            seen.add(id(node))
            if self._is_row(node, self._row_steps):
                found[id(node)] = node
            elif isinstance(node, Step) and not self._is_loaded(node):
                left += node.operands
        return list(found.values())

    def _is_loaded(self, node: Any) -> bool:
        """Whether the pass reads the result of a step, which an earlier one has kept."""
        j = self._kept.get(id(node))
        return j is not None and self._made_in[j] < self._number_of_pass

    def _store_of_row(self, j: int, w: int, value: str) -> None:
        b, dtype = self._body, self._form.dtypes[j]
        kind, value = memory_type(dtype), self._stored(b, value, dtype)
        if self._along:
            one = b.let(f"extractelement {vector(kind)} {value}, i64 0")
            b.add(f"store {kind} {one}, ptr {self._places[j]}, align {dtype.itemsize}")
        else:
            self._write(value, dtype, self._moved(self._places[j], dtype, LANES * w), self._mask)

    def _reduce(self, sums: Sequence[Sum]) -> None:
        """Write the pass that computes reductions of one level."""
        b = self._body
        columns = math.prod(extent for extent, reduced, _ in self._form.axes if reduced)
        kinds = {}
        for total in sums:
            wide = total.function == "add" and columns > _LONG and total.dtype.kind == "f"
            kinds[total] = "double" if wide else register_type(total.dtype)
            for w in range(self._width):
                n = self._label()
                self._entry.lines.append(f"  %sum{n} = alloca {vector(kinds[total])}, align 64")
                b.add(
                    f"store {vector(kinds[total])} {b.constant(_IDENTITY[total.function], kinds[total])}, ptr %sum{n}"
                )
                self._totals[total, w] = f"%sum{n}"

        def added(w: int) -> None:
            for total in sums:
                kind, place = kinds[total], self._totals[total, w]
                value = self._value(total.value, total.dtype)
                if kind != register_type(total.dtype):
                    value = b.convert("fpext", value, "float", kind)
                if self._mask and self._along:
                    value = b.select(self._mask, value, b.constant(_IDENTITY[total.function], kind), kind)
                after = self._combined(total.function, self._get(place, vector(kind)), value, kind)
                self._set(place, vector(kind), after)

        def each(width: int) -> None:
            for w in range(width):
                self._at_element(w)
                added(w)

        self._over_row(each)
        for total in sums:
            kind = kinds[total]
            found = [self._get(self._totals[total, w], vector(kind)) for w in range(self._width)]
            if self._along:
                combine = self._combining(total.function, kind)
                while len(found) > 1:
                    found = [combine(found[k], found[k + 1]) for k in range(0, len(found), 2)]
                found = [self._of_lanes(combine, found[0], kind)]
            for w, value in enumerate(found):
                if kind != register_type(total.dtype):
                    value = b.convert("fptrunc", value, kind, "float")
                self._of_row[w][total] = value

    def _combined(self, function: str, x: str, y: str, kind: str) -> str:
        if function == "add":
            return self._body.binary("add" if kind[0] == "i" else "fadd", x, y, kind)
        return self._extreme(function, np.dtype(np.float64 if kind == "double" else np.float32), x, y)

    def _combining(self, function: str, kind: str) -> Callable[[str, str], str]:
        return lambda x, y: self._combined(function, x, y, kind)

    def _over_row(self, each: Callable[[int], None]) -> None:
        """Write the loops over the elements of a row; ``each`` writes what is done for some vectors of them."""
        reduced = [k for k, (_, is_reduced, _) in enumerate(self._form.axes) if is_reduced]
        outer = reduced[:-1] if self._along else reduced
        if not outer:
            self._elements = self._places
            self._over_lanes(each)
            return
        self._over_axes(outer, self._places, each)

    def _over_axes(self, axes: Sequence[int], places: dict[Any, str], each: Callable[[int], None]) -> None:
        """Write the loops over some axes, one in another; ``places`` are those of their first element."""
        if not axes:
            self._elements = places
            self._over_lanes(each)
            return
        axis, form = axes[0], self._form
        has: list[tuple[Any, list[bool]]] = [
            *((load, [flags[k] for _, _, flags in form.axes]) for k, load in enumerate(self._loads)),
            *((j, [True] * len(form.axes)) for j, whole in enumerate(form.of_elements) if whole),
        ]
        steps = {key: self._step_along(axis, flags) for key, flags in has}
        with self._for("0", self._extents[axis], 1) as at:
            moved = dict(places)
            for key, step in steps.items():
                if step:
                    dtype = key.dtype if isinstance(key, Load) else form.dtypes[key]
                    moved[key] = self._moved(places[key], dtype, self._body.let(f"mul i64 {at}, {step}"))
            self._over_axes(axes[1:], moved, each)

    def _step_along(self, axis: int, has: Sequence[bool]) -> str:
        """Return how many elements apart neighbors along an axis are, in an array that has some axes; "" without it."""
        if not has[axis]:
            return ""
        step = "1"
        for further in range(axis + 1, len(has)):
            if has[further]:
                step = self._body.let(f"mul i64 {step}, {self._extents[further]}")
        return step

    def _over_lanes(self, each: Callable[[int], None]) -> None:
        """Write the loops over vectors along a row; without loops if the lanes are rows."""
        b, self._at = self._body, ""
        if not self._along:
            each(self._width)
            return
        count, step = self._extents[-1], LANES * self._width
        whole = b.let(f"sub i64 {count}, {b.let(f'urem i64 {count}, {step}')}")
        with self._for("0", whole, step) as self._at:
            each(self._width)
        with self._for(whole, count, LANES) as self._at:
            self._mask = self._lanes(b.let(f"sub i64 {count}, {self._at}"))
            each(1)
            self._mask = ""

    def _written(self, width: int) -> None:
        """Write what the last pass does for some vectors: all is computed before anything is stored."""
        form, outputs = self._form, self._passes[-1]
        for w in range(width):
            self._at_element(w)
            made = [self._value(form.values[j], form.dtypes[j]) for j in outputs]
            for j, value in zip(outputs, made):
                self._keep(j, self._stored(self._body, value, form.dtypes[j]))

    # Values

    def _at_row(self, w: int) -> None:
        self._w, self._now, self._at, self._elements = w, self._of_row[w], "", self._places

    def _at_element(self, w: int) -> None:
        self._w, self._now = w, {}

    def _value(self, expression: Any, dtype: np.dtype[Any]) -> str:
        if isinstance(expression, Constant):
            return self._constant(expression.value, dtype)
        of_row = self._is_row(expression, self._row_steps)
        known = self._of_row[0 if self._along else self._w] if of_row else self._now
        key = expression.input if isinstance(expression, Load) and isinstance(expression.input, Sum) else id(expression)
        if key not in known:
            known[key] = self._computed(expression)
        return converted(self._body, known[key], expression.dtype, dtype)

    def _computed(self, expression: Load | Step) -> str:
        if isinstance(expression, Load):
            return self._loaded_from(self._elements[expression], expression)
        if self._is_loaded(expression):
            return self._vector(
                self._lane_place(self._elements[self._kept[id(expression)]], expression.dtype), expression.dtype
            )
        made = self._step(expression)
        if id(expression) in self._kept:
            self._keep(self._kept[id(expression)], made)
        return made

    def _keep(self, j: int, value: str) -> None:
        dtype = self._form.dtypes[j]
        self._write(value, dtype, self._lane_place(self._elements[j], dtype), self._mask)

    def _lane_place(self, place: str, dtype: np.dtype[Any]) -> str:
        """Return where the lanes begin that are being computed, in a tensor that has the last axis."""
        if self._at:
            place = self._moved(place, dtype, self._at)
        return self._moved(place, dtype, str(LANES * self._w)) if self._w else place

    def _loaded_from(self, place: str, load: Load) -> str:
        b, kind = self._body, memory_type(load.dtype)
        if self._form.axes[-1][2][self._loads.index(load)]:
            value = self._vector(self._lane_place(place, load.dtype), load.dtype, self._mask)
        else:
            value = b.splat(b.let(f"load {kind}, ptr {place}, align {load.dtype.itemsize}"), kind)
        return self._loaded(b, value, load.dtype)
