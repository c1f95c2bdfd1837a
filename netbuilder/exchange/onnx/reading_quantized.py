"""Import of quantized ONNX nodes: integers become floating-point numbers that hold them, and are rounded at the end."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from netbuilder.exchange.onnx.expansion import Nodes
from netbuilder.exchange.onnx.reading import Reader, reads
from netbuilder.proto import OperatorError

__all__: list[str] = []


def _optional(node: Any, i: int) -> str:
    return node.input[i] if len(node.input) > i else ""


def _type(r: Reader, value: str) -> np.dtype[Any]:
    dtype = r.dtype(value)
    if dtype is None:
        raise OperatorError(f"the type of {value!r} is not known")
    return dtype


def _spread(
    r: Reader, n: Nodes, parameter: str, of: str, ndim: int, axis: int, extent: Any = None, block: int = 0
) -> str:
    """Return a scale or zero point in a shape that is broadcast: of one, one per index of an axis, or per block.

    ``of`` is the parameter as the node reads it.
    """
    extents = r.extents(of)
    if not extents or extents == (1,):
        return parameter
    if block:
        repeats = np.minimum(np.arange(extent) // block, r.extent(of, axis) - 1)
        return n("Gather", parameter, n.constant(repeats), axis=axis)
    if len(extents) > 1:
        raise OperatorError(f"scale and zero point must be a number or a vector, got the shape {extents}")
    return n("Reshape", parameter, n.integers([-1 if i == axis else 1 for i in range(ndim)]))


@reads("DequantizeLinear", "QuantizeLinear")
def _linear(r: Reader, node: Any) -> None:
    (x, scale), zero = node.input[:2], _optional(node, 2)
    found, ndim = r.attributes(node), r.rank(x)
    n, block = Nodes(r.library, node), found.get("block_size", 0)
    axis = found.get("axis", 1) % max(ndim, 1)
    place = (ndim, axis, r.extent(x, axis) if block else None, block)
    if node.op_type == "DequantizeLinear":
        dtype = _type(r, scale)
        number = n.cast(x, dtype)
        if zero:
            number = n("Sub", number, _spread(r, n, n.cast(zero, dtype), zero, *place))
        n("Mul", number, _spread(r, n, scale, scale, *place), to=node.output[0])
    else:
        dtype = _type(r, x)
        numbers = n("Div", x, _spread(r, n, n.cast(scale, dtype), scale, *place))
        kind = r.library.helper.tensor_dtype_to_np_dtype(found.get("output_dtype", 0) or 2)  # uint8
        made = _type(r, zero) if zero else np.dtype(kind)
        _to_integers(n, numbers, zero and _spread(r, n, n.cast(zero, dtype), zero, *place), dtype, made, node.output[0])
    r.read_nodes(n.made, node)


def _to_integers(n: Nodes, value: str, zero: str, dtype: Any, made: Any, target: str) -> None:
    """Round, add the zero point, limit to the range of the type, and convert."""
    if made.kind not in "iu" or made.itemsize > 2:
        raise OperatorError(f"quantization to {made} is not supported")
    rounded, limits = n("Round", value), np.iinfo(made)
    if zero:
        rounded = n("Add", rounded, zero)
    lowest, highest = (n.constant(np.array(bound, dtype)) for bound in (limits.min, limits.max))
    n.cast(n("Min", n("Max", rounded, lowest), highest), made, to=target)


def _products(
    r: Reader, n: Nodes, node: Any, is_conv: bool, x: tuple[str, str], w: tuple[str, str]
) -> tuple[str, np.dtype[Any]]:
    """Return the products of integers less their zero points, in a type that holds their sums exactly."""
    shape = r.shape(w[0])
    terms = math.prod(shape[1:]) if is_conv else shape[max(len(shape) - 2, 0)]
    dtype = np.dtype(np.float32 if terms * 255 * 255 < 1 << 24 else np.float64)
    sides = []
    for (value, zero), axis in ((x, None if is_conv else -2), (w, 0 if is_conv else -1)):
        number, ndim = n.cast(value, dtype), r.rank(value)
        if zero:
            point = n.cast(zero, dtype)
            if axis is not None and ndim > 1:
                point = _spread(r, n, point, zero, ndim, axis % ndim)
            number = n("Sub", number, point)
        sides.append(number)
    return n("Conv" if is_conv else "MatMul", *sides, copied=node if is_conv else None), dtype


@reads("MatMulInteger", "ConvInteger")
def _integer(r: Reader, node: Any) -> None:
    n, (x, w) = Nodes(r.library, node), node.input[:2]
    sides = (x, _optional(node, 2)), (w, _optional(node, 3))
    product, _ = _products(r, n, node, node.op_type == "ConvInteger", *sides)
    n.cast(product, np.int32, to=node.output[0])
    r.read_nodes(n.made, node)


@reads("QLinearMatMul", "QLinearConv")
def _quantized(r: Reader, node: Any) -> None:
    """The sums of products times x_scale * w_scale / y_scale, rounded."""
    n, is_conv = Nodes(r.library, node), node.op_type == "QLinearConv"
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, *bias = node.input
    sums, dtype = _products(r, n, node, is_conv, (x, x_zero), (w, w_zero))
    ndim = max(r.rank(x), r.rank(w))
    if bias and bias[0]:
        sums = n("Add", sums, _spread(r, n, n.cast(bias[0], dtype), bias[0], ndim, 1))
    axes = (1, 1) if is_conv else (ndim - 2, ndim - 1)
    scales = [_spread(r, n, n.cast(s, dtype), s, ndim, axis) for s, axis in zip((x_scale, w_scale), axes)]
    factor = n("Div", n("Mul", *scales), n.cast(y_scale, dtype))
    _to_integers(n, n("Mul", sums, factor), n.cast(y_zero, dtype), dtype, _type(r, y_zero), node.output[0])
    r.read_nodes(n.made, node)


@reads("DynamicQuantizeLinear")
def _dynamic(r: Reader, node: Any) -> None:
    n, x = Nodes(r.library, node), node.input[0]
    zero, most = n.constant(np.float32(0)), n.constant(np.float32(255))
    low, high = n("Min", n("ReduceMin", x, keepdims=0), zero), n("Max", n("ReduceMax", x, keepdims=0), zero)
    scale = n("Div", n("Sub", high, low), most, to=node.output[1])
    point = n("Round", n("Min", n("Max", n("Div", n("Neg", low), scale), zero), most))
    n.cast(point, np.uint8, to=node.output[2])
    _to_integers(n, n("Div", x, scale), point, np.float32, np.dtype(np.uint8), node.output[0])
    r.read_nodes(n.made, node)
