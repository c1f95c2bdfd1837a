"""Layers of Caffe as operators: a translator per type of layer, each returns operators and their parameters.

Where Caffe2's translator differs from Caffe (average pooling with pads, ReLU with a slope, softmax over the channels of
images, in-place layers that share a name for their parameters), these compute what Caffe does.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from netbuilder.caffe2.caffe_nets import DATA_LAYERS
from netbuilder.data import tensor_to_proto
from netbuilder.graph.shapes import infer_shapes
from netbuilder.ops.core.conv_geometry import CAFFE_LEGACY_POOLING
from netbuilder.proto import NetDef, NetError, OperatorDef, TensorProto, TensorProtos
from netbuilder.proto.arguments import make_op
from netbuilder.proto.caffe_pb2 import EltwiseParameter, LRNParameter, PoolingParameter, ReductionParameter
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["TRANSLATORS", "Layer", "translator"]

Array = np.ndarray[Any, np.dtype[Any]]
Translation = tuple[list[OperatorDef], list[TensorProto]]

_log = logging.getLogger("netbuilder")


@dataclass(frozen=True)
class Layer:
    """A layer to translate, and the net before it.

    Args:
        message: the layer.
        blobs: its weights.
        is_test: for a net in test mode.
        net, params: the operators before it, and their parameters.
        inputs: the shapes of the net's inputs, None where they are not known.
    """

    message: Any
    blobs: Sequence[Array]
    is_test: bool
    net: NetDef
    params: TensorProtos
    inputs: Mapping[str, tuple[int, ...] | None]

    @property
    def top(self) -> str:
        """The name of the first output."""
        return str(self.message.top[0])

    def refuse(self, why: str) -> NetError:
        """Return an error that names the layer."""
        return NetError(f"Caffe layer {self.message.name!r} of type {self.message.type!r}: {why}")

    def require(self, holds: bool, why: str) -> None:
        """Raise the error unless a condition holds."""
        if not holds:
            raise self.refuse(why)

    def op(self, op_type: str, *more: str, **arguments: Any) -> OperatorDef:
        """Return an operator from the layer's inputs, and further ones, to its outputs."""
        return make_op(op_type, [*self.message.bottom, *more], list(self.message.top), **arguments)

    def param(self, suffix: str, value: Array) -> TensorProto:
        """Return a parameter named for the output, or for the layer where that name is taken (in-place layers)."""
        taken = {tensor.name for tensor in self.params.protos} | {name for op in self.net.op for name in op.output}
        names = (self.top + suffix, self.message.name + suffix)
        name = next((name for name in names if name not in taken), None)
        number = 2
        while name is None:
            numbered = f"{names[1]}_{number}"
            name, number = (None if numbered in taken else numbered), number + 1
        return tensor_to_proto(np.ascontiguousarray(value, np.float32), name)

    def weights(self, *counts: int) -> Sequence[Array]:
        """Return the blobs, whose number must be one of ``counts``."""
        self.require(
            len(self.blobs) in counts,
            f"the trained net has {len(self.blobs)} blobs of weights for it, but it needs "
            f"{' or '.join(map(str, counts))}; give the .caffemodel of this net",
        )
        return self.blobs

    def shape(self, blob: str) -> tuple[int, ...] | None:
        """Return the shape of a blob, None if it is not known."""
        known: dict[str, Any] = {name: shape for name, shape in self.inputs.items() if shape is not None}
        if blob in known:
            return tuple(known[blob])
        known.update({tensor.name: tuple(tensor.dims) for tensor in self.params.protos})
        return infer_shapes([self.net], known).shapes.get(blob)


TRANSLATORS: dict[str, Callable[[Layer], Translation]] = {}
"""Translators by type of layer."""


def translator(*layer_types: str) -> Callable[[Callable[[Layer], Translation]], Callable[[Layer], Translation]]:
    """Register the decorated function for types of layers."""

    def register(function: Callable[[Layer], Translation]) -> Callable[[Layer], Translation]:
        TRANSLATORS.update(dict.fromkeys(layer_types, function))
        return function

    return register


@translator(*DATA_LAYERS, "Silence")
def _nothing(layer: Layer) -> Translation:
    return [], []


@translator("Split")
def _split(layer: Layer) -> Translation:
    return [make_op("Copy", list(layer.message.bottom), [top]) for top in layer.message.top], []


# Windows.


def _extents(layer: Layer, param: Any, name: str, default: int) -> tuple[int, ...]:
    """Return ``kernel``, ``stride`` or ``pad``: one number for all axes, or one for each."""
    height, width = f"{name}_h", f"{name}_w"
    if param.HasField(height) or param.HasField(width):
        return (getattr(param, height), getattr(param, width))
    value = getattr(param, "kernel_size" if name == "kernel" else name)
    if isinstance(value, int):
        return (value,)
    return tuple(value) or (default,)


