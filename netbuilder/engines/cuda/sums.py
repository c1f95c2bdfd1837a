"""Operators with sums over axes: their plain kernels, traced. One kernel computes the sums and what depends on them.

Each tensor is seen as (outer, columns, inner), and the sums are over the columns: a group of threads computes a row,
all its sums and then its elements. Where few rows have many columns, the sums are those of many blocks, which the
block that ends last adds in their order; a second kernel computes the elements. So results do not change from run to
run. Sums are added in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from netbuilder.engines.cuda.code import body, c_type, index_of, register_type, stored, value_of, with_prelude
from netbuilder.engines.cuda.gpu_layout import as_read, elements_of, in_order, order_of, row_major_spec
from netbuilder.engines.cuda.kernel import THREADS, Kernel
from netbuilder.engines.cuda.steps import one_call
from netbuilder.engines.gpu import gpu
from netbuilder.engines.programs import Load, NotTraced, Program, Stacked, Sum, View
from netbuilder.engines.traced import kernel_title, trace_inputs, trace_operator
from netbuilder.engines.tracing import Symbol, Tracer, reshaped_extents
from netbuilder.ops.core.contexts import Call, PlanContext, Prepared
from netbuilder.ops.core.extensions import CAPTURABLE
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Stage", "Sums", "prepare_sums", "with_sums"]

_MOST_BLOCKS = 1024
_OF_ONE_BLOCK = 1 << 14
"""The most elements that one block computes where there are few tiles."""
_FEW_TILES = 64
"""Blocks that leave most of a GPU idle."""

_OF_ELEMENTS: dict[tuple[bool, ...], str] = {
    (True, True, True): "i",
    (True, True, False): "(o * columns + j)",
    (True, False, True): "r",
    (True, False, False): "o",
    (False, True, True): "(j * inner + n)",
    (False, True, False): "j",
    (False, False, True): "n",
    (False, False, False): "0",
}
"""Indices of what has some of the axes, for an element."""
_OF_ROWS: dict[tuple[bool, ...], str] = {
    (True, True): "r",
    (True, False): "o",
    (False, True): "n",
    (False, False): "0",
}
"""The same for a row, of what has no columns."""

_Index = Callable[[Load, tuple[int, ...]], str]


@dataclass(frozen=True)
class _Extents:
    """How tensors are seen: element (o, j, n) of them is at ``(o * columns + j) * inner + n``."""

    outer: int
    columns: int
    inner: int

    @property
    def rows(self) -> int:
        return self.outer * self.inner

    @property
    def size(self) -> int:
        return self.rows * self.columns

    @property
    def lanes(self) -> int:
        """Threads for a row."""
        if self.inner == 1:
            return min(1 << (self.columns - 1).bit_length(), 32 if self.columns <= 512 else THREADS)
        return min(1 << max(self.columns // 16, 1).bit_length() - 1, 32)

    @property
    def groups(self) -> int:
        """Rows of a block, which are a tile."""
        return THREADS // self.lanes

    @property
    def tiles(self) -> int:
        return -(-self.rows // self.groups)

    @property
    def parts(self) -> int:
        """Blocks that compute the sums of a tile."""
        elements = self.groups * self.columns
        if self.tiles > _FEW_TILES or elements <= _OF_ONE_BLOCK:
            return 1
        return min(-(-elements // (4 * THREADS)), _MOST_BLOCKS // self.tiles)

    def element(self, load: Load, shape: tuple[int, ...]) -> str:
        """Return the index of what a load reads for element ``i`` of a value of a shape, of all elements."""
        full = (self.outer, self.columns, self.inner)
        if self.rows == 1:  # whatever it has of the columns' axes
            return index_of(load, shape, lambda extent: f"{extent}LL")
        own = reshaped_extents(load.shape, shape, full)
        if own == full:
            return "i"
        return _OF_ELEMENTS[self._present(own, full)]

    def row(self, load: Load, shape: tuple[int, ...]) -> str:
        """Return the index of what a load reads for row ``r`` of a value of a shape, of one number for each row."""
        full = (self.outer, self.inner)
        own = reshaped_extents(load.shape, shape, full)
        return _OF_ROWS[self._present(own, full)]

    def _present(self, own: tuple[int, ...], full: tuple[int, ...]) -> tuple[bool, ...]:
        """Return which of the axes a load has; it does not matter of those with one element."""
        found = tuple(extent != 1 for extent in own)
        return tuple(each or extent == 1 for each, extent in zip(found, full)) if any(found) else found


def _extents_of(total: Sum) -> _Extents:
    """Return how a sum sees its tensor.

    Raises:
        NotTraced: its axes are not next to each other.
    """
    axes = [a for a in total.axes if total.shape[a] != 1]
    first, last = axes[0], axes[-1]
    if any(extent != 1 and a not in axes for a, extent in enumerate(total.shape) if first <= a <= last):
        raise NotTraced("a sum over axes that are not next to each other")
    parts = total.shape[:first], total.shape[first : last + 1], total.shape[last + 1 :]
    return _Extents(*(math.prod(part) for part in parts))


@dataclass(frozen=True, eq=False)
class _Value:
    """A value that is computed for each element, or for each row: an output, or what a sum adds.

    Args:
        expression: of it.
        shape: of it, without the values of a ``Stacked``.
        dtype: of it.
    """

    expression: Any
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def program(self) -> Program:
        return Program(self.shape, (self.expression,), (self.dtype,), ())

    @staticmethod
    def of(symbol: Symbol) -> _Value:
        if isinstance(symbol.expression, View):
            raise NotTraced("a reshape of what was broadcast")
        shape = symbol.shape[:-1] if isinstance(symbol.expression, Stacked) else symbol.shape
        return _Value(symbol.expression, shape, symbol.dtype)


class Sums:
    """What the kernels of an operator have in common.

    Args:
        extents: how all of its tensors are seen.
        outputs: the symbols, by the number of the output.

    Attributes:
        inputs: how the elements of the inputs are stored, see ``elements_of``.
        levels: the sums, each level after those that it reads.
        elements, numbers: the outputs with all elements, and those with one number for each row.

    Raises:
        NotTraced: the sums and the outputs are not those of one matrix.
    """

    def __init__(self, extents: _Extents, outputs: dict[int, Symbol]) -> None:
        self.extents = extents
        self.inputs: Sequence[str] = ()
        self.outputs = {j: _Value.of(symbol) for j, symbol in outputs.items()}
        self.number: dict[Sum, int] = {}
        self.levels: list[list[Sum]] = []
        for value in self.outputs.values():
            for total in value.program().sums():
                self._level(total)
        self.elements = [j for j, value in self.outputs.items() if value.size == extents.size]
        self.numbers = [j for j in self.outputs if j not in self.elements]
        if any(self.outputs[j].size != extents.rows or isinstance(self.outputs[j].expression, Stacked)
               for j in self.numbers):  # fmt: skip
            raise NotTraced("outputs of other sizes than the sums'")
        of_elements = [self.outputs[j] for j in self.elements]
        of_elements += [_summed(total) for total in self.number]
        self.indices: dict[int, set[str]] = {}
        for value, index in [
            *((value, extents.element) for value in of_elements),
            *((self.outputs[j], extents.row) for j in self.numbers),
        ]:
            for load in value.program().loads():
                assert isinstance(load.input, int)
                text = index(load, value.shape)
                self.indices.setdefault(load.input, set()).add(text if load.stride == 1 else f"{text} of {load.stride}")
        self.read = sorted(self.indices)

    def _level(self, total: Sum) -> int:
        """Return the level of a sum, after those that it reads."""
        for level, sums in enumerate(self.levels):
            if total in sums:
                return level
        if _extents_of(total) != self.extents or total.function != "add" or total.dtype.kind != "f":
            raise NotTraced("sums over several axes or of integers, or a maximum")
        level = max((self._level(each) + 1 for each in _summed(total).program().sums()), default=0)
        if level == len(self.levels):
            self.levels.append([])
        self.levels[level].append(total)
        self.number[total] = len(self.number)
        return level

    @property
    def everywhere(self) -> bool:
        """Whether only the elements at one place, and numbers, are combined: their order does not matter."""
        return self.extents.rows == 1 and all(found <= {"i"} or found <= {"0"} for found in self.indices.values())

    def load(self, value: _Value, index: _Index) -> Callable[[Load], str]:
        """Return what reads the loads of a value."""

        def read(load: Load) -> str:
            if isinstance(load.input, Sum):
                return f"s{self.number[load.input]}"
            at = index(load, value.shape)
            at = at if load.stride == 1 else f"{at} * {load.stride} + {load.offset}"
            return value_of(f"x{load.input}[{at}]", self.inputs[load.input])

        return read

    def added(self, sums: Sequence[Sum]) -> list[str]:
        """Return the statements that add what sums add for an element."""
        lines = []
        for total in sums:
            value = _summed(total)
            text = body(
                value.program(),
                self.load(value, self.extents.element),
                lambda j, text, at, k=self.number[total]: f"t{k} += (double)({text});",  # type: ignore[misc]
            )
            lines += ["{", *text, "}"]
        return lines

    def written(self, outputs: Sequence[int], index: _Index, at: str) -> list[str]:
        """Return the statements that write some outputs, for an element or for a row.

        All are computed before the first one is written, which may overwrite what others read.
        """
        first, then = [], []
        for j in outputs:
            value = self.outputs[j]
            places: list[str] = []

            def keep(_: int, text: str, place: str, j: int = j, places: list[str] = places) -> str:
                places.append(place)
                return f"q{j}_{len(places) - 1} = {text};"

            text = body(value.program(), self.load(value, index), keep)
            first += [f"{register_type(value.dtype)} q{j}_{k};" for k in range(len(places))] + ["{", *text, "}"]
            then += [f"y{j}[{place.replace('i', at)}] = {stored(f'q{j}_{k}', value.dtype)};"
                     for k, place in enumerate(places)]  # fmt: skip
        return [*first, *then]

    def parameters(self, outputs: Sequence[int]) -> list[str]:
        return [f"const {c_type(self.inputs[i])}* x{i}" for i in self.read] + [
            f"{c_type(self.outputs[j].dtype)}* y{j}" for j in outputs
        ]


def _summed(total: Sum) -> _Value:
    return _Value(total.value, total.shape, total.dtype)


@dataclass(frozen=True, eq=False)
class Stage:
    """What a kernel does of the work.

    Args:
        sums: the whole.
        level: of the sums that many blocks add; None: all that the work has, or the elements after sums of many blocks.
        outputs: that the kernel writes.
    """

    sums: Sums
    level: int | None
    outputs: Sequence[int]


def _lanes(extents: _Extents) -> tuple[str, str, str]:
    """Return the function that adds a number of each thread of a row, and a thread's lane and row in its block."""
    lanes, groups = extents.lanes, extents.groups
    apart = 1 if extents.inner == 1 else groups  # how far the threads of a row are from one another
    lane, local = f"threadIdx.x % {lanes}", f"threadIdx.x / {lanes}"
    if apart > 1:
        lane, local = f"threadIdx.x / {groups}", f"threadIdx.x % {groups}"
    function = f"""
__device__ __forceinline__ double row_sum(double own, double* shared, int lane) {{
    shared[threadIdx.x] = own;
    __syncthreads();
    for (int half = {lanes} / 2; half > 0; half /= 2) {{
        if (lane < half) shared[threadIdx.x] += shared[threadIdx.x + half * {apart}];
        __syncthreads();
    }}
    const double found = shared[threadIdx.x - lane * {apart}];
    __syncthreads();
    return found;
}}
"""
    return function, lane, local


