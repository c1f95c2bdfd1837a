"""Elementwise operators, alone and in chains, as machine code that reads every input once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from netbuilder.engines.joined_updates import JoinedUpdates
from netbuilder.engines.llvm import machine
from netbuilder.engines.llvm.argument_rows import Rows, Work, made
from netbuilder.engines.llvm.arranged import Arranged, arranged
from netbuilder.engines.llvm.code import Code
from netbuilder.engines.llvm.reducing import reducing
from netbuilder.engines.programs import Constant, HostNumber, NotTraced, Program, Step
from netbuilder.engines.remembered import Remembered
from netbuilder.engines.traced import (
    chainable_program,
    kernel_title,
    operator_key,
    trace_chain,
    trace_inputs,
    trace_operator,
)
from netbuilder.engines.tracing import Tracer
from netbuilder.ops.core.contexts import NOT_NEGATIVE, Call, PlanContext, Prepared
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "ElementwiseForm",
    "elementwise",
    "form_of",
    "is_chainable",
    "join_elementwise",
    "prepared_form",
    "with_reductions",
]


@dataclass(frozen=True, eq=False)
class ElementwiseForm:
    """The code of a program, for values in some layouts.

    Args:
        plain: the program over plain values.
        found: over those in the layouts; None: there is nothing to compute.
        code: of that.
    """

    plain: Program
    found: Arranged | None
    code: Code | None


_of_operators = Remembered[ElementwiseForm](256, lambda each: not each.plain.numbers)
_of_chains = Remembered[ElementwiseForm](256, lambda each: not each.plain.numbers)
_chainable = Remembered[Program | None](4096)


def elementwise(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    """Prepare an elementwise operator, or a gradient that is summed over axes that were broadcast."""
    if any(spec is None for spec in specs):
        return None
    specs = _stored_for(ctx, specs)
    try:
        found = _of_operators((machine.available(), operator_key(op, specs)), lambda: _of_operator(op, ctx, specs))
        prepared = prepared_form(ctx, kernel_title(op.type), found)
    except NotTraced:
        prepared = None
    return prepared or reducing(op, ctx, *specs)


def _stored_for(ctx: PlanContext, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """Return how inputs are read: a net in float32, which may read values that another one has rounded, rounds none."""
    return tuple(spec.plain if spec.rounds and ctx.precision == "float32" else spec for spec in specs)


def with_reductions(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    """Prepare an operator with reductions, which is elementwise where these are over one element."""
    return reducing(op, ctx, *specs) or elementwise(op, ctx, *specs)


def _of_operator(op: Any, ctx: PlanContext, specs: Sequence[TensorSpec]) -> ElementwiseForm:
    plain = [spec.plain for spec in specs]
    outs = list(op.infer(*plain))
    program = _chainable_program(op, specs)
    if program is None or program.numbers:  # these may depend on the run
        tracer = Tracer(run_context=ctx.run, is_gpu=False)
        program = tracer.program(trace_operator(tracer, op, trace_inputs(tracer, op, plain), outs))
    return form_of(program, specs, outs)


def form_of(program: Program, specs: Sequence[TensorSpec], outs: Sequence[TensorSpec]) -> ElementwiseForm:
    """Return the code of a program, in the layout of the inputs if it serves.

    Args:
        program: over inputs by number.
        specs: of the inputs.
        outs: plain specs of the outputs.

    Raises:
        NotTraced: there is none.
    """
    if not program.size or not program.loads():
        return ElementwiseForm(program, None, None)
    found = arranged(program, specs, outs)
    return ElementwiseForm(program, found, made(found.program))


def is_chainable(op: Any, specs: Sequence[TensorSpec]) -> bool:
    """Whether an operator can be part of a chain: it is elementwise, and there is code for it."""
    return _chainable_program(op, specs) is not None


def _chainable_program(op: Any, specs: Sequence[TensorSpec]) -> Program | None:
    key = operator_key(op, [spec.plain for spec in specs])
    return _chainable(key, lambda: _with_code(chainable_program(op, specs, is_gpu=False)))


def _with_code(program: Program | None) -> Program | None:
    """Return a program if there is code for it, and it computes something."""
    if program is None:
        return None
    try:
        made(program)
    except NotTraced:
        return None
    return program if program.size and program.loads() else None


def join_elementwise(ctx: PlanContext, chain: JoinedUpdates) -> Prepared | None:
    """Return the kernel of a chain of elementwise operators; None where it cannot keep the layouts of values."""
    (operators,) = chain.chains
    chain = replace(chain, specs=_stored_for(ctx, chain.specs))
    parts = [(joined.op.type, repr(joined.op), joined.inputs, joined.outputs) for joined in operators]
    key = (machine.available(), *chain.specs, *parts, *chain.outputs)

    def trace() -> ElementwiseForm:
        program, outs = trace_chain(chain, is_gpu=False)
        return form_of(program, chain.specs, outs)

    try:
        found = _of_chains(key, trace)
        keeps = found.found is not None and found.found.written[0].layout is not None
        if any(spec.layout is not None for spec in chain.specs) and not keeps:
            return None
        return prepared_form(ctx, "_".join(kernel_title(joined.op.type) for joined in operators)[:60], found)
    except NotTraced:
        return None


def _not_negative(value: Any) -> bool:
    """Whether a value is known to be at least 0, or NaN."""
    if isinstance(value, Constant):
        return bool(value.value >= 0)
    if not isinstance(value, Step) or value.function not in ("maximum", "minimum", "positive"):
        return False
    return (any if value.function == "maximum" else all)(map(_not_negative, value.operands))


def prepared_form(ctx: PlanContext, title: str, made: ElementwiseForm) -> Prepared | None:
    """Return the kernel of a program; None for one that fills its outputs with constants, or writes nothing."""
    found, code = made.found, made.code
    if found is None or code is None:
        return None
    program = found.program
    for j, output in enumerate(made.plain.outputs):
        if _not_negative(output):
            ctx.publish(j, NOT_NEGATIVE, True)
    numbers = program.numbers
    host = {number.input for number in numbers if isinstance(number, HostNumber)}
    work = Work(code, code.read, range(len(found.written)), range(len(numbers)), program.size, code.extents)
    rows = Rows(ctx, [work], [number.value for number in numbers])
    given = [i for i in code.read if i < len(found.expected)]
    whole = {i for i in given if all(load.shape == program.shape for load in program.loads() if load.input == i)}
    pairs = [
        (i, j)
        for i in given
        for j, out in enumerate(found.written)
        if (i in whole or program.size == 1)
        and (found.expected[i].size, found.expected[i].dtype.itemsize) == (out.size, out.dtype.itemsize)
    ]

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        buffers, fill = found.buffers(inputs, scratch)
        call = rows.bind(buffers, outputs)
        if fill is None:
            return call

        def filled() -> None:
            fill()
            call()

        return filled

    return Prepared(
        [spec if i in given or i in host else None for i, spec in enumerate(found.expected)],
        found.written,
        bind,
        found.scratch,
        inplace=pairs,
        name=f"llvm {title}",
    )
