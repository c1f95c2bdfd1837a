"""Import of ONNX nodes: one function for each type."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.exchange.onnx.reading import Reader, reads
from netbuilder.proto import OperatorError, TensorProto

__all__: list[str] = []

_TO_THE_END = 2**31 - 1  # an end of a slice from here on means the end of the axis

_SAME = {
    "Relu": "Relu", "Sigmoid": "Sigmoid", "Tanh": "Tanh", "Exp": "Exp", "Log": "Log", "Abs": "Abs", "Sqrt": "Sqrt",
    "Floor": "Floor", "Ceil": "Ceil", "Sin": "Sin", "Cos": "Cos", "Sign": "Sign", "Neg": "Negative", "Not": "Not",
    "Reciprocal": "Reciprocal", "Softplus": "Softplus", "Softsign": "Softsign", "Erf": "Erf", "Add": "Add",
    "Sub": "Sub", "Mul": "Mul", "Div": "Div", "Pow": "Pow", "And": "And", "Or": "Or", "Xor": "Xor", "Less": "LT",
    "Greater": "GT", "LessOrEqual": "LE", "GreaterOrEqual": "GE", "Equal": "EQ",
    "Tan": "Tan", "Asin": "Asin", "Acos": "Acos", "Atan": "Atan", "Sinh": "Sinh", "Cosh": "Cosh",
}  # fmt: skip

_RECURRENT_OPTIONAL = ("B", "sequence_lens", "initial_h", "initial_c", "P")  # inputs of LSTM, GRU and RNN


@reads(*_SAME)
def _same(r: Reader, node: Any) -> None:
    r.add(_SAME[node.op_type], node.input, node.output)


@reads("Where")
def _where(r: Reader, node: Any) -> None:
    if not r.same_extents(node.input):
        raise OperatorError("Where is supported only if condition and branches have the same known shape")
    r.add("Where", node.input, node.output)


@reads("Identity")
def _identity(r: Reader, node: Any) -> None:
    r.same(node.input[0], node.output[0])


@reads("Dropout")
def _dropout(r: Reader, node: Any) -> None:
    if len(node.input) > 2 and node.input[2] and r.elements(node.input[2], "training_mode").any():
        raise OperatorError("Dropout in training mode is not supported")
    r.same(node.input[0], node.output[0])
    if len(node.output) > 1 and node.output[1]:
        r.add("ConstantFill", node.input[:1], node.output[1:2], value=True, dtype=TensorProto.BOOL)


@reads("Sum", "Max", "Min", "Mean")
def _many(r: Reader, node: Any) -> None:
    if any((dtype := r.dtype(name)) is None or dtype.kind != "f" for name in node.input):
        raise OperatorError("its operands must hold floating-point numbers")
    if len(node.input) == 1:
        r.same(node.input[0], node.output[0])
        return
    same = r.same_extents(node.input)
    if not same and node.op_type == "Sum":
        total = node.input[0]
        for index, name in enumerate(node.input[1:], 2):
            made = node.output[0] if index == len(node.input) else r.between(node.output[0])
            total = r.add("Add", [total, name], [made])
        return
    if not same:
        shapes = sorted({r.shape(name) for name in node.input})
        raise OperatorError(f"its operands must have the same shape, got {shapes}")
    r.add(node.op_type, node.input, node.output)


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
    r.add("PRelu", [node.input[0], r.constant(node.output[0], slope.ravel())], node.output)


@reads("Clip")
def _clip(r: Reader, node: Any) -> None:
    found = r.attributes(node)
    bounds = {
        name: float(r.elements(node.input[i], name).item())
        if len(node.input) > i and node.input[i]
        else found.get(name)
        for i, name in ((1, "min"), (2, "max"))
    }
    r.add("Clip", node.input[:1], node.output, **bounds)


@reads("GlobalAveragePool", "GlobalMaxPool")
def _global_pool(r: Reader, node: Any) -> None:
    r.add(node.op_type.removeprefix("Global"), node.input, node.output, global_pooling=1)


@reads("BatchNormalization")
def _batch_norm(r: Reader, node: Any) -> None:
    found = r.attributes(node)
    if found.get("training_mode", 0) or len([name for name in node.output if name]) > 1 and r.opset >= 14:
        raise OperatorError("BatchNormalization in training mode is not supported")
    r.add("SpatialBN", node.input, node.output[:1], is_test=1, epsilon=found.get("epsilon", 1e-5), order="NCHW")


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
    if found.get("alpha", 1.0) != 1 or found.get("beta", 1.0) != 1:
        raise OperatorError(f"alpha and beta must be 1, got {found.get('alpha', 1.0)} and {found.get('beta', 1.0)}")
    trans_a, trans_b = found.get("transA", 0), found.get("transB", 0)
    bias = node.input[2] if len(node.input) > 2 and node.input[2] else None
    if bias is not None and not trans_a and r.rank(bias) == 1 and _one_per_column(r, node, trans_b):
        r.add("FC" if trans_b else "FCTransposed", node.input, node.output)
        return
    product = node.output[0] if bias is None else r.between(node.output[0])
    r.add("MatMul", node.input[:2], [product], trans_a=trans_a, trans_b=trans_b)
    if bias is not None:
        r.add("Add", [product, bias], node.output)


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
        axes = [int(n) for n in r.elements(node.input[1], "axes")]
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


@reads("Pad")
def _pad(r: Reader, node: Any) -> None:
    found = r.attributes(node)
    pads = found.get("pads") or [int(n) for n in r.elements(node.input[1], "pads")]
    value = found.get("value", 0.0)
    if len(node.input) > 2 and node.input[2]:
        value = float(r.elements(node.input[2], "the value").item())
    n = len(pads) // 2
    if n != 4 or any(pads[i] for i in (0, 1, n, n + 1)) or min(pads) < 0 or any(node.input[3:]):
        raise OperatorError(
            f"only padding of height and width of images (N, C, H, W) is supported, got pads {list(pads)}"
        )
    top, left, bottom, right = pads[2], pads[3], pads[6], pads[7]
    r.add("PadImage", node.input[:1], node.output, mode=found.get("mode", "constant"), value=value,
          pad_t=top, pad_l=left, pad_b=bottom, pad_r=right)  # fmt: skip


@reads("Slice")
def _slice(r: Reader, node: Any) -> None:
    found = r.attributes(node)

    def numbers(i: int, name: str) -> list[int] | None:
        if len(node.input) > i and node.input[i]:
            return [int(n) for n in r.elements(node.input[i], name)]
        return list(found[name]) if name in found else None

    ndim = r.rank(node.input[0])
    starts, ends, axes, steps = (numbers(i + 1, name) for i, name in enumerate(("starts", "ends", "axes", "steps")))
    if starts is None or ends is None or any(step != 1 for step in steps or ()):
        raise OperatorError("only slices with constant bounds and steps of 1 are supported")
    # An end of -1 excludes the last element in ONNX, and includes it in Caffe2.
    from_, to = [0] * ndim, [-1] * ndim
    for axis, start, end in zip(axes if axes is not None else range(len(starts)), starts, ends):
        from_[axis] = start if start >= 0 else start - 1
        to[axis] = -1 if end >= _TO_THE_END else end if end >= 0 else end - 1
    r.add("Slice", node.input[:1], node.output, starts=from_, ends=to)


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
    r.add("Gather", [node.input[0], indices], node.output, axis=axis)


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
    if any(node.output[1:]) or len(node.input) < 3 or not node.input[2]:
        raise OperatorError("only the first output, with scale and bias, is supported")
    axis %= r.rank(node.input[0])
    normalized = r.extents(node.input[0])[axis:]
    for name in node.input[1:]:  # ONNX broadcasts these
        if r.rank(name) != len(normalized) or any(a != b for a, b in zip(r.shape(name), normalized) if a == 1):
            raise OperatorError(f"{name!r} must have the shape of what is normalized, {normalized}")
    made = [node.output[0], r.between(node.output[0]), r.between(node.output[0])]
    r.add("LayerNorm", node.input, made, axis=axis, epsilon=found.get("epsilon", 1e-5), elementwise_affine=1)


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


@reads("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2")
def _reduce(r: Reader, node: Any) -> None:
    found = r.attributes(node)
    ndim = r.rank(node.input[0])
    axes = found.get("axes")
    if len(node.input) > 1 and node.input[1]:
        axes = [int(n) for n in r.elements(node.input[1], "axes")]
    if not axes and found.get("noop_with_empty_axes", 0):
        raise OperatorError("noop_with_empty_axes is not supported")
    dims = [n % ndim for n in axes] if axes else list(range(ndim))
    r.add(node.op_type, node.input[:1], node.output, axes=dims, keepdims=found.get("keepdims", 1))


@reads("ArgMax", "ArgMin")
def _arg(r: Reader, node: Any) -> None:
    found = r.attributes(node)
    if found.get("select_last_index", 0):
        raise OperatorError("select_last_index is not supported")
    r.add(node.op_type, node.input, node.output, axis=found.get("axis", 0), keepdims=found.get("keepdims", 1))


@reads("Cast")
def _cast(r: Reader, node: Any) -> None:
    from netbuilder.data.tensor_records import NUMPY_TYPES
    from netbuilder.exchange.onnx.library import onnx_library

    requested = np.dtype(onnx_library().helper.tensor_dtype_to_np_dtype(r.attributes(node)["to"]))
    number = next((number for number, dtype in NUMPY_TYPES.items() if dtype == requested), None)
    if number is None:
        raise OperatorError(f"a cast to {requested} is not supported")
    r.add("Cast", node.input, node.output, to=number)


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
