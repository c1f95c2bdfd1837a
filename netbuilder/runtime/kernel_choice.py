"""Which kernel serves an operator of a plan, and in which order images lie."""

from __future__ import annotations

from collections.abc import Sequence

from netbuilder.ops.contexts import ANY_ORDER, Prepared
from netbuilder.ops.engines.engine import HOST, library_engines
from netbuilder.ops.operator import STRING, TensorSpec
from netbuilder.ops.registry import plain_kernel, prepared_kernels
from netbuilder.proto import NetError
from netbuilder.runtime.node_context import NodeContext
from netbuilder.runtime.plain import plain_prepared
from netbuilder.runtime.setting import Setting
from netbuilder.runtime.values import Node

__all__ = ["choose_image_order", "choose_kernel"]


def choose_image_order(nodes: Sequence[Node], setting: Setting) -> str:
    """Return in which order images should lie: measured where all convolutions have constant weights."""
    engines = library_engines(setting.allows) if setting.does("measured_choices") else []
    convs = [node for node in nodes if node.first.op_def.type == "Conv" and node.first.location == HOST]
    if not engines or not convs or not all(node.inputs[1].constant for node in convs):
        return ANY_ORDER
    specs = [[value.spec for value in node.inputs[: node.first.op.n_in]] for node in convs]
    known = [
        (node.first.op, [spec for spec in plain if spec is not None])
        for node, plain in zip(convs, specs)
        if None not in plain
    ]
    orders = (engine.best_image_order(known, setting.lane_threads, setting.precision) for engine in engines)
    return next((order for order in orders if order is not None), ANY_ORDER)


def choose_kernel(node: Node, ctx: NodeContext, setting: Setting) -> Prepared | None:
    """Return the kernel of a node; None if there is none for operators joined."""
    specs = [value.spec for value in node.inputs]
    if node.fused is not None:
        return node.fused(ctx, *specs)
    instruction = node.first
    op_type, device_type = instruction.op_def.type, instruction.device[0]
    for row in prepared_kernels(op_type, device_type):
        if setting.allows(row.engine) and (row.engine or setting.does("bound_kernels") or _has_text(specs)):
            prepared = row.make(instruction.op, ctx, *specs)
            if prepared is not None:
                return prepared
    kernel = plain_kernel(op_type, device_type)
    if kernel is None:
        raise NetError(f"no kernel of {op_type!r} serves inputs {[s and (s.shape, str(s.dtype)) for s in specs]}")
    outs = [value.spec for value in node.outputs]
    return plain_prepared(instruction.op, ctx.run, kernel, specs, outs, instruction.location)  # type: ignore[arg-type]


def _has_text(specs: Sequence[TensorSpec | None]) -> bool:
    return any(spec is not None and spec.dtype == STRING for spec in specs)
