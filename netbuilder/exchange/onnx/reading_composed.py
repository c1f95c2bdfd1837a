"""Import of ONNX nodes that a few simpler nodes compute."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.exchange.onnx.expansion import Nodes
from netbuilder.exchange.onnx.reading import Reader, reads
from netbuilder.proto import OperatorError

__all__: list[str] = []


@reads("LpNormalization")
def _lp_normalization(r: Reader, node: Any) -> None:
    found = r.attributes(node)
    kind = "NormalizeL1" if found.get("p", 2) == 1 else "Normalize"
    r.add(kind, node.input, node.output, axis=found.get("axis", -1))


@reads("Shrink")
def _shrink(r: Reader, node: Any) -> None:
    """x + bias below -lambd, x - bias above lambd, 0 between them."""
    found, n, x = r.attributes(node), Nodes(r.library, node), node.input[0]
    dtype = r.dtype(x)
    low, high, bias, zero = (
        n.constant(np.array(value, dtype))
        for value in (-found.get("lambd", 0.5), found.get("lambd", 0.5), found.get("bias", 0.0), 0)
    )
    above = n("Where", n("Greater", x, high), n("Sub", x, bias), zero)
    n("Where", n("Less", x, low), n("Add", x, bias), above, to=node.output[0])
    r.read_nodes(n.made, node)


@reads("BitwiseNot")
def _bitwise_not(r: Reader, node: Any) -> None:
    dtype = r.dtype(node.input[0])
    if dtype is None or dtype.kind not in "iu":
        raise OperatorError(f"X must hold integers, got {dtype}")
    ones = np.array(-1, dtype) if dtype.kind == "i" else np.array(np.iinfo(dtype).max, dtype)
    r.add("BitwiseXor", [node.input[0], r.constant(node.output[0], ones)], node.output)


@reads("Compress")
def _compress(r: Reader, node: Any) -> None:
    """The rows, or elements, at the places where the condition is true."""
    n, (x, condition), axis = Nodes(r.library, node), node.input, r.attributes(node).get("axis")
    if axis is None:
        x = n("Reshape", x, n.integers([-1]))
    places = n("Reshape", n("NonZero", condition), n.integers([-1]))
    n("Gather", x, places, axis=0 if axis is None else axis % r.rank(x), to=node.output[0])
    r.read_nodes(n.made, node)


@reads("Hardmax")
def _hardmax(r: Reader, node: Any) -> None:
    """1 at the first greatest element along the axis, else 0."""
    n, x, rank = Nodes(r.library, node), node.input[0], r.rank(node.input[0])
    axis, dtype = r.attributes(node).get("axis", 1 if r.opset < 13 else -1) % rank, r.dtype(node.input[0])
    if r.opset < 13 and any(extent != 1 for extent in r.extents(x)[axis + 1 :]):
        raise OperatorError("before opset 13, only axes without others after them are supported")
    column = np.arange(r.extent(x, axis)).reshape(-1, *[1] * (rank - axis - 1))
    found = n("Equal", n("ArgMax", x, axis=axis, keepdims=1), n.constant(column))
    n.cast(found, dtype, to=node.output[0])
    r.read_nodes(n.made, node)


@reads("IsInf")
def _is_inf(r: Reader, node: Any) -> None:
    found, n, x = r.attributes(node), Nodes(r.library, node), node.input[0]
    negative, positive = found.get("detect_negative", 1), found.get("detect_positive", 1)
    if not (negative or positive):
        raise OperatorError("detect_negative and detect_positive are both 0")
    bound = n.constant(np.array(np.inf if positive else -np.inf, r.dtype(x)))
    n("Equal", n("Abs", x) if negative and positive else x, bound, to=node.output[0])
    r.read_nodes(n.made, node)
