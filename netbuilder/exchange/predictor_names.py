"""Inputs and outputs of a predictor whose files do not name them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from netbuilder.exchange.mobile_exporter import PLACEHOLDER
from netbuilder.graph.defuse import undefined_inputs
from netbuilder.proto import NetDef, OperatorDef
from netbuilder.proto.arguments import arguments

__all__ = ["find_inputs", "find_outputs"]


def find_inputs(net: NetDef, init_net: NetDef, filled: Mapping[str, Any], parameters: Collection[str]) -> list[str]:
    """Return the inputs of a predict net.

    These are the external inputs (if the net lists none: the blobs that it reads and never makes) that are not
    parameters, and that the init net does not fill, or fills with the placeholder that ``Export`` writes. If there are
    none, they are the blobs that the init net fills with zeros by ConstantFill and that operators read only as their
    first input: so Caffe2's translator of Caffe models writes the image; weights and biases are other inputs.

    Args:
        net, init_net: the predictor.
        filled: arrays that the init net holds.
        parameters: names of parameters that the init net does not fill.
    """
    made = {blob for op in init_net.op for blob in op.output}.union(parameters)
    names = list(dict.fromkeys(net.external_input or undefined_inputs(net.op)))
    fed = [blob for blob in names if blob not in made or blob in filled and _is_placeholder(filled[blob])]
    if fed:
        return fed
    zeros = {op.output[0] for op in init_net.op if op.output and _fills_zeros(op)}.difference(parameters)
    others = {blob for op in net.op for blob in op.input[1:]}
    return [blob for blob in names if blob in zeros and blob not in others]


def find_outputs(net: NetDef) -> list[str]:
    """Return the external outputs of a predict net; if it lists none, the results that no operator reads.

    If one output of an operator is read, the others, such as the mask of a Dropout, do not count as results.

    >>> from netbuilder.proto.arguments import make_op
    >>> net = NetDef(op=[make_op("Dropout", ["x"], ["y", "mask"], is_test=1), make_op("Softmax", ["y"], ["scores"])])
    >>> find_outputs(net)
    ['scores']
    """
    if net.external_output:
        return list(net.external_output)
    writer = {blob: index for index, op in enumerate(net.op) for blob in op.output}
    readers: dict[str, int] = {}
    for index, op in enumerate(net.op):
        readers.update(dict.fromkeys(op.input, index))
    found: list[str] = []
    for index, op in enumerate(net.op):
        if all(writer[blob] == index and readers.get(blob, -1) <= index for blob in op.output):
            found += op.output
    return found


def _is_placeholder(value: Any) -> bool:
    return value.dtype == PLACEHOLDER.dtype and value.shape == PLACEHOLDER.shape and not value.any()


def _fills_zeros(op: OperatorDef) -> bool:
    return op.type == "ConstantFill" and not op.input and not arguments(op).get("value", 0)
