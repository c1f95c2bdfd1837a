"""ONNX: every operator that is written, against onnxruntime and read back; nets of the zoo; refusals."""

import importlib.util
import os

import numpy as np
import pytest

from netbuilder.graph import Net
from netbuilder.model import ModelHelper, brew
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.passes import extract_predictor
from netbuilder.proto import ArgumentError, BlobError, NetDef, OperatorError, ParseError
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from netbuilder.zoo import (
    create_alexnet,
    create_inception_v1,
    create_inception_v3,
    create_lenet,
    create_mlp,
    create_resnet,
    create_resnet_cifar,
    create_resnext,
    create_shufflenet,
    create_squeezenet,
    create_vgg,
)
from netbuilder.zoo.dlrm import DLRMSize, create_dlrm

if not all(importlib.util.find_spec(package) for package in ("onnx", "onnxruntime")):
    pytest.skip("needs the packages onnx and onnxruntime", allow_module_level=True)

import onnx
import onnxruntime

from netbuilder.exchange.onnx import ReferenceNodeWarning, export_onnx, onnx_model, read_onnx
from netbuilder.exchange.onnx.graph import rules

RNG = np.random.default_rng(3)


def f(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def positive(*shape):
    return RNG.uniform(0.5, 1.5, shape).astype(np.float32)


def run_onnx(model, feeds):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def compare(net, values, inputs, outputs, *, rtol=1e-4, again=True, **options):
    """Compare netbuilder's run, onnxruntime's of the exported model, and netbuilder's of that model read back."""
    workspace = Workspace()
    for name, value in values.items():
        workspace.feed(name, value)
    workspace.run_net_once(net)
    want = [workspace.fetch(name) for name in outputs]
    parameters = {name: value for name, value in values.items() if name not in inputs}
    shapes = {name: TensorSpec(values[name].shape, values[name].dtype) for name in inputs}
    model = onnx_model(net, parameters, shapes=shapes, outputs=outputs, **options)
    feeds = {name: values[name] for name in inputs}
    if again:
        found = read_onnx(model)
        read = found.predictor().run({name: value for name, value in feeds.items() if name in found.inputs})
    for number, (ours, theirs) in enumerate(zip(want, run_onnx(model, feeds))):
        scale = max(1.0, float(np.abs(ours).max(initial=0)))
        np.testing.assert_allclose(theirs, ours, rtol=rtol, atol=rtol * scale * 0.1)
        if again:
            back = list(read.values())[number]
            np.testing.assert_allclose(back, ours, rtol=rtol, atol=rtol * scale * 0.1)
    return model


IMAGE = (2, 6, 9, 8)
LAST = (2, 9, 8, 6)
ROIS = np.float32([[0, 0.5, 1, 6, 7.5], [1, 2, 0, 5, 3], [1, 3, 3, 4, 8]])
ONE = {
    name: (name, [f(3, 4)], {})
    for name in "Relu Sigmoid Tanh Exp Abs Floor Ceil Sin Cos Sign Negative Softplus Softsign Erf Copy Alias".split()
} | {
    name: (name, [positive(3, 4)], {}) for name in "Log Sqrt Reciprocal Rsqrt".split()
} | {
    "StopGradient": ("StopGradient", [f(3)], {}),
    "Not": ("Not", [f(3, 4) > 0], {}),
    "Sum": ("Sum", [f(3, 4), f(3, 4), f(3, 4)], {}),
    "Max": ("Max", [f(3, 4), f(3, 4)], {}),
    "Min": ("Min", [f(3, 4), f(3, 4)], {}),
    "Mean": ("Mean", [f(3, 4), f(3, 4)], {}),
    **{name: (name, [f(2, 3, 4), f(3, 4)], {"broadcast": 1}) for name in ("Add", "Sub", "Mul")},
    "Div": ("Div", [f(2, 3, 4), positive(2, 3, 4)], {}),
    "Add at an axis": ("Add", [f(2, 3, 4), f(3)], {"broadcast": 1, "axis": 1}),
    "Mul as NumPy does": ("Mul", [f(2, 3, 4), f(3, 1)], {}),
    **{name: (name, [f(3, 4) > 0, f(3, 4) > 0], {}) for name in ("And", "Or", "Xor")},
    **{name: (name, [f(3, 4).round(), f(3, 4).round()], {}) for name in ("LT", "GT", "LE", "GE")},
    **{name: (name, [np.int32([1, 2, 3]), np.int32([1, 4, 3])], {}) for name in ("EQ", "NE")},
    "Pow": ("Pow", [positive(3, 4)], {"exponent": 2.5}),
    "Pow of two": ("Pow", [positive(3, 4), f(4)], {"broadcast": 1}),
    "Sqr": ("Sqr", [f(3, 4)], {}),
    "Cube": ("Cube", [f(3, 4)], {}),
    "LeakyRelu": ("LeakyRelu", [f(3, 4)], {"alpha": 0.2}),
    "Elu": ("Elu", [f(3, 4)], {"alpha": 0.7}),
    "ThresholdedRelu": ("ThresholdedRelu", [f(3, 4)], {"alpha": 0.3}),
    "Selu": ("Selu", [f(3, 4)], {"alpha": 1.5, "scale": 0.9}),
    "HardSigmoid": ("HardSigmoid", [f(3, 4)], {"alpha": 0.3, "beta": 0.4}),
    "Swish": ("Swish", [f(3, 4)], {}),
    "Gelu": ("Gelu", [f(3, 4)], {}),
    "Clip": ("Clip", [f(3, 4)], {"min": -0.5, "max": 0.5}),
    "Clip from above": ("Clip", [f(3, 4)], {"max": 0.5}),
    "Scale": ("Scale", [f(3, 4)], {"scale": 0.3}),
    "Dropout": ("Dropout", [f(3, 4)], {"is_test": 1}),
    "WeightedSum": ("WeightedSum", [f(3, 4), f(1), f(3, 4), f(1)], {}),
    "Where": ("Where", [f(3, 4) > 0, f(3, 4), f(3, 4)], {}),
    "Conv": ("Conv", [f(*IMAGE), f(4, 3, 3, 2), f(4)], {"kernel_h": 3, "kernel_w": 2, "pad_t": 1, "group": 2}),
    "Conv with strides": ("Conv", [f(*IMAGE), f(4, 6, 3, 3)], {"kernel": 3, "stride": 2, "dilation": 2, "pad": 2}),
    "Conv SAME": ("Conv", [f(*IMAGE), f(4, 6, 3, 3)], {"kernel": 3, "stride": 2, "legacy_pad": 2}),
    "Conv NHWC": ("Conv", [f(*LAST), f(4, 3, 3, 6), f(4)], {"kernel": 3, "order": "NHWC"}),
    "Conv of rows": ("Conv", [f(2, 3, 7), f(4, 3, 3), f(4)], {"kernels": [3], "pads": [1, 0]}),
    "ConvTranspose": ("ConvTranspose", [f(*IMAGE), f(6, 4, 3, 3), f(4)], {"kernel": 3, "stride": 2, "adj": 1}),
    "MaxPool": ("MaxPool", [f(*IMAGE)], {"kernel": 3, "stride": 2, "pad": 1}),
    "MaxPool NHWC": ("MaxPool", [f(*LAST)], {"kernel": 2, "stride": 2, "order": "NHWC"}),
    "MaxPool of Caffe": ("MaxPool", [f(*IMAGE)], {"kernel": 2, "stride": 2, "legacy_pad": 3}),
    "AveragePool": ("AveragePool", [f(*IMAGE)], {"kernel": 3, "stride": 2, "pad": 1}),
    "AveragePool with pads": ("AveragePool", [f(*IMAGE)], {"kernel": 3, "pad": 1, "count_include_pad": 1}),
    "AveragePool of all": ("AveragePool", [f(*IMAGE)], {"global_pooling": 1, "kernel": 9}),
    "MaxPool of all": ("MaxPool", [f(*IMAGE)], {"global_pooling": 1, "kernel": 9}),
    "SpatialBN": ("SpatialBN", [f(*IMAGE), f(6), f(6), f(6), positive(6)], {"is_test": 1, "epsilon": 1e-3}),
    "SpatialBN NHWC": ("SpatialBN", [f(*LAST), f(6), f(6), f(6), positive(6)], {"is_test": 1, "order": "NHWC"}),
    "LRN": ("LRN", [f(*IMAGE)], {"size": 3, "alpha": 0.3, "beta": 0.7, "bias": 1.5}),
    "InstanceNorm": ("InstanceNorm", [f(*IMAGE), f(6), f(6)], {"epsilon": 1e-3}),
    "PRelu": ("PRelu", [f(*IMAGE), f(6)], {}),
    "PRelu of one": ("PRelu", [f(*IMAGE), f(1)], {}),
    "ResizeNearest": ("ResizeNearest", [f(*IMAGE)], {"height_scale": 2.0, "width_scale": 3.0}),
    "UpsampleBilinear": ("UpsampleBilinear", [f(*IMAGE)], {"height_scale": 2.0, "width_scale": 2.0}),
    "PadImage": ("PadImage", [f(*IMAGE)], {"pad_t": 1, "pad_l": 2, "pad_b": 3, "pad_r": 0, "value": 0.5}),
    "PadImage by reflection": ("PadImage", [f(*IMAGE)], {"pad": 2, "mode": "reflect"}),
    "ChannelShuffle": ("ChannelShuffle", [f(*IMAGE)], {"group": 3, "kernel": 1}),
    "FC": ("FC", [f(3, 2, 5), f(4, 10), f(4)], {}),
    "FC at an axis": ("FC", [f(3, 2, 5), f(4, 5), f(4)], {"axis": 2}),
    "FCTransposed": ("FCTransposed", [f(3, 5), f(5, 4), f(4)], {}),
    "MatMul": ("MatMul", [f(3, 5), f(5, 4)], {}),
    "MatMul transposed": ("MatMul", [f(5, 3), f(4, 5)], {"trans_a": 1, "trans_b": 1}),
    "BatchMatMul": ("BatchMatMul", [f(2, 3, 5), f(2, 4, 5)], {"trans_b": 1}),
    "Softmax": ("Softmax", [f(3, 5)], {}),
    "Softmax over axes": ("Softmax", [f(3, 2, 5)], {"axis": 1}),
    "LayerNorm": ("LayerNorm", [f(3, 4, 5)], {"axis": 1, "epsilon": 1e-3}),
    "Gather": ("Gather", [f(6, 3), np.int64([[4, 0], [1, 1]])], {}),
    "Reshape": ("Reshape", [f(3, 4, 2)], {"shape": [0, -1]}),
    "Flatten": ("Flatten", [f(3, 4, 2)], {"axis": 2}),
    "FlattenToVec": ("FlattenToVec", [f(3, 4)], {}),
    "ExpandDims": ("ExpandDims", [f(3, 4)], {"dims": [0, 2]}),
    "Squeeze": ("Squeeze", [f(3, 1, 4, 1)], {"dims": [1, 3]}),
    "Transpose": ("Transpose", [f(3, 4, 2)], {"axes": [2, 0, 1]}),
    "Transpose of all": ("Transpose", [f(3, 4, 2)], {}),
    "NCHW2NHWC": ("NCHW2NHWC", [f(*IMAGE)], {}),
    "NHWC2NCHW": ("NHWC2NCHW", [f(*LAST)], {}),
    "Slice": ("Slice", [f(5, 6)], {"starts": [1, 0], "ends": [-2, -1]}),
    "Tile": ("Tile", [f(3, 4)], {"tiles": 3, "axis": 1}),
    "Cast": ("Cast", [f(3, 4) * 9], {"to": 2}),
    "Shape": ("Shape", [f(3, 4)], {}),
    "Shape of axes": ("Shape", [f(3, 4, 5)], {"axes": [2, 0]}),
    **{
        name: (name, [f(3, 4, 5)], {"axes": [0, 2], "keepdims": 0})
        for name in "ReduceSum ReduceMean ReduceMax ReduceMin ReduceL1 ReduceL2".split()
    },
    "ArgMax": ("ArgMax", [f(3, 4)], {"axis": 1}),
    "ArgMin": ("ArgMin", [f(3, 4)], {"axis": 0, "keepdims": 0}),
    **{name: (name, [positive(3, 4) / 2], {}) for name in "Tan Asin Acos Atan Sinh Cosh Log1p Logit".split()},
    **{name: (name, [f(3, 4)], {}) for name in ("Cbrt", "Mish", "ReplaceNaN", "Size", "FloatToHalf")},
    "HalfToFloat": ("HalfToFloat", [f(3, 4).astype(np.float16)], {}),
    "ReluN": ("ReluN", [f(3, 4)], {"n": 0.8}),
    "SumRelu": ("SumRelu", [f(3, 4), f(3, 4)], {}),
    **{
        f"Reduce{end}{kind}": (f"Reduce{end}{kind}", [f(3, 4, 5)], {"num_reduce_dim": 2})
        for end in ("Front", "Back") for kind in ("Sum", "Mean", "Max")
    },
    "SumElements": ("SumElements", [f(3, 4)], {}),
    "SumElements, their mean": ("SumElements", [f(3, 4)], {"average": 1}),
    "Conv1D": ("Conv1D", [f(2, 3, 7), f(4, 3, 3), f(4)], {"kernels": [3]}),
    "Conv2D": ("Conv2D", [f(*IMAGE), f(4, 6, 3, 3)], {"kernel": 3, "stride": 2}),
    "Conv3D": ("Conv3D", [f(2, 2, 4, 5, 4), f(3, 2, 2, 2, 2), f(3)], {"kernels": [2, 2, 2]}),
    "ConvRelu": ("ConvRelu", [f(*IMAGE), f(4, 6, 3, 3), f(4)], {"kernel": 3}),
    **{
        f"{kind}Pool{n}D": (f"{kind}Pool{n}D", [f(2, 3, *[6] * n)], {"kernels": [2] * n, "strides": [2] * n})
        for kind in ("Max", "Average") for n in (1, 2, 3)
    },
    "GroupNorm": ("GroupNorm", [f(*IMAGE), f(6), f(6)], {"group": 3, "epsilon": 1e-3}),
    "GroupNorm NHWC": ("GroupNorm", [f(*LAST), f(6), f(6)], {"group": 2, "order": "NHWC"}),
    "AffineChannel": ("AffineChannel", [f(*IMAGE), f(6), f(6)], {}),
    "AffineChannel NHWC": ("AffineChannel", [f(*LAST), f(6), f(6)], {"order": "NHWC"}),
    "ResizeNearest3D": ("ResizeNearest3D", [f(1, 2, 3, 2, 2)], {"temporal_scale": 2.0, "width_scale": 3.0}),
    "RMSNorm": ("RMSNorm", [f(3, 4, 5), f(4, 5), f(4, 5)], {"axis": 1, "eps": 1e-3}),
    "Normalize": ("Normalize", [f(3, 4, 5)], {"axis": 1}),
    "NormalizeL1": ("NormalizeL1", [f(3, 4)], {}),
    "ElementwiseLinear": ("ElementwiseLinear", [f(3, 4), f(4), f(4)], {}),
    "ElementwiseLinear of axes": ("ElementwiseLinear", [f(3, 4, 5), f(20), f(20)], {"axis": 1}),
    "Glu": ("Glu", [f(3, 6, 2)], {"dim": 1}),
    "BatchGather": ("BatchGather", [f(3, 6), np.int64([4, 0, 1])], {}),
    "MergeDim": ("MergeDim", [f(3, 4, 5)], {}),
    "PrependDim": ("PrependDim", [f(6, 4)], {"dim_size": 2}),
    "DepthSplit": ("DepthSplit", [f(2, 4)], {"axis": 1, "split": [4]}),
    "CopyFromCPUInput": ("CopyFromCPUInput", [f(3, 4)], {}),
    "RoIAlign": ("RoIAlign", [f(*IMAGE), ROIS], {"pooled_w": 3, "sampling_ratio": 2, "spatial_scale": 0.5}),
    "RoIAlign, aligned": ("RoIAlign", [f(*IMAGE), ROIS], {"pooled_h": 2, "pooled_w": 2, "aligned": 1}),
    "RoIAlign NHWC": ("RoIAlign", [f(*LAST), ROIS[:, 1:]], {"pooled_h": 2, "pooled_w": 2, "order": "NHWC"}),
    "IntegralImage": ("IntegralImage", [f(*IMAGE)], {}),
    "Slice with steps": ("Slice", [f(5, 6)], {"starts": [0, -1], "ends": [99, -99], "steps": [1, -2]}),
    "Where, broadcast": ("Where", [f(3, 4) > 0, f(4), f(3, 1)], {}),
    "Max, broadcast": ("Max", [f(3, 4), f(4)], {}),
    "Round": ("Round", [f(3, 4) * 9], {}),
    "Expand": ("Expand", [f(3, 1)], {"shape": [2, 1, 4]}),
    "Pad": ("Pad", [f(3, 4)], {"pads": [0, 1, 0, -2], "value": 0.5}),
    "Pad by reflection": ("Pad", [f(3, 4)], {"pads": [0, 1, 0, 2], "mode": "reflect"}),
    "Trilu": ("Trilu", [f(3, 4, 4)], {"upper": 0, "k": 1}),
    "CumSum": ("CumSum", [f(3, 4)], {"axis": 1, "reverse": 1}),
    "Mod": ("Mod", [np.int64([-3, 4, 5])], {"divisor": 3, "sign_follow_divisor": 1}),
    "ReduceProd": ("ReduceProd", [f(3, 4, 5)], {"axes": [1], "keepdims": 0}),
    "GatherElements": ("GatherElements", [f(3, 4), np.int64([[1, 0], [2, 3]])], {"axis": 1}),
    "GatherND": ("GatherND", [f(3, 4), np.int64([[1, 0], [0, 3]])], {}),
    "ScatterElements": ("ScatterElements", [f(3, 4), np.int64([[1, 0], [2, 3]]), f(2, 2)], {"axis": 1}),
    **{name: (name, [f(3, 4, 2), f(3, 4, 2)], {}) for name in ("DotProduct", "L1Distance", "SquaredL2Distance")},
    "CosineSimilarity": ("CosineSimilarity", [f(3, 4), f(3, 4)], {}),
    "RowMul": ("RowMul", [f(3, 4, 2), f(3)], {}),
    "SquareRootDivide": ("SquareRootDivide", [f(3, 4), np.int32([4, 0, 9])], {}),
    "SquareRootDivide by floats": ("SquareRootDivide", [f(3, 4), np.float32([4, 0, 9])], {}),
    "Conditional": ("Conditional", [f(3) > 0, f(3, 4), f(3, 4)], {}),
    "ReduceTailSum": ("ReduceTailSum", [f(3, 4, 2)], {}),
    "ColwiseMax": ("ColwiseMax", [f(3, 4, 2)], {}),
    "RowwiseMax": ("RowwiseMax", [f(3, 4, 2)], {}),
    "SumSqrElements": ("SumSqrElements", [f(3, 4)], {"average": 1}),
    "SumElementsInt": ("SumElementsInt", [np.int32([[3, 4], [5, 6]])], {}),
    "IsNaN": ("IsNaN", [np.float32([1, np.nan, np.inf])], {}),
    "AliasWithName": ("AliasWithName", [f(3, 4)], {}),
    "EnsureDense": ("EnsureDense", [f(3, 4)], {}),
    "ResizeLike": ("ResizeLike", [f(3, 4), f(3, 2, 2)], {}),
    "UpsampleNearest": ("UpsampleNearest", [f(*IMAGE)], {"scale": 3}),
    "ReversePackedSegs": ("ReversePackedSegs", [f(4, 3, 2), np.int32([4, 1, 2])], {}),
    "RotaryEmbedding": ("RotaryEmbedding", [f(2, 3, 4, 6), f(5, 3), f(5, 3)], {}),
    "RotaryEmbedding at positions": (
        "RotaryEmbedding", [f(2, 3, 4, 6), f(5, 3), f(5, 3), np.int32([3, 4, 0, 1])], {"inverse": 1},
    ),
    **{
        f"{name}{title}": (name, [f(7, *shape), np.int32([2, 0, 4, 1])], {})
        for name in ("LengthsSum", "LengthsMean", "LengthsMax") for title, shape in (("", (3,)), (" of vectors", ()))
    },
    **{
        name: (name, [f(9, 3), np.int64([1, 5, 5, 8, 0, 2, 2]), np.int32([2, 0, 4, 1])], {})
        for name in ("SparseLengthsSum", "SparseLengthsMean", "SparseLengthsMax")
    },
    "SparseLengthsWeightedSum": (
        "SparseLengthsWeightedSum", [f(9, 3), f(7), np.int32([1, 5, 5, 8, 0, 2, 2]), np.int32([2, 0, 4, 1])], {},
    ),
    "LogSoftmax": ("LogSoftmax", [f(3, 4, 2)], {"axis": 1}),
    "ConstantFill": ("ConstantFill", [f(3, 4)], {"value": 2.5}),
    "ConstantFill, more axes": ("ConstantFill", [f(3, 4)], {"value": 3, "extra_shape": [2]}),
    "Attention": ("Attention", [f(2, 4, 3, 5), f(2, 2, 6, 5), f(2, 2, 6, 7)], {"scale": 0.3}),
    "Attention, causal": ("Attention", [f(2, 2, 5, 4), f(2, 2, 3, 4), f(2, 2, 3, 4)], {"causal": 1}),
    "Attention, mask": ("Attention", [f(2, 2, 3, 4), f(2, 2, 3, 4), f(2, 2, 3, 4), f(3, 3)], {}),
    "Attention, keys hidden": (
        "Attention", [f(2, 2, 2, 4), f(2, 2, 3, 4), f(2, 2, 3, 4), np.array([[[[True, False, True], [False] * 3]]])],
        {"causal": 1},
    ),
    "Attention, NaN without keys": (
        "Attention", [f(2, 2, 2, 4), f(2, 2, 3, 4), f(2, 2, 3, 4), np.array([[[[True, False, True], [False] * 3]]])],
        {"zero_weights": "never"},
    ),
    "Attention, no NaN": (
        "Attention", [f(2, 2, 2, 4), f(2, 2, 3, 4), f(2, 2, 3, 4), np.float32([[[[0, 1, 2], [-np.inf] * 3]]])],
        {"zero_weights": "nan"},
    ),
    "ScatterND": ("ScatterND", [f(3, 4), np.int64([[1], [0]]), f(2, 4)], {"reduction": "add"}),
    "Scatter": ("Scatter", [f(3, 4), np.int64([[1, 0], [2, 3], [0, 1]]), f(3, 2)], {}),
    "BatchPermutation": ("BatchPermutation", [f(3, 4), np.int32([2, 0, 1])], {}),
    "NumpyTile": ("NumpyTile", [f(3, 4), np.int32([2, 3])], {}),
    "OneHot": ("OneHot", [np.int64([2, 0, 3]), np.int64([4])], {}),
    "HasElements": ("HasElements", [f(3, 4)], {}),
    "IsEmpty": ("IsEmpty", [f(3, 4)], {}),
    "IsMemberOf": ("IsMemberOf", [np.int32([[3, 4], [5, 6]])], {"value": [3, 6, 7]}),
    "SinusoidPositionEncoding": (
        "SinusoidPositionEncoding", [np.int32([[3, 4], [0, 6]])], {"embedding_size": 5, "alpha": 100.0},
    ),
    **{name: (name, [np.int32([3, 4, 9]), np.int32([5, 6, 1])], {}) for name in
       ("SumInt", "BitwiseAnd", "BitwiseOr", "BitwiseXor")},
    "StumpFunc": ("StumpFunc", [np.float32([1, 2, np.nan])], {"threshold": 1.0, "low_value": 3.0, "high_value": 4.0}),
    "C10LayerNorm_DontUseThisOpYet": ("C10LayerNorm_DontUseThisOpYet", [f(3, 4)], {}),
    "LpNorm": ("LpNorm", [f(3, 4)], {"p": 1, "average": 1}),
    "LpNorm of squares": ("LpNorm", [f(3, 4)], {}),
    "SumReduceLike": ("SumReduceLike", [f(2, 3, 4), f(3)], {"broadcast": 1, "axis": 1}),
    "SumReduceLike of all": ("SumReduceLike", [f(2, 3), f(2, 3)], {}),
    "ReduceFrontWeightedSum": ("ReduceFrontWeightedSum", [f(3, 4, 2), f(3)], {}),
    "MakeTwoClass": ("MakeTwoClass", [positive(3, 4) / 2], {}),
    "Bucketize": ("Bucketize", [f(3, 4)], {"boundaries": [-0.5, 0.0, 0.7]}),
    "BatchOneHot": ("BatchOneHot", [np.int32([[3, 1], [2, 1]]), np.int32([2, 1]), np.int32([3, 4, 1])], {}),
    "BatchBoxCox": ("BatchBoxCox", [positive(3, 2), np.float32([0, 0.5]), np.float32([1, -2])], {}),
    "SequenceMask": ("SequenceMask", [f(3, 4), np.int32([1, 0, 4])], {"mode": "sequence", "fill_val": -1e9}),
    "SequenceMask of repeated columns": (
        "SequenceMask", [f(3, 4, 2), np.int32([1, 0, 4])], {"mode": "sequence", "repeat_from_axis": 2, "fill_val": 0.0},
    ),
    "SequenceMask by windows": (
        "SequenceMask", [f(3, 4), np.int32([1, 0, 4])], {"mode": "window", "radius": 1, "fill_val": -1e9},
    ),
    **{
        f"SequenceMask {mode}": ("SequenceMask", [f(2, 3, 3)], {"mode": mode, "axis": 2, "batch": 0, "fill_val": -9.0})
        for mode in ("upper", "lower", "upperdiag", "lowerdiag")
    },
    **{
        name: (name, [f(5, 2), np.int32([2, 0, 2, 1, 0])], {"num_segments": 4})
        for name in ("UnsortedSegmentSum", "UnsortedSegmentMean")
    },
    "LengthsWeightedSum": ("LengthsWeightedSum", [f(7, 3), f(7), np.int32([2, 0, 4, 1])], {}),
    "SpaceToBatch": ("SpaceToBatch", [f(2, 3, 3, 4)], {"pad_t": 1}),
    "BatchToSpace": ("BatchToSpace", [f(8, 3, 2, 2)], {"pad_l": 1, "pad_b": 1}),
    "LpPool": ("LpPool", [f(*IMAGE)], {"kernel": 3, "stride": 2, "pad": 1}),
    "LpPool of all": ("LpPool", [f(*IMAGE)], {"global_pooling": 1, "kernel": 9, "p": 3.0}),
    **{
        f"GridSample {mode} {padding}": (
            "GridSample", [f(*IMAGE), f(2, 3, 4, 2)], {"mode": mode, "padding_mode": padding, "align_corners": align},
        )
        for mode, padding, align in (("linear", "zeros", 0), ("cubic", "border", 1), ("nearest", "reflection", 0))
    },
    "DeformConv": (
        "DeformConv", [f(2, 4, 5, 6), f(2, 16, 4, 5), f(4, 2, 2, 2)],
        {"kernel": 2, "group": 2, "deformable_group": 2, "padding_mode": "zeros"},
    ),
    "DeformConv with a mask": (
        "DeformConv", [f(2, 4, 5, 6), f(2, 18, 3, 3), f(4, 4, 3, 3), f(4), f(2, 9, 3, 3)],
        {"kernel": 3, "stride": 2, "pad": 1, "padding_mode": "zeros", "masked": 1},
    ),
    "SpatialNarrowAs": ("SpatialNarrowAs", [f(2, 3, 5, 6), f(1, 1, 4, 2)], {}),
    "NormalizePlanarYUV": ("NormalizePlanarYUV", [f(2, 3, 4, 5), f(1, 3), positive(1, 3)], {}),
    "GroupSpatialSoftmax": ("GroupSpatialSoftmax", [f(2, 6, 3, 2)], {"num_classes": 3}),
    **{
        name: (name, [f(*IMAGE), ROIS], {"pooled_h": 2, "pooled_w": 2, "is_test": 1})
        for name in ("RoIPool", "RoIPoolF")
    },
    "LSTMUnit": (
        "LSTMUnit", [f(1, 3, 2), f(1, 3, 2), f(1, 3, 8), np.int32([1, 3, 2]), np.int32([2])], {"forget_bias": 0.5},
    ),
    "LSTMUnit without lengths": (
        "LSTMUnit", [f(3, 2), f(3, 2), f(3, 8), np.int32([2])], {"sequence_lengths": 0},
    ),
    "GRUUnit": ("GRUUnit", [f(1, 3, 2), f(1, 3, 6), np.int32([1, 3, 2]), np.int32([2])], {"drop_states": 1}),
    **{
        f"{kind}, {direction}": (
            kind,
            [f(5, 3, 2), f(d, gates * 4, 2), f(d, gates * 4, 4), f(d, 2 * gates * 4), np.int32([5, 2, 3])],
            {"hidden_size": 4, "direction": direction, "given": ["B", "sequence_lens"]},
        )
        for kind, gates in (("ONNXLSTM", 4), ("ONNXGRU", 3), ("ONNXRNN", 1))
        for direction, d in (("reverse", 1), ("bidirectional", 2))
    },
}  # fmt: skip
MANY = {
    "Concat": (make_op("Concat", ["a", "b"], ["y", "extents"], axis=1), {"a": f(2, 3, 4), "b": f(2, 1, 4)}, ["y"]),
    "Concat, extents read": (
        make_op("DepthConcat", ["a", "b"], ["y", "extents"]), {"a": f(2, 3, 4), "b": f(2, 1, 4)}, ["y", "extents"],
    ),
    "Concat on a new axis": (
        make_op("Concat", ["a", "b"], ["y", "extents"], axis=1, add_axis=1), {"a": f(2, 3), "b": f(2, 3)}, ["y"],
    ),
    "Split": (make_op("Split", ["a"], ["y", "z"], axis=1, split=[1, 3]), {"a": f(2, 4)}, ["y", "z"]),
    "TopK": (make_op("TopK", ["a"], ["y", "z"], k=2, axis=1), {"a": f(3, 5, 2)}, ["y", "z"]),
    "TopK, places read": (make_op("TopK", ["a"], ["y", "z"], k=2), {"a": f(3, 5)}, ["z"]),
    **{
        f"MaxPoolWithIndex, {name}": (make_op("MaxPoolWithIndex", ["a"], ["y", "z"], **args), {"a": f(*IMAGE)}, outputs)
        for name, args, outputs in (
            ("places", {"kernel": 3, "stride": 2, "pad": 1}, ["y", "z"]), ("first", {"kernel": 2}, ["y"]),
            ("second", {"global_pooling": 1}, ["z"]),
        )
    },
    "Moments": (make_op("Moments", ["a"], ["y", "z"], axes=[1], keepdims=0), {"a": f(3, 4, 2)}, ["y", "z"]),
    "Moments, variance": (make_op("Moments", ["a"], ["y", "z"], axes=[0, 2]), {"a": f(3, 4, 2)}, ["z"]),
    **{
        name: (make_op(name, ["a"], ["y", "z"]), {"a": f(3, 4, 2, 5)}, ["y", "z"])
        for name in ("BatchMoments", "ChannelStats")
    },
    "ScaleBlobs": (make_op("ScaleBlobs", ["a", "b"], ["y", "z"], scale=0.3), {"a": f(3), "b": f(2)}, ["y", "z"]),
    "Split, one part read": (make_op("Split", ["a"], ["y", "z"], axis=1), {"a": f(2, 4)}, ["z"]),
}  # fmt: skip
ONE_BATCH = {
    "WeightedSum",
    "MatMul transposed",
    "GatherElements",
    "Where, broadcast",
    "LSTMUnit",
    "GRUUnit",
    "BatchToSpace",
    "SequenceMask by windows",
    "BatchPermutation",
    "NormalizePlanarYUV",
    "BatchMoments",
}


def one(op, values, outputs, name):
    net = NetDef(name="one", op=[op])
    net.external_input.extend(values)
    net.external_output.extend(outputs)
    inputs = [key for key in values if key in ("a", "b", "x0") or op.type in _TWO_FED]
    if op.type.startswith("SparseLengths"):
        inputs = list(values)[1:]
    dynamic, opset = name not in ONE_BATCH, OPSETS_NEEDED.get(op.type, 18 if "Lengths" in name else 17)
    return compare(net, values, inputs, outputs, dynamic_batch=dynamic, opset=opset)


OPSETS_NEEDED = {"DeformConv": 19, "BitwiseAnd": 18, "BitwiseOr": 18, "BitwiseXor": 18}
_TWO_FED = {
    "DeformConv", "GridSample",
    "SumReduceLike", "ReduceFrontWeightedSum", "UnsortedSegmentSum", "UnsortedSegmentMean", "LengthsWeightedSum",
    "Scatter", "SumInt", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "LSTMUnit", "GRUUnit", "SequenceMask",
    "Sum", "SumRelu", "Max", "Min", "Mean", "Add", "Sub", "Mul", "Div", "And", "Or", "Xor", "LT", "GT", "LE", "GE",
    "EQ", "NE", "MatMul", "BatchMatMul", "Where", "Gather", "Attention",
    "DotProduct", "L1Distance", "SquaredL2Distance", "CosineSimilarity", "RowMul", "SquareRootDivide", "Conditional",
    "ResizeLike", "ReversePackedSegs", "LengthsSum", "LengthsMean", "LengthsMax",
}  # fmt: skip


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", ONE)
def test_operator(name):
    kind, arrays, given = ONE[name]
    values = {f"x{i}": array for i, array in enumerate(arrays)}
    op = make_op(kind, list(values), ["y"], **given)
    if kind in ("LayerNorm", "C10LayerNorm_DontUseThisOpYet"):
        op.output.extend(["mean", "deviation"])
    if kind == "Reshape":
        op.output.append("old")
    if kind == "LSTMUnit" or kind.startswith("ONNX"):
        op.output.extend(["other", "more"] if kind == "ONNXLSTM" else ["other"])
    if kind == "RMSNorm":
        op.output.append("deviation")
    one(op, values, ["y"], name)


@pytest.mark.parametrize("name", MANY)
def test_operator_with_several_outputs(name):
    op, values, outputs = MANY[name]
    one(op, values, outputs, name)


def test_every_rule_is_tested():
    device = {"CopyCPUToGPU", "CopyGPUToCPU", "EnsureCPUOutput", "CopyOnDeviceLike"}
    device |= {"RecurrentNetwork", "InferenceLSTM"}  # test_recurrent_export.py
    device |= {"If", "While", "ONNXWhile"}  # test_control_export.py
    assert {kind for kind, _, _ in ONE.values()} | {op.type for op, _, _ in MANY.values()} == set(rules()) - device


@pytest.mark.parametrize("opset", [13, 15, 18, 21])
def test_opsets(opset):
    net = NetDef(name="sum", op=[make_op("ReduceMean", ["x"], ["m"], axes=[1]), make_op("Relu", ["m"], ["y"])])
    net.external_output.append("y")
    model = compare(net, {"x": f(3, 4)}, ["x"], ["y"], opset=opset)
    assert model.opset_import[0].version == opset


NETS = {
    "mlp": ((3, 6), lambda m: create_mlp(m, "data", [6, 5, 4])),
    "lenet": ((2, 1, 28, 28), lambda m: create_lenet(m, "data")),
    "alexnet": ((2, 3, 63, 63), lambda m: create_alexnet(m, "data", 3, 10, is_test=True, hidden=16, image_size=63)),
    "vgg11-bn": (
        (2, 3, 32, 32),
        lambda m: create_vgg(m, "data", 3, 10, 11, is_test=True, hidden=16, image_size=32, batch_norm=True),
    ),
    "resnet18": ((2, 3, 32, 32), lambda m: create_resnet(m, "data", 3, 10, 18, is_test=True)),
    "resnet8-cifar": ((2, 3, 16, 16), lambda m: create_resnet_cifar(m, "data", 3, 10, 8, is_test=True)),
    "resnext50": ((2, 3, 32, 32), lambda m: create_resnext(m, "data", 3, 10, 50, 4, 8, is_test=True)),
    "inception_v1": ((2, 3, 32, 32), lambda m: create_inception_v1(m, "data", 3, 10, is_test=True)),
    "inception_v3": ((2, 3, 75, 75), lambda m: create_inception_v3(m, "data", 3, 10, is_test=True, image_size=75)),
    "squeezenet": ((2, 3, 32, 32), lambda m: create_squeezenet(m, "data", 3, 10, is_test=True, image_size=32)),
    "shufflenet": ((2, 3, 32, 32), lambda m: create_shufflenet(m, "data", 3, 10, 3, is_test=True)),
}


# Other nets have the same layers.
LARGE = {"vgg11-bn", "resnet18", "resnext50", "inception_v3"}


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LARGE)) for name in NETS])
def test_nets_of_the_zoo(name):
    shape, build = NETS[name]
    model = ModelHelper(name)
    softmax = build(model)
    net, parameters = extract_predictor(model.net, ["data"], [softmax])
    workspace = Workspace()
    workspace.run_net_once(model.param_init_net)
    values = {}
    for parameter in parameters:  # statistics that are no zeros and ones
        value = workspace.fetch(parameter)
        values[parameter] = value if value.ndim > 1 else positive(*value.shape) if "riv" in parameter else value + 0.1
    values["data"] = f(*shape)
    for fold in (True,) if name == "inception_v3" else (True, False):
        model = compare(net, values, ["data"], [str(softmax)], fold=fold, rtol=1e-3, again=fold)
        kinds = {node.op_type for node in model.graph.node}
        assert ("BatchNormalization" in kinds) <= (not fold)
        assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "N"
    data = np.concatenate([values["data"]] * 2)
    assert run_onnx(model, {"data": data})[0].shape[0] == 2 * shape[0]