def _window(layer: Layer, param: Any) -> dict[str, Any]:
    """Return the arguments of an operator with windows."""
    kernel, stride = _extents(layer, param, "kernel", 0), _extents(layer, param, "stride", 1)
    pad = _extents(layer, param, "pad", 0)
    found: dict[str, Any] = {"order": "NCHW"}
    for name, value in (("kernel", kernel), ("stride", stride)):
        found |= {name: value[0]} if len(set(value)) == 1 else {name + "s": list(value)}
    return found | ({"pad": pad[0]} if len(set(pad)) == 1 else {"pads": list(pad + pad)})


def _filters(layer: Layer, has_bias: bool) -> list[TensorProto]:
    w, *b = layer.weights(2 if has_bias else 1)
    return [layer.param("_w", w), *(layer.param("_b", bias.reshape(-1)) for bias in b)]


def _conv(layer: Layer, op_type: str) -> Translation:
    param = layer.message.convolution_param
    layer.require(param.axis == 1, f"its axis must be 1, got {param.axis}")
    arguments = _window(layer, param)
    if param.group != 1:
        arguments["group"] = param.group
    dilation = tuple(param.dilation)
    if any(d != 1 for d in dilation):
        layer.require(op_type == "Conv", f"deconvolution with dilation {dilation} is not supported")
        arguments |= {"dilation": dilation[0]} if len(dilation) == 1 else {"dilations": list(dilation)}
    params = _filters(layer, param.bias_term)
    return [layer.op(op_type, *(tensor.name for tensor in params), **arguments)], params


@translator("Convolution")
def _convolution(layer: Layer) -> Translation:
    return _conv(layer, "Conv")


@translator("Deconvolution")
def _deconvolution(layer: Layer) -> Translation:
    return _conv(layer, "ConvTranspose")


def _window_3d(param: Any) -> dict[str, Any]:
    pads = [getattr(param, "temporal_pad", 0), param.pad, param.pad]
    return {
        "order": "NCHW",
        "kernels": [param.kernel_depth, param.kernel_size, param.kernel_size],
        "strides": [param.temporal_stride, param.stride, param.stride],
        "pads": pads * 2,
    }


@translator("Convolution3D")
def _convolution_3d(layer: Layer) -> Translation:
    param = layer.message.convolution3d_param
    arguments = _window_3d(param) | ({"group": param.group} if param.group != 1 else {})
    params = _filters(layer, param.bias_term)
    return [layer.op("Conv", *(tensor.name for tensor in params), **arguments)], params


@translator("Pooling3D")
def _pooling_3d(layer: Layer) -> Translation:
    param = layer.message.pooling3d_param
    return [layer.op(_pool_type(layer, param.pool), **_window_3d(param))], []


def _pool_type(layer: Layer, method: int) -> str:
    layer.require(method != PoolingParameter.STOCHASTIC, "stochastic pooling is not supported; use MAX or AVE")
    return "MaxPool" if method == PoolingParameter.MAX else "AveragePool"


@translator("Pooling")
def _pooling(layer: Layer) -> Translation:
    """Caffe rounds output extents up, and drops a last window that would start in the padding."""
    param = layer.message.pooling_param
    op_type = _pool_type(layer, param.pool)
    if param.global_pooling:
        return [layer.op(op_type, order="NCHW", global_pooling=1)], []
    arguments = _window(layer, param)
    if getattr(param, "round_mode", 0) == PoolingParameter.CEIL and not getattr(param, "torch_pooling", False):
        arguments["legacy_pad"] = CAFFE_LEGACY_POOLING
    pads = _extents(layer, param, "pad", 0)
    if op_type == "MaxPool" or not any(pads):
        return [layer.op(op_type, **arguments)], []
    return _padded_average(layer, arguments, pads * (2 if len(pads) == 1 else 1)), []


def _padded_average(layer: Layer, arguments: dict[str, Any], pads: tuple[int, ...]) -> list[OperatorDef]:
    """Return average pooling whose means count the padding, up to its end, as Caffe's do."""
    param = layer.message.pooling_param
    kernels, strides = _extents(layer, param, "kernel", 0) * 2, _extents(layer, param, "stride", 1) * 2
    layer.require(
        all(s <= k - p for k, s, p in zip(kernels, strides, pads)),
        f"average pooling with pads {pads} is supported where strides are at most the kernel without the pad, so that "
        f"no window is entirely in the padding; got kernel {kernels[:2]} and strides {strides[:2]}",
    )
    padded = f"{layer.top}_padded"
    arguments = {name: value for name, value in arguments.items() if name not in ("pad", "pads")}
    return [
        make_op(
            "PadImage", list(layer.message.bottom), [padded], order="NCHW", mode="constant",
            pad_t=pads[0], pad_l=pads[1], pad_b=pads[0], pad_r=pads[1],
        ),
        make_op("AveragePool", [padded], [layer.top], **arguments),
    ]  # fmt: skip


