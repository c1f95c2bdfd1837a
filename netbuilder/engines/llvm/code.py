"""The machine-independent code (LLVM's IR) of traced programs.

A function computes a program for some elements. Its argument is the address of a row of 64-bit words: the address of
the function, those of the inputs and outputs, the numbers that the host computes, constants, the extents of the axes,
and the first element and the end. So programs that differ in extents and constants only have the same code.

Axes along which the same inputs are broadcast are joined. A loop over the last one computes ``LANES`` elements at a
time; what remains at its end is copied to the stack, computed as a whole vector, and copied back. Where there are more
axes, a loop over their combinations, the rows, surrounds it; the first element and the end are then those of rows. A
last axis that divides ``LANES``, such as the blocks of channels of some layouts, is joined with the one before it: an
input that is broadcast along that one is a vector that repeats the axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from netbuilder.engines.llvm.emitter import LANES, Emitter, memory_type, register_type, vector
from netbuilder.engines.llvm.functions import FUNCTIONS, FUNCTIONS_OF_DOUBLES
from netbuilder.engines.programs import Constant, HostNumber, Load, NotTraced, Program, Stacked, Step, Uniform
from netbuilder.engines.remembered import Remembered
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["FROM_BFLOAT16", "TO_BFLOAT16", "Code", "Function", "converted", "generate"]

FROM_BFLOAT16, TO_BFLOAT16 = "from bfloat16", "to bfloat16"
"""Functions between float32 and the bits of bfloat16, as uint16."""

_FLOAT_CONDITIONS = {
    "equal": "oeq", "greater": "ogt", "greater_equal": "oge", "less": "olt", "less_equal": "ole", "not_equal": "une",
}  # fmt: skip
_CONDITIONS = {
    "equal": "eq", "greater": "gt", "greater_equal": "ge", "less": "lt", "less_equal": "le", "not_equal": "ne",
}  # fmt: skip
_FLOAT_ARITHMETIC = {"add": "fadd", "divide": "fdiv", "multiply": "fmul", "subtract": "fsub"}
_ARITHMETIC = {"add": "add", "multiply": "mul", "subtract": "sub"}
_OF_BOOL = {"add": "or", "multiply": "and"}
_BITWISE = {"bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor"}
_LOGICAL = {"logical_and": "and", "logical_or": "or", "logical_xor": "xor"}
_ROUNDING = {"ceil": "ceil", "floor": "floor", "rint": "rint", "sqrt": "sqrt", "trunc": "trunc", "absolute": "fabs"}
_EXACT = {"absolute", "maximum", "minimum", "negative", "positive"}  # of float16: nothing is rounded
_COMMON = {"0.0", "1.0", "-1.0", "2.0", "-2.0", "0.5", "-0.5"}  # constants that are part of the code
_BOOL = np.dtype(np.bool_)
_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


@dataclass(frozen=True, eq=False)
class Code:
    """A function for a program, and what a row of its arguments has.

    Args:
        text: of the function, in LLVM's IR.
        read: the inputs that it reads.
        constants: bits of the constants in the row.
        extents: of the joined axes; the last one is that of the inner loop.
        work: about how many instructions an element takes.
    """

    text: str
    read: tuple[int, ...]
    constants: tuple[int, ...]
    extents: tuple[int, ...]
    work: int


def generate(program: Program, *, halves: Callable[[], bool]) -> Code:
    """Return the code of a program.

    Args:
        program: its outputs have at least one element.
        halves: returns whether the CPU has instructions for float16.

    Raises:
        NotTraced: it has something that there is no code for.
    """
    dtypes = [*program.dtypes, *(load.dtype for load in program.loads()), *(step.compute for step in program.steps())]
    if any(dtype.char == "e" for dtype in dtypes) and not halves():
        raise NotTraced("float16 on a CPU without instructions for it")
    function = Function(program)
    if program.numbers:
        return function.code()
    return replace(_codes(function.form(), function.code), extents=function.extents)


_codes = Remembered[Code](1024)


def _axes(program: Program, loads: Sequence[Load]) -> list[tuple[int, tuple[bool, ...], int]]:
    """Return the axes, neighbors joined: the extent of each, whether each load has it, and its part (see ``_part``)."""
    ndim = len(program.shape)
    shapes = [(1,) * (ndim - len(load.shape)) + load.shape for load in loads]
    moved = {number.moved for number in program.numbers if isinstance(number, Uniform)} - {None}
    if len(moved) > 1:
        raise NotTraced("random numbers in several orders")
    joined: list[tuple[int, tuple[bool, ...], int]] = []
    for axis, extent in enumerate(program.shape):
        if extent == 1:
            continue
        own = tuple(shape[axis] != 1 for shape in shapes)
        part = next((_part(each, program.shape, axis) for each in moved if each is not None), 0)
        if joined and joined[-1][1:] == (own, part):
            joined[-1] = (joined[-1][0] * extent, own, part)
        else:
            joined.append((extent, own, part))
    return joined or [(1, (False,) * len(loads), 0)]


def _period(axes: Sequence[tuple[int, tuple[bool, ...], int]]) -> int:
    """Return the extent of the last axis if it is to be joined with the one before it; else 0."""
    if len(axes) < 2 or not axes[-1][0] or LANES % axes[-1][0] or axes[-1][2] != axes[-2][2]:
        return 0
    repeated = all(last or not before for before, last in zip(axes[-2][1], axes[-1][1]))
    return axes[-1][0] if repeated else 0


def _part(moved: tuple[int, int, int], shape: tuple[int, ...], axis: int) -> int:
    """Return which of the three axes of random numbers that were moved an axis belongs to."""
    before = math.prod(shape[:axis])
    return 0 if before < moved[0] else 1 if before < moved[0] * moved[1] else 2


class Function:
    """Writes the function of a program."""

    def __init__(self, program: Program) -> None:
        loads = program.loads()
        if any(load.stride != 1 for load in loads) or any(isinstance(output, Stacked) for output in program.outputs):
            raise NotTraced("several values for each element")
        self._program, self._loads = program, loads
        self._axes = _axes(program, loads)
        self._period = _period(self._axes)
        repeated = [False] * len(loads)
        if self._period:
            (before, flags, part), (last, own, _) = self._axes[-2:]
            repeated = [mine and not other for mine, other in zip(own, flags)]
            self._axes[-2:] = [(before * last, own, part)]
        self._repeated = repeated
        self._read = tuple(sorted({load.input for load in loads}))
        self._entry, self._body = Emitter("e"), Emitter("v")
        self._entry.declared = self._body.declared
        self._row = Emitter("r", self._body.declared)
        self._constants: dict[tuple[int, str], str] = {}
        self._found: dict[int, str] = {}
        self._of_load: dict[Load, str] = {}
        self._of_number: dict[tuple[int, str], str] = {}
        self._functions = 0
        outputs, numbers = len(program.outputs), len(program.numbers)
        self._first_output = 1 + len(self._read)
        self._first_number = self._first_output + outputs
        self._first_extent = self._first_number + numbers
        self._begin = self._first_extent + len(self._axes)
        self._first_constant = self._begin + 2

    @property
    def extents(self) -> tuple[int, ...]:
        return tuple(extent for extent, _, _ in self._axes)

    def form(self) -> tuple[Any, ...]:
        """Return a key that programs without numbers share if they have the same code, but for the extents."""
        program = self._program
        steps = {id(step): place for place, step in enumerate(program.steps())}
        loads = {load: place for place, load in enumerate(self._loads)}

        def known(value: Any) -> Any:
            if isinstance(value, Step):
                return steps[id(value)]
            if isinstance(value, Load):
                return "load", loads[value]
            return type(value.value), repr(value.value)

        return (
            self._period,
            *(flags for _, flags, _ in self._axes),
            *self._repeated,
            *((load.input, load.dtype) for load in self._loads),
            *((step.function, step.compute, step.dtype, *map(known, step.operands)) for step in program.steps()),
            *zip(map(known, program.outputs), program.dtypes),
        )

    def code(self) -> Code:
        program, e = self._program, self._entry
        sources = {i: self._argument(1 + k, "ptr") for k, i in enumerate(self._read)}
        targets = [self._argument(self._first_output + j, "ptr") for j in range(len(program.outputs))]
        begin, end = self._argument(self._begin, "i64"), self._argument(self._begin + 1, "i64")
        extents = [self._argument(self._first_extent + k, "i64") for k in range(len(self._axes))]
        single = len(self._axes) == 1
        r = e if single else self._row
        if single:
            count, offset, row = e.let(f"sub i64 {end}, {begin}"), begin, list[str]()
        else:
            count, offset = extents[-1], r.let(f"mul i64 %row, {extents[-1]}")
            row = self._coordinates(extents)
        bases: dict[Load, str] = {}
        for k, load in enumerate(self._loads):
            own = [axis for axis, (_, flags, _) in enumerate(self._axes) if flags[k]]
            where = (begin if own else "0") if single else self._offset(row, extents, own)
            kind = memory_type(load.dtype)
            if self._repeated[k]:
                where = "0" if single else self._offset(row, [*extents[:-1], str(self._period)], own)
            place = r.let(f"getelementptr {kind}, ptr {sources[load.input]}, i64 {where}")
            if self._repeated[k]:
                part = r.let(f"load <{self._period} x {kind}>, ptr {place}, align {load.dtype.itemsize}")
                self._of_load[load] = self._loaded(r, r.repeat(part, self._period, kind), load.dtype)
            elif self._axes[-1][1][k]:
                bases[load] = place
            else:
                scalar = r.let(f"load {kind}, ptr {place}, align {load.dtype.itemsize}")
                self._of_load[load] = self._loaded(r, r.splat(scalar, kind), load.dtype)
        outs = [
            r.let(f"getelementptr {memory_type(dtype)}, ptr {target}, i64 {offset}")
            for target, dtype in zip(targets, program.dtypes)
        ]
        self._drawn = offset if single else self._first_drawn(row, extents)
        inner = self._loop(bases, outs, count)
        return Code(
            self._assembled(inner, begin, end, single),
            self._read,
            tuple(bits for bits, _ in self._constants),
            self.extents,
            len(self._loads) + len(outs) + len(program.steps()) + 16 * self._functions,
        )

    def _assembled(self, inner: list[str], begin: str, end: str, single: bool) -> str:
        entry = [*self._entry.lines, f"  %some = icmp slt i64 {begin}, {end}"]
        if single:
            lines = [*entry, "  br i1 %some, label %start, label %done", "start:", "  br label %loop", *inner]
            lines += ["rest:", "  br label %done"]
        else:
            lines = [*entry, "  br i1 %some, label %start, label %done", "start:", "  br label %rows"]
            lines += ["rows:", f"  %row = phi i64 [{begin}, %start], [%row1, %rest]", *self._row.lines]
            lines += ["  br label %before", "before:", "  br label %loop", *inner]
            lines += ["rest:", "  %row1 = add i64 %row, 1", f"  %rows_left = icmp slt i64 %row1, {end}"]
            lines += ["  br i1 %rows_left, label %rows, label %done"]
        head = "define void @kernel(ptr %arguments) {"
        return "\n".join([*sorted(self._body.declared), head, "entry:", *lines, "done:", "  ret void", "}", ""])

    def _argument(self, slot: int, kind: str) -> str:
        """Return a word of the row of arguments."""
        e = self._entry
        return e.let(f"load {kind}, ptr {e.let(f'getelementptr i64, ptr %arguments, i64 {slot}')}, align 8")

    def _first_drawn(self, row: Sequence[str], extents: Sequence[str]) -> str:
        """Return which number of its stream the first element of a row gets."""
        parts = [part for _, _, part in self._axes]
        if parts[-1] == 1 and 0 in parts:
            raise NotTraced("random numbers that are drawn with the last axis first")
        order = sorted(range(len(parts)), key=lambda axis: (1, 0, 2)[parts[axis]])
        return self._offset(row, extents, order)

    def _coordinates(self, extents: Sequence[str]) -> list[str]:
        """Return the position of a row along each axis but the last."""
        r, rest, found = self._row, "%row", list[str]()
        for axis in reversed(range(len(extents) - 1)):
            found.append(r.let(f"urem i64 {rest}, {extents[axis]}") if axis else rest)
            rest = r.let(f"udiv i64 {rest}, {extents[axis]}") if axis else rest
        return found[::-1]

    def _offset(self, row: Sequence[str], extents: Sequence[str], axes: Sequence[int]) -> str:
        """Return where the elements of a row begin in an array that has some axes, in this order."""
        r, total, stride = self._row, "0", "1"
        for axis in reversed(axes):
            if axis < len(row):
                part = r.let(f"mul i64 {row[axis]}, {stride}")
                total = r.let(f"add i64 {total}, {part}")
            stride = r.let(f"mul i64 {stride}, {extents[axis]}")
        return total

    def _loop(self, bases: dict[Load, str], outs: Sequence[str], count: str) -> list[str]:
        """Return the inner loop."""
        program, e, start = self._program, self._body, "start" if len(self._axes) == 1 else "before"
        e.declared.add("declare i64 @llvm.expect.i64(i64, i64)")
        head = [f"  %at = phi i64 [0, %{start}], [%i1, %next]", "  %i = call i64 @llvm.expect.i64(i64 %at, i64 0)"]
        head.append(f"  %left = sub i64 {count}, %i")  # of expect see ``Loops._for``
        head.append(f"  %whole = icmp sge i64 %left, {LANES}")
        into, back = list[str](), list[str]()
        copy = "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)"
        e.declared.add(copy)
        for k, (load, base) in enumerate(bases.items()):
            kind, size = memory_type(load.dtype), load.dtype.itemsize
            self._entry.lines.append(f"  %stack{k} = alloca {vector(kind)}, align 64")
            head.append(f"  %x{k} = getelementptr {kind}, ptr {base}, i64 %i")
            into += [
                f"  %xs{k} = mul i64 %left, {size}",
                f"  call void @llvm.memcpy.p0.p0.i64(ptr %stack{k}, ptr %x{k}, i64 %xs{k}, i1 false)",
            ]
            e.add(f"%xp{k} = phi ptr [%x{k}, %loop], [%stack{k}, %part]")
        for j, (out, dtype) in enumerate(zip(outs, program.dtypes)):
            kind, size = memory_type(dtype), dtype.itemsize
            self._entry.lines.append(f"  %made{j} = alloca {vector(kind)}, align 64")
            head.append(f"  %y{j} = getelementptr {kind}, ptr {out}, i64 %i")
            back += [
                f"  %ys{j} = mul i64 %left, {size}",
                f"  call void @llvm.memcpy.p0.p0.i64(ptr %y{j}, ptr %made{j}, i64 %ys{j}, i1 false)",
            ]
            e.add(f"%yp{j} = phi ptr [%y{j}, %loop], [%made{j}, %part]")
        for k, load in enumerate(bases):
            loaded = e.let(f"load {vector(memory_type(load.dtype))}, ptr %xp{k}, align {load.dtype.itemsize}")
            self._of_load[load] = self._loaded(e, loaded, load.dtype)
        made = self._values()
        for j, (value, dtype) in enumerate(zip(made, program.dtypes)):
            stored = self._stored(e, value, dtype)
            e.add(f"store {vector(memory_type(dtype))} {stored}, ptr %yp{j}, align {dtype.itemsize}")
        return [
            "loop:", *head, "  br i1 %whole, label %compute, label %part",
            "part:", *into, "  br label %compute",
            "compute:", *e.lines, "  br i1 %whole, label %next, label %last",
            "last:", *back, "  br label %next",
            "next:", f"  %i1 = add i64 %i, {LANES}", f"  %more = icmp slt i64 %i1, {count}",
            "  br i1 %more, label %loop, label %rest",
        ]  # fmt: skip

    @staticmethod
    def _loaded(e: Emitter, value: str, dtype: np.dtype[Any]) -> str:
        """Return elements, as they are in memory, in registers."""
        if dtype.kind == "b":
            return e.compare("ne", value, "zeroinitializer", "i8")
        return e.convert("fpext", value, "half", "float") if dtype.char == "e" else value

    @staticmethod
    def _stored(e: Emitter, value: str, dtype: np.dtype[Any]) -> str:
        """Return values as they are stored in memory."""
        if dtype.kind == "b":
            return e.convert("zext", value, "i1", "i8")
        return e.convert("fptrunc", value, "float", "half") if dtype.char == "e" else value

    def _values(self) -> list[str]:
        for step in self._program.steps():
            self._found[id(step)] = self._step(step)
        return [self._value(output, dtype) for output, dtype in zip(self._program.outputs, self._program.dtypes)]

    def _value(self, expression: Any, dtype: np.dtype[Any]) -> str:
        """Return an expression's values in a type."""
        if isinstance(expression, Constant):
            return self._constant(expression.value, dtype)
        if isinstance(expression, HostNumber):
            return self._number(expression, dtype)
        if isinstance(expression, Uniform):
            return converted(self._body, self._uniform(expression), expression.dtype, dtype)
        value = self._of_load[expression] if isinstance(expression, Load) else self._found[id(expression)]
        return converted(self._body, value, expression.dtype, dtype)

    def _constant(self, value: Any, dtype: np.dtype[Any]) -> str:
        with np.errstate(all="ignore"):
            exact = np.asarray(value).astype(dtype).item()
        kind = register_type(dtype)
        if (
            dtype.kind != "f"
            or not math.isfinite(exact)
            or (exact in _COMMON and math.copysign(1, exact) == 1 - 2 * (exact < 0))
        ):
            return self._body.constant(exact, kind)
        key = (int(np.float64(exact).view(np.int64)), kind)
        if key not in self._constants:
            e = self._entry
            word = self._argument(self._first_constant + len(self._constants), "double")
            self._constants[key] = e.splat(_narrowed(e, word, kind), kind)
        return self._constants[key]

    def _number(self, number: HostNumber, dtype: np.dtype[Any]) -> str:
        key = (id(number), dtype.char)
        if key not in self._of_number:
            e, stored = self._entry, number.stored
            place = next(k for k, other in enumerate(self._program.numbers) if other is number)
            kind = register_type(stored)
            wide = e.splat(self._argument(self._first_number + place, kind), kind)
            self._of_number[key] = converted(e, wide, stored, dtype)
        return self._of_number[key]

    def _uniform(self, numbers: Uniform) -> str:
        """Return random numbers, see ``netbuilder.engines.random``."""
        if id(numbers) in self._found:
            return self._found[id(numbers)]
        e, wide = self._body, "i64"
        place = next(k for k, other in enumerate(self._program.numbers) if other is numbers)
        counter = self._argument(self._first_number + place, wide)
        first = e.let(f"add i64 %i, {self._drawn}")
        scaled = e.let(f"mul i64 {first}, {_signed(_GOLDEN)}")
        start = e.splat(e.let(f"add i64 {scaled}, {counter}"), wide)
        steps = ", ".join(f"i64 {_signed(lane * _GOLDEN)}" for lane in range(LANES))
        z = e.binary("add", start, f"<{steps}>", wide)
        for shift, factor in ((30, _FIRST), (27, _SECOND), (31, 0)):
            z = e.binary("xor", z, e.binary("lshr", z, e.constant(shift, wide), wide), wide)
            if factor:
                z = e.binary("mul", z, e.constant(_signed(factor), wide), wide)
        found = e.convert("uitofp", e.binary("lshr", z, e.constant(11, wide), wide), wide, "double")
        self._found[id(numbers)] = e.binary("fmul", found, e.constant(2.0**-53, "double"), "double")
        return self._found[id(numbers)]

    def _step(self, step: Step) -> str:
        e = self._body
        if step.function == "where":
            condition, x, y = step.operands
            a, b = self._value(x, step.compute), self._value(y, step.compute)
            return e.select(self._value(condition, _BOOL), a, b, register_type(step.compute))
        if step.function == FROM_BFLOAT16:
            wide = e.convert("zext", self._value(step.operands[0], step.operands[0].dtype), "i16", "i32")
            return e.convert("bitcast", e.binary("shl", wide, e.constant(16, "i32"), "i32"), "i32", "float")
        if step.function == TO_BFLOAT16:
            return _bfloat16(e, self._value(step.operands[0], step.compute))
        if step.function in _LOGICAL or step.function == "logical_not":
            operands = [converted(e, self._value(x, step.compute), step.compute, _BOOL) for x in step.operands]
            if step.function == "logical_not":
                return e.binary("xor", operands[0], e.constant(1, "i1"), "i1")
            first, second = operands
            return e.binary(_LOGICAL[step.function], first, second, "i1")
        found = self._power(step) or self._bounded(step)
        if found is None:
            found = self._applied(step.function, step.compute, [self._value(x, step.compute) for x in step.operands])
        if step.compute != step.dtype:
            return found if step.dtype.kind == "b" else converted(e, found, step.compute, step.dtype)
        return _rounded_half(e, found) if step.dtype.char == "e" and step.function not in _EXACT else found

    def _power(self, step: Step) -> str | None:
        """Return a power with a small integer or half of one as exponent, by products and roots; None for others."""
        if step.function != "power" or not isinstance(step.operands[1], Constant) or step.compute.kind != "f":
            return None
        exponent = step.operands[1].value
        if exponent not in (0.5, -0.5, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6):
            return None
        e, kind, x = self._body, register_type(step.compute), self._value(step.operands[0], step.compute)
        one = e.constant(1, kind)
        if exponent == 0.5:
            return e.call("sqrt", x, element=kind)  # as NumPy's
        if exponent == -0.5:  # the power has other results than the root for -0 and -infinity
            root = e.call("sqrt", e.binary("fadd", x, e.constant(0, kind), kind), element=kind)
            least = e.compare("oeq", x, e.constant(-math.inf, kind), kind)
            return e.select(least, e.constant(0, kind), e.binary("fdiv", one, root, kind), kind)
        y = e.binary("fdiv", one, x, kind) if exponent < 0 else x
        found, left = None, abs(int(exponent))
        while left:
            if left & 1:
                found = y if found is None else e.binary("fmul", found, y, kind)
            left >>= 1
            y = e.binary("fmul", y, y, kind) if left else y
        return one if found is None else found

    def _bounded(self, step: Step) -> str | None:
        """Return a maximum or minimum with a constant, in one instruction where the CPU has it; None for others."""
        bounds = [x for x in step.operands if isinstance(x, Constant) and x.value == x.value]
        if step.function not in ("maximum", "minimum") or len(bounds) != 1 or step.compute.kind != "f":
            return None
        kind = register_type(step.compute)
        x, bound = (
            self._value(each, step.compute) for each in sorted(step.operands, key=lambda each: each is bounds[0])
        )
        kept = self._body.compare("uge" if step.function == "maximum" else "ule", x, bound, kind)
        return self._body.select(kept, x, bound, kind)

    def _applied(self, name: str, compute: np.dtype[Any], operands: Sequence[str]) -> str:
        """Return a function of values of one type."""
        e, kind, x = self._body, register_type(compute), operands[0]
        if name in ("positive", "negative", "square", "reciprocal", "invert", "sign", "signbit"):
            return self._of_one(name, compute, x)
        if name in ("maximum", "minimum"):
            return self._extreme(name, compute, x, operands[1])
        if name in _CONDITIONS:
            return e.compare(_condition(name, compute), x, operands[1], kind)
        if name in ("isfinite", "isinf", "isnan"):
            return self._classified(name, compute, x)
        if name in _BITWISE and compute.kind != "f":
            return e.binary(_BITWISE[name], x, operands[1], kind)
        if compute.kind == "f":
            if name in _FLOAT_ARITHMETIC:
                return e.binary(_FLOAT_ARITHMETIC[name], x, operands[1], kind)
            if name in _ROUNDING:
                return e.call(_ROUNDING[name], x, element=kind)
            if name == "copysign":
                return e.call("copysign", x, operands[1], element=kind)
            functions = FUNCTIONS if kind == "float" else FUNCTIONS_OF_DOUBLES
            if name in functions:
                self._functions += 1
                return functions[name](e, *operands)
        elif name in (_OF_BOOL if compute.kind == "b" else _ARITHMETIC):
            return e.binary((_OF_BOOL if compute.kind == "b" else _ARITHMETIC)[name], x, operands[1], kind)
        elif name == "absolute":
            if compute.kind != "i":
                return x
            zero = e.constant(0, kind)
            return e.select(e.compare("slt", x, zero, kind), e.binary("sub", zero, x, kind), x, kind)
        raise NotTraced(f"{name} of {compute}")

    def _of_one(self, name: str, compute: np.dtype[Any], x: str) -> str:
        e, kind, of_floats = self._body, register_type(compute), compute.kind == "f"
        zero = e.constant(0, kind)
        if name == "positive":
            return x
        if name == "negative" and compute.kind != "b":
            return e.negate(x, kind) if of_floats else e.binary("sub", zero, x, kind)
        if name == "square":
            return e.binary("fmul" if of_floats else "and" if compute.kind == "b" else "mul", x, x, kind)
        if name == "invert" and not of_floats:
            return e.binary("xor", x, e.constant(1 if compute.kind == "b" else -1, kind), kind)
        if name == "reciprocal" and of_floats:
            return e.binary("fdiv", e.constant(1, kind), x, kind)
        if name == "sign" and of_floats:
            one, minus = e.constant(1, kind), e.constant(-1, kind)
            y = e.select(
                e.compare("olt", x, zero, kind), minus, e.select(e.compare("uno", x, x, kind), x, zero, kind), kind
            )
            return e.select(e.compare("ogt", x, zero, kind), one, y, kind)
        if name == "signbit" and of_floats:
            bits = f"i{8 * (8 if kind == 'double' else 4)}"
            return e.compare("slt", e.convert("bitcast", x, kind, bits), e.constant(0, bits), bits)
        if name == "signbit" and compute.kind == "i":
            return e.compare("slt", x, zero, kind)
        raise NotTraced(f"{name} of {compute}")

    def _extreme(self, name: str, compute: np.dtype[Any], x: str, y: str) -> str:
        """Return the greater or smaller one; NaN if one of them is."""
        e, kind = self._body, register_type(compute)
        first = e.compare(_condition("greater" if name == "maximum" else "less", compute), x, y, kind)
        if compute.kind == "f":
            return e.select(e.compare("uno", x, x, kind), x, e.select(first, x, y, kind), kind)
        return e.select(first, x, y, kind)

    def _classified(self, name: str, compute: np.dtype[Any], x: str) -> str:
        e, kind = self._body, register_type(compute)
        if compute.kind != "f":
            return e.constant(name == "isfinite", "i1")
        if name == "isnan":
            return e.compare("uno", x, x, kind)
        size = e.call("fabs", x, element=kind)
        return e.compare("oeq" if name == "isinf" else "olt", size, e.constant(math.inf, kind), kind)