def light_models():
    folder = os.path.join(os.path.dirname(onnx.__file__), "backend", "test", "data", "light")
    names = ["densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet"]
    return [os.path.join(folder, f"light_{name}.onnx") for name in names]  # the others have hundreds of megabytes


@pytest.mark.parametrize("file", light_models(), ids=os.path.basename)
@pytest.mark.one_in(6)
def test_models_that_come_with_onnx(file):
    read = read_onnx(file)
    feeds = {}
    for name in read.inputs:  # what ONNX's own tests feed
        shape = read.specs[name].shape
        count = int(np.prod(shape))
        feeds[name] = (np.arange(count).reshape(shape) / count).astype(np.float32)
    got = read.predictor().run(feeds)[read.outputs[0]]
    want = onnx.numpy_helper.to_array(onnx.load_tensor(file[: -len(".onnx")] + "_output_0.pb"))
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-7)


def test_files(tmp_path):
    model = ModelHelper("files")
    brew.fc(model, "data", "scores", 3, 2)
    workspace = Workspace()
    workspace.run_net_once(model.param_init_net)
    net, _ = extract_predictor(model.net, ["data"], ["scores"])
    file = tmp_path / "net.onnx"
    export_onnx(file, net, shapes={"data": (4, 3)}, workspace=workspace)
    onnx.checker.check_model(onnx.load(file), full_check=True)
    read = read_onnx(file)
    data = f(4, 3)
    want = data @ workspace.fetch("scores_w").T + workspace.fetch("scores_b")
    np.testing.assert_allclose(read.predictor().run(data=data)["scores"], want, rtol=1e-5, atol=1e-6)
    read.save(tmp_path / "predictor")
    from netbuilder import load_predictor

    np.testing.assert_allclose(
        load_predictor(tmp_path / "predictor").run(data=data)["scores"], want, rtol=1e-5, atol=1e-6
    )


