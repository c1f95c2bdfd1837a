"""Updates of all parameters as one kernel: a table in the GPU's memory says where each parameter's tensors are."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from netbuilder.ops.core.contexts import PlanContext, Prepared
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.engines.cuda.elementwise import trace_inputs, trace_operator
from netbuilder.ops.engines.cuda.layout import as_read, elements_of, in_order, order_of
from netbuilder.ops.engines.cuda.many_tensors import ANY_SHAPE, ManyTensors, Part
from netbuilder.ops.engines.cuda.tracing import HostNumber, NotTraced, Program, Tracer
from netbuilder.ops.engines.joined_updates import JoinedOperator, JoinedUpdates, UpdateForm

__all__ = ["UPDATES", "join_updates", "update_form"]

UPDATES = frozenset(
    "Adadelta Adagrad Adam DecayAdagrad DivideBlobs FP16MomentumSGDUpdate FP32MomentumSGDUpdate FloatToHalf Ftrl "
    "HalfToFloat MomentumSGD MomentumSGDUpdate RestoreBlobs RmsProp SaveBlobs WeightedSum".split()
)
"""The operators that can be joined: elementwise but for numbers such as the learning rate."""


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
        shape: of its tensors; some have several values for each element.
    """

    program: Program
    reads: list[int]
    tensors: list[int]
    writes: list[int]
    made: list[TensorSpec]
    shape: tuple[int, ...]


_NOTHING = Program(ANY_SHAPE, (), (), ())


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
        outs = joined.op.infer(*specs)
        for k, i in enumerate(joined.inputs):
            if i in values:
                continue
            if joined.op.input_location(k) == "host":
                values[i] = tracer.host_input(i)
                continue
            shape = () if k in form.numbers else _any(specs[k], outs[0])
            values[i] = tracer.input(len(reads), TensorSpec(shape, specs[k].dtype))
            reads.append(i)
            if k not in form.numbers:
                tensors.append(i)
        shapeless = [out.with_shape(_any(out, outs[0])) for out in outs]
        found = trace_operator(tracer, joined.op, [values[i] for i in joined.inputs], shapeless)
        values.update(zip(joined.outputs, found))
        made.update(zip(joined.outputs, outs))
    writes = [j for j, value in enumerate(updates.outputs) if value in made]
    program = tracer.program([values[updates.outputs[j]] for j in writes]) if writes else _NOTHING
    return _Chain(program, reads, tensors, writes, [made[updates.outputs[j]] for j in writes], outs[0].shape)


def _any(spec: TensorSpec, first: TensorSpec) -> tuple[int, ...]:
    """Return what stands for the shape of a tensor, which has that of the first output, or several values for each."""
    return ANY_SHAPE + spec.shape[first.ndim :]


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
        orders = (order_of(updates.specs[i]) for i in chain.tensors)
        order = next((order for order in orders if order is not None), None)
        if any(spec.shape != chain.shape for spec in (*(updates.specs[i] for i in chain.tensors), *chain.made)):
            order = None
        for i in chain.tensors:
            expected[i] = as_read(updates.specs[i], order)
        written |= {j: in_order(spec, order, spec.dtype.name) for j, spec in zip(chain.writes, chain.made)}
        pairs += [(i, j) for i in chain.tensors for j in chain.writes if expected[i] == written[j]]
    kernel = ManyTensors(
        "updates",
        [
            Part(
                each.program,
                each.reads,
                each.writes,
                [elements_of(expected[i]) for i in each.reads],
                math.prod(each.shape),
            )
            for each in chains
            if each.writes
        ],
    )

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Callable[[], object]:
        return kernel.bind(inputs, outputs)

    return Prepared(
        expected,
        [written[j] for j in range(len(updates.outputs))],
        bind,
        inplace=pairs,
        name=f"cuda {kernel.kernel.name}",
        capturable=True,
        numbers_from=frozenset(number.input for number in kernel.numbers if isinstance(number, HostNumber)),
    )
