"""The gradient of a convolution's bias before a SpatialBN, on a GPU: zero, without a pass over dY.

A SpatialBN in training subtracts the mean of each channel, and so what a bias adds to it. The gradient that it gives
its images has the sum 0 in each channel, and that sum is the gradient of the bias. A kernel that adds the elements
finds what rounding has left of them, as Caffe2's does. Zero is within the error of such a sum, and exact.

It is computed from the gradient of the SpatialBN's bias, so that what is infinite or NaN there is NaN here, too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from netbuilder.ops.core.instructions import Instruction, read_instruction
from netbuilder.proto import PROTO_CUDA, OperatorDef
from netbuilder.proto.arguments import make_argument, make_op
from netbuilder.runtime.plan.graph import PlanGraph
from netbuilder.runtime.plan.values import Node, Value

__all__ = ["zero_bias_gradients"]

_CONVOLUTIONS = ("ConvGradient", "ConvTransposeGradient")


def zero_bias_gradients(graph: PlanGraph) -> None:
    """Replace the gradient of each bias before a SpatialBN over the batch of one device."""
    maker = graph.makers()
    newest: dict[str, Value] = {}
    instead: dict[Node, list[Node]] = {}
    for node in graph.nodes:
        of_bias = _zero_sum(node, maker)
        if of_bias is not None and newest[of_bias.name] is of_bias:
            instead[node] = [_zero(node, of_bias), _without_bias(node)]
        newest.update((value.name, value) for value in node.outputs)
    graph.replace(instead)


def _zero_sum(node: Node, maker: Mapping[Value, Node]) -> Value | None:
    """Return the gradient of a SpatialBN's bias if that of a convolution's bias is a sum of zero; else None."""
    first = node.first
    conv: Any = first.op
    if first.op_def.type not in _CONVOLUTIONS or first.device[0] != PROTO_CUDA or not conv.computes_db:
        return None
    made = maker.get(node.inputs[2])
    if made is None or made.first.op_def.type != "SpatialBNGradient" or made.first.device != first.device:
        return None
    bn: Any = made.first.op
    whole = not bn.is_test and bn.num_batches <= 1 and len(made.inputs) == 5
    if not whole or bn.order != conv.order or made.outputs[0] is not node.inputs[2]:
        return None
    of_bias, db = made.outputs[2], node.outputs[1]
    return of_bias if of_bias.spec == db.spec else None


def _zero(node: Node, of_bias: Value) -> Node:
    first, db = node.first, node.outputs[1]
    of_bias.readers += 1
    op_def = make_op("Scale", [of_bias.name], [db.name], scale=0.0)
    op_def.device_option.CopyFrom(first.op_def.device_option)
    return Node([_read(first, op_def)], [of_bias], [db])


def _without_bias(node: Node) -> Node:
    first = node.first
    op_def = OperatorDef()
    op_def.CopyFrom(first.op_def)
    del op_def.output[1], op_def.arg[:]
    op_def.arg.extend(each for each in first.op_def.arg if each.name != "no_bias")
    op_def.arg.append(make_argument("no_bias", 1))
    return Node([_read(first, op_def)], node.inputs, [node.outputs[0], *node.outputs[2:]])


def _read(first: Instruction, op_def: OperatorDef) -> Instruction:
    return dataclasses.replace(read_instruction(first.index, op_def, first.device), role=first.role)
