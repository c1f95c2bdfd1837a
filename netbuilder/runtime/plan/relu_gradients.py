"""The gradient of a Relu runs before that of a MaxPool or Concat after it, where it is the same.

Where Y = relu(X) is pooled to Z, each element of Z is one of Y, and the gradient of MaxPool adds an element of dZ where
that element of Y is. So whether it passes the Relu can be told from Z: dX = pooled gradient of (dZ where Z > 0). The
same holds for Y that Concat copies to a part of Z. Gradients then need not keep Y, only Z, which the next convolution
keeps anyway; and after MaxPool the gradient of the Relu is computed on the smaller Z. The results are equal to the bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from netbuilder.runtime.plan.graph import PlanGraph
from netbuilder.runtime.plan.values import Node, Value

__all__ = ["move_relu_gradients"]


class _Moved(NamedTuple):
    """What the gradient of an operator that only copies elements is computed from.

    Args:
        sources: the operator's inputs, one for each output of its gradient.
        result: its output.
        gradient: the index of the output's gradient among the inputs of the operator's gradient.
    """

    sources: Sequence[Value]
    result: Value
    gradient: int


def move_relu_gradients(graph: PlanGraph) -> None:
    """Move each ReluGradient before the gradient that it can precede; fused operators stay as they are."""
    maker, readers = graph.makers(), graph.readers()
    instead: dict[Node, list[Node]] = {}
    for node in graph.nodes:
        moved = _moved_by(node, maker)
        if moved is None or not _stays(graph, moved.result, readers):
            continue
        relus = _relu_gradients(graph, node, moved, readers)
        if not relus:
            continue
        before = node.inputs[moved.gradient]
        between = Value(before.name, before.version, before.spec, None, before.location, readers=1, intermediate=True)
        graph.values.append(between)
        moved.result.readers += 1
        inputs = [between if i == moved.gradient else value for i, value in enumerate(node.inputs)]
        instead |= dict.fromkeys(relus, [])
        instead[node] = [
            Node([relu.first for relu in relus], [moved.result, before], [between]),
            Node(node.parts, inputs, [relu.outputs[0] for relu in relus]),
        ]
    graph.replace(instead)


def _moved_by(node: Node, maker: Mapping[Value, Node]) -> _Moved | None:
    """Return what a node is the gradient of, if that is an operator that only copies elements; else None."""
    if len(node.parts) > 1 or node.fused is not None:
        return None
    op_type = node.first.op_def.type
    if op_type == "MaxPoolGradient":
        x, y = node.inputs[:2]
        pool = maker.get(y)
        if pool is not None and pool.first.op_def.type == "MaxPool" and pool.inputs == [x]:
            return _Moved([x], y, 2)
    if op_type in ("Split", "DepthSplit") and len(node.inputs) == 2:
        joined = maker.get(node.inputs[1])  # only Concat makes extents
        if joined is None or joined.first.op_def.type not in ("Concat", "DepthConcat") or joined.fused is not None:
            return None
        if len(joined.inputs) == len(node.outputs):
            return _Moved(joined.inputs, joined.outputs[0], 0)
    return None


def _stays(graph: PlanGraph, value: Value, readers: Mapping[Value, Sequence[Node]]) -> bool:
    """Whether a value can be read later than before: nothing overwrites it."""
    if value.name not in graph.hidden:
        return graph.last[value.name] is value
    return all(output.name != value.name for node in readers.get(value, ()) for output in node.outputs)


def _relu_gradients(graph: PlanGraph, node: Node, moved: _Moved, readers: Mapping[Value, Sequence[Node]]) -> list[Node]:
    """Return the nodes that read the outputs of a gradient; [] unless each is a ReluGradient that can precede it."""
    found = []
    for source, output in zip(moved.sources, node.outputs):
        if len(readers.get(output, ())) != 1 or graph.visible(output):
            return []
        (relu,) = readers[output]
        first = relu.first
        if first.op_def.type != "ReluGradient" or len(relu.parts) > 1 or relu.fused is not None:
            return []
        if first.device != node.first.device or first.control or [source, output] != relu.inputs:
            return []
        written = relu.outputs[0]
        if written.version and written.name != output.name and written.name not in graph.hidden:
            return []  # it would be written before others have read the version before it
        found.append(relu)
    return found