def test_a_blob_that_is_overwritten_keeps_its_name_at_last():
    net = NetDef(name="twice", op=[make_op("Relu", ["x"], ["x"]), make_op("Scale", ["x"], ["y"], scale=2.0),
                                   make_op("Relu", ["y"], ["y"])])  # fmt: skip
    net.external_output.append("y")
    model = compare(net, {"x": f(3, 4)}, ["x"], ["y"])
    assert [node.output[0] for node in model.graph.node] == ["x/1", "y/0", "y"]


def batches(ops, outputs, **shapes):
    """Export for batches as given, compare with netbuilder at another one; return the shapes of the outputs."""
    net = NetDef(name="open", op=ops)
    model = onnx_model(net, {}, shapes=shapes, outputs=outputs)
    feeds = {name: f(5, *shape[1:]) for name, shape in shapes.items()}
    workspace = Workspace()
    for name, value in feeds.items():
        workspace.feed(name, value)
    workspace.run_net_once(net)
    for name, theirs in zip(outputs, run_onnx(model, feeds)):
        np.testing.assert_allclose(theirs, workspace.fetch(name), rtol=1e-5)
    return [[dim.dim_param or dim.dim_value for dim in info.type.tensor_type.shape.dim] for info in model.graph.output]


def test_what_follows_the_batch_stays_open():
    ops = [
        make_op("Slice", ["x"], ["y"], starts=[-3, 0], ends=[-1, -2]),  # the last two
        make_op("Concat", ["x", "x"], ["z", "extents"], axis=0),
        make_op("Transpose", ["x"], ["t"]),
        make_op("ReduceSum", ["x"], ["sums"], axes=[0], keepdims=0),
        make_op("Split", ["t"], ["a", "b"], axis=0),
    ]
    assert batches(ops, ["y", "z", "t", "sums", "a"], x=(4, 4)) == [[2, 3], ["2*N", 4], [4, "N"], [4], [2, "N"]]


