"""Import of ONNX nodes: one function for each type."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.exchange.onnx.expansion import Nodes
from netbuilder.exchange.onnx.reading import Reader, reads
from netbuilder.exchange.onnx.reading_choices import type_number
from netbuilder.proto import OperatorError, TensorProto

__all__: list[str] = []

_SAME = {
    "Relu": "Relu", "Sigmoid": "Sigmoid", "Tanh": "Tanh", "Exp": "Exp", "Log": "Log", "Abs": "Abs", "Sqrt": "Sqrt",
    "Floor": "Floor", "Ceil": "Ceil", "Sin": "Sin", "Cos": "Cos", "Sign": "Sign", "Neg": "Negative", "Not": "Not",
    "Reciprocal": "Reciprocal", "Softplus": "Softplus", "Softsign": "Softsign", "Erf": "Erf", "Add": "Add",
    "Sub": "Sub", "Mul": "Mul", "Div": "Div", "And": "And", "Or": "Or", "Xor": "Xor", "Less": "LT",
    "Greater": "GT", "LessOrEqual": "LE", "GreaterOrEqual": "GE", "Equal": "EQ",
    "Tan": "Tan", "Asin": "Asin", "Acos": "Acos", "Atan": "Atan", "Sinh": "Sinh", "Cosh": "Cosh",
    "Round": "Round", "BitwiseAnd": "BitwiseAnd", "BitwiseOr": "BitwiseOr",
    "BitwiseXor": "BitwiseXor", "Mish": "Mish",
}  # fmt: skip

_RECURRENT_OPTIONAL = ("B", "sequence_lens", "initial_h", "initial_c", "P")  # inputs of LSTM, GRU and RNN


@reads(*_SAME)
def _same(r: Reader, node: Any) -> None:
    r.add(_SAME[node.op_type], node.input, node.output)


@reads("Identity")
def _identity(r: Reader, node: Any) -> None:
    r.same(node.input[0], node.output[0])


@reads("Dropout")
def _dropout(r: Reader, node: Any) -> None:
    if r.training:
        ratio = r.attributes(node).get("ratio", 0.5)
        if len(node.input) > 1 and node.input[1]:
            ratio = float(r.elements(node.input[1], "ratio").item())
        mask = node.output[1] if len(node.output) > 1 and node.output[1] else r.between(node.output[0])
        r.add("Dropout", node.input[:1], [node.output[0], mask], ratio=ratio, is_test=0)
        return
    if len(node.input) > 2 and node.input[2] and r.elements(node.input[2], "training_mode").any():
        raise OperatorError("Dropout in training mode is not supported; give training=True")
    r.same(node.input[0], node.output[0])
    if len(node.output) > 1 and node.output[1]:
        r.add("ConstantFill", node.input[:1], node.output[1:2], value=True, dtype=TensorProto.BOOL)


@reads("Max", "Min")
def _extremum(r: Reader, node: Any) -> None:
    if len(node.input) == 1:
        r.same(node.input[0], node.output[0])
        return
    r.add(node.op_type, node.input, node.output)


@reads("Sum", "Mean")
def _many(r: Reader, node: Any) -> None:
    if any((dtype := r.dtype(name)) is None or dtype.kind != "f" for name in node.input):
        raise OperatorError("its operands must hold floating-point numbers")
    if len(node.input) == 1:
        r.same(node.input[0], node.output[0])
        return
    if r.same_extents(node.input):
        r.add(node.op_type, node.input, node.output)
        return
    total, hint = node.input[0], node.output[0]
    for index, name in enumerate(node.input[1:], 2):
        last = index == len(node.input) and node.op_type == "Sum"
        total = r.add("Add", [total, name], [hint if last else r.between(hint)])
    if node.op_type == "Mean":
        r.add("Scale", [total], node.output, scale=1 / len(node.input))


@reads("Pow")
def _pow(r: Reader, node: Any) -> None:
    """A power with a fixed exponent where it is one number, which costs less."""
    x, e = node.input
    dtype = r.dtype(x)
    if e in r.constants and r.constants[e].size == 1 and dtype is not None and dtype.kind == "f":
        if r.constants[e].ndim <= r.rank(x):
            r.add("Pow", [x], node.output, exponent=float(r.constants[e].item()))
            return
    if dtype is not None and r.dtype(e) != dtype:
        e = r.add("Cast", [e], [r.between(node.output[0])], to=type_number(dtype))
    r.add("Pow", [x, e], node.output)


@reads("LeakyRelu")
def _leaky_relu(r: Reader, node: Any) -> None:
    r.add("LeakyRelu", node.input, node.output, alpha=r.attributes(node).get("alpha", 0.01))


@reads("Elu", "ThresholdedRelu")
def _elu(r: Reader, node: Any) -> None:
    r.add(node.op_type, node.input, node.output, alpha=r.attributes(node).get("alpha", 1.0))


@reads("Selu")
def _selu(r: Reader, node: Any) -> None:
    found = r.attributes(node)
    alpha, scale = found.get("alpha", 1.6732632423543772), found.get("gamma", 1.0507009873554805)
    r.add("Selu", node.input, node.output, alpha=alpha, scale=scale)


@reads("HardSigmoid")
def _hard_sigmoid(r: Reader, node: Any) -> None:
    found = r.attributes(node)
    r.add("HardSigmoid", node.input, node.output, alpha=found.get("alpha", 0.2), beta=found.get("beta", 0.5))


@reads("PRelu")
def _prelu(r: Reader, node: Any) -> None:
    slope = r.elements(node.input[1], "the slope")
    shape = r.extents(node.input[0])
    per_channel = [(*lead, slope.size, *[1] * (len(shape) - 2)) for lead in ((), (1,))]
    if r.opset < 7:  # slopes are not broadcast along the last axis
        per_channel.append((slope.size,))
    if slope.size > 1 and (slope.shape not in per_channel or shape[1] == 1):
        raise OperatorError(
            f"the slope must have one element or one per channel, got shape {slope.shape} for X of shape {shape}"
        )
    flat = r.between(node.output[0])
    if r.training:
        r.add("Reshape", [node.input[1]], [flat, r.between(flat)], shape=[slope.size])
    else:
        r.constants[flat] = slope.ravel()
    r.add("PRelu", [node.input[0], flat], node.output)


@reads("Clip")
def _clip(r: Reader, node: Any) -> None:
    found, dtype = r.attributes(node), r.dtype(node.input[0])
    given = {name: node.input[i] for i, name in ((1, "min"), (2, "max")) if len(node.input) > i and node.input[i]}
    if dtype is not None and dtype.kind == "f" and all(name in r.constants for name in given.values()):
        bounds = {name: float(r.constants[value].item()) for name, value in given.items()}
        if bounds.get("min", -np.inf) <= bounds.get("max", np.inf):
            r.add("Clip", node.input[:1], node.output, **{"min": found.get("min"), "max": found.get("max")} | bounds)
            return
    value = node.input[0]  # of integers, or with bounds that are computed
    for i, (name, bound) in enumerate(given.items(), 1):
        made = node.output[0] if i == len(given) else r.between(node.output[0])
        value = r.add("Max" if name == "min" else "Min", [value, bound], [made])
    if not given:
        r.same(value, node.output[0])


@reads("GlobalAveragePool", "GlobalMaxPool")
def _global_pool(r: Reader, node: Any) -> None:
    r.add(node.op_type.removeprefix("Global"), node.input, node.output, global_pooling=1)


@reads("BatchNormalization")
def _batch_norm(r: Reader, node: Any) -> None:
    found = r.attributes(node)
    if r.training:
        _batch_norm_in_training(r, node, found)
        return
    if found.get("training_mode", 0) or len([name for name in node.output if name]) > 1 and r.opset >= 14:
        raise OperatorError("BatchNormalization in training mode is not supported; give training=True")
    r.add("SpatialBN", node.input, node.output[:1], is_test=1, epsilon=found.get("epsilon", 1e-5), order="NCHW")


def _batch_norm_in_training(r: Reader, node: Any, found: dict[str, Any]) -> None:
    """Normalize by the batch, and update the running averages in place."""
    mean, variance = node.input[3:5]
    for name in (mean, variance):
        r.elements(name, "running averages")
    saved = [r.between(node.output[0]) for _ in range(2)]
    r.add("SpatialBN", node.input, [node.output[0], mean, variance, *saved], is_test=0,
          epsilon=found.get("epsilon", 1e-5), momentum=found.get("momentum", 0.9), order="NCHW")  # fmt: skip


@reads("InstanceNormalization")
def _instance_norm(r: Reader, node: Any) -> None:
    r.add("InstanceNorm", node.input, node.output, epsilon=r.attributes(node).get("epsilon", 1e-5), order="NCHW")


@reads("LRN")
def _lrn(r: Reader, node: Any) -> None:
    found = r.attributes(node)
    r.add("LRN", node.input, node.output, size=found["size"], alpha=found.get("alpha", 1e-4),
          beta=found.get("beta", 0.75), bias=found.get("bias", 1.0), order="NCHW")  # fmt: skip


@reads("Gemm")
def _gemm(r: Reader, node: Any) -> None:
    found = r.attributes(node)
    alpha, beta = found.get("alpha", 1.0), found.get("beta", 1.0)
    if alpha != 1 or beta != 1:
        _scaled_gemm(r, node, found, alpha, beta)
        return
    trans_a, trans_b = found.get("transA", 0), found.get("transB", 0)
    bias = node.input[2] if len(node.input) > 2 and node.input[2] else None
    if bias is not None and not trans_a and r.rank(bias) == 1 and _one_per_column(r, node, trans_b):
        r.add("FC" if trans_b else "FCTransposed", node.input, node.output)
        return
    product = node.output[0] if bias is None else r.between(node.output[0])
    r.add("MatMul", node.input[:2], [product], trans_a=trans_a, trans_b=trans_b)
    if bias is not None:
        r.add("Add", [product, bias], node.output)


def _scaled_gemm(r: Reader, node: Any, found: dict[str, Any], alpha: float, beta: float) -> None:
    """alpha * A * B + beta * C."""
    hint, has_bias = node.output[0], len(node.input) > 2 and node.input[2]
    product = r.add(
        "MatMul", node.input[:2], [r.between(hint)], trans_a=found.get("transA"), trans_b=found.get("transB")
    )
    scaled = r.add("Scale", [product], [r.between(hint) if has_bias else hint], scale=alpha)
    if has_bias:
        bias = r.add("Scale", [node.input[2]], [r.between(hint)], scale=beta)
        r.add("Add", [scaled, bias], [hint])


def _one_per_column(r: Reader, node: Any, trans_b: int) -> bool:
    """Whether it is certain that a Gemm's bias has one element for each column of the product."""
    (elements,), (rows, columns) = r.extents(node.input[2]), r.extents(node.input[1])
    return elements is not None and elements == (rows if trans_b else columns)


