"""The choice of the kernel for each operator of a plan, and of the order in which images are stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from netbuilder.ops.core.contexts import ANY_ORDER, Prepared
from netbuilder.ops.core.operator import STRING, TensorSpec
from netbuilder.ops.core.registry import GPU, plain_kernel, prepared_kernels
from netbuilder.ops.engines.engine import HOST, find_engine, library_engines
from netbuilder.ops.engines.tf32 import with_tf32
from netbuilder.proto import NetError
from netbuilder.runtime.plan.node_context import NodeContext
from netbuilder.runtime.plan.options import PlanOptions
from netbuilder.runtime.plan.plain_kernels import plain_prepared
from netbuilder.runtime.plan.values import Node

__all__ = ["choose_image_order", "choose_kernel"]


def choose_image_order(nodes: Sequence[Node], options: PlanOptions) -> str:
    """Return in which order images should be stored: measured if all convolutions have constant weights."""
    engines = library_engines(options.uses_engine, HOST[0]) if options.enabled("measured_choices") else []
    convs = [node for node in nodes if node.first.op_def.type == "Conv" and node.first.location == HOST]
    if not engines or not convs or not all(node.inputs[1].constant for node in convs):
        return ANY_ORDER
    specs = [[value.spec for value in node.inputs[: node.first.op.n_in]] for node in convs]
    known = [
        (node.first.op, [spec for spec in plain if spec is not None])
        for node, plain in zip(convs, specs)
        if None not in plain
    ]
    orders = (engine.best_image_order(known, options.lane_threads, options.precision) for engine in engines)
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
    for row in prepared_kernels(op_type, device_type) if static else ():
        there = find_engine(row.engine).available() if row.engine else bound_numpy
        if there and options.uses_engine(row.engine):
            prepared = row.make(instruction.op, ctx, *specs)
            if prepared is not None and not (ctx.in_subgraph and prepared.split):
                return prepared
    if kernel is None:
        given = [spec and (spec.shape, str(spec.dtype)) for spec in specs]
        raise NetError(
            f"operator {op_type!r} has no kernel for inputs of these shapes and types: {given}; docs/operators.md says "
            "what it takes"
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


def _has_text(specs: Sequence[TensorSpec | None]) -> bool:
    return any(spec is not None and spec.dtype == STRING for spec in specs)