def _rows_kernel(title: str, work: Sums) -> Kernel:
    """Return the kernel in which a group of threads computes a row."""
    extents = work.extents
    lanes, groups, outputs = extents.lanes, extents.groups, [*work.elements, *work.numbers]
    reduced, lane, local = _lanes(extents)
    each = f"for (i64 j = inside ? lane : columns; j < columns; j += {lanes}) {{ "
    each += "const i64 i = (o * columns + j) * inner + n;"
    lines = []
    for sums in work.levels:
        lines += [f"double t{work.number[total]} = 0;" for total in sums]
        lines += [each, *work.added(sums), "}"]
        for k, total in ((work.number[total], total) for total in sums):
            kind = register_type(total.dtype)
            lines.append(f"const {kind} s{k} = ({kind}){f'row_sum(t{k}, shared, lane)' if lanes > 1 else f't{k}'};")
    if work.elements:
        lines += [each, *work.written(work.elements, extents.element, "i"), "}"]
    if work.numbers:  # which may overwrite numbers that the other threads of the row have read
        lines += ["__syncthreads();" if lanes > 1 else "", "if (inside && lane == 0) {"]
        lines += [*work.written(work.numbers, extents.row, "r"), "}"]
    text = [
        reduced if lanes > 1 else "",
        f'extern "C" __global__ void NAME({", ".join(work.parameters(outputs))}, i64 rows, i64 columns, i64 inner) {{',
        f"__shared__ double shared[{THREADS}];" if lanes > 1 else "",
        f"const int lane = {lane};",
        f"for (i64 first = blockIdx.x * (i64){groups}; first < rows; first += gridDim.x * (i64){groups}) {{",
        f"const i64 r = first + {local}, o = r / inner, n = r % inner;",
        "const bool inside = r < rows;",
        *lines,
        "}}",
    ]
    return Kernel(title, with_prelude("\n".join(filter(None, text))), model=Stage(work, None, outputs))


