"""Updates of all parameters as one kernel: a table in the GPU's memory says where each parameter's tensors are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import PlanContext, Prepared
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.engines.cuda.code import Places, c_type, numbers_read, stored, value_of, with_prelude
from netbuilder.ops.engines.cuda.elementwise import ELEMENTS, loop, numbers_of_run, trace_inputs, trace_operator
from netbuilder.ops.engines.cuda.kernel import THREADS, Kernel
from netbuilder.ops.engines.cuda.tracing import HostNumber, NotTraced, Program, Tracer, Uniform
from netbuilder.ops.engines.cudnn.layout import ChannelsLast, in_order
from netbuilder.ops.engines.gpu import gpu
from netbuilder.ops.engines.joined_updates import JoinedOperator, JoinedUpdates, UpdateForm

__all__ = ["UPDATES", "join_updates", "update_form"]

UPDATES = frozenset(
    "Adadelta Adagrad Adam DivideBlobs FP16MomentumSGDUpdate FP32MomentumSGDUpdate FloatToHalf HalfToFloat MomentumSGD "
    "MomentumSGDUpdate RestoreBlobs RmsProp SaveBlobs WeightedSum".split()
)
"""The operators that can be joined: elementwise but for numbers such as the learning rate."""

CHUNK = 8 * THREADS * ELEMENTS
"""Elements of a block."""


def update_form(op: Any, specs: Sequence[TensorSpec]) -> UpdateForm | None:
    """Return how an operator takes part in a joined update; None: it cannot."""
    if op.type not in UPDATES:
        return None
    tracer, outs = Tracer(), op.infer(*specs)
    try:
        found = trace_operator(tracer, op, trace_inputs(tracer, op, specs), outs)
        program = tracer.program(found)
    except NotTraced:
        return None
    loads = program.loads()
    numbers = {number.input for number in program.numbers if isinstance(number, HostNumber)}
    numbers |= {load.input for load in loads if load.shape == ()}
    tensors = [load for load in loads if load.input not in numbers]
    if any(load.shape != program.shape for load in tensors) or not tensors:
        return None
    numbers |= {i for i, spec in enumerate(specs) if op.input_location(i) == "host"}
    copies = {}
    for j, expression in enumerate(program.outputs):
        same = [k for k, other in enumerate(program.outputs) if k > j and other is expression]
        if same:
            copies[j] = same[0]
    return UpdateForm(frozenset(numbers), copies)


@dataclass(eq=False)
class _Chain:
    """One chain of a joined update.

    Args:
        program: over the values that it reads, by their positions in ``reads``.
        reads: the inputs of the call that are in the GPU's memory.
        tensors: those of them that are tensors, not numbers.
        writes: the outputs of the call.
        made: their specs, plain.
        size: of its tensors.
    """

    program: Program
    reads: list[int]
    tensors: list[int]
    writes: list[int]
    made: list[TensorSpec]
    size: int


_ANY = (2,)  # stands for the shape of any tensor, so that chains that compute the same have the same program


_NOTHING = Program(_ANY, (), (), ())


def _trace(ctx: Any, chain: Sequence[JoinedOperator], updates: JoinedUpdates) -> _Chain:
    """Return a chain with its program.

    Raises:
        NotTraced: one of its operators cannot be traced.
    """
    tracer = Tracer(op_def=ctx.op_def)
    values: dict[int, Any] = {}
    made: dict[int, TensorSpec] = {}
    reads: list[int] = []
    tensors: list[int] = []
    for joined in chain:
        specs = [made[i] if i in made else updates.specs[i].plain for i in joined.inputs]
        form = update_form(joined.op, specs)
        if form is None:
            raise NotTraced(joined.op.type)
        for k, i in enumerate(joined.inputs):
            if i in values:
                continue
            if joined.op.input_location(k) == "host":
                values[i] = tracer.host_input(i)
                continue
            values[i] = tracer.input(len(reads), TensorSpec(() if k in form.numbers else _ANY, specs[k].dtype))
            reads.append(i)
            if k not in form.numbers:
                tensors.append(i)
        outs = joined.op.infer(*specs)
        shapeless = [out.with_shape(_ANY) for out in outs]
        found = trace_operator(tracer, joined.op, [values[i] for i in joined.inputs], shapeless)
        values.update(zip(joined.outputs, found))
        made.update(zip(joined.outputs, outs))
    writes = [j for j, value in enumerate(updates.outputs) if value in made]
    program = tracer.program([values[updates.outputs[j]] for j in writes]) if writes else _NOTHING
    return _Chain(program, reads, tensors, writes, [made[updates.outputs[j]] for j in writes], outs[0].size)


def _common_layout(specs: Sequence[TensorSpec]) -> Any:
    """Return the layout in which a chain works: the first one that has the plain value's elements, in another order."""
    one_type = len({spec.dtype for spec in specs}) == 1
    return next(
        (
            spec.layout
            for spec in specs
            if spec.layout is not None and not spec.rounds and spec.layout.nbytes == spec.plain.nbytes
            if one_type or isinstance(spec.layout, ChannelsLast)
        ),
        None,
    )


def _laid_out(spec: TensorSpec, layout: Any) -> TensorSpec:
    """Return the spec of a value in the layout in which its chain works, in its own type."""
    if isinstance(layout, ChannelsLast):
        return in_order(spec, layout, spec.dtype.name)
    return spec.with_layout(layout)


