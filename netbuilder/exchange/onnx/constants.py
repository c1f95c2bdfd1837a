"""Constant folding: ONNX nodes with constant inputs, computed while a model is read, up to a limit on their size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from netbuilder.proto import OperatorError

__all__ = ["MOST_ELEMENTS", "MOST_WORK", "LargeConstantError", "compute_node", "is_cheap"]

Array = np.ndarray[Any, Any]

MOST_ELEMENTS = 1 << 26
"""Largest total number of elements of a model's folded constants."""

MOST_WORK = 1 << 30
"""Largest total number of elements that are read to compute them."""

_CHEAP = frozenset({
    "Abs", "Acos", "Acosh", "Add", "And", "ArgMax", "ArgMin", "Asin", "Asinh", "Atan", "Atanh", "BatchNormalization",
    "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Cast", "CastLike", "Ceil", "Celu", "Clip",
    "Compress", "Concat", "Constant", "ConstantOfShape", "Cos", "Cosh", "CumSum", "DepthToSpace", "DequantizeLinear",
    "Div", "Elu", "Equal", "Erf", "Exp", "Expand", "EyeLike", "Flatten", "Floor", "Gather", "GatherElements",
    "GatherND", "Gelu", "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity", "InstanceNormalization",
    "IsInf", "IsNaN", "LeakyRelu", "Less", "LessOrEqual", "Log", "LogSoftmax", "Max", "Mean", "Min", "Mod", "Mul",
    "Neg", "NonZero", "Not", "OneHot", "Or", "PRelu", "Pad", "Pow", "QuantizeLinear", "Range", "Reciprocal",
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
    "ReduceSum", "ReduceSumSquare", "Relu", "Reshape", "Round", "ScatterElements", "ScatterND", "Selu", "Shape",
    "Shrink", "Sigmoid", "Sign", "Sin", "Sinh", "Size", "Slice", "Softmax", "Softplus", "Softsign", "SpaceToDepth",
    "Split", "Sqrt", "Squeeze", "Sub", "Sum", "Tan", "Tanh", "ThresholdedRelu", "Tile", "TopK", "Transpose", "Trilu",
    "Unique", "Unsqueeze", "Where", "Xor",
})  # fmt: skip
"""Operators whose time and memory are in proportion to their inputs and outputs, also in ONNX's reference."""

_MOST_OF_OTHERS = 1 << 12  # elements of all inputs together, for operators that are not cheap


class LargeConstantError(OperatorError):
    """A constant is too large to be computed while reading, but not larger than what it is computed from."""


_SMALL = 1024  # inputs with up to this many elements are given to shape inference
_SELECTS = {
    "Compress",
    "NonZero",
    "Unique",
    "NonMaxSuppression",
}  # outputs have at most as many elements as the inputs, or indices of these


def is_cheap(node: Any, inputs: Sequence[Array]) -> bool:
    """Whether a node with these constant inputs is computed while a model is read, and not each time it runs."""
    if node.op_type == "Dropout":
        return False  # it has a rule: nothing is dropped
    return node.op_type in _CHEAP or sum(value.size for value in inputs) <= _MOST_OF_OTHERS


def compute_node(
    onnx: Any, node: Any, opsets: list[Any], constants: Mapping[str, Array], left: int, most: int
) -> list[Array]:
    """Return the outputs of a node.

    Args:
        onnx: the package.
        node: its inputs are in ``constants``.
        opsets: the model's ``opset_import``.
        constants: arrays by name.
        left: largest number of elements of the outputs.
        most: of all constants that are computed while reading and are still needed; for the message.

    Raises:
        OperatorError: the node holds a graph, so it could loop; or its outputs have more elements than ``left``, or an
            unknown number.
    """
    if any(each.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for each in node.attribute):
        raise OperatorError("constant nodes that hold graphs are not supported")
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
        raise OperatorError("it is constant, but its size cannot be inferred")
    if claimed > left:
        kind = LargeConstantError if claimed <= sum(value.size for value in inputs.values()) else OperatorError
        raise kind(
            f"it makes a constant of {claimed:,} elements, but only {left:,} are left of the {most:,} that folded "
            "constants may have (most_folded=)"
        )
    compute = _BY_NUMPY.get(node.op_type)
    with np.errstate(all="ignore"):
        if compute is not None and all(node.input):
            attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
            if isinstance(attributes.get("value"), onnx.TensorProto):
                attributes["value"] = onnx.numpy_helper.to_array(attributes["value"])
            found = compute(attributes, *(constants[name] for name in node.input))
            if found is not None:
                return [np.asarray(found)]
        from onnx.reference import ReferenceEvaluator

        return [np.asarray(value) for value in ReferenceEvaluator(model).run(None, inputs)]


