"""ONNX nodes whose inputs are all constant, computed while a model is read, with a limit on what they may make."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from netbuilder.proto import OperatorError

__all__ = ["MOST_ELEMENTS", "compute_node"]

Array = np.ndarray[Any, Any]

MOST_ELEMENTS = 1 << 26
"""Elements that the computed constants of a model may have, all together."""

_SMALL = 1024  # elements of an input that shape inference looks at
_SELECTS = {"Compress", "NonZero", "Unique", "NonMaxSuppression"}  # no more elements, or indices of each axis


def compute_node(onnx: Any, node: Any, opsets: list[Any], constants: Mapping[str, Array], most: int) -> list[Array]:
    """Return the outputs of a node.

    Args:
        onnx: the package.
        node: its inputs are in ``constants``.
        opsets: of the model.
        constants: arrays by name.
        most: elements that the outputs may have.

    Raises:
        OperatorError: the node holds a graph, so that it can loop; or its outputs would have more elements, or nobody
            can say how many.
    """
    if any(each.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for each in node.attribute):
        raise OperatorError("nodes of constants that hold graphs are not computed")
    helper = onnx.helper
    inputs = {name: constants[name] for name in dict.fromkeys(node.input) if name}
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in inputs.items()
    ]
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
    graph = helper.make_graph([node], "constants", infos, outputs)
    model = helper.make_model(graph, opset_imports=opsets)
    claimed = _elements(onnx, model, inputs)
    if claimed is None and node.op_type in _SELECTS:
        claimed = sum(value.size * max(value.ndim, 1) for value in inputs.values())
    if claimed is None:
        raise OperatorError("it is constant, and how large it is cannot be inferred")
    if claimed > most:
        raise OperatorError(
            f"it makes a constant of {claimed:,} elements, and {most:,} are left of the {MOST_ELEMENTS:,} that "
            "computed constants may have"
        )
    from onnx.reference import ReferenceEvaluator

    with np.errstate(all="ignore"):
        return [np.asarray(value) for value in ReferenceEvaluator(model).run(None, inputs)]


def _elements(onnx: Any, model: Any, inputs: Mapping[str, Array]) -> int | None:
    """Return how many elements the outputs of a model of one node have, None if that cannot be inferred."""
    known = type(model)()
    known.CopyFrom(model)
    for name, value in inputs.items():
        if value.size <= _SMALL:
            known.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    found = onnx.shape_inference.infer_shapes(known, data_prop=True).graph
    total = 0
    for output in found.output:
        if not output.type.tensor_type.HasField("shape"):
            return None
        size = 1
        for extent in output.type.tensor_type.shape.dim:
            if not extent.HasField("dim_value") or extent.dim_value < 0:
                return None
            size *= extent.dim_value
        total += size
    return total
