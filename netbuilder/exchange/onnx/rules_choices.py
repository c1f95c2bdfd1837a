"""Export of operators that choose, move or make elements to ONNX: gathers, scatters, pads, triangles, running sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from netbuilder.exchange.onnx.graph import Graph, rule
from netbuilder.exchange.onnx.library import onnx_library
from netbuilder.exchange.onnx.rules_elementwise import reduced
from netbuilder.proto import OperatorError

__all__: list[str] = []


@rule("GatherElements")
def _gather_elements(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    g.add("GatherElements", x, [y[0]], axis=op.axis)


@rule("GatherND")
def _gather_nd(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    g.add("GatherND", x, [y[0]], batch_dims=op.batch_dims)


@rule("ScatterElements", "ScatterND")
def _scatter(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    least = {"none": 13, "add": 16}.get(op.reduction, 18)
    if g.opset < least:
        raise OperatorError(f"{op.type} with the reduction {op.reduction} needs opset {least}, got {g.opset}")
    if op.type == "ScatterND" and op.batch_dims:
        raise OperatorError("ScatterND with batch_dims cannot be exported to ONNX")
    reduction = None if op.reduction == "none" else op.reduction
    axis = {"axis": op.axis} if op.type == "ScatterElements" else {}
    g.add(op.type, x, [y[0]], reduction=reduction, **axis)


@rule("Scatter")
def _scatter_rows(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    g.add("ScatterElements", x, [y[0]], axis=op.axis)


@rule("BatchPermutation")
def _batch_permutation(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    g.add("Gather", x, [y[0]], axis=0)


@rule("NumpyTile", from_constants=True)
def _numpy_tile(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    repeats = g.constant_of(x[1], op, "repeats")
    g.add("Tile", [x[0], g.constant(f"{y[0]}/repeats", repeats, np.int64)], [y[0]])


@rule("HasElements", "IsEmpty")
def _has_elements(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    kind = "Greater" if op.type == "HasElements" else "Equal"
    g.add(kind, [g.between("Size", x[:1], f"{y[0]}/size"), g.constant(f"{y[0]}/zero", 0, np.int64)], [y[0]])


@rule("IsMemberOf")
def _is_member_of(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    spec = g.spec(x[0])
    if spec.dtype.kind != "i":
        raise OperatorError(f"IsMemberOf of {spec.dtype} cannot be exported to ONNX")
    wide = g.between("Unsqueeze", [x[0], g.constant(f"{y[0]}/last", [spec.ndim], np.int64)], f"{y[0]}/wide")
    values = g.constant(f"{y[0]}/values", op.value, spec.dtype)
    equal = g.between("Cast", [g.between("Equal", [wide, values], f"{y[0]}/equal")], f"{y[0]}/found", to=6)
    count = g.fresh(f"{y[0]}/count")
    reduced(g, "ReduceSum", equal, count, [spec.ndim])
    g.add("Cast", [count], [y[0]], to=9)  # bool


@rule("SinusoidPositionEncoding")
def _sinusoid(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    columns, last = np.arange(op.embedding_size), g.constant(f"{y[0]}/last", [2], np.int64)
    positions = g.between("Unsqueeze", [g.between("Cast", x[:1], f"{y[0]}/numbers", to=1), last], f"{y[0]}/positions")
    periods = g.constant(f"{y[0]}/periods", op.alpha ** (columns / op.embedding_size), np.float32)
    angles = g.between("Div", [positions, periods], f"{y[0]}/angles")
    even = g.constant(f"{y[0]}/even", columns % 2 == 0)
    sin, cos = (g.between(kind, [angles], f"{y[0]}/{kind.lower()}") for kind in ("Sin", "Cos"))
    wave = g.between("Where", [even, sin, cos], f"{y[0]}/wave")
    g.add("Mul", [wave, g.constant(f"{y[0]}/amplitude", op.amplitude, np.float32)], [y[0]])


@rule("OneHot", from_constants=True)
def _one_hot(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    """Negative indices, which are an error here, count from the end in ONNX."""
    values = g.constant(f"{y[0]}/values", [0, 1], g.spec(y[0]).dtype)
    g.add("OneHot", [x[0], g.constant(f"{y[0]}/depth", g.spec(y[0]).shape[1], np.int64), values], [y[0]], axis=-1)


@rule("Trilu")
def _trilu(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    if g.opset < 14:
        raise OperatorError(f"Trilu needs opset 14, got {g.opset}")
    g.add("Trilu", [x[0], g.constant(f"{y[0]}/k", op.k, np.int64)], [y[0]], upper=int(op.upper))


@rule("CumSum")
def _cum_sum(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    axis = g.constant(f"{y[0]}/axis", op.axis, np.int64)
    g.add("CumSum", [x[0], axis], [y[0]], exclusive=int(op.exclusive), reverse=int(op.reverse))


@rule("Pad")
def _pad(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    if op.mode == "wrap" and g.opset < 19:
        raise OperatorError(f"Pad with mode wrap needs opset 19, got {g.opset}")
    value = g.constant(f"{y[0]}/value", op.value, g.spec(x[0]).dtype)
    g.add("Pad", [x[0], g.constant(f"{y[0]}/pads", op.pads, np.int64), value], [y[0]], mode=op.mode)


@rule("Expand")
def _expand(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    shape = x[1] if len(x) > 1 else ""
    if not shape or g.is_constant(shape):
        given = op.shape if not shape else [int(n) for n in g.constant_of(shape, op, "the shape").ravel()]
        shape = g.constant(f"{y[0]}/shape", [max(n, 1) if n < 0 else n for n in given], np.int64)
    g.add("Expand", [x[0], shape], [y[0]])


@rule("ConstantFill")
def _constant_fill(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    spec = g.spec(y[0])
    value = g.constant_of(x[1], op, "the value").ravel() if len(x) > 1 else [op.element()]
    filled = onnx_library().numpy_helper.from_array(np.asarray(value, spec.dtype))
    if not x:
        shape = g.constant(f"{y[0]}/shape", spec.shape, np.int64)
    elif op.input_as_shape:
        shape = g.between("Cast", x[:1], f"{y[0]}/shape", to=7)
    else:
        shape = g.between("Shape", x[:1], f"{y[0]}/shape")
        if op.extra_shape:
            extra = g.constant(f"{y[0]}/extra_shape", op.extra_shape, np.int64)
            shape = g.between("Concat", [shape, extra], f"{y[0]}/whole_shape", axis=0)
    g.add("ConstantOfShape", [shape], [y[0]], value=filled)


@rule("Round")
def _round(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    g.add("Round", x, [y[0]])


@rule("Mod")
def _mod(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    divisor = x[1] if len(x) > 1 else g.constant(f"{y[0]}/divisor", op.divisor, g.spec(x[0]).dtype)
    if op.sign_follow_divisor and g.spec(x[0]).dtype.kind == "f":
        raise OperatorError("Mod of floating-point numbers with sign_follow_divisor cannot be exported to ONNX")
    g.add("Mod", [x[0], divisor], [y[0]], fmod=0 if op.sign_follow_divisor else 1)


@rule("ReduceProd")
def _reduce_prod(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    reduced(g, "ReduceProd", x[0], y[0], list(op.reduced_axes(g.spec(x[0]).shape)), int(op.keepdims))