def _constant_of_shape(attributes: Mapping[str, Any], shape: Array) -> Array:
    value = attributes.get("value", np.zeros(1, np.float32))
    return np.full(shape.tolist(), value[0], value.dtype)


def _gather_elements(attributes: Mapping[str, Any], x: Array, indices: Array) -> Array:
    axis = attributes.get("axis", 0)  # ONNX's implementation takes fewer shapes
    cropped = x[tuple(slice(n if i != axis % x.ndim else None) for i, n in enumerate(indices.shape))]
    return np.take_along_axis(cropped, indices, axis)


def _gather_nd(attributes: Mapping[str, Any], x: Array, indices: Array) -> Array | None:
    return None if attributes.get("batch_dims") else x[tuple(np.moveaxis(indices, -1, 0))]


def _of_two(compute: Callable[[Array, Array], Array]) -> Callable[..., Array | None]:
    """Return the function of a node; before opset 7, attributes said how the second input is broadcast."""
    return lambda attributes, x, y: None if attributes else compute(x, y)


def _reshape(attributes: Mapping[str, Any], x: Array, *given: Array) -> Array:
    shape = given[0].tolist() if given else attributes["shape"]
    as_it_is = attributes.get("allowzero")
    return x.reshape([extent if extent or as_it_is else x.shape[i] for i, extent in enumerate(shape)])


def _scatter_nd(attributes: Mapping[str, Any], x: Array, indices: Array, updates: Array) -> Array | None:
    if attributes.get("reduction", b"none") != b"none":
        return None
    made = x.copy()
    made[tuple(np.moveaxis(indices, -1, 0))] = updates
    return made


def _slice(attributes: Mapping[str, Any], x: Array, *bounds: Array) -> Array | None:
    if len(bounds) < 2:
        return None
    starts, ends, *more = (bound.tolist() for bound in bounds)
    axes = more[0] if more else range(len(starts))
    steps = more[1] if len(more) > 1 else [1] * len(starts)
    parts = [slice(None)] * x.ndim
    for axis, *part in zip(axes, starts, ends, steps):
        parts[axis] = slice(*part)
    return x[tuple(parts)]


def _transpose(attributes: Mapping[str, Any], x: Array) -> Array:
    return x.transpose(attributes.get("perm"))


def _unsqueeze(attributes: Mapping[str, Any], x: Array, *axes: Array) -> Array:
    return np.expand_dims(x, tuple(axes[0].tolist() if axes else attributes["axes"]))


def _where(attributes: Mapping[str, Any], condition: Array, x: Array, y: Array) -> Array:
    return np.where(condition, x, y)


_BY_NUMPY: Mapping[str, Callable[..., Array | None]] = {
    "Add": _of_two(np.add),
    "ConstantOfShape": _constant_of_shape,
    "Equal": _of_two(np.equal),
    "Gather": lambda attributes, x, indices: np.take(x, indices, attributes.get("axis", 0)),
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "Mul": _of_two(np.multiply),
    "Not": lambda _, x: ~x,
    "Relu": lambda _, x: np.maximum(x, x.dtype.type(0)),
    "Reshape": _reshape,
    "ScatterND": _scatter_nd,
    "Slice": _slice,
    "Sub": _of_two(np.subtract),
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    "Where": _where,
}
"""Nodes that exporters write often: for their attributes and inputs the output; None: ONNX's reference computes it.

That takes longer to import than all of these to compute.
"""


def _elements(onnx: Any, model: Any, inputs: Mapping[str, Array]) -> int | None:
    """Return how many elements the outputs of a one-node model have; None if that cannot be inferred."""
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
