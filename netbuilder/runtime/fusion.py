"""Fusion: neighbours that become one kernel where nobody can see the value between them.

A value can be seen if it is the last version of its name. Two kinds of neighbours are joined:

- an activation in place behind the operator that made its input (``SpatialBN`` and ``Relu``): the value between
  them is overwritten, so no one misses it;
- ``ReluGradient`` in place before ``SpatialBNGradient``: the value between is the last version of its name, but it
  can be computed from what both read; the blob gets that computation, and a fetch runs it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from netbuilder.ops.contexts import Prepared
from netbuilder.ops.engines.layouts import HOST, convert
from netbuilder.ops.engines.onednn.kernels_conv import fused_conv
from netbuilder.ops.engines.onednn.kernels_dense import fused_fc_relu
from netbuilder.ops.engines.onednn.kernels_eltwise import fused_sum_relu
from netbuilder.ops.engines.onednn.kernels_norm import fused_bn_relu, fused_bn_relu_gradient
from netbuilder.ops.registry import plain_kernel
from netbuilder.runtime.blob import EdgeContext
from netbuilder.runtime.run_context import KernelContext
from netbuilder.runtime.values import Node, Value

__all__ = ["fuse"]

Maker = Callable[..., Prepared | None]

# Operator in front of a Relu -> the maker of the joint kernel, given the operator in front and its inputs.
_WITH_RELU: dict[str, Maker] = {
    "SpatialBN": fused_bn_relu,
    "Sum": fused_sum_relu,
    "FC": fused_fc_relu,
    "Conv": lambda op, ctx, *specs: fused_conv(op, ctx, specs, relu=True),
}


def fuse(nodes: list[Node], last: dict[str, Value]) -> list[Node]:
    """Return the nodes of a plan with neighbours joined where a kernel for both exists.

    Args:
        nodes: operators over values, in order.
        last: the last version of each name, which stays observable.
    """
    producer = {id(value): node for node in nodes for value in node.outputs}
    reader: dict[int, Node] = {}
    for node in nodes:
        for value in node.inputs:
            reader[id(value)] = node
    joined: dict[int, Node] = {}  # the node that takes the place of another, by identity of the latter
    dropped: set[int] = set()
    for node in nodes:
        if node.first.location != HOST:
            continue
        kind = node.first.op_def.type
        if kind == "Relu":
            _join_relu(node, producer, last, joined, dropped)
        elif kind == "ReluGradient":
            _join_relu_gradient(node, producer, reader, last, joined, dropped)
    return [joined.get(id(node), node) for node in nodes if id(node) not in dropped]


def _join_relu(
    relu: Node, producer: dict[int, Node], last: dict[str, Value], joined: dict[int, Node], dropped: set[int]
) -> None:
    between, after = relu.inputs[0], relu.outputs[0]
    source = producer.get(id(between))
    if source is None or between.readers != 1 or between.name != after.name or last[between.name] is between:
        return
    front = source.first
    make = _WITH_RELU.get(front.op_def.type)
    if make is None or source.outputs[0] is not between or front.device != relu.first.device:
        return
    if any(value.name == between.name for value in source.inputs):
        return  # the operator in front works in place itself
    if front.op_def.type == "Sum" and len(source.inputs) != 2:
        return

    def maker(ctx: Any, *specs: Any) -> Prepared | None:
        return make(front.op, ctx, *specs)

    outputs = [after, *source.outputs[1:]]
    node = Node([front, relu.first], source.inputs, outputs, maker, originals=[source, relu])
    joined[id(source)] = node
    dropped.add(id(relu))


def _join_relu_gradient(
    relu: Node,
    producer: dict[int, Node],
    reader: dict[int, Node],
    last: dict[str, Value],
    joined: dict[int, Node],
    dropped: set[int],
) -> None:
    y, before = relu.inputs
    between = relu.outputs[0]
    target = reader.get(id(between))
    if target is None or between.readers != 1 or between.name != before.name or last[between.name] is not between:
        return
    front = target.first
    if front.op_def.type != "SpatialBNGradient" or target.inputs[2] is not between or front.device != relu.first.device:
        return
    forward = producer.get(id(y))
    normalised = producer.get(id(target.inputs[3]))
    if forward is None or forward.first.op_def.type != "Relu" or producer.get(id(forward.inputs[0])) is not normalised:
        return
    if before.version == 0 and before.blob is not None:
        return  # fed from outside: nothing of ours may change what the blob holds

    def maker(ctx: Any, *specs: Any) -> Prepared | None:
        prepared = fused_bn_relu_gradient(front.op, ctx, *specs)
        if prepared is not None:
            between.lazy = _relu_gradient_of(relu, y, before)
            between.lazy_from = before
        return prepared

    x, scale, _, mean, deviation = target.inputs[:5]
    node = Node(
        [front, relu.first], [x, scale, before, mean, deviation], target.outputs, maker, originals=[relu, target]
    )
    joined[id(target)] = node
    dropped.add(id(relu))


def _relu_gradient_of(relu: Node, y: Value, dy: Value) -> Callable[[], Any]:
    instruction = relu.first
    kernel = plain_kernel("ReluGradient", 0)
    context = KernelContext(instruction.op_def, device=instruction.device)
    assert kernel is not None

    def compute() -> Any:
        return np.asarray(kernel(instruction.op, context, _plain(y), _plain(dy))[0])

    return compute


def _plain(value: Value) -> Any:
    assert value.spec is not None
    if value.spec.layout is None:
        return value.buffer
    return convert(value.buffer, value.spec, value.spec.plain, EdgeContext())