@reads("MatMul")
def _matmul(r: Reader, node: Any) -> None:
    ranks = [r.rank(name) for name in node.input]
    if ranks == [1, 1]:
        product = r.add("Mul", node.input, [r.between(node.output[0])])
        r.add("ReduceSum", [product], node.output, axes=[0], keepdims=0)
    elif ranks == [2, 2]:
        r.add("MatMul", node.input, node.output)
    else:
        r.add("BatchMatMul", node.input, node.output, broadcast=1)


@reads("Softmax")
def _softmax(r: Reader, node: Any) -> None:
    ndim = r.rank(node.input[0])
    axis = r.attributes(node).get("axis", 1 if r.opset < 13 else -1) % ndim
    if r.opset < 13 or axis == ndim - 1:
        r.add("Softmax", node.input, node.output, axis=axis)
        return
    if all(extent == 1 for extent in r.extents(node.input[0])[axis + 1 :]):
        r.add("Softmax", node.input, node.output, axis=axis)
        return
    order = [*(i for i in range(ndim) if i != axis), axis]
    transposed = r.add("Transpose", node.input, [r.between(node.output[0])], axes=order)
    made = r.add("Softmax", [transposed], [r.between(node.output[0])], axis=ndim - 1)
    r.add("Transpose", [made], node.output, axes=[order.index(i) for i in range(ndim)])