def _as_integer(e: Emitter, value: str, kind: str, target: np.dtype[Any]) -> str:
    """Return floats as integers: rounded toward zero, the least integer for what is out of range, as x86's.

    Short integers are the last bits of those of 32 bits, as NumPy's.

    Raises:
        NotTraced: to long integers without sign, for which NumPy's results have no such rule.
    """
    if target.kind == "u" and target.itemsize > 2:
        raise NotTraced(f"floats as {target}")
    wide = f"i{max(32, 8 * target.itemsize)}"
    least = -(2 ** (int(wide[1:]) - 1))
    above = e.compare("oge", value, e.constant(least, kind), kind)
    fits = e.binary("and", above, e.compare("olt", value, e.constant(-least, kind), kind), "i1")
    whole = e.convert("fptosi", e.select(fits, value, e.constant(0, kind), kind), kind, wide)
    found = e.select(fits, whole, e.constant(least, wide), wide)
    return found if target.itemsize > 2 else e.convert("trunc", found, wide, register_type(target))


def _signed(word: int) -> int:
    word &= (1 << 64) - 1
    return word - (1 << 64) if word >> 63 else word


def _condition(name: str, compute: np.dtype[Any]) -> str:
    if compute.kind == "f":
        return _FLOAT_CONDITIONS[name]
    if name in ("equal", "not_equal"):
        return _CONDITIONS[name]
    return ("s" if compute.kind == "i" else "u") + _CONDITIONS[name]