class _Joined:
    """The kernel of all chains. Chains with the same program are rows of one table; each block works on one row.

    Args:
        chains: the chains.
    """

    def __init__(self, chains: Sequence[_Chain]) -> None:
        self.chains = chains
        self.numbers: list[HostNumber | Uniform] = []
        self.width = max(len(chain.reads) + len(chain.writes) for chain in chains)
        self.programs: dict[str, tuple[int, Program]] = {}
        self.rows = [self._program(chain) for chain in chains]
        numbers = ", const u64* numbers" if self.numbers else ""
        lines = [
            f'extern "C" __global__ void NAME(const i64* rows, const int* blocks{numbers}) {{',
            f"const i64* row = rows + (i64)blocks[2 * blockIdx.x] * {self.width + 2};",
            f"const i64 start = (i64)blocks[2 * blockIdx.x + 1] * {CHUNK};",
            f"const i64 size = row[{self.width}] < start + {CHUNK} ? row[{self.width}] : start + {CHUNK};",
            *numbers_read(self.numbers),
            f"switch ((int)row[{self.width + 1}]) {{",
        ]
        for text, (number, _) in self.programs.items():
            lines += [f"case {number}: {{", text, "break; }"]
        self.kernel = Kernel("updates", with_prelude("\n".join([*lines, "}", "}", ""])), model=self)

    def _program(self, chain: _Chain) -> int:
        """Return the number of a chain's program."""
        own = [self.position(number) for number in chain.program.numbers]
        text = "\n".join(_case(chain, own))
        return self.programs.setdefault(text, (len(self.programs), chain.program))[0]

    def position(self, number: HostNumber | Uniform) -> int:
        """Return the position of a number among those that are computed on the host."""
        for k, other in enumerate(self.numbers):
            if number.same_as(other):
                return k
        self.numbers.append(number)
        return len(self.numbers) - 1

    def table(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> tuple[Any, Any]:
        """Return the rows of addresses, sizes and programs; and the row and piece of each block."""
        rows = np.zeros((len(self.chains), self.width + 2), np.int64)
        blocks: list[Any] = []
        for k, (chain, program) in enumerate(zip(self.chains, self.rows)):
            buffers = [*(inputs[i] for i in chain.reads), *(outputs[j] for j in chain.writes)]
            rows[k, : len(buffers)] = [buffer.data.ptr for buffer in buffers]
            rows[k, self.width :] = chain.size, program
            count = -(-chain.size // CHUNK)
            blocks.append(np.stack([np.full(count, k, np.int32), np.arange(count, dtype=np.int32)], axis=1))
        return rows, np.concatenate(blocks)

    def bind(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Callable[[], object]:
        with gpu(outputs[0].device.id) as there:
            rows, blocks = (there.xp.asarray(table) for table in self.table(inputs, outputs))
        if not self.numbers:
            return partial(self.kernel, len(blocks), (rows, blocks))
        numbers = numbers_of_run(self.numbers, inputs, outputs)
        return lambda: self.kernel(len(blocks), (rows, blocks, numbers.words()))


def _case(chain: _Chain, numbers: Sequence[int]) -> list[str]:
    """Return the statements for the rows of chains with one program."""
    program, places = chain.program, Places(chain.program)
    loads = program.loads()
    lines = [
        f"const {c_type(load.dtype)}* x{load.input} = (const {c_type(load.dtype)}*)row[{load.input}];" for load in loads
    ]
    for j, dtype in enumerate(program.dtypes):
        lines.append(f"{c_type(dtype)}* y{j} = ({c_type(dtype)}*)row[{len(chain.reads) + j}];")
    inner = loop(
        program,
        [(load, value_of(f"x{load.input}[{places[load]}]", load.dtype)) for load in loads],
        lambda j, text: f"y{j}[i] = {stored(text, program.dtypes[j])};",
        "i64",
        numbers,
    )
    head = f"for (i64 first = start + threadIdx.x; first < size; first += {THREADS * ELEMENTS}) {{"
    return [*lines, head, *inner, "}"]


def join_updates(ctx: PlanContext, updates: JoinedUpdates) -> Prepared | None:
    """Return the kernel of many updates; None if one of them cannot be traced."""
    try:
        chains = [_trace(ctx, chain, updates) for chain in updates.chains]
    except NotTraced:
        return None
    expected = [spec.plain for spec in updates.specs]
    written: dict[int, TensorSpec] = {}
    pairs: list[tuple[int, int]] = []
    for chain in chains:
        layout = _common_layout([updates.specs[i] for i in chain.tensors])
        for i in chain.tensors:
            expected[i] = _laid_out(expected[i], layout)
        written |= {j: _laid_out(spec, layout) for j, spec in zip(chain.writes, chain.made)}
        pairs += [(i, j) for i in chain.tensors for j in chain.writes if expected[i].dtype == written[j].dtype]
    made = [written[j] for j in range(len(updates.outputs))]
    joined = _Joined([chain for chain in chains if chain.writes])

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Callable[[], object]:
        return joined.bind(inputs, outputs)

    counters = frozenset(number.input for number in joined.numbers if isinstance(number, HostNumber))
    name = f"cuda {joined.kernel.name}"
    return Prepared(expected, made, bind, inplace=pairs, name=name, capturable=True, numbers_from=counters)