@reads("Concat")
def _concat(r: Reader, node: Any) -> None:
    axis = r.attributes(node).get("axis", 1) % r.rank(node.input[0])
    r.add("Concat", node.input, [node.output[0], r.between(node.output[0])], axis=axis)


@reads("Split")
def _split(r: Reader, node: Any) -> None:
    found = r.attributes(node)
    axis = found.get("axis", 0) % r.rank(node.input[0])
    extents = found.get("split")
    if len(node.input) > 1 and node.input[1]:
        extents = [int(n) for n in r.elements(node.input[1], "extents")]
    if extents is None and "num_outputs" in found:  # parts of an extent that is no multiple differ
        extents = _parts(r.extent(node.input[0], axis), len(node.output))
    r.add("Split", node.input[:1], node.output, axis=axis, split=extents)


def _parts(extent: int, count: int) -> list[int]:
    """Return the extents of ``count`` equal parts, of which the last may be smaller."""
    each = -(-extent // count)
    return [max(0, min(each, extent - i * each)) for i in range(count)]


@reads("Reshape")
def _reshape(r: Reader, node: Any) -> None:
    found = r.attributes(node)
    if len(node.input) > 1 and node.input[1] not in r.constants:
        if found.get("allowzero", 0):
            raise OperatorError("allowzero with a computed shape is not supported")
        r.add("Reshape", node.input, [node.output[0], r.between(node.output[0])])
        return
    shape = found.get("shape") or [int(n) for n in r.elements(node.input[1], "the shape")]
    if found.get("allowzero", 0) and 0 in shape:
        raise OperatorError("allowzero with an extent of 0 is not supported")
    r.add("Reshape", node.input[:1], [node.output[0], r.between(node.output[0])], shape=list(shape))


@reads("Flatten")
def _flatten(r: Reader, node: Any) -> None:
    axis = r.attributes(node).get("axis", 1)
    r.add("Flatten", node.input, node.output, axis=axis % r.rank(node.input[0]) if axis < 0 else axis)


@reads("Squeeze", "Unsqueeze")
def _dims(r: Reader, node: Any) -> None:
    axes = r.attributes(node).get("axes")
    if len(node.input) > 1 and node.input[1]:
        axes = r.elements(node.input[1], "axes").ravel().tolist()  # PyTorch's exporter writes a scalar, too
    ndim = r.rank(node.input[0])
    if node.op_type == "Unsqueeze":
        added = axes or []
        r.add("ExpandDims", node.input[:1], node.output, dims=sorted(n % (ndim + len(added)) for n in added))
        return
    if axes is None:
        axes = [i for i, extent in enumerate(r.shape(node.input[0])) if extent == 1]
    dims = [n % ndim for n in axes]
    r.add("Squeeze", node.input[:1], node.output, dims=sorted(dims))


@reads("Transpose")
def _transpose(r: Reader, node: Any) -> None:
    r.add("Transpose", node.input, node.output, axes=r.attributes(node).get("perm"))


@reads("Tile")
def _tile(r: Reader, node: Any) -> None:
    repeats = [(axis, int(n)) for axis, n in enumerate(r.elements(node.input[1], "repeats")) if n != 1] or [(0, 1)]
    value = node.input[0]
    for index, (axis, n) in enumerate(repeats, 1):
        made = node.output[0] if index == len(repeats) else r.between(node.output[0])
        value = r.add("Tile", [value], [made], tiles=n, axis=axis)


@reads("Gather")
def _gather(r: Reader, node: Any) -> None:
    axis = r.attributes(node).get("axis", 0) % r.rank(node.input[0])
    indices = node.input[1]
    if indices in r.constants and (r.constants[indices] < 0).any():
        extent, counted = r.extent(node.input[0], axis), r.constants[indices]
        indices = r.constant(node.output[0], np.where(counted < 0, counted + extent, counted))
    dense = 1 if r.training and axis == 0 else None  # a table may be read by other nodes too
    r.add("Gather", [node.input[0], indices], node.output, axis=axis, dense_gradient=dense)


@reads("Shape")
def _shape(r: Reader, node: Any) -> None:
    found = r.attributes(node)
    ndim = r.rank(node.input[0])
    axes = list(range(ndim))[slice(found.get("start", 0), found.get("end"))]
    if not axes:
        raise OperatorError(f"start and end select none of the {ndim} axes")
    r.add("Shape", node.input, node.output, axes=axes if len(axes) < ndim else None)


@reads("LayerNormalization")
def _layer_norm(r: Reader, node: Any) -> None:
    found = r.attributes(node)
    axis = found.get("axis", -1)
    if any(node.output[1:]):
        raise OperatorError("only the first output is supported")
    axis %= r.rank(node.input[0])
    normalized, hint = r.extents(node.input[0])[axis:], node.output[0]
    scales = []
    for name in [*node.input[1:], ""][:2]:  # ONNX broadcasts these
        if not name:
            name = r.constant(hint, np.zeros(r.shape(node.input[0], axis), r.dtype(node.input[0])))
        if r.rank(name) != len(normalized) or any(a != b for a, b in zip(r.shape(name), normalized) if a == 1):
            name = r.constant(hint, np.broadcast_to(r.elements(name, "the scale"), r.shape(node.input[0], axis)))
        scales.append(name)
    made = [hint, r.between(hint), r.between(hint)]
    r.add("LayerNorm", [node.input[0], *scales], made, axis=axis, epsilon=found.get("epsilon", 1e-5),
          elementwise_affine=1)  # fmt: skip


@reads("RMSNormalization")
def _rms_norm(r: Reader, node: Any) -> None:
    found, hint = r.attributes(node), node.output[0]
    axis = found.get("axis", -1) % r.rank(node.input[0])
    axes = [-1] if axis == r.rank(node.input[0]) - 1 else list(range(axis, r.rank(node.input[0])))
    square = r.add("Sqr", node.input[:1], [r.between(hint)])
    mean = r.add("ReduceMean", [square], [r.between(hint)], axes=axes, keepdims=1)
    epsilon = r.constant(hint, np.array(found.get("epsilon", 1e-5), r.dtype(node.input[0])))
    more = r.add("Add", [mean, epsilon], [r.between(hint)])
    factor = r.add("Rsqrt", [more], [r.between(hint)])
    normalized = r.add("Mul", [node.input[0], factor], [r.between(hint)])
    r.add("Mul", [normalized, node.input[1]], node.output)


@reads("GroupNormalization")
def _group_norm(r: Reader, node: Any) -> None:
    found = r.attributes(node)
    groups, scale = found["num_groups"], list(node.input[1:])
    if r.opset < 21:  # scale and bias have one element per group
        each = r.extent(node.input[0], 1) // groups
        scale = [r.constant(node.output[0], np.repeat(r.elements(name, "scale and bias"), each)) for name in scale]
    r.add("GroupNorm", [node.input[0], *scale], node.output, group=groups, epsilon=found.get("epsilon", 1e-5),
          is_test=1, order="NCHW")  # fmt: skip


@reads("Gelu")
def _gelu(r: Reader, node: Any) -> None:
    r.add("Gelu", node.input, node.output, fast_gelu=1 if r.attributes(node).get("approximate") == "tanh" else None)


@reads("HardSwish")
def _hard_swish(r: Reader, node: Any) -> None:
    gate = r.add("HardSigmoid", node.input, [r.between(node.output[0])], alpha=1 / 6, beta=0.5)
    r.add("Mul", [node.input[0], gate], node.output)


@reads("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceProd", "ReduceSumSquare",
       "ReduceLogSum", "ReduceLogSumExp")  # fmt: skip
def _reduce(r: Reader, node: Any) -> None:
    found, x, hint = r.attributes(node), node.input[0], node.output[0]
    ndim = r.rank(x)
    axes = found.get("axes")
    if len(node.input) > 1 and node.input[1]:
        axes = [int(n) for n in r.elements(node.input[1], "axes")]
    if not axes and found.get("noop_with_empty_axes", 0) and node.op_type in ("ReduceSum", "ReduceMean", "ReduceMax"):
        r.same(x, hint)
        return
    if not axes and found.get("noop_with_empty_axes", 0):
        raise OperatorError("noop_with_empty_axes is not supported")
    keep = {"axes": [n % ndim for n in axes] if axes else list(range(ndim)), "keepdims": found.get("keepdims", 1)}
    if ndim == 0 and node.op_type in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"):
        r.same(x, hint)
    elif node.op_type == "ReduceSumSquare":
        r.add("ReduceSum", [r.add("Sqr", [x], [r.between(hint)])], [hint], **keep)
    elif node.op_type == "ReduceLogSum":
        r.add("Log", [r.add("ReduceSum", [x], [r.between(hint)], **keep)], [hint])
    elif node.op_type == "ReduceLogSumExp":
        _log_sum_exp(r, x, hint, keep)
    else:
        r.add(node.op_type, [x], [hint], **keep)


def _log_sum_exp(r: Reader, x: str, y: str, keep: dict[str, Any]) -> None:
    """Read log(sum(exp(x))), computed of what remains when the maximum is taken away."""
    kept = {**keep, "keepdims": 1}
    most = r.add("ReduceMax", [x], [r.between(y)], **kept)
    rest = r.add("Exp", [r.add("Sub", [x, most], [r.between(y)])], [r.between(y)])
    log = r.add("Log", [r.add("ReduceSum", [rest], [r.between(y)], **kept)], [r.between(y)])
    if keep["keepdims"]:
        r.add("Add", [log, most], [y])
        return
    total = r.add("Add", [log, most], [r.between(y)])
    r.add("Squeeze", [total], [y], dims=sorted(keep["axes"]))


@reads("LogSoftmax")
def _log_softmax(r: Reader, node: Any) -> None:
    ndim = r.rank(node.input[0])
    axis = r.attributes(node).get("axis", 1 if r.opset < 13 else -1) % ndim
    if r.opset < 13 and any(extent != 1 for extent in r.extents(node.input[0])[axis + 1 :]):
        raise OperatorError("before opset 13, only axes without others after them are supported")
    r.add("LogSoftmax", node.input, node.output, axis=axis)


@reads("Swish")
def _swish(r: Reader, node: Any) -> None:
    alpha, x, hint = r.attributes(node).get("alpha", 1.0), node.input[0], node.output[0]
    if alpha == 1:
        r.add("Swish", [x], [hint])
        return
    gate = r.add("Sigmoid", [r.add("Scale", [x], [r.between(hint)], scale=alpha)], [r.between(hint)])
    r.add("Mul", [x, gate], [hint])


@reads("ArgMax", "ArgMin")
def _arg(r: Reader, node: Any) -> None:
    found = r.attributes(node)
    axis, keep = found.get("axis", 0), found.get("keepdims", 1)
    if not found.get("select_last_index", 0):
        r.add(node.op_type, node.input, node.output, axis=axis, keepdims=keep)
        return
    # The last of equal elements is the first one along the reversed axis.
    n, last, axis = Nodes(r.library, node), np.iinfo(np.int64).max, axis % r.rank(node.input[0])
    ends = [n.integers([value]) for value in (last, -last, axis, -1)]
    found_reversed = n(node.op_type, n("Slice", node.input[0], *ends), axis=axis, keepdims=keep)
    n("Sub", n.integers(r.extent(node.input[0], axis) - 1), found_reversed, to=node.output[0])
    r.read_nodes(n.made, node)


@reads("Cast")
def _cast(r: Reader, node: Any) -> None:
    requested = np.dtype(r.library.helper.tensor_dtype_to_np_dtype(r.attributes(node)["to"]))
    if r.dtype(node.input[0]) == requested:
        r.same(node.input[0], node.output[0])
        return
    r.add("Cast", node.input, node.output, to=type_number(requested))


@reads("LSTM", "GRU", "RNN")
def _recurrent(r: Reader, node: Any) -> None:
    found = r.attributes(node)
    if found.get("input_forget", 0):
        raise OperatorError("input_forget is not supported")
    if found.get("activation_alpha") or found.get("activation_beta"):
        raise OperatorError("activations with alpha or beta are not supported")
    inputs = [(name, value) for name, value in zip(_RECURRENT_OPTIONAL, node.input[3:]) if value]
    activations = [each.decode() for each in found.get("activations", ())]
    states = 2 if node.op_type == "LSTM" else 1
    outputs = [*node.output, *[""] * (1 + states - len(node.output))]
    r.add(
        f"ONNX{node.op_type}",
        [*node.input[:3], *(value for _, value in inputs)],
        [name or r.between(next(filter(None, node.output))) for name in outputs],
        hidden_size=found.get("hidden_size") or r.extent(node.input[2], 2),
        direction=found.get("direction", "forward"),
        given=[name for name, _ in inputs] or None,
        activations=activations or None,
        clip=found.get("clip"),
        layout=found.get("layout"),
        linear_before_reset=1 if found.get("linear_before_reset", 0) else None,
    )
