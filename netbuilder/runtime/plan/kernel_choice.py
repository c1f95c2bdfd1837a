"""The choice of the kernel for each operator of a plan, and of the order in which images are stored."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from netbuilder.engines.engine import HOST, engine_names, find_engine, library_engines
from netbuilder.engines.tf32 import with_tf32
from netbuilder.ops.core.contexts import ANY_ORDER, Prepared
from netbuilder.ops.core.extensions import SplitKernel
from netbuilder.ops.core.instructions import Instruction
from netbuilder.ops.core.operator import STRING, TensorSpec
from netbuilder.ops.core.registry import GPU, plain_kernel, prepared_kernels
from netbuilder.proto import NetError
from netbuilder.proto.errors import counted
from netbuilder.runtime.plan.node_context import NodeContext
from netbuilder.runtime.plan.options import PlanOptions
from netbuilder.runtime.plan.plain_kernels import plain_prepared
from netbuilder.runtime.plan.values import Node

__all__ = ["choose_image_order", "choose_kernel", "said"]


def choose_image_order(nodes: Sequence[Node], options: PlanOptions) -> str:
    """Return in which order images should be stored: measured if all convolutions have constant weights.

    A Concat has kernels for blocked channels and for plain order, so that nets with one keep the blocks.
    """
    engines = library_engines(options.uses_engine, HOST[0]) if options.enabled("measured_choices") else []
    convs = [node for node in nodes if node.first.op_def.type == "Conv" and node.first.location == HOST]
    if not engines or not convs or not all(node.inputs[1].constant for node in convs):
        return ANY_ORDER
    if any(node.first.op_def.type == "Concat" for node in nodes):
        return ANY_ORDER
    specs = [[value.spec for value in node.inputs[: node.first.op.n_in]] for node in convs]
    known = [
        (node.first.op, [spec for spec in plain if spec is not None])
        for node, plain in zip(convs, specs)
        if None not in plain
    ]
    orders = (engine.best_image_order(known, options.lane_threads, options.dtype) for engine in engines)
    return next((order for order in orders if order is not None), ANY_ORDER)


def choose_kernel(node: Node, ctx: NodeContext, options: PlanOptions) -> Prepared | None:
    """Return the kernel of a node; None if a fused node has none for these inputs."""
    specs: list[Any] = [_spec_as_read(node, i) for i in range(len(node.inputs))]
    if node.fused is not None:
        return node.fused(ctx, *specs)
    instruction = node.first
    op_type, device_type = instruction.op_def.type, instruction.device[0]
    kernel = plain_kernel(op_type, device_type)
    static = instruction.op.static_for(*specs)
    bound_numpy = options.enabled("bound_kernels") or kernel is None or _has_text(specs)
    if instruction.op_def.engine:
        _say_unavailable(instruction, options)
    for row in prepared_kernels(op_type, device_type) if static else ():
        there = find_engine(row.engine).available() if row.engine else bound_numpy
        if there and options.uses_engine(row.engine):
            prepared = row.make(instruction.op, ctx, *specs)
            if prepared is not None and not (ctx.in_subgraph and prepared.get(SplitKernel)):
                return prepared
            if row.engine and row.engine == instruction.op_def.engine:
                _say_declined(instruction, specs)
    if kernel is None:
        given = [spec and (spec.shape, str(spec.dtype)) for spec in specs]
        raise NetError(
            f"operator {op_type!r} has no kernel for inputs of these shapes and types: {given}; "
            f"help(netbuilder.ops.core.registry.find({op_type!r})) says what it takes"
        )
    outs: list[Any] = [value.spec for value in node.outputs]
    if options.allow_tf32 and device_type == GPU:
        kernel = with_tf32(kernel)
    return plain_prepared(instruction.op, ctx.run, kernel, specs, outs, instruction.location, reshape=not static)


def _spec_as_read(node: Node, index: int) -> TensorSpec | None:
    """Return the spec of an input where the kernel reads it: a value of another location comes in plain order."""
    value = node.inputs[index]
    if value.spec is None or value.spec.layout is None or value.location == node.input_location(index):
        return value.spec
    return value.spec.plain


said: set[tuple[str, ...]] = set()


def _say_unavailable(instruction: Instruction, options: PlanOptions) -> None:
    """Warn, once for each engine, that an operator asks for one that cannot be used here."""
    name = instruction.op_def.engine
    if name not in engine_names() or not options.uses_engine(name):
        return  # one of Caffe2's that is not known here, or one that the user has forbidden
    engine = find_engine(name)
    if instruction.device[0] in engine.device_types and not engine.available():
        _say_once((name,), f"{_named(instruction)} {name!r}, which cannot be used here: {engine.why_unavailable()}")


def _say_declined(instruction: Instruction, specs: Sequence[TensorSpec | None]) -> None:
    """Warn, once for each type of operator and kind of inputs, that the engine it asks for has no kernel for it."""
    op_def = instruction.op_def
    given = [f"{spec.dtype} with {counted(spec.ndim, 'axis', 'axes')}" for spec in specs if spec is not None]
    _say_once(
        (op_def.engine, op_def.type, *given),
        f"{_named(instruction)} {op_def.engine!r}, which has no kernel for its arguments and inputs "
        f"({', '.join(given)}): another kernel, which may be much slower, computes it; netbuilder-profile lists the "
        "kernel of each operator",
    )


def _named(instruction: Instruction) -> str:
    outputs = ", ".join(map(repr, instruction.op_def.output))
    return f"operator {instruction.op_def.type} with output {outputs} asks for the engine"


def _say_once(key: tuple[str, ...], text: str) -> None:
    if key not in said:
        said.add(key)
        warnings.warn(text, RuntimeWarning, stacklevel=2)


def _has_text(specs: Sequence[TensorSpec | None]) -> bool:
    return any(spec is not None and spec.dtype == STRING for spec in specs)
