"""Elementwise operators, alone and in chains: one kernel that reads every input once and writes into given buffers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from netbuilder.engines.cuda.code import (
    Places,
    body,
    c_type,
    numbers_read,
    register_type,
    stored,
    value_of,
    with_prelude,
)
from netbuilder.engines.cuda.gpu_layout import WIDE, elements_of, in_one_layout, in_order, order_of
from netbuilder.engines.cuda.kernel import THREADS, Kernel
from netbuilder.engines.cuda.run_numbers import RunNumbers
from netbuilder.engines.gpu import gpu
from netbuilder.engines.joined_updates import JoinedUpdates
from netbuilder.engines.traced import kernel_title, trace_chain, trace_inputs, trace_operator
from netbuilder.engines.tracing import HostNumber, Load, NotTraced, Program, Tracer, Uniform
from netbuilder.ops.core.contexts import PlanContext, Prepared
from netbuilder.ops.core.extensions import Capturable
from netbuilder.ops.core.operator import TensorSpec

__all__ = [
    "ELEMENTS",
    "BoundProgram",
    "elementwise",
    "join_elementwise",
    "loop",
    "numbers_of_run",
    "prepare_program",
]

ELEMENTS = 4
"""Elements of a thread: their loads are under way at the same time."""

_IN_LAYOUTS = (np.float32, np.float16)
"""The types of values that have layouts."""


def _blocks(size: int) -> int:
    """Return how many blocks process so many elements."""
    return -(-size // (THREADS * ELEMENTS))


def loop(
    program: Program,
    loads: Sequence[tuple[Load, str]],
    store: Callable[[int, str, str], str],
    index: str,
    numbers: Sequence[int] | None = None,
) -> list[str]:
    """Return the statements of a block: elements ``first`` to ``size`` in steps of the block's threads.

    All elements of a thread are loaded before one is stored, so an output may have the memory of an input.

    Args:
        program: the program.
        loads: each load, and the expression that reads its element for element ``i``.
        store: returns the statement that stores a value as an output, at an index.
        index: the type of ``i``.
        numbers: the positions of the program's numbers among the kernel's; None: they are the same.
    """
    places = {load: f"r{k}[k]" for k, (load, _) in enumerate(loads)}
    lines = [f"{register_type(load.dtype)} r{k}[{ELEMENTS}];" for k, (load, _) in enumerate(loads)]
    guard = f"const {index} i = first + k * {THREADS}; if (i < size) {{"
    lines += ["#pragma unroll", f"for (int k = 0; k < {ELEMENTS}; k++) {{ {guard}"]
    lines += [f"    r{k}[k] = {text};" for k, (_, text) in enumerate(loads)]
    lines += ["}}", "#pragma unroll", f"for (int k = 0; k < {ELEMENTS}; k++) {{ {guard}"]
    lines += [f"    {line}" for line in body(program, places.__getitem__, store, numbers)]
    return [*lines, "}}"]


class BoundProgram:
    """The kernel of a program, and what its launch needs.

    Args:
        title: of the kernel.
        program: what it computes.
        inputs, outputs: how elements are stored: a dtype, or ``BFLOAT16``; None for an input that is not read.
    """

    def __init__(self, title: str, program: Program, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        size = program.size
        self.program, self.size, self.places = program, size, Places(program)
        self.inputs, self.outputs = inputs, outputs
        loads = program.loads()
        self.read = sorted({load.input for load in loads})
        values = max([load.stride for load in loads] + [program.values_of(j) for j in range(len(outputs))])
        index = "int" if size * values < 2**31 - THREADS * ELEMENTS else "i64"
        self._extent: Any = np.int32 if index == "int" else np.int64
        parameters = [f"const {c_type(inputs[i])}* x{i}" for i in self.read]
        parameters += [f"{c_type(storage)}* y{j}" for j, storage in enumerate(outputs)]
        parameters += ["const u64* numbers"] if program.numbers else []
        parameters += [f"{index} d{k}" for k in range(len(self.places.extents))]
        parameters.append(f"{index} size")
        lines = loop(
            program,
            [(load, value_of(f"x{load.input}[{self.places[load]}]", inputs[load.input])) for load in loads],
            lambda j, text, at: f"y{j}[{at}] = {stored(text, outputs[j])};",
            index,
        )
        first = f"const {index} first = blockIdx.x * ({index}){THREADS * ELEMENTS} + threadIdx.x;"
        head = f'extern "C" __global__ void NAME({", ".join(parameters)}) {{'
        self.kernel = Kernel(
            title, with_prelude("\n".join([head, first, *numbers_read(program.numbers), *lines, "}", ""]))
        )

    def bind(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Callable[[], object]:
        """Return the call for some buffers; ``inputs`` has the host's integers too."""
        fixed = [*(inputs[i] for i in self.read), *outputs]
        extents = [self._extent(extent) for extent in (*self.places.extents, self.size)]
        blocks, numbers = _blocks(self.size), self.program.numbers
        if not numbers:
            return partial(self.kernel, blocks, tuple(fixed + extents))
        of_run = numbers_of_run(numbers, inputs, outputs)
        return lambda: self.kernel(blocks, (*fixed, of_run.words(), *extents))


