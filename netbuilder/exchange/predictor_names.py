"""Inputs and outputs of a predictor whose files do not name them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from netbuilder.exchange.fills import fill_values
from netbuilder.graph.blob import blob_name
from netbuilder.graph.defuse import undefined_inputs
from netbuilder.proto import ArgumentError, NetDef, NetError, OperatorDef
from netbuilder.proto.arguments import arguments
from netbuilder.proto.call_checks import is_whole
from netbuilder.proto.suggestions import near_or_known
from netbuilder.runtime.values.placeholder import is_placeholder

__all__ = ["find_inputs", "find_outputs", "find_placeholders", "given_shapes"]


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
    fed = [blob for blob in names if blob not in made or blob in filled and is_placeholder(filled[blob])]
    if fed:
        return fed
    zeros = {op.output[0] for op in init_net.op if op.output and _fills_zeros(op)}.difference(parameters)
    others = {blob for op in net.op for blob in op.input[1:]}
    return [blob for blob in names if blob in zeros and blob not in others]


def find_placeholders(net: NetDef, init_net: NetDef) -> list[str]:
    """Return the inputs of a net that its init net fills with a placeholder, whose shape is not that of the input.

    Such init nets are written by ``Export``, and by Caffe2's translator of Caffe models.
    """
    small = [op for op in init_net.op if len(op.output) == 1 and arguments(op).get("shape") in ([1], [1, 1])]
    values = {op.output[0]: value for op in small if (value := fill_values(op)) is not None}
    zeros = {op.output[0] for op in small if _fills_zeros(op)}
    return [blob for blob in find_inputs(net, init_net, values, ()) if blob in values or blob in zeros]


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


def given_shapes(shapes: Mapping[Any, Any], inputs: Collection[str], where: str) -> dict[str, Any]:
    """Return the shapes that a caller gives for inputs by name.

    Args:
        shapes: by blob: shapes, or what has a shape and a type, such as an array.
        inputs: the names that are possible.
        where: the net, in errors.

    Raises:
        NetError: a blob is no input.
        ArgumentError: one is not a shape.
    """
    if not isinstance(shapes, Mapping):
        raise ArgumentError(f"{where}: shapes must be {{input: shape}}, got {shapes!r}")
    given = {blob_name(blob): shape for blob, shape in shapes.items()}
    for name, shape in given.items():
        if name not in inputs:
            raise NetError(f"{where}: shapes: there is no input {name!r}{near_or_known(name, inputs, 'inputs')}")
        if not hasattr(shape, "dtype") and not (isinstance(shape, (list, tuple)) and all(map(is_whole, shape))):
            raise ArgumentError(
                f"{where}: shapes: that of {name!r} must be whole numbers, the batch first, got {shape!r}; the "
                "net runs with other batches, too"
            )
    return given


def _fills_zeros(op: OperatorDef) -> bool:
    given = arguments(op)
    return op.type == "ConstantFill" and not op.input and not given.get("value", 0) and given.get("dtype", 1) == 1