@translator("Crop")
def _crop(layer: Layer) -> Translation:
    param = layer.message.crop_param
    data, like = layer.message.bottom
    have, want = layer.shape(data), layer.shape(like)
    if have is None or want is None:
        raise layer.refuse("its extents depend on those of its inputs; give the shape of the net's input in input_dims")
    axis, offsets = param.axis % len(have), list(param.offset) or [0]
    cropped = len(have) - axis
    layer.require(
        len(offsets) in (1, cropped), f"it must have one offset, or one for each of {cropped} axes, got {offsets}"
    )
    starts = [0] * axis + (offsets if len(offsets) == cropped else offsets * cropped)
    ends = [-1] * axis + [start + extent for start, extent in zip(starts[axis:], want[axis:])]
    layer.require(
        all(end <= extent for end, extent in zip(ends[axis:], have[axis:])),
        f"the crop to {want} at offsets {offsets} exceeds its input of shape {have}",
    )
    return [make_op("Slice", [data], [layer.top], starts=starts, ends=ends)], []


@translator("ROIPooling")
def _roi_pooling(layer: Layer) -> Translation:
    param = layer.message.roi_pooling_param
    given = {name: getattr(param, name) for name in ("pooled_h", "pooled_w", "spatial_scale") if param.HasField(name)}
    op = layer.op("RoIPool", order="NCHW", **given, **({"is_test": 1} if layer.is_test else {}))
    if not layer.is_test:
        op.output.append(layer.top + "_argmaxes")
    return [op], []


# Layers with weights.


@translator("InnerProduct")
def _inner_product(layer: Layer) -> Translation:
    param = layer.message.inner_product_param
    weights = layer.weights(2 if param.bias_term else 1)
    w = weights[0]
    layer.require(
        w.ndim == 2 or w.ndim == 4 and w.shape[:2] == (1, 1),
        f"its weights must have two axes, or four (1, 1, outputs, inputs) in old files, got shape {w.shape}",
    )
    layer.require(param.axis > 0, f"its axis must be 1 or more, got {param.axis}")
    w = w.reshape(w.shape[-2:])
    w = w.T if param.transpose else w
    b = weights[1].reshape(-1) if param.bias_term else np.zeros(w.shape[0], np.float32)
    params = [layer.param("_w", w), layer.param("_b", b)]
    axis = {"axis": param.axis} if param.axis != 1 else {}
    return [layer.op("FC", *(tensor.name for tensor in params), **axis)], params


@translator("PReLU")
def _prelu(layer: Layer) -> Translation:
    slope = layer.param("_Slope", layer.weights(1)[0].reshape(-1))
    return [layer.op("PRelu", slope.name)], [slope]


@translator("InstanceNorm")
def _instance_norm(layer: Layer) -> Translation:
    params = [layer.param(s, w.reshape(-1)) for s, w in zip(("_w", "_b"), layer.weights(2))]
    return [layer.op("InstanceNorm", *(tensor.name for tensor in params), order="NCHW")], params


@translator("BatchNorm")
def _batch_norm(layer: Layer) -> Translation:
    """The third blob is what the sums in the other two are divided by."""
    param = layer.message.batch_norm_param
    mean, var, count = (blob.reshape(-1) for blob in layer.weights(3))
    layer.require(
        bool(count.size == 1 and count[0] != 0),
        f"it has no running mean and variance: their divisor is {count.tolist()}; train the net first",
    )
    values = {
        "_scale": np.ones_like(mean), "_bias": np.zeros_like(mean), "_mean": mean / count[0], "_var": var / count[0],
    }  # fmt: skip
    params = [layer.param(suffix, value) for suffix, value in values.items()]
    is_test = param.use_global_stats if param.HasField("use_global_stats") else layer.is_test
    arguments = {} if is_test else {"momentum": param.moving_average_fraction}
    names = [tensor.name for tensor in params]
    op = layer.op("SpatialBN", *names, is_test=int(is_test), epsilon=param.eps, order="NCHW", **arguments)
    if not is_test:
        op.output.extend([*names[2:], layer.top + "_saved_mean", layer.top + "_saved_var"])
    return [op], params


