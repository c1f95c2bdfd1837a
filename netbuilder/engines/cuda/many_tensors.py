"""Programs over many tensors as one kernel: a table in the GPU's memory says where each one's tensors are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from netbuilder.engines.cuda.code import Places, c_type, numbers_read, stored, value_of, with_prelude
from netbuilder.engines.cuda.elementwise import ELEMENTS, loop, numbers_of_run
from netbuilder.engines.cuda.gpu_layout import elements_of
from netbuilder.engines.cuda.kernel import THREADS, Kernel
from netbuilder.engines.gpu import gpu
from netbuilder.engines.programs import HostNumber, Program, Uniform
from netbuilder.ops.core.contexts import Prepared
from netbuilder.ops.core.extensions import CAPTURABLE, Joinable
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["CHUNK", "ManyTensors", "Part", "blocks_of", "joinable_program"]

CHUNK = 8 * THREADS * ELEMENTS
"""Elements of a block."""


def blocks_of(sizes: Sequence[int]) -> Any:
    """Return a row for each block: the number of the tensors that it processes a piece of, and that of the piece."""
    counts = [-(-size // CHUNK) for size in sizes]
    pieces = [np.arange(count, dtype=np.int32) for count in counts]
    return np.stack([np.repeat(np.arange(len(sizes), dtype=np.int32), counts), np.concatenate(pieces)], axis=1)


@dataclass(frozen=True, eq=False)
class Part:
    """What the kernel does with some tensors of one size.

    Args:
        program: over the values that it reads, by their positions in ``reads``.
        reads, writes: the inputs and outputs of the call, all in the GPU's memory.
        stored: how the elements of ``reads`` are stored: dtypes, or ``BFLOAT16``. Outputs have the program's types.
        size: number of elements.
    """

    program: Program
    reads: Sequence[int]
    writes: Sequence[int]
    stored: Sequence[Any]
    size: int


class ManyTensors:
    """The kernel of several parts. Those with the same program are rows of one table; each block works on one row.

    Args:
        title: of the kernel.
        parts: at least one.
    """

    def __init__(self, title: str, parts: Sequence[Part]) -> None:
        self.parts = parts
        self.numbers: list[HostNumber | Uniform] = []
        self.width = max(len(part.reads) + len(part.writes) for part in parts)
        self._programs: dict[str, int] = {}
        self._rows = [self._program(part) for part in parts]
        numbers = ", const u64* numbers" if self.numbers else ""
        lines = [
            f'extern "C" __global__ void NAME(const i64* rows, const int* blocks{numbers}) {{',
            f"const i64* row = rows + (i64)blocks[2 * blockIdx.x] * {self.width + 2};",
            f"const i64 start = (i64)blocks[2 * blockIdx.x + 1] * {CHUNK};",
            f"const i64 size = row[{self.width}] < start + {CHUNK} ? row[{self.width}] : start + {CHUNK};",
            *numbers_read(self.numbers),
            f"switch ((int)row[{self.width + 1}]) {{",
        ]
        for text, number in self._programs.items():
            lines += [f"case {number}: {{", text, "break; }"]
        self.kernel = Kernel(title, with_prelude("\n".join([*lines, "}", "}", ""])), model=self)

    def _program(self, part: Part) -> int:
        """Return the number of a part's program."""
        own = [self.position(number) for number in part.program.numbers]
        return self._programs.setdefault("\n".join(_case(part, own)), len(self._programs))

    def position(self, number: HostNumber | Uniform) -> int:
        """Return the position of a number among those that are computed on the host."""
        for k, other in enumerate(self.numbers):
            if number.same_as(other):
                return k
        self.numbers.append(number)
        return len(self.numbers) - 1

    def bind(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Callable[[], object]:
        """Return the call for some buffers."""
        table = np.zeros((len(self.parts), self.width + 2), np.int64)  # addresses, sizes, programs
        for row, part, program in zip(table, self.parts, self._rows):
            buffers = [*(inputs[i] for i in part.reads), *(outputs[j] for j in part.writes)]
            row[: len(buffers)] = [buffer.data.ptr for buffer in buffers]
            row[self.width :] = part.size, program
        with gpu(outputs[0].device.id) as there:
            rows, blocks = map(there.xp.asarray, (table, blocks_of([part.size for part in self.parts])))
        if not self.numbers:
            return partial(self.kernel, len(blocks), (rows, blocks))
        numbers = numbers_of_run(self.numbers, inputs, outputs)
        return lambda: self.kernel(len(blocks), (rows, blocks, numbers.words()))


def _case(part: Part, numbers: Sequence[int]) -> list[str]:
    """Return the statements for the rows of parts with one program."""
    program, places, types = part.program, Places(part.program), part.stored
    loads = program.loads()
    lines = [
        f"const {c_type(types[number])}* x{number} = (const {c_type(types[number])}*)row[{number}];"
        for number in sorted({load.input for load in loads})
    ]
    for j, dtype in enumerate(program.dtypes):
        lines.append(f"{c_type(dtype)}* y{j} = ({c_type(dtype)}*)row[{len(part.reads) + j}];")
    inner = loop(
        program,
        [(load, value_of(f"x{load.input}[{places[load]}]", types[load.input])) for load in loads],
        lambda j, text, at: f"y{j}[{at}] = {stored(text, program.dtypes[j])};",
        "i64",
        numbers,
    )
    head = f"for (i64 first = start + threadIdx.x; first < size; first += {THREADS * ELEMENTS}) {{"
    return [*lines, head, *inner, "}"]


@dataclass(frozen=True, eq=False)
class _Member:
    """A program, and the specs of the tensors that it reads and writes."""

    program: Program
    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]


def joinable_program(
    title: str, program: Program, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> Joinable:
    """Return a program over values of ``ANY_SHAPE`` as work that others with the same title can be joined with.

    Args:
        title: of the kernel.
        program: what is computed.
        inputs, outputs: of its tensors, which are all of one size.
    """
    return Joinable(title, _Member(program, inputs, outputs), partial(_join, title))


def _join(title: str, members: Sequence[_Member]) -> Prepared:
    inputs: list[TensorSpec] = []
    outputs: list[TensorSpec] = []
    parts: list[Part] = []
    pairs: list[tuple[int, int]] = []
    for each in members:
        reads, writes = (
            range(len(inputs), len(inputs) + len(each.inputs)),
            range(len(outputs), len(outputs) + len(each.outputs)),
        )
        parts.append(
            Part(each.program, reads, writes, [elements_of(spec) for spec in each.inputs], each.outputs[0].size)
        )
        pairs += [(i, j) for i, a in zip(reads, each.inputs) for j, b in zip(writes, each.outputs) if a == b]
        inputs += each.inputs
        outputs += each.outputs
    built = ManyTensors(title, parts)

    def bind(ins: Sequence[Any], outs: Sequence[Any], scratch: Any) -> Callable[[], object]:
        return built.bind(ins, outs)

    return Prepared(inputs, outputs, bind, inplace=pairs, name=f"cuda {built.kernel.name}", extensions=CAPTURABLE)
