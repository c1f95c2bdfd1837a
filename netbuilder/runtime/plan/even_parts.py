"""The check that the parts of a batch have the same size where a batch normalization over all of them takes that."""

from __future__ import annotations

from collections.abc import Sequence

from netbuilder.ops.core.instructions import describe, located
from netbuilder.ops.normalization.spatial_bn import SpatialBN
from netbuilder.proto import PROTO_CPU, ShapeError
from netbuilder.proto.errors import counted
from netbuilder.runtime.plan.graph import PlanGraph
from netbuilder.runtime.plan.values import Node, Value

__all__ = ["check_even_parts"]

_SUMS, _COUNT = 5, 7  # indices of inputs of SpatialBN
_PASS_ON = ("Copy", "CopyCPUToGPU", "CopyGPUToCPU", "Sum")


def check_even_parts(graph: PlanGraph) -> None:
    """Check the parts whose sums are read by a SpatialBN that is not told the number of elements.

    Raises:
        ShapeError: parts have different sizes.
    """
    parts: dict[Value, list[Node]] = {}  # value -> the ChannelStats that it is the sum of
    for node in graph.nodes:
        kind, op = node.first.op_def.type, node.first.op
        if kind == "ChannelStats":
            parts.update((value, [node]) for value in node.outputs)
        elif kind in _PASS_ON and parts:
            found = [part for value in node.inputs for part in parts.get(value, ())]
            if found:
                parts[node.outputs[0]] = found
        elif isinstance(op, SpatialBN) and op.num_batches > 1 and len(node.inputs) == _COUNT:
            _check(graph.net, node, parts.get(node.inputs[_SUMS], ()))


def _check(net: str, node: Node, parts: Sequence[Node]) -> None:
    specs = [spec for part in parts if (spec := part.inputs[0].spec) is not None]
    if len({spec.size for spec in specs}) < 2:
        return
    sizes = ", ".join(
        f"{counted(spec.shape[0], 'sample')} of shape {spec.shape[1:]} on {_device(part)}"
        for spec, part in zip(specs, parts)
    )
    error = ShapeError(
        f"normalizes over {len(parts)} shares of a batch, which must have the same size, got {sizes}; feed equal "
        "shares, or build the model by Parallelize(..., weighted_shares=True), which counts the samples of each device"
    )
    raise located(describe(net, node.first), error)


def _device(node: Node) -> str:
    device_type, number = node.first.device
    return f"{'CPU' if device_type == PROTO_CPU else 'GPU'} {number}"