_LAST = """
__syncthreads();
if (threadIdx.x == 0) {
    __threadfence();
    last = atomicAdd(ended + tile, 1u) == parts - 1;
}
__syncthreads();
if (!last) return;
__threadfence();
if (threadIdx.x == 0) ended[tile] = 0;  // for the next launch
"""


def _block_kernel(title: str, work: Sums, level: int | None) -> Kernel:
    """Return the kernel of many blocks for each tile that adds the sums of a level; None: that writes the elements.

    The last block of a tile also writes the numbers, when the others have read those that these may overwrite.
    """
    extents = work.extents
    sums = [] if level is None else work.levels[level]
    known = [total for each in work.levels[:level] for total in each]
    ends = level is None or (level == len(work.levels) - 1 and not work.elements)
    outputs = [*(work.elements if level is None else ()), *(work.numbers if ends else ())]
    numbers = [work.number[total] for total in sums]
    lanes, groups = extents.lanes, extents.groups
    row_sum, lane, local = _lanes(extents)
    lines = [f"double t{k} = 0;" for k in numbers]
    lines += [
        f"for (i64 j = inside ? part * (i64){lanes} + lane : columns; j < columns; j += parts * (i64){lanes}) {{",
        "const i64 i = (o * columns + j) * inner + n;",
        *work.added(sums),
        *(work.written(work.elements, extents.element, "i") if level is None else ()),
        "}",
        *(f"t{k} = row_sum(t{k}, shared, lane);" for k in numbers),
        "if (inside && lane == 0) {",
        *(f"all[({at} * parts + part) * rows + r] = t{k};" for at, k in enumerate(numbers)),
        "}",
    ]
    if sums or work.numbers:
        lines.append(_LAST)
    for at, k in enumerate(numbers):
        lines += [
            f"t{k} = 0;",
            f"for (i64 p = inside ? lane : parts; p < parts; p += {lanes}) t{k} += all[({at} * parts + p) * rows + r];",
            f"t{k} = row_sum(t{k}, shared, lane);",
            f"if (inside && lane == 0) totals[{k} * rows + r] = t{k};",
            f"const {(kind := register_type(sums[at].dtype))} s{k} = ({kind})t{k};",
        ]
    if ends and work.numbers:
        lines += ["if (inside && lane == 0) {", *work.written(work.numbers, extents.row, "r"), "}"]
    parameters = [*work.parameters(outputs), "double* totals", "double* partial", "unsigned* ended"]
    parameters += ["i64 rows", "i64 columns", "i64 inner"]
    text = [
        row_sum if sums else "",
        f'extern "C" __global__ void NAME({", ".join(parameters)}) {{',
        f"__shared__ double shared[{THREADS}];" if sums else "",
        "__shared__ bool last;",
        "volatile double* all = partial;",
        f"const int tiles = (rows + {groups - 1}) / {groups}, tile = blockIdx.x % tiles;",
        "const i64 part = blockIdx.x / tiles, parts = gridDim.x / tiles;",
        f"const int lane = {lane};",
        f"const i64 r = tile * (i64){groups} + {local}, o = r / inner, n = r % inner;",
        "const bool inside = r < rows;",
        *(
            f"const {(kind := register_type(total.dtype))} s{(k := work.number[total])} = "
            f"inside ? ({kind})totals[{k} * rows + r] : ({kind})0;"
            for total in known
        ),
        *lines,
        "}",
    ]
    return Kernel(title, with_prelude("\n".join(filter(None, text))), model=Stage(work, level, outputs))


