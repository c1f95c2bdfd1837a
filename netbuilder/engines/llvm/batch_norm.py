"""Batch normalization in training whose result is not stored: the activation after it and the gradients compute it.

The normalization computes statistics alone. An activation reads what the normalization reads, and its statistics; so
does the kernel of both gradients, which passes over the images twice: it adds up the gradients of scale and bias, and
keeps the gradient of the activation where that of the images will be. All are the plain kernels, traced together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from netbuilder.engines.fusion import Fusion, Unstored
from netbuilder.engines.llvm import machine
from netbuilder.engines.llvm.elementwise import ElementwiseForm, elementwise, form_of, prepared_form
from netbuilder.engines.llvm.reducing import ReducedForms, forms_of, prepared_forms
from netbuilder.engines.programs import NotTraced
from netbuilder.engines.remembered import Remembered
from netbuilder.engines.traced import kernel_title, operator_key, trace_inputs, trace_operator
from netbuilder.engines.tracing import Symbol, Tracer
from netbuilder.ops.core.contexts import Call, PlanContext, Prepared
from netbuilder.ops.core.image_order import normalized
from netbuilder.ops.core.operator import Operator, TensorSpec

__all__ = ["BATCH_NORM_FUSIONS", "UNSTORED_BATCH_NORM"]

_FROM_INPUT = {"Gelu": ("dy", "a"), "Mish": ("a", "y", "dy"), "Swish": ("a", "y", "dy")}
"""Activations whose gradients read what the activation has read, with the inputs of the gradients."""

_ACTIVATIONS = (*_FROM_INPUT, "LeakyRelu", "ReluN")
_SOURCES = 5  # X, mean, inverse deviation, scale, bias
_Makers = Sequence[Any] | None  # the normalization
_Trace = Callable[[Tracer], tuple[Sequence[Symbol], Sequence[TensorSpec]]]

_elementwise = Remembered[ElementwiseForm | None](256)
_reduced = Remembered[ReducedForms | None](256)


def _of_images(ctx: PlanContext, key: Any, specs: Sequence[TensorSpec], trace: _Trace, title: str) -> Prepared | None:
    """Return the kernel of what is traced, if it reads input 0 in the layout in which it is.

    Whether there is one must not depend on the layouts of other inputs, which are chosen later.
    """
    given = specs if specs[0].layout is not None else [spec.plain for spec in specs]

    def made() -> ReducedForms | None:
        try:
            symbols, outs = trace(Tracer(is_gpu=False))
            found = forms_of(symbols, given, outs)
        except NotTraced:
            return None
        return found if found.expected[0] == given[0] else None

    forms = _reduced((key, *given), made) if machine.available() else None
    return None if forms is None else prepared_forms(ctx, forms, title)


def _result(tracer: Tracer, op: Any, specs: Sequence[TensorSpec], numbers: Sequence[int]) -> Any:
    """Return what a SpatialBN would have stored, from its sources, which have some numbers among the inputs."""
    x, mean, inverse, scale, bias = (tracer.input(i, spec.plain) for i, spec in zip(numbers, specs))
    return normalized(op.order, x, scale, bias, mean, inverse)


def _statistics(
    ops: Sequence[Any], ctx: PlanContext, *specs: TensorSpec, computes: _Makers, stored: bool
) -> Prepared | None:
    """Prepare the statistics that a SpatialBN writes; what stores its result, too, is left to others."""
    (op,), plain = ops, [spec.plain for spec in specs]
    if stored or op.is_test or op.num_batches > 1 or not plain[0].size:
        return None

    def trace(tracer: Tracer) -> tuple[Sequence[Symbol], Sequence[TensorSpec]]:
        outs = op.infer(*plain)
        return trace_operator(tracer, op, trace_inputs(tracer, op, plain), outs)[1:], outs[1:]

    found = _of_images(ctx, operator_key(op, specs), specs, trace, "batch_statistics")
    if found is None:
        return None

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        return found.bind(inputs, outputs[1:], scratch)

    return Prepared(found.inputs, [None, *found.outputs], bind, inplace=[(3, 1), (4, 2)], name=found.name)


def _activation(
    ops: Sequence[Any], ctx: PlanContext, *specs: TensorSpec, computes: _Makers, stored: bool
) -> Prepared | None:
    """Prepare an activation."""
    (op,) = ops
    if computes is None:
        return elementwise(op, ctx, *specs)
    (bn,), own = computes, specs[1:]

    def form() -> ElementwiseForm | None:
        tracer, plain = Tracer(is_gpu=False), [spec.plain for spec in own]
        try:
            result = _result(tracer, bn, plain, range(_SOURCES))
            program = tracer.program(trace_operator(tracer, op, [result], plain[:1]))
            return form_of(program, own, plain[:1])
        except NotTraced:
            return None

    found = _elementwise((operator_key(bn, own), operator_key(op, specs[:1])), form)
    if found is None or found.found is None or found.found.written[0].layout != own[0].layout:
        return None
    made = prepared_form(ctx, f"batch_norm_{kernel_title(op.type)}", found)
    if made is None:
        return None

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        return made.bind(inputs[1:], outputs, scratch)

    pairs = [(i + 1, j) for i, j in made.inplace]
    return Prepared([None, *made.inputs], made.outputs, bind, made.scratch, inplace=pairs, name=made.name)


def _gradients(
    ops: Sequence[Any], ctx: PlanContext, *specs: TensorSpec, computes: _Makers, stored: bool
) -> Prepared | None:
    """Prepare the gradients of an activation and of the SpatialBN before it, with the Sum before these.

    X, scale, mean, inverse deviation, A, [Y], dY -> dX, dscale, dbias, where the activation has made Y of A; with a
    Sum, what it adds is in place of dY. With ``computes`` the sources of A follow, of which the bias is read.
    """
    of_bn, of_activation, *sums = ops
    first = 3 + of_activation.n_in
    added = range(first, len(specs) - (0 if computes is None else _SOURCES))
    if of_bn.is_test or of_bn.num_batches > 1 or not specs[0].size:
        return None
    plain = [spec.plain for spec in specs]
    name = of_activation.type.removesuffix("Gradient")

    def trace(tracer: Tracer) -> tuple[Sequence[Symbol], Sequence[TensorSpec]]:
        x, scale, mean, inverse, *read = (tracer.input(i, plain[i]) for i in range(first))
        if computes is not None:
            result = _result(tracer, computes[0], plain[-_SOURCES:], (0, 2, 3, 1, len(specs) - 1))
            if len(read) > 1:  # of an activation without arguments
                activation = of_activation.gradient_of().with_arity(1, 1)
                read[1:] = trace_operator(tracer, activation, [result], plain[:1])
            read[0] = result
        dy = [tracer.input(i, plain[i]) for i in added]
        for op in sums:
            dy = [*trace_operator(tracer, op, dy, plain[:1])]
        values = dict(zip(("a", "y"), read), dy=dy[0])
        g = trace_operator(tracer, of_activation, [values[each] for each in _FROM_INPUT[name]], plain[:1])[0]
        outs = of_bn.infer(plain[0], plain[1], plain[0], plain[2], plain[3])
        return trace_operator(tracer, of_bn, [x, scale, g, mean, inverse], outs), outs

    key = (*(operator_key(op, specs) for op in (*ops, *(computes or ()))), computes is None)
    return _of_images(ctx, key, specs, trace, f"spatial_bn_{kernel_title(name)}_gradient")


def _fused_gradients(*given: Any) -> Prepared | None:
    """Prepare the gradients, see ``_gradients``; is given the operators, the context and the specs."""
    number = next(i for i, each in enumerate(given) if not isinstance(each, Operator))
    return _gradients(given[:number], *given[number:], computes=None, stored=True)


_INPUTS = {name: " ".join(["x scale mean inverse", *sorted({*read} - {"dy"})]) for name, read in _FROM_INPUT.items()}

BATCH_NORM_FUSIONS = tuple(
    fusion
    for name, read in _FROM_INPUT.items()
    for fusion in (
        Fusion(
            f"{name}Gradient: {' '.join(read)} -> g; SpatialBNGradient: x scale g mean inverse -> *made",
            f"{_INPUTS[name]} dy -> *made",
            _fused_gradients,
            main=1,
            further=(0,),
        ),
        Fusion(
            f"Sum: p q -> dy; SpatialBNGradient+{name}Gradient: {_INPUTS[name]} dy -> *made",
            f"{_INPUTS[name]} p q -> *made",
            _fused_gradients,
            main=1,
            place=1,
            further=(2, 0),
            of_joined=True,
        ),
    )
)
"""The gradients of an activation and of the normalization before it are one kernel."""

UNSTORED_BATCH_NORM = Unstored(
    "a",
    sources="x mean inverse scale bias",
    makers={"SpatialBN: x scale bias running variance -> a new_mean new_variance mean inverse": _statistics},
    readers={
        **{f"{name}: a -> y": _activation for name in _ACTIVATIONS},
        **{
            f"SpatialBNGradient+{name}Gradient{addition}: {_INPUTS[name]} {given} -> *made": _gradients
            for name in _FROM_INPUT
            for addition, given in (("", "dy"), ("+Sum", "p q"))
        },
    },
    faster=lambda *_: True,
)
"""What a normalization makes is not stored if only an activation and the gradients read it."""
