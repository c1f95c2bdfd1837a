"""Export of elementwise operators, sums and reductions to ONNX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from netbuilder.exchange.onnx.graph import Graph, rule
from netbuilder.ops.core.broadcasting import placed_shape, start_axis
from netbuilder.proto import OperatorError

__all__ = ["reduced"]

_SAME = {
    "Relu": "Relu", "Sigmoid": "Sigmoid", "Tanh": "Tanh", "Exp": "Exp", "Log": "Log", "Abs": "Abs", "Sqrt": "Sqrt",
    "Floor": "Floor", "Ceil": "Ceil", "Sin": "Sin", "Cos": "Cos", "Sign": "Sign", "Negative": "Neg", "Not": "Not",
    "Reciprocal": "Reciprocal", "Softplus": "Softplus", "Softsign": "Softsign", "Erf": "Erf", "Copy": "Identity",
    "Alias": "Identity", "StopGradient": "Identity", "CopyCPUToGPU": "Identity", "CopyGPUToCPU": "Identity",
    "AliasWithName": "Identity", "EnsureDense": "Identity",
    "EnsureCPUOutput": "Identity", "CopyOnDeviceLike": "Identity", "CopyFromCPUInput": "Identity", "Tan": "Tan",
    "Asin": "Asin", "Acos": "Acos", "Atan": "Atan", "Sinh": "Sinh", "Cosh": "Cosh",
}  # fmt: skip
_MANY = {"Sum": "Sum", "Max": "Max", "Min": "Min", "Mean": "Mean"}
_TWO = {
    "Add": "Add", "Sub": "Sub", "Mul": "Mul", "Div": "Div", "And": "And", "Or": "Or", "Xor": "Xor", "LT": "Less",
    "GT": "Greater", "LE": "LessOrEqual", "GE": "GreaterOrEqual", "EQ": "Equal",
}  # fmt: skip
_FLOAT_LIMIT = 3.4e38  # limits beyond this, such as Clip's defaults, are omitted


@rule(*_SAME)
def _same(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    g.add(_SAME[op.type], x[:1], [y[0]])


@rule(*_MANY)
def _many(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    g.add(_MANY[op.type], x, [y[0]])


@rule("SumInt")
def _sum_int(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    total = x[0]
    for each in x[1:]:
        total = g.between("Add", [total, each], f"{y[0]}/total")
    g.add("Identity", [total], [y[0]])


@rule("BitwiseAnd", "BitwiseOr", "BitwiseXor")
def _bitwise(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    if g.opset < 18:
        raise OperatorError(f"{op.type} needs opset 18, got {g.opset}; give opset=18")
    g.add(op.type, x, [y[0]])


@rule("StumpFunc")
def _stump(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    dtype = g.spec(x[0]).dtype
    bound, low, high = (g.constant(f"{y[0]}/number", n, dtype) for n in (op.threshold, op.low_value, op.high_value))
    g.add("Where", [g.between("LessOrEqual", [x[0], bound], f"{y[0]}/is_low"), low, high], [y[0]])


@rule(*_TWO)
def _two(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    g.add(_TWO[op.type], [x[0], _placed(g, op, x, y[0])], [y[0]])


def _placed(g: Graph, op: Any, x: Sequence[str], hint: str) -> str:
    """Return the second operand in a shape that broadcasts to the first one's in ONNX, which has NumPy's rule."""
    a, b = g.spec(x[0]).shape, g.spec(x[1]).shape
    if not op.broadcast or g.spec(x[1]).size == 1:
        return x[1]
    shape = placed_shape(op, a, b, start_axis(op.type, op.axis, op.axis_str, op.order, a, b))
    if shape == b:
        return x[1]
    expected = g.constant(f"{hint}/shape_of_b", shape, np.int64)
    return g.between("Reshape", [x[1], expected], f"{hint}/b")


@rule("NE")
def _ne(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    g.add("Not", [g.between("Equal", [x[0], _placed(g, op, x, y[0])], f"{y[0]}/equal")], [y[0]])


@rule("Pow")
def _pow(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    if len(x) > 1:
        g.add("Pow", [x[0], _placed(g, op, x, y[0])], [y[0]])
    else:
        g.add("Pow", [x[0], g.constant(f"{y[0]}/exponent", op.exponent, g.spec(x[0]).dtype)], [y[0]])


@rule("Sqr", "Cube")
def _power(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    square = [x[0], x[0]]
    if op.type == "Sqr":
        g.add("Mul", square, [y[0]])
    else:
        g.add("Mul", [g.between("Mul", square, f"{y[0]}/square"), x[0]], [y[0]])


@rule("Rsqrt")
def _rsqrt(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    g.add("Reciprocal", [g.between("Sqrt", x[:1], f"{y[0]}/root")], [y[0]])


@rule("LeakyRelu", "Elu", "ThresholdedRelu")
def _alpha(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    g.add(op.type, x[:1], [y[0]], alpha=op.alpha)


@rule("Selu")
def _selu(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    g.add("Selu", x[:1], [y[0]], alpha=op.alpha, gamma=op.scale)


@rule("HardSigmoid")
def _hard_sigmoid(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    g.add("HardSigmoid", x[:1], [y[0]], alpha=op.alpha, beta=op.beta)


@rule("Swish")
def _swish(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    g.add("Mul", [x[0], g.between("Sigmoid", x[:1], f"{y[0]}/sigmoid")], [y[0]])


@rule("Gelu")
def _gelu(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    """Written with Erf, as x * Phi(x), since Gelu needs opset 20."""
    if op.fast_gelu:
        raise OperatorError("Gelu with fast_gelu cannot be exported to ONNX")
    dtype = g.spec(x[0]).dtype

    def number(name: str, value: float) -> str:
        return g.constant(f"{y[0]}/{name}", value, dtype)

    erf = g.between("Erf", [g.between("Mul", [x[0], number("scale", 0.5**0.5)], f"{y[0]}/scaled")], f"{y[0]}/erf")
    share = g.between("Add", [erf, number("one", 1.0)], f"{y[0]}/share")
    g.add("Mul", [g.between("Mul", [x[0], share], f"{y[0]}/double"), number("half", 0.5)], [y[0]])


@rule("Clip")
def _clip(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    dtype = g.spec(x[0]).dtype
    bounds = [
        g.constant(f"{y[0]}/{name}", value, dtype) if abs(value) < _FLOAT_LIMIT else ""
        for name, value in (("min", op.min), ("max", op.max))
    ]
    while bounds and not bounds[-1]:
        bounds.pop()
    g.add("Clip", [x[0], *bounds], [y[0]])


@rule("Scale")
def _scale(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    g.add("Mul", [x[0], g.constant(f"{y[0]}/scale", op.scale, g.spec(x[0]).dtype)], [y[0]])


@rule("ScaleBlobs")
def _scale_blobs(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    for source, target in zip(x, y):
        if target:
            g.add("Mul", [source, g.constant(f"{target}/scale", op.scale, g.spec(source).dtype)], [target])


@rule("ReluN")
def _relu_n(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    dtype = g.spec(x[0]).dtype
    bounds = [g.constant(f"{y[0]}/{name}", value, dtype) for name, value in (("min", 0), ("max", op.n))]
    g.add("Clip", [x[0], *bounds], [y[0]])


@rule("Mish")
def _mish(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    """Written as x * tanh(softplus(x)), since Mish needs opset 18."""
    soft = g.between("Softplus", x[:1], f"{y[0]}/softplus")
    g.add("Mul", [x[0], g.between("Tanh", [soft], f"{y[0]}/tanh")], [y[0]])


@rule("Log1p")
def _log1p(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    one = g.constant(f"{y[0]}/one", 1, g.spec(x[0]).dtype)
    g.add("Log", [g.between("Add", [x[0], one], f"{y[0]}/sum")], [y[0]])


@rule("Logit")
def _logit(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    dtype = g.spec(x[0]).dtype
    least, most, one = (
        g.constant(f"{y[0]}/{n}", v, dtype) for n, v in (("min", op.eps), ("max", 1 - op.eps), ("one", 1))
    )
    p = g.between("Clip", [x[0], least, most], f"{y[0]}/p")
    g.add("Log", [g.between("Div", [p, g.between("Sub", [one, p], f"{y[0]}/rest")], f"{y[0]}/odds")], [y[0]])


@rule("Cbrt")
def _cbrt(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    third = g.constant(f"{y[0]}/third", 1 / 3, g.spec(x[0]).dtype)
    root = g.between("Pow", [g.between("Abs", x[:1], f"{y[0]}/abs"), third], f"{y[0]}/root")
    g.add("Mul", [root, g.between("Sign", x[:1], f"{y[0]}/sign")], [y[0]])


@rule("ReplaceNaN")
def _replace_nan(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    value = g.constant(f"{y[0]}/value", op.value, g.spec(x[0]).dtype)
    g.add("Where", [g.between("IsNaN", x[:1], f"{y[0]}/is_nan"), value, x[0]], [y[0]])


@rule("IsNaN")
def _is_nan(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    g.add("Cast", [g.between("IsNaN", x[:1], f"{y[0]}/is_nan")], [y[0]], to=2)


@rule("SumRelu")
def _sum_relu(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    g.add("Relu", [g.between("Sum", x, f"{y[0]}/sum")], [y[0]])


@rule("Dropout")
def _dropout(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    if not op.is_test:
        raise OperatorError("Dropout is in training mode; extract a net that was built with is_test=1")
    if any(y[1:]):
        raise OperatorError("Dropout: the mask is used, but in test mode there is none")
    g.add("Identity", x[:1], [y[0]])


@rule("WeightedSum")
def _weighted_sum(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    parts = [g.between("Mul", [x[i], x[i + 1]], f"{y[0]}/part_{i // 2}") for i in range(0, len(x), 2)]
    g.add("Sum", parts, [y[0]])


@rule("Where")
def _where(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    if op.broadcast_on_rows:
        raise OperatorError("Where with broadcast_on_rows cannot be exported to ONNX")
    g.add("Where", x[:3], [y[0]])


def reduced(g: Graph, kind: str, x: str, y: str, axes: Sequence[int], keep: int = 0) -> None:
    """Add a reduction of ``x`` over axes, named as in ONNX; without axes a copy."""
    if not axes:
        g.add("Identity", [x], [y])
    elif kind == "ReduceSum" or g.opset >= 18:
        g.add(kind, [x, g.constant(f"{y}/axes", axes, np.int64)], [y], keepdims=keep)
    else:
        g.add(kind, [x], [y], axes=list(axes), keepdims=keep)


@rule("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2")
def _reduce(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    axes = list(op.axes) or list(range(g.spec(x[0]).ndim))
    reduced(g, op.type, x[0], y[0], axes, 1 if op.keepdims else 0)


@rule("ReduceFrontSum", "ReduceFrontMean", "ReduceFrontMax", "ReduceBackSum", "ReduceBackMean", "ReduceBackMax")
def _reduce_end(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    if len(x) > 1:
        raise OperatorError(f"{op.type} with lengths cannot be exported to ONNX")
    ndim, kind = g.spec(x[0]).ndim, op.type.replace("Front", "").replace("Back", "")
    axes = range(op.num_reduce_dim) if "Front" in op.type else range(ndim - op.num_reduce_dim, ndim)
    reduced(g, kind, x[0], y[0], list(axes))


@rule("SumElements")
def _sum_elements(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    reduced(g, "ReduceMean" if op.average else "ReduceSum", x[0], y[0], list(range(g.spec(x[0]).ndim)))


@rule("ArgMax", "ArgMin")
def _arg(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    g.add(op.type, x[:1], [y[0]], axis=op.axis % g.spec(x[0]).ndim, keepdims=1 if op.keepdims else 0)