class _Launches:
    """The kernels of some work, and their launches."""

    def __init__(self, title: str, work: Sums) -> None:
        extents = work.extents
        self.work, self.kernels = work, list[Kernel]()
        if extents.parts == 1:
            self.kernels.append(_rows_kernel(title, work))
            self.blocks = min(extents.tiles, 1 << 16)
            self.scratch = 0
            return
        levels: list[int | None] = [*range(len(work.levels))]
        self.kernels += [_block_kernel(title, work, level) for level in (*levels, *([None] if work.elements else []))]
        self.blocks = extents.tiles * extents.parts
        self._totals = 8 * len(work.number) * extents.rows
        self.scratch = self._totals + 8 * extents.parts * extents.rows * max(len(level) for level in work.levels)

    def bind(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> list[Call]:
        work, extents = self.work, self.work.extents
        read = [inputs[i] for i in work.read]
        others: list[Any] = [np.int64(extent) for extent in (extents.rows, extents.columns, extents.inner)]
        if extents.parts > 1:
            totals, partial_sums = (scratch[: self._totals], scratch[self._totals : self.scratch])
            with gpu(read[0].device.id) as here:
                ended = here.xp.zeros(extents.tiles, np.uint32)
            others = [totals.view(np.float64), partial_sums.view(np.float64), ended, *others]
        return [
            partial(kernel, self.blocks, (*read, *(outputs[j] for j in kernel.model.outputs), *others))
            for kernel in self.kernels
        ]


def _groups(outputs: Sequence[Symbol]) -> list[Sums]:
    """Return the work of some outputs: those with sums over the same axes are computed together.

    Raises:
        NotTraced: an output does not fit.
    """
    found: dict[_Extents, dict[int, Symbol]] = {}
    rest: dict[int, Symbol] = {}
    for j, symbol in enumerate(outputs):
        sums = _Value.of(symbol).program().sums()
        if sums:
            found.setdefault(_extents_of(sums[0]), {})[j] = symbol
        else:
            rest[j] = symbol
    if not found:  # all of them are over one element: each is a row
        found[_Extents(outputs[0].size, 1, 1)] = {}
    if any(extents.size == 0 for extents in found):
        raise NotTraced("tensors without elements")
    for j, symbol in rest.items():
        fits = [extents for extents in found if _Value.of(symbol).size in (extents.size, extents.rows)]
        if not fits:
            raise NotTraced("outputs of other sizes than the sums'")
        found[fits[0]][j] = symbol
    made = [Sums(extents, dict(sorted(of_group.items()))) for extents, of_group in found.items()]
    return sorted(made, key=lambda work: bool(work.elements))  # outputs may overwrite inputs in the last one


def prepare_sums(
    title: str, symbols: Sequence[Symbol], specs: Sequence[TensorSpec], outs: Sequence[TensorSpec]
) -> Prepared:
    """Return the kernels that compute some symbols, which may read sums.

    Args:
        title: of the kernels.
        symbols: of the outputs.
        specs, outs: of inputs and outputs, with the layouts that the inputs have.

    Raises:
        NotTraced: there are no such kernels.
    """
    groups = _groups(symbols)
    given, made = [row_major_spec(spec, elements_of(spec)) for spec in specs], list(outs)
    if len(groups) == 1 and groups[0].everywhere:
        (work,) = groups
        tensors = [i for i in work.read if work.indices[i] == {"i"}]
        order = next((order for i in tensors if (order := order_of(specs[i])) is not None), None)
        for i in tensors:
            given[i] = as_read(specs[i], order)
        for j in work.elements:
            made[j] = in_order(outs[j], order, outs[j].dtype.name)
    for work in groups:
        work.inputs = [elements_of(spec) for spec in given]
    launches = [_Launches(title, work) for work in groups]
    last, read = groups[-1], {i for work in groups for i in work.read}
    pairs = []
    for i, j in ((i, j) for i in last.read for j in last.outputs):
        places = {"i", f"i of {last.outputs[j].program().values_of(0)}"} if j in last.elements else {"r", "0"}
        places |= {"0"} if last.extents.size == 1 else set()
        same = (specs[i].size, given[i].dtype) == (made[j].size, made[j].dtype)
        if same and given[i].layout == made[j].layout and last.indices[i] <= places:
            pairs.append((i, j))

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        return one_call([call for each in launches for call in each.bind(inputs, outputs, scratch)])

    return Prepared(
        [spec if i in read else None for i, spec in enumerate(given)],
        made,
        bind,
        scratch=max(each.scratch for each in launches),
        inplace=pairs,
        name=f"cuda {launches[-1].kernels[-1].name}",
        extensions=CAPTURABLE,
    )


def with_sums(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    """Prepare an operator with sums over axes: its plain kernel, traced."""
    if any(spec is None for spec in specs):
        return None
    plain = [spec.plain for spec in specs]
    outs = list(op.infer(*plain))
    tracer = Tracer(op_def=ctx.op_def)
    try:
        symbols = trace_operator(tracer, op, trace_inputs(tracer, op, plain), outs)
        if tracer.numbers:
            return None
        return prepare_sums(kernel_title(op.type), symbols, specs, outs)
    except NotTraced:
        return None