def numbers_of_run(numbers: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> RunNumbers:
    """Return the numbers of a program for a call's buffers."""
    there = gpu(outputs[0].device.id)
    return RunNumbers(there, len(numbers), lambda: [number.value(inputs) for number in numbers])


def elementwise(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    """Prepare an elementwise operator: its plain kernel, traced."""
    if any(spec is None for spec in specs):
        return None
    plain = [spec.plain for spec in specs]
    outs = list(op.infer(*plain))
    tracer = Tracer(op_def=ctx.op_def, run_context=ctx.run)
    try:
        program = tracer.program(trace_operator(tracer, op, trace_inputs(tracer, op, plain), outs))
        return prepare_program(kernel_title(op.type), program, *_in_layouts(ctx, program, specs, outs))
    except NotTraced:
        return None


def join_elementwise(ctx: PlanContext, chain: JoinedUpdates) -> Prepared | None:
    """Return the kernel of a chain of elementwise operators."""
    try:
        program, outputs = trace_chain(chain, is_gpu=True)
        title = "_".join(kernel_title(joined.op.type) for joined in chain.chains[0])
        return prepare_program(title[:60], program, *_in_layouts(ctx, program, chain.specs, outputs))
    except NotTraced:
        return None


def _in_layouts(
    ctx: PlanContext, program: Program, specs: Sequence[TensorSpec], outs: Sequence[TensorSpec]
) -> tuple[list[TensorSpec], list[TensorSpec]]:
    """Return the specs of inputs and outputs: with channels last if values come so and no element depends on its place.

    Args:
        ctx: of the plan.
        program: what is computed.
        specs: of the inputs, in their layouts.
        outs: plain specs of the outputs.
    """
    fixed = any(isinstance(number, Uniform) for number in program.numbers)
    laid_out = None if fixed or all(spec.layout is None for spec in specs) else in_one_layout(specs)
    if laid_out is None or any(out.shape != specs[0].shape or out.dtype not in _IN_LAYOUTS for out in outs):
        return [spec.plain for spec in specs], list(outs)
    first = laid_out[0]
    if first.rounds and any(ctx.published(i, WIDE) for i in range(len(specs))):
        first = in_order(first, order_of(first), first.dtype.name)
    return laid_out, [
        first if out.dtype == first.dtype else in_order(out, order_of(first), out.dtype.name) for out in outs
    ]


def prepare_program(title: str, program: Program, specs: Sequence[TensorSpec], outs: Sequence[TensorSpec]) -> Prepared:
    """Return the kernel of a program as a prepared one.

    Args:
        title: of the kernel.
        program: what it computes.
        specs, outs: of its inputs and outputs.
    """
    host = {number.input for number in program.numbers if isinstance(number, HostNumber)}
    built = BoundProgram(title, program, [elements_of(spec) for spec in specs], [elements_of(spec) for spec in outs])
    pairs = [
        (i, j)
        for i, spec in enumerate(specs)
        for j, out in enumerate(outs)
        if i in built.read and (spec.size, spec.dtype.itemsize) == (out.size, out.dtype.itemsize)
        and all(built.places.identity(load) for load in program.loads() if load.input == i)
    ]  # fmt: skip

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Callable[[], object]:
        return built.bind(inputs, outputs)

    return Prepared(
        [spec if i in built.read or i in host else None for i, spec in enumerate(specs)],
        outs,
        bind,
        inplace=pairs,
        name=f"cuda {built.kernel.name}",
        extensions=(Capturable(frozenset(host)),),
    )
