"""Rows of arguments: what calls of machine code are given, and how their work is divided among threads.

Each row has the address of a function, then its arguments, see ``code``. One function calls those of many rows.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from netbuilder.engines.joined_calls import JoinableCall
from netbuilder.engines.llvm import machine
from netbuilder.engines.llvm.code import Code, generate
from netbuilder.engines.llvm.emitter import LANES
from netbuilder.engines.openmp import openmp
from netbuilder.engines.programs import NotTraced, Program
from netbuilder.ops.core.contexts import Call, PlanContext
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["MANY", "Rows", "Work", "address_of", "call_of_threads", "made", "one_row", "shares"]

MANY = Code(
    """
define void @kernel(ptr %arguments) {
entry:
  %counted = getelementptr i64, ptr %arguments, i64 1
  %count = load i64, ptr %counted, align 8
  %sized = getelementptr i64, ptr %arguments, i64 2
  %size = load i64, ptr %sized, align 8
  %first = getelementptr i64, ptr %arguments, i64 3
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%i1, %loop]
  %row = phi ptr [%first, %entry], [%row1, %loop]
  %function = load ptr, ptr %row, align 8
  call void %function(ptr %row)
  %row1 = getelementptr i64, ptr %row, i64 %size
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %count
  br i1 %more, label %loop, label %done
done:
  ret void
}
""",
    (),
    (),
    (),
    0,
)
"""The function that calls those of many rows."""

_TEAM = """
define void @kernel(ptr %arguments) {
entry:
  %number = load ptr, ptr %arguments, align 8
  %sized = getelementptr i64, ptr %arguments, i64 1
  %size = load ptr, ptr %sized, align 8
  %counted = getelementptr i64, ptr %arguments, i64 2
  %count = load i64, ptr %counted, align 8
  %rows = getelementptr i64, ptr %arguments, i64 3
  %own = call i32 %number()
  %all = call i32 %size()
  %first = zext i32 %own to i64
  %step = zext i32 %all to i64
  br label %next
next:
  %i = phi i64 [%first, %entry], [%i1, %loop]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %loop, label %done
loop:
  %place = getelementptr ptr, ptr %rows, i64 %i
  %row = load ptr, ptr %place, align 8
  %function = load ptr, ptr %row, align 8
  call void %function(ptr %row)
  %i1 = add i64 %i, %step
  br label %next
done:
  ret void
}
"""
"""What each thread of an OpenMP team does: it calls the functions of its rows.

Its arguments are the addresses of the functions that return the thread's number and the size of the team, how many
rows there are, and their addresses.
"""

_SEQUENCE = """
define void @kernel(ptr %arguments) {
entry:
  %counted = getelementptr i64, ptr %arguments, i64 1
  %count = load i64, ptr %counted, align 8
  %rows = getelementptr i64, ptr %arguments, i64 2
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%i1, %loop]
  %place = getelementptr ptr, ptr %rows, i64 %i
  %row = load ptr, ptr %place, align 8
  %function = load ptr, ptr %row, align 8
  call void %function(ptr %row)
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %count
  br i1 %more, label %loop, label %done
done:
  ret void
}
"""
"""The function that calls those of rows which are anywhere; it is given how many there are, and their addresses."""

_BRIEF = 1 << 15
"""Work, in instructions on an element, for which the interpreter's lock is kept: some microseconds."""

_OF_A_THREAD = 1 << 18
"""Up to about so much work, one thread is done before several threads have synchronized."""


def made(program: Program) -> Code:
    """Return the code of a program.

    Raises:
        NotTraced: there is none, or no llvmlite.
    """
    if not machine.available():
        raise NotTraced("there is no llvmlite")
    return generate(program, halves=machine.has_halves)


@dataclass(frozen=True, eq=False)
class Work:
    """A function for some tensors.

    Args:
        code: of the function.
        reads, writes: the inputs and outputs of the call, in the order of the program's.
        numbers: which of the call's numbers are those of the program.
        size: elements of the outputs.
        extents: of the axes, see ``Code``.
        units: into how many equal parts it can be divided; None: they follow from the extents.
    """

    code: Code
    reads: Sequence[int]
    writes: Sequence[int]
    numbers: Sequence[int]
    size: int
    extents: Sequence[int]
    units: int | None = None

    @property
    def parts(self) -> tuple[int, int]:
        """Into how many parts of equal size it can be divided, and of how many each share should be a multiple."""
        if self.units is not None:
            return self.units, 1
        return (self.size, LANES) if len(self.extents) == 1 else (math.prod(self.extents[:-1]), 1)

    @property
    def cost(self) -> int:
        return self.size * self.code.work