def _narrowed(e: Emitter, word: str, kind: str) -> str:
    """Return a scalar float64 in a type."""
    return e.let(f"fptrunc double {word} to float") if kind == "float" else word


def _bfloat16(e: Emitter, value: str) -> str:
    """Return the bits of float32 rounded to bfloat16, ties to even."""
    bits = e.convert("bitcast", value, "float", "i32")
    odd = e.binary("and", e.binary("lshr", bits, e.constant(16, "i32"), "i32"), e.constant(1, "i32"), "i32")
    up = e.binary("add", e.binary("add", bits, e.constant(0x7FFF, "i32"), "i32"), odd, "i32")
    quiet = e.binary("or", bits, e.constant(0x400000, "i32"), "i32")
    rounded = e.select(e.compare("uno", value, value), quiet, up, "i32")
    return e.convert("trunc", e.binary("lshr", rounded, e.constant(16, "i32"), "i32"), "i32", "i16")


def _rounded_half(e: Emitter, value: str) -> str:
    return e.convert("fpext", e.convert("fptrunc", value, "float", "half"), "half", "float")


def converted(e: Emitter, value: str, source: np.dtype[Any], target: np.dtype[Any]) -> str:
    """Return values of another type.

    Raises:
        NotTraced: the conversion has results that depend on the CPU, or is rounded twice.
    """
    a, b = register_type(source), register_type(target)
    if source == target:
        return value
    if target.kind == "b":
        return e.compare("une" if source.kind == "f" else "ne", value, e.constant(0, a), a)
    if source.kind == "f" and target.kind in "iu":
        return _as_integer(e, value, a, target)
    if source.kind == "f":
        if source.char == "d" and target.char == "e":
            raise NotTraced(f"{source} as {target}")
        if a != b:
            value = e.convert("fpext" if b == "double" else "fptrunc", value, a, b)
    elif target.kind == "f":
        value = e.convert("sitofp" if source.kind == "i" else "uitofp", value, a, b)
    elif a != b:
        wider = target.itemsize > source.itemsize or source.kind == "b"
        value = e.convert(("sext" if source.kind == "i" else "zext") if wider else "trunc", value, a, b)
    return _rounded_half(e, value) if target.char == "e" else value