@translator("Scale")
def _scale(layer: Layer) -> Translation:
    param, bottom = layer.message.scale_param, list(layer.message.bottom)
    own = len(bottom) == 1
    weights = list(layer.weights(own + param.bias_term))
    # A single number is broadcast from any axis.
    axis = {"broadcast": 1} if weights and weights[0].size == 1 else {"broadcast": 1, "axis": param.axis}
    weights = [w.reshape(-1) if w.size == 1 or param.num_axes == 1 else w for w in weights]
    params = [layer.param("_w", weights[0])] if own else []
    factor = params[0].name if own else bottom[1]
    if not param.bias_term:
        return [make_op("Mul", [bottom[0], factor], [layer.top], **axis)], params
    params.append(layer.param("_b", weights[-1]))
    product = layer.top + "_internal"
    multiply = make_op("Mul", [bottom[0], factor], [product], **axis)
    return [multiply, make_op("Add", [product, params[-1].name], [layer.top], **axis)], params


# Activations.


@translator("ReLU")
def _relu(layer: Layer) -> Translation:
    slope = layer.message.relu_param.negative_slope
    return [layer.op("LeakyRelu", alpha=slope) if slope else layer.op("Relu")], []


@translator("Sigmoid")
def _sigmoid(layer: Layer) -> Translation:
    return [layer.op("Sigmoid")], []


@translator("TanH")
def _tanh(layer: Layer) -> Translation:
    return [layer.op("Tanh")], []


@translator("LRN")
def _lrn(layer: Layer) -> Translation:
    param = layer.message.lrn_param
    layer.require(
        param.norm_region == LRNParameter.ACROSS_CHANNELS, "the norm region must be ACROSS_CHANNELS, got WITHIN_CHANNEL"
    )
    op = layer.op("LRN", size=param.local_size, alpha=param.alpha, beta=param.beta, bias=param.k, order="NCHW")
    op.output.append(f"_{layer.top}_scale")
    return [op], []


@translator("Dropout")
def _dropout(layer: Layer) -> Translation:
    op = layer.op("Dropout", ratio=layer.message.dropout_param.dropout_ratio, is_test=int(layer.is_test))
    op.output.append(f"_{layer.top}_mask")
    return [op], []


@translator("Softmax")
def _softmax(layer: Layer) -> Translation:
    """Caffe's softmax is over one axis, the operator's over all from there on."""
    axis, shape = layer.message.softmax_param.axis, layer.shape(layer.message.bottom[0])
    if shape is None:
        if not _is_matrix(layer, layer.message.bottom[0]):
            _log.warning(
                "Caffe layer %r: the shape of its input is not known, so it is taken for a matrix; for softmax over "
                "the channels of images give the shape of the net's input in input_dims", layer.message.name,
            )  # fmt: skip
        return [layer.op("Softmax", **({"axis": axis} if axis != 1 else {}))], []
    axis %= len(shape)
    if math.prod(shape[axis + 1 :]) == 1:
        return [layer.op("Softmax", **({"axis": axis} if axis != 1 else {}))], []
    order = [i for i in range(len(shape)) if i != axis] + [axis]
    last, chosen = f"{layer.top}_axis_last", f"{layer.top}_softmax_last"
    return [
        make_op("Transpose", [layer.message.bottom[0]], [last], axes=order),
        make_op("Softmax", [last], [chosen], axis=len(shape) - 1),
        make_op("Transpose", [chosen], [layer.top], axes=[order.index(i) for i in range(len(shape))]),
    ], []


def _is_matrix(layer: Layer, blob: str) -> bool:
    """Whether a blob comes from a fully connected layer, by operators that keep its shape."""
    for op in reversed(layer.net.op):
        if blob in op.output:
            if op.type in ("FC", "Flatten"):
                return True
            if op.type not in ("Relu", "LeakyRelu", "PRelu", "Dropout", "Sigmoid", "Tanh", "Mul", "Add", "Sum"):
                return False
            blob = op.input[0]
    return False


# Losses and metrics.


@translator("SoftmaxWithLoss")
def _softmax_with_loss(layer: Layer) -> Translation:
    layer.require(not layer.message.loss_param.HasField("ignore_label"), "ignore_label is not supported")
    layer.require(
        all(weight == 1 for weight in layer.message.loss_weight[:1]),
        f"its loss_weight must be 1, got {list(layer.message.loss_weight)}",
    )
    logits, label = layer.message.bottom
    softmax, entropy = f"{logits}_translator_autogen_softmax", f"{logits}_translator_autogen_xent"
    return [
        make_op("Softmax", [logits], [softmax]),
        make_op("LabelCrossEntropy", [softmax, label], [entropy]),
        make_op("AveragedLoss", [entropy], [layer.top]),
    ], []