@pytest.mark.parametrize(
    ("op", "match"),
    [
        (make_op("Split", ["x"], ["y", "other"], axis=0, split=[1, 3]), "with twice the batch"),
        (make_op("Concat", ["x", "x"], ["other", "y"], axis=0), "constant 'y/extents' depends on the batch"),
    ],
    ids=lambda value: getattr(value, "type", ""),
)
def test_nets_that_take_one_batch_only(op, match):
    def export(**options):
        return onnx_model(NetDef(name="one", op=[op]), {}, shapes={"x": (4, 6)}, outputs=["y"], **options)

    with pytest.raises(OperatorError, match=match):
        export()
    assert export(dynamic_batch=False).graph.output[0].name == "y"


def test_nodes_have_names_of_their_own():
    ops = [make_op("Swish", ["x"], ["y"], name="same"), make_op("Swish", ["y"], ["z"], name="same")]
    model = onnx_model(NetDef(op=ops), {}, shapes={"x": (2, 3)}, outputs=["z"])
    names = [node.name for node in model.graph.node]
    assert len(set(names)) == len(names) and names[0] == "same" and all(name.startswith("same") for name in names)


@pytest.mark.parametrize(
    ("ops", "error", "match"),
    [
        ([make_op("Adagrad", ["x", "x", "x", "x"], ["y", "z"])], OperatorError, "Adagrad cannot be exported to ONNX"),
        ([make_op("Dropout", ["x"], ["y", "mask"])], OperatorError, "operator 0: Dropout.*training mode"),
        (
            [make_op("Add", ["x", "other"], ["y"])],
            OperatorError,
            "'other' is neither an input with a shape nor a parameter",
        ),
        ([make_op("Relu", ["x"], ["z"])], BlobError, "no operator makes blob 'y'"),
    ],
)
def test_refusals_of_export(tmp_path, ops, error, match):
    net = NetDef(name="refused", op=ops)
    file = tmp_path / "net.onnx"
    with pytest.raises(error, match=match):
        export_onnx(file, net, {}, shapes={"x": (3, 4)}, outputs=["y"])
    assert not file.exists()