class Rows:
    """What many functions are given, for a call on some threads.

    Args:
        ctx: of the plan.
        works: in the order in which they run; they do not depend on one another.
        values: return the numbers, for the inputs of the call, as words of 64 bits.

    Raises:
        NotTraced: there is no llvmlite.
    """

    def __init__(self, ctx: PlanContext, works: Sequence[Work], values: Sequence[Callable[[Any], Any]] = ()) -> None:
        self._works, self._values = works, values
        of_code = {work.code: address_of(work.code) for work in works}
        self._addresses = [of_code[work.code] for work in works]
        self._cost = sum(work.cost for work in works)
        self.threads = min(ctx.threads, max(1, self._cost // (_OF_A_THREAD // 4))) if self._cost > _OF_A_THREAD else 1
        self._ctx = ctx

    def bind(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Call:
        """Return the call for some buffers."""
        jobs = self._divided()
        width = max(_words(work) for work in self._works)
        words = np.zeros(sum(3 + width * len(rows) for rows in jobs), np.int64)
        places: list[list[int]] = [[] for _ in self._values]
        starts, at = [], 0
        for rows in jobs:
            starts.append(at if len(rows) > 1 else at + 3)
            if len(rows) > 1:
                words[at : at + 3] = address_of(MANY), len(rows), width
            at += 3
            for number, begin, end in rows:
                self._fill(words[at : at + width], number, begin, end, inputs, outputs)
                work = self._works[number]
                first = at + 1 + len(work.reads) + len(work.writes)
                for k, value in enumerate(work.numbers):
                    places[value].append(first + k)
                at += width
        of_threads = [words[start:] for start in starts]
        call = call_of_threads(self._ctx, of_threads, (inputs, outputs), brief=self._cost < _BRIEF)
        return call if not self._values else self._with_numbers(call, words, places, inputs)

    def _with_numbers(self, call: Call, words: Any, places: Sequence[Sequence[int]], inputs: Sequence[Any]) -> Call:
        numbers = [(value, np.array(place)) for value, place in zip(self._values, places)]

        def run() -> None:
            for value, place in numbers:
                words[place] = value(inputs).view(np.int64)
            call()

        return run

    def _fill(self, row: Any, number: int, begin: int, end: int, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        work = self._works[number]
        buffers = [*(inputs[i] for i in work.reads), *(outputs[j] for j in work.writes)]
        fixed = [self._addresses[number], *(buffer.ctypes.data for buffer in buffers), *([0] * len(work.numbers))]
        rest = [*work.extents, begin, end, *work.code.constants]
        row[: len(fixed) + len(rest)] = [*fixed, *rest]

    def _divided(self) -> list[list[tuple[int, int, int]]]:
        """Return for each thread the works, each with the first element, or row, and the end."""
        jobs: list[list[tuple[int, int, int]]] = [[] for _ in range(self.threads)]
        share = self._cost / self.threads
        done = 0.0
        for number, work in enumerate(self._works):
            count, grain = work.parts
            each = work.cost / count
            begin = 0
            while begin < count:
                thread = min(self.threads - 1, int(done // share))
                room = max((thread + 1) * share - done, 0)
                end = min(count, begin + max(grain, -(-int(room / each) // grain) * grain))
                if thread == self.threads - 1:
                    end = count
                jobs[thread].append((number, begin, end))
                done += (end - begin) * each
                begin = end
        return [job for job in jobs if job]


def address_of(code: Code) -> int:
    """Return the address of a function.

    Raises:
        NotTraced: there is no llvmlite.
    """
    found = machine.address_of(code.text)
    if found is None:
        raise NotTraced("there is no llvmlite")
    return found


def call_of_threads(ctx: PlanContext, rows: Sequence[Any], keep: Any, *, brief: bool) -> Call:
    """Return the call of functions, each in a thread of the lane: one of OpenMP, where there is libgomp.

    Args:
        ctx: of the plan.
        rows: for each thread, its arguments, int64: the first one is the address of the function.
        keep: what must stay in memory.
        brief: see ``machine.function_at``.
    """
    if len(rows) == 1:
        return _call_of(rows[0], keep, brief)
    omp, team = openmp(), machine.address_of(_TEAM)
    if isinstance(omp, OSError) or team is None:
        return ctx.together([_call_of(row, keep, brief) for row in rows])
    places = [row.ctypes.data for row in rows]
    argument = _pointer(np.array([omp.thread_number, omp.team_size, len(rows), *places], np.int64), rows, keep)
    parallel = machine.function_at(omp.parallel, brief=brief, of_team=True)
    return partial(parallel, ctypes.c_void_p(team), argument, ctx.threads, 0)


class _RowCall(JoinableCall):
    """The call of a function with its row."""

    @classmethod
    def together(cls, calls: Sequence[Any]) -> Call:
        address = machine.address_of(_SEQUENCE)
        pointers = [call.args[0] for call in calls]
        row = np.array([address, len(pointers), *(pointer.value for pointer in pointers)], np.int64)
        return _call_of(row, pointers, brief=False)


def _call_of(row: Any, keep: Any, brief: bool) -> Call:
    return _RowCall(machine.function_at(int(row[0]), brief=brief), _pointer(row, keep))


def _pointer(words: Any, *keep: Any) -> Any:
    """Return the address of words, which stay in memory with what else must."""
    pointer: Any = ctypes.c_void_p(words.ctypes.data)
    pointer.kept = (words, keep)
    return pointer


def shares(count: int, threads: int) -> Iterator[tuple[int, int]]:
    """Yield the first and the end of each thread's part of ``count``."""
    for part in range(threads):
        yield count * part // threads, count * (part + 1) // threads


def one_row(rows: Sequence[Sequence[int]]) -> Any:
    """Return the row of a function that calls those of several rows of words, or the row alone."""
    if len(rows) == 1:
        return np.array(rows[0], np.int64)
    width = max(map(len, rows))
    return np.array(
        [address_of(MANY), len(rows), width, *(word for row in rows for word in [*row, *[0] * (width - len(row))])]
    )


def _words(work: Work) -> int:
    code = work.code
    fixed = 1 + len(work.reads) + len(work.writes) + len(work.numbers)
    return fixed + len(work.extents) + 2 + len(code.constants)