@translator("Accuracy")
def _accuracy(layer: Layer) -> Translation:
    param = layer.message.accuracy_param
    layer.require(not param.HasField("ignore_label"), "ignore_label is not supported")
    return [layer.op("Accuracy", **({"top_k": param.top_k} if param.top_k != 1 else {}))], []


# Shapes, and arithmetic of several blobs.


@translator("Concat")
def _concat(layer: Layer) -> Translation:
    param = layer.message.concat_param
    axis = param.concat_dim if param.HasField("concat_dim") and not param.HasField("axis") else param.axis
    op = layer.op("Concat", **({"order": "NCHW"} if axis == 1 else {"axis": axis}))
    op.output.append(f"_{layer.top}_dims")
    return [op], []


@translator("Eltwise")
def _eltwise(layer: Layer) -> Translation:
    param, bottom = layer.message.eltwise_param, list(layer.message.bottom)
    if layer.top in bottom:  # what an operator may overwrite is its first input
        position = bottom.index(layer.top)
        order = [position, *(i for i in range(len(bottom)) if i != position)]
    else:
        order = list(range(len(bottom)))
    coefficients = [param.coeff[i] for i in order] if param.coeff else []
    bottom = [bottom[i] for i in order]
    if param.operation == EltwiseParameter.MAX:
        return [make_op("Max", bottom, [layer.top])], []
    if param.operation == EltwiseParameter.PROD:
        partial = [bottom[0], *(f"{layer.top}_product_{i}" for i in range(1, len(bottom) - 1)), layer.top]
        return [make_op("Mul", [partial[i], b], [partial[i + 1]]) for i, b in enumerate(bottom[1:])], []
    scaled, ops = [], []
    for index, (blob, factor) in enumerate(zip(bottom, coefficients or [1.0] * len(bottom))):
        scaled.append(blob if factor == 1 else f"{layer.top}_scaled_{index}")
        if factor != 1:
            ops.append(make_op("Scale", [blob], [scaled[-1]], scale=factor))
    return [*ops, make_op("Sum", scaled, [layer.top])], []


@translator("Reshape")
def _reshape(layer: Layer) -> Translation:
    param = layer.message.reshape_param
    layer.require(
        (param.axis, param.num_axes) == (0, -1),
        f"its axis and num_axes must be 0 and -1, got {param.axis} and {param.num_axes}",
    )
    op = layer.op("Reshape", shape=list(param.shape.dim))
    op.output.append(f"_{layer.message.bottom[0]}_dims")
    return [op], []


@translator("Flatten")
def _flatten(layer: Layer) -> Translation:
    param = layer.message.flatten_param
    if param.end_axis == -1 and param.axis in (0, 1):
        return [layer.op("Flatten" if param.axis else "FlattenToVec")], []
    shape = layer.shape(layer.message.bottom[0])
    if shape is None:
        raise layer.refuse("its axes need the shape of its input; give that of the net's input in input_dims")
    first, last = param.axis % len(shape), param.end_axis % len(shape)
    flat = [0] * first + [math.prod(shape[first : last + 1]), *shape[last + 1 :]]
    op = layer.op("Reshape", shape=flat if first else [-1, *flat[1:]])
    op.output.append(f"_{layer.message.bottom[0]}_dims")
    return [op], []


@translator("Reduction")
def _reduction(layer: Layer) -> Translation:
    param, bottom = layer.message.reduction_param, layer.message.bottom[0]
    count = -param.axis
    if param.axis >= 0:
        shape = layer.shape(bottom)
        if shape is None:
            raise layer.refuse(
                f"its axis {param.axis} needs the shape of its input; give that of the net's input in input_dims"
            )
        count = len(shape) - param.axis
    ops = []
    if param.operation in (ReductionParameter.ASUM, ReductionParameter.SUMSQ):
        term = f"{layer.top}_terms"
        ops.append(make_op("Abs" if param.operation == ReductionParameter.ASUM else "Sqr", [bottom], [term]))
        bottom = term
    op_type = "ReduceBackMean" if param.operation == ReductionParameter.MEAN else "ReduceBackSum"
    reduced = layer.top if param.coeff == 1 else f"{layer.top}_unscaled"
    ops.append(make_op(op_type, [bottom], [reduced], num_reduce_dim=count))
    if param.coeff != 1:
        ops.append(make_op("Scale", [reduced], [layer.top], scale=param.coeff))
    return ops, []