def test_the_opset_has_to_be_known():
    with pytest.raises(ArgumentError, match="opset 13 to 21, got 9"):
        onnx_model(Net("n"), {}, shapes={"x": (1,)}, opset=9)


def small_model(kind, **attributes):
    helper = onnx.helper
    info = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 2, 4, 4])
    nodes = [helper.make_node(kind, ["x"], ["y"], name="only", **attributes)]
    graph = helper.make_graph(nodes, "g", [info], [helper.make_empty_tensor_value_info("y")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def test_refusals_of_reading(tmp_path):
    with pytest.raises(OperatorError, match="node 'only' Det .* is not supported"):
        read_onnx(small_model("Det"), reference=False)
    with pytest.raises(OperatorError, match="pooling with dilations is not supported"):
        read_onnx(small_model("MaxPool", kernel_shape=[2, 2], dilations=[2, 2]), reference=False)
    with pytest.raises(OperatorError, match="Bernoulli in training mode, or with random numbers of its own"):
        read_onnx(small_model("Bernoulli"))
    file = tmp_path / "no.onnx"
    file.write_bytes(b"no model")
    with pytest.raises(ParseError, match="is not an ONNX model"):
        read_onnx(file)
    with pytest.raises(FileNotFoundError):
        read_onnx(tmp_path / "missing.onnx")


@pytest.mark.parametrize("extent", [7, 8, 9])
@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool"])
def test_pooling_with_extents_rounded_up(kind, extent):
    helper = onnx.helper
    info = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 2, extent, extent])
    nodes = [helper.make_node(kind, ["x"], ["y"], kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)]
    graph = helper.make_graph(nodes, "g", [info], [helper.make_empty_tensor_value_info("y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    x = f(1, 2, extent, extent)
    np.testing.assert_allclose(
        read_onnx(model).predictor().run(x=x)["y"], run_onnx(model, {"x": x})[0], rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
def test_convolutions_that_pad_by_themselves(auto_pad):
    helper = onnx.helper
    info = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 2, 8, 7])
    weights = onnx.numpy_helper.from_array(f(3, 2, 4, 3), "w")
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], strides=[2, 2], auto_pad=auto_pad)]
    graph = helper.make_graph(nodes, "g", [info], [helper.make_empty_tensor_value_info("y")], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    x = f(1, 2, 8, 7)
    got = read_onnx(model).predictor().run(x=x)["y"]
    np.testing.assert_allclose(got, run_onnx(model, {"x": x})[0], rtol=1e-4, atol=1e-5)


def single(nodes, shape, opset=18, constants=(), rank=None):
    """A model of one input x of a shape and one output y."""
    helper = onnx.helper
    return helper.make_model(
        helper.make_graph(
            nodes, "g", [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [f"d{i}" for i in range(rank or len(shape))])],
            [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in dict(constants).items()],
        ),
        opset_imports=[helper.make_opsetid("", opset)], ir_version=9,
    )  # fmt: skip


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("places", ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"])
@pytest.mark.parametrize("to", [{"scales": np.float32([1, 1, 1.5, 0.5])}, {"sizes": np.int64([2, 3, 11, 5])}], ids=str)
def test_resize(mode, places, to):
    inputs = ["x", "", "scales"] if "scales" in to else ["x", "", "", "sizes"]
    made = onnx.helper.make_node("Resize", inputs, ["y"], mode=mode, coordinate_transformation_mode=places)
    model, x = single([made], ("n", 3, 6, 8), constants=to), f(2, 3, 6, 8)
    read = read_onnx(model, reference=False, shapes={"x": (2, None, 6, 8)} if "sizes" in to else None)
    np.testing.assert_allclose(read.predictor().run(x=x)["y"], run_onnx(model, {"x": x})[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind, gates", [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
@pytest.mark.parametrize("direction, d", [("forward", 1), ("reverse", 1), ("bidirectional", 2)])
@pytest.mark.parametrize("lengths", [None, np.int32([3, 5])], ids=["whole", "lengths"])
def test_recurrent_layers(kind, gates, direction, d, lengths):
    constants = {"w": f(d, gates * 6, 4), "r": f(d, gates * 6, 6), "b": f(d, 2 * gates * 6), "h": f(d, 2, 6)}
    if lengths is not None:
        constants["lengths"] = lengths
    more = {"linear_before_reset": 1} if kind == "GRU" else {}
    inputs = ["x", "w", "r", "b", "lengths" if lengths is not None else "", "h"]
    made = onnx.helper.make_node(kind, inputs, ["y"], hidden_size=6, direction=direction, **more)
    model, x = single([made], (5, 2, 4), constants=constants, rank=4), f(5, 2, 4)
    found = read_onnx(model, reference=False).predictor().run(x=x)["y"]
    np.testing.assert_allclose(found, run_onnx(model, {"x": x})[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "attributes",
    [
        {"output_shape": [10, 8], "strides": [3, 2]},
        {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
        {"auto_pad": "SAME_LOWER", "strides": [2, 2]},
        {"auto_pad": "VALID"},
        {"pads": [1, 0, 0, 1], "output_padding": [1, 0], "strides": [2, 2]},
    ],
    ids=str,
)
def test_transposed_convolutions(attributes):
    made = onnx.helper.make_node("ConvTranspose", ["x", "w"], ["y"], **attributes)
    model, x = single([made], (1, 2, 3, 3), constants={"w": f(2, 4, 3, 3)}), f(1, 2, 3, 3)
    found = read_onnx(model, reference=False).predictor().run(x=x)["y"]
    np.testing.assert_allclose(found, run_onnx(model, {"x": x})[0], rtol=1e-4, atol=1e-5)


def test_tensors_in_files_of_their_own_are_read_from_the_folder_of_the_model(tmp_path):
    made = onnx.helper.make_node("Add", ["x", "c"], ["y"])
    model = single([made], (2, 300), constants={"c": f(300)})
    kept = onnx.numpy_helper.to_array(model.graph.initializer[0])
    onnx.save(model, tmp_path / "model.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    x = f(2, 300)
    np.testing.assert_array_equal(read_onnx(tmp_path / "model.onnx").predictor().run(x=x)["y"], x + kept)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(ParseError, match="model.onnx.*weights.bin"):
        read_onnx(tmp_path / "model.onnx")


def test_nodes_that_onnx_runs_are_named_in_a_warning():
    model = small_model("Det")
    with pytest.warns(ReferenceNodeWarning, match=r"the types Det \(1\) run in ONNX's reference implementation"):
        read = read_onnx(model)
    assert read.reference_nodes == {"Det": ("only",)}
    x = f(1, 2, 4, 4)
    np.testing.assert_allclose(read.predictor().run(x=x)["y"], np.linalg.det(x), rtol=1e-4)


def test_a_recommender_takes_any_number_of_indices_and_types_come_from_the_net():
    size = DLRMSize((11, 5), 4, (6, 8), (10,))
    names = [(f"indices{i}", f"lengths{i}") for i in range(2)]
    model = ModelHelper("dlrm")
    create_dlrm(model, "data", names, size)
    workspace = Workspace()
    workspace.run_net_once(model.param_init_net)
    inputs = ["data", *(name for pair in names for name in pair)]
    net, parameters = extract_predictor(model.net, inputs, ["probability"])
    shapes = {"data": (3, 6), **{name: (7 if name[0] == "i" else 3,) for name in inputs[1:]}}
    exported = onnx_model(net, parameters, shapes=shapes, workspace=workspace)
    for lengths in ([2, 0, 4], [1, 1, 1, 3, 0]):
        feeds = {"data": f(len(lengths), 6)}
        for (indices, counts), rows in zip(names, size.tables):
            feeds[counts] = np.int32(lengths)
            feeds[indices] = RNG.integers(0, rows, sum(lengths)).astype(np.int32)
        for name, value in feeds.items():
            workspace.feed(name, value)
        workspace.run_net_once(net)
        types = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(int32)": np.int32}
        session = onnxruntime.InferenceSession(exported.SerializeToString())
        given = {each.name: feeds[each.name].astype(types[each.type]) for each in session.get_inputs()}
        assert {each.type for each in session.get_inputs()} != {"tensor(float)"}
        for found in (
            session.run(None, given)[0],
            read_onnx(exported, reference=False).predictor().run(given)["probability"],
        ):
            np.testing.assert_allclose(found, workspace.fetch("probability"), rtol=1e-4, atol=1e-6)


def test_a_type_that_does_not_follow_from_the_net_is_said():
    op = make_op("Where", ["c", "x", "x"], ["y"])
    net = NetDef(name="choice", op=[op], external_output=["y"])
    model = onnx_model(net, {}, shapes={"c": (3,), "x": (3,)})
    assert model.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.BOOL
    both = NetDef(name="both", op=[op, make_op("Relu", ["c"], ["z"])], external_output=["y", "z"])
    remedy = r"if 'c' is of bool, give shapes= a TensorSpec\(\(3,\), np.dtype\('bool'\)\)"
    said = rf"ONNX export, net 'both', operator 0: Where .*; {remedy}"
    with pytest.raises(OperatorError, match=said):
        onnx_model(both, {}, shapes={"c": (3,), "x": (3,)})
    wrong = NetDef(name="wrong", op=[make_op("Add", ["x", "z"], ["y"])], external_output=["y"])
    with pytest.raises(OperatorError, match="operator 0: Add") as error:
        onnx_model(wrong, {}, shapes={"x": (3,), "z": (4,)})
    assert "TensorSpec" not in str(error.value)  # no type mends it
