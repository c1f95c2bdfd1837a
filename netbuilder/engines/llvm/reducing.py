"""Operators with sums, maxima or minima over axes as machine code: their plain kernels, traced."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from netbuilder.engines.llvm import machine
from netbuilder.engines.llvm.argument_rows import Rows, Work
from netbuilder.engines.llvm.arranged import merged
from netbuilder.engines.llvm.reductions import Form, reduced_code, reductions_of
from netbuilder.engines.programs import NotTraced
from netbuilder.engines.remembered import Remembered
from netbuilder.engines.traced import WITH_SUMS, kernel_title, operator_key, trace_inputs, trace_operator
from netbuilder.engines.tracing import Symbol, Tracer
from netbuilder.ops.core.contexts import Call, PlanContext, Prepared
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["REDUCING", "ReducedForms", "forms_of", "prepared_forms", "reducing"]

REDUCING = WITH_SUMS | frozenset(
    "AveragedLoss CrossEntropy ExpandGradient GroupNorm GroupNormGradient LogSoftmax LogSoftmaxGradient ReduceBackMax "
    "ReduceFrontMax ReduceMax ReduceMin Softmax SoftmaxGradient".split()
)
"""Operators whose plain kernels have reductions over axes, and are traced."""


@dataclass(frozen=True, eq=False)
class ReducedForms:
    """The functions that compute operators with reductions.

    Args:
        works: one after another.
        expected, written: specs of the inputs, None for those that nothing reads, and of the outputs.
        inplace: pairs of an input and an output that may have the same memory.
    """

    works: Sequence[Work]
    expected: Sequence[TensorSpec | None]
    written: Sequence[TensorSpec]
    inplace: Sequence[tuple[int, int]]


_of_operators = Remembered[ReducedForms | None](256)


def reducing(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    """Prepare an operator with reductions; None where its plain kernel cannot be traced."""
    if any(spec is None for spec in specs) or not machine.available():
        return None
    made = _of_operators(operator_key(op, specs), lambda: _made(op, specs))
    return None if made is None else prepared_forms(ctx, made, kernel_title(op.type))


def prepared_forms(ctx: PlanContext, made: ReducedForms, title: str) -> Prepared | None:
    """Return the kernel; None without llvmlite."""
    try:
        rows = Rows(ctx, made.works)
    except NotTraced:
        return None

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        return rows.bind(inputs, outputs)

    return Prepared(made.expected, made.written, bind, inplace=made.inplace, name=f"llvm {title}")


def _made(op: Any, specs: Sequence[TensorSpec]) -> ReducedForms | None:
    plain = [spec.plain for spec in specs]
    outs = list(op.infer(*plain))
    tracer = Tracer(is_gpu=False)
    try:
        symbols = trace_operator(tracer, op, trace_inputs(tracer, op, plain), outs)
        return None if tracer.numbers else forms_of(symbols, specs, outs)
    except NotTraced:
        return None


def forms_of(symbols: Sequence[Symbol], specs: Sequence[TensorSpec], outs: Sequence[TensorSpec]) -> ReducedForms:
    """Return the functions that compute outputs with reductions, in the layout of the inputs if it serves.

    Args:
        symbols: of the outputs, over inputs by number.
        specs: of the inputs.
        outs: plain specs of the outputs.

    Raises:
        NotTraced: there are none.
    """
    works, pairs = [], list[tuple[int, int]]()
    groups = _groups(symbols)
    loops: Sequence[tuple[int, int]] = ()
    expected, written = [spec.plain for spec in specs], list(outs)
    laid_out = _layout_of(symbols, groups, specs, outs)
    if laid_out is not None:
        loops = laid_out.layout.loops(laid_out.shape)
        expected = [laid_out if spec.shape == laid_out.shape else spec for spec in expected]
        written = [laid_out if out.shape == laid_out.shape else out for out in outs]
    for writes in groups:
        code = reduced_code([symbols[j] for j in writes], loops)
        size = math.prod(code.extents)
        works.append(Work(code, code.read, writes, (), size, code.extents, code.units))
        pairs += [(i, writes[j]) for i, j in code.inplace]
    read = {i for work in works for i in work.reads}
    alone = pairs if len(works) == 1 else []  # others still read what one has overwritten
    return ReducedForms(works, [spec if i in read else None for i, spec in enumerate(expected)], written, alone)


def _layout_of(
    symbols: Sequence[Symbol], groups: Sequence[Sequence[int]], specs: Sequence[TensorSpec], outs: Sequence[TensorSpec]
) -> TensorSpec | None:
    """Return the spec, in its layout, that all values of the reductions' shape can have; None: they are plain.

    There is no padding, and what has other shapes is read and written in plain order.

    Args:
        symbols: of the outputs.
        groups: which outputs are computed together.
        specs: of the inputs.
        outs: plain specs of the outputs.
    """
    if all(spec.layout is None for spec in specs):
        return None
    forms = [Form([symbols[j] for j in writes]) for writes in groups]
    base = forms[0].base
    loads = {load for form in forms for load in form.loads}
    whole = {load.input for load in loads if load.shape == base}
    made = [outs[j] for form, writes in zip(forms, groups) for j, all_ in zip(writes, form.of_elements) if all_]
    found = next((spec for spec in (specs[i] for i in sorted(whole)) if spec.layout and not spec.rounds), None)
    alike = {(spec.shape, spec.dtype) for spec in (*(specs[i] for i in whole), *made)}
    loops = None if found is None else found.layout.loops(base)
    if loops is None or alike != {(base, np.dtype(np.float32))} or any(form.base != base for form in forms):
        return None
    if math.prod(n for _, n in loops) != math.prod(base):
        return None
    if any(specs[load.input].shape == base for load in loads if load.shape != base):
        return None
    others = [tuple(n != 1 for n in load.shape) for load in loads if load.shape != base]
    others += [tuple(not reduced for reduced in form.reduced) for form in forms]
    orders = ([axis for axis, _ in merged([(axis, n) for axis, n in loops if has[axis]])] for has in others)
    return found if all(order == sorted(order) for order in orders) else None


def _groups(symbols: Sequence[Symbol]) -> list[list[int]]:
    """Return which outputs are computed together: those with reductions over the same axes, and those that fit these.

    Raises:
        NotTraced: an output does not fit.
    """
    found: dict[tuple[tuple[int, bool], ...], list[int]] = {}
    rest = []
    for j, symbol in enumerate(symbols):
        total = next(reductions_of(symbol.expression), None)
        if total is None:
            rest.append(j)
            continue
        axes: list[tuple[int, bool]] = []
        for axis, extent in enumerate(total.shape):
            reduced = axis in total.axes
            if axes and axes[-1][1] == reduced:
                axes[-1] = (axes[-1][0] * extent, reduced)
            elif extent != 1:
                axes.append((extent, reduced))
        found.setdefault(tuple(axes), []).append(j)
    for j in rest:
        sizes = {
            key: (math.prod(n for n, _ in key), math.prod(n for n, reduced in key if not reduced)) for key in found
        }
        fits = [key for key, of_key in sizes.items() if symbols[j].size in of_key]
        if not fits:
            raise NotTraced("outputs of other sizes than the reductions'")
        found[fits[0]].append(j)
    return [sorted(group) for group in found.values()]
