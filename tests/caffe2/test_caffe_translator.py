"""Nets of Caffe, made by hand, against Caffe's layers in NumPy and float64."""

import subprocess
import sys

import numpy as np
import pytest
from google.protobuf import text_format

import caffe_reference as ref
from house import ROOT
from netbuilder.caffe2.proto import caffe2_legacy_pb2
from netbuilder.caffe2.python import caffe_translator, utils, workspace
from netbuilder.exchange import load_predictor
from netbuilder.proto import NetDef, NetError, files
from netbuilder.proto.arguments import arguments, make_op
from netbuilder.proto.caffe_pb2 import NetParameter, NetState


def draw(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def net_of(text):
    return text_format.Parse(text, NetParameter())


def trained(*, old_shapes=(), v1=False, **weights):
    net = NetParameter(name="trained")
    for name, blobs in weights.items():
        layer = (net.layers if v1 else net.layer).add(name=name)
        for value in blobs:
            value, blob = np.asarray(value, np.float32), layer.blobs.add()
            blob.data.extend(value.reshape(-1).tolist())
            if name in old_shapes:
                four = (1,) * (4 - value.ndim) + value.shape
                blob.num, blob.channels, blob.height, blob.width = four
            else:
                blob.shape.dim.extend(value.shape)
    return NetParameter.FromString(net.SerializeToString())


def run(text, weights, *feeds, **options):
    """Return a function that fetches blobs of the translated net."""
    translated, params = caffe_translator.TranslateModel(net_of(text), weights, is_test=True, **options)
    names = [tensor.name for tensor in params.protos]
    assert len(set(names)) == len(names)
    for tensor in params.protos:
        workspace.FeedBlob(tensor.name, utils.Caffe2TensorToNumpyArray(tensor))
    for name, value in zip(("data", "other"), feeds):
        workspace.FeedBlob(name, value)
    workspace.RunNetOnce(translated)
    return workspace.FetchBlob


def inputs(*feeds):
    layers = (
        f'layer {{ name: "{name}" type: "Input" top: "{name}" input_param {{ shape {{ '
        f"{' '.join(f'dim: {n}' for n in value.shape)} }} }} }}"
        for name, value in zip(("data", "other"), feeds)
    )
    return "\n".join(layers) + "\n"


def layer(kind, options="", bottoms=("data",), name="it", top="y"):
    bottom = " ".join(f'bottom: "{b}"' for b in bottoms)
    return f'layer {{ name: "{name}" type: "{kind}" {bottom} top: "{top}" {options} }}\n'


def close(got, want):
    assert got.shape == np.shape(want)
    np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5)


X = draw(2, 4, 7, 6)
F8 = X.astype(np.float64)
V, R = draw(3, 5), draw(2, 4, 3)
Z = draw(2, 4, 7, 6, seed=1)
W = {
    name: draw(*shape, seed=2)
    for name, shape in {
        "conv": (6, 4, 3, 3),
        "group": (6, 2, 3, 3),
        "tall": (6, 4, 3, 2),
        "b": (6,),
        "deconv": (4, 3, 3, 3),
        "deconv_group": (4, 2, 3, 3),
        "b3": (3,),
        "b4": (4,),
        "fc": (6, 168),
        "fc_x": (168, 6),
        "pixel": (6, 6),
        "slope": (4,),
        "c": (4,),
        "d": (4,),
        "map": (7, 6),
        "rows": (4, 7),
        "c3": (6, 4, 2, 3, 3),
    }.items()
}
VIDEO = draw(1, 4, 5, 6, 6)

CASES = {
    "conv": (
        "Convolution",
        "num_output: 6 kernel_size: 3",
        [W["conv"], W["b"]],
        [X],
        lambda x: ref.conv(x, W["conv"], W["b"]),
    ),
    "conv without bias": (
        "Convolution",
        "num_output: 6 kernel_size: 3 stride: 2 pad: 1 bias_term: false",
        [W["conv"]],
        [X],
        lambda x: ref.conv(x, W["conv"], stride=(2, 2), pad=(1, 1)),
    ),
    "conv by groups": (
        "Convolution",
        "num_output: 6 kernel_size: 3 group: 2",
        [W["group"], W["b"]],
        [X],
        lambda x: ref.conv(x, W["group"], W["b"], group=2),
    ),
    "conv dilated": (
        "Convolution",
        "num_output: 6 kernel_size: 3 pad: 2 dilation: 2",
        [W["conv"], W["b"]],
        [X],
        lambda x: ref.conv(x, W["conv"], W["b"], pad=(2, 2), dilation=(2, 2)),
    ),
    "conv dilated per axis": (
        "Convolution",
        "num_output: 6 kernel_size: 3 pad: 2 dilation: 2 dilation: 1",
        [W["conv"], W["b"]],
        [X],
        lambda x: ref.conv(x, W["conv"], W["b"], pad=(2, 2), dilation=(2, 1)),
    ),
    "conv per axis": (
        "Convolution",
        "num_output: 6 kernel_h: 3 kernel_w: 2 stride_h: 1 stride_w: 2 pad_h: 2 pad_w: 1",
        [W["tall"], W["b"]],
        [X],
        lambda x: ref.conv(x, W["tall"], W["b"], stride=(1, 2), pad=(2, 1)),
    ),
    "conv of lists": (
        "Convolution",
        "num_output: 6 kernel_size: 3 kernel_size: 2 stride: 2 stride: 1 pad: 0 pad: 1",
        [W["tall"], W["b"]],
        [X],
        lambda x: ref.conv(x, W["tall"], W["b"], stride=(2, 1), pad=(0, 1)),
    ),
    "conv of videos": (
        "Convolution3D",
        "num_output: 6 kernel_size: 3 kernel_depth: 2 pad: 1 temporal_pad: 1 temporal_stride: 2",
        [W["c3"], W["b"]],
        [VIDEO],
        lambda x: ref.conv(x, W["c3"], W["b"], stride=(2, 1, 1), pad=(1, 1, 1), dilation=(1, 1, 1)),
    ),
    "deconv": (
        "Deconvolution",
        "num_output: 3 kernel_size: 3 stride: 2 pad: 1",
        [W["deconv"], W["b3"]],
        [X],
        lambda x: ref.deconv(x, W["deconv"], W["b3"], stride=(2, 2), pad=(1, 1)),
    ),
    "deconv without bias": (
        "Deconvolution",
        "num_output: 3 kernel_size: 3 bias_term: false",
        [W["deconv"]],
        [X],
        lambda x: ref.deconv(x, W["deconv"]),
    ),
    "deconv by groups": (
        "Deconvolution",
        "num_output: 4 kernel_size: 3 stride: 2 group: 2",
        [W["deconv_group"], W["b4"]],
        [X],
        lambda x: ref.deconv(x, W["deconv_group"], W["b4"], stride=(2, 2), group=2),
    ),
    "max pool": ("Pooling", "kernel_size: 3 stride: 2", [], [X], lambda x: ref.pool(x, (3, 3), (2, 2))),
    "max pool padded": (
        "Pooling",
        "kernel_size: 2 stride: 2 pad: 1",
        [],
        [X],
        lambda x: ref.pool(x, (2, 2), (2, 2), (1, 1)),
    ),
    "max pool per axis": (
        "Pooling",
        "kernel_h: 3 kernel_w: 2 stride_h: 2 stride_w: 2 pad_h: 1 pad_w: 0",
        [],
        [X],
        lambda x: ref.pool(x, (3, 2), (2, 2), (1, 0)),
    ),
    "max pool rounded down": (
        "Pooling",
        "kernel_size: 3 stride: 2 round_mode: FLOOR",
        [],
        [X],
        lambda x: ref.pool(x, (3, 3), (2, 2), ceil=False),
    ),
    "mean pool": (
        "Pooling",
        "pool: AVE kernel_size: 3 stride: 2",
        [],
        [X],
        lambda x: ref.pool(x, (3, 3), (2, 2), mean=True),
    ),
    "mean pool padded": (
        "Pooling",
        "pool: AVE kernel_size: 3 stride: 2 pad: 1",
        [],
        [X],
        lambda x: ref.pool(x, (3, 3), (2, 2), (1, 1), mean=True),
    ),
    "mean pool padded one way": (
        "Pooling",
        "pool: AVE kernel_h: 4 kernel_w: 3 pad_h: 2 pad_w: 0 stride_h: 2 stride_w: 3",
        [],
        [X],
        lambda x: ref.pool(x, (4, 3), (2, 3), (2, 0), mean=True),
    ),
    "pool all": ("Pooling", "pool: AVE global_pooling: true", [], [X], lambda x: x.mean((2, 3), keepdims=True)),
    "pool videos": (
        "Pooling3D",
        "pool: MAX kernel_size: 2 kernel_depth: 1 stride: 2",
        [],
        [VIDEO],
        lambda x: ref.pool(x, (1, 2, 2), (1, 2, 2), (0, 0, 0)),
    ),
    "fc": ("InnerProduct", "num_output: 6", [W["fc"], W["b"]], [X], lambda x: x.reshape(2, -1) @ W["fc"].T + W["b"]),
    "fc without bias": (
        "InnerProduct",
        "num_output: 6 bias_term: false",
        [W["fc"]],
        [X],
        lambda x: x.reshape(2, -1) @ W["fc"].T,
    ),
    "fc transposed": (
        "InnerProduct",
        "num_output: 6 transpose: true",
        [W["fc_x"], W["b"]],
        [X],
        lambda x: x.reshape(2, -1) @ W["fc_x"] + W["b"],
    ),
    "fc of the last axis": (
        "InnerProduct",
        "num_output: 6 axis: 3",
        [W["pixel"], W["b"]],
        [X],
        lambda x: x @ W["pixel"].T + W["b"],
    ),
    "lrn": ("LRN", "local_size: 3 alpha: 0.5 beta: 0.6 k: 2", [], [X], lambda x: ref.lrn(x, 3, 0.5, 0.6, 2.0)),
    "relu": ("ReLU", "", [], [X], lambda x: np.maximum(x, 0)),
    "leaky relu": ("ReLU", "negative_slope: 0.1", [], [X], lambda x: np.where(x > 0, x, 0.1 * x)),
    "prelu": ("PReLU", "", [W["slope"]], [X], lambda x: np.where(x > 0, x, ref.along(W["slope"], 4, 1) * x)),
    "prelu, one slope": (
        "PReLU",
        "channel_shared: true",
        [W["slope"][:1]],
        [X],
        lambda x: np.where(x > 0, x, W["slope"][0] * x),
    ),
    "sigmoid": ("Sigmoid", "", [], [X], lambda x: 1 / (1 + np.exp(-x))),
    "tanh": ("TanH", "", [], [X], np.tanh),
    "dropout": ("Dropout", "dropout_ratio: 0.3", [], [X], lambda x: x),
    "softmax": ("Softmax", "", [], [V], ref.softmax),
    "softmax of images": ("Softmax", "", [], [X], ref.softmax),
    "softmax of an axis": ("Softmax", "axis: -1", [], [X], lambda x: ref.softmax(x, -1)),
    "softmax of a middle axis": ("Softmax", "axis: 2", [], [X], lambda x: ref.softmax(x, 2)),
    "batch norm": (
        "BatchNorm",
        "eps: 0.01",
        [W["c"], W["d"] ** 2, [4.0]],
        [X],
        lambda x: ref.batch_norm(x, W["c"].astype(float), W["d"].astype(float) ** 2, 4.0, 0.01),
    ),
    "instance norm": (
        "InstanceNorm",
        "",
        [W["c"], W["d"]],
        [X],
        lambda x: (
            ref.along(W["c"], 4, 1) * (x - x.mean((2, 3), keepdims=True)) / np.sqrt(x.var((2, 3), keepdims=True) + 1e-5)
            + ref.along(W["d"], 4, 1)
        ),
    ),
    "scale": ("Scale", "", [W["c"]], [X], lambda x: x * ref.along(W["c"], 4, 1)),
    "scale and bias": (
        "Scale",
        "bias_term: true",
        [W["c"], W["d"]],
        [X],
        lambda x: x * ref.along(W["c"], 4, 1) + ref.along(W["d"], 4, 1),
    ),
    "scale of two axes": (
        "Scale",
        "axis: 1 num_axes: 2 bias_term: true",
        [W["rows"], W["rows"]],
        [X],
        lambda x: x * ref.along(W["rows"], 4, 1) + ref.along(W["rows"], 4, 1),
    ),
    "scale of the last axes": ("Scale", "axis: 2 num_axes: -1", [W["map"]], [X], lambda x: x * W["map"]),
    "scale by a number": (
        "Scale",
        "num_axes: 0 bias_term: true",
        [np.float32(1.5), np.float32(0.5)],
        [X],
        lambda x: 1.5 * x + 0.5,
    ),
    "scale by a blob": ("Scale", "axis: 0", [], [X, Z], lambda x, z: x * z),
    "concat": ("Concat", "", [], [X, Z], lambda x, z: np.concatenate([x, z], 1)),
    "concat of rows": ("Concat", "axis: 2", [], [X, Z], lambda x, z: np.concatenate([x, z], 2)),
    "concat of samples": ("Concat", "concat_dim: 0", [], [X, Z], lambda x, z: np.concatenate([x, z], 0)),
    "sum": ("Eltwise", "", [], [X, Z], lambda x, z: x + z),
    "weighted sum": ("Eltwise", "operation: SUM coeff: 2 coeff: -1", [], [X, Z], lambda x, z: 2 * x - z),
    "product": ("Eltwise", "operation: PROD", [], [X, Z], lambda x, z: x * z),
    "maximum": ("Eltwise", "operation: MAX", [], [X, Z], np.maximum),
    "flatten": ("Flatten", "", [], [X], lambda x: x.reshape(2, -1)),
    "flatten all": ("Flatten", "axis: 0", [], [X], lambda x: x.reshape(-1)),
    "flatten the last": ("Flatten", "axis: 2", [], [X], lambda x: x.reshape(2, 4, -1)),
    "flatten the middle": ("Flatten", "axis: 1 end_axis: 2", [], [X], lambda x: x.reshape(2, -1, 6)),
    "flatten the first": ("Flatten", "axis: 0 end_axis: 1", [], [X], lambda x: x.reshape(8, 7, 6)),
    "reshape": ("Reshape", "shape { dim: 0 dim: 2 dim: -1 dim: 6 }", [], [X], lambda x: x.reshape(2, 2, 14, 6)),
    "crop": ("Crop", "axis: 2 offset: 1", [], [X, Z[:, :2, :3, :4]], lambda x, z: x[:, :, 1:4, 1:5]),
    "crop at offsets": (
        "Crop",
        "axis: 1 offset: 2 offset: 0 offset: 1",
        [],
        [X, Z[:, :2, :3, :4]],
        lambda x, z: x[:, 2:4, :3, 1:5],
    ),
    "reduce": ("Reduction", "axis: -2", [], [X], lambda x: x.sum((2, 3))),
    "mean": ("Reduction", "operation: MEAN axis: 1 coeff: 3", [], [X], lambda x: 3 * x.mean((1, 2, 3))),
    "absolute sum": ("Reduction", "operation: ASUM axis: -1", [], [X], lambda x: np.abs(x).sum(3)),
    "sum of squares": ("Reduction", "operation: SUMSQ axis: 2 coeff: 0.5", [], [X], lambda x: 0.5 * (x**2).sum((2, 3))),
    "split": ("Split", 'top: "z"', [], [X], lambda x: x),
}


PARAMS = {"Deconvolution": "convolution_param", "InnerProduct": "inner_product_param", "BatchNorm": "batch_norm_param"}


def described(kind, options, feeds):
    """Return a layer from what stands in the message of its parameters."""
    if options and kind != "Split":
        options = f"{PARAMS.get(kind, kind.lower() + '_param')} {{ {options} }}"
    return layer(kind, options, ("data", "other")[: len(feeds)])


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", CASES)
def test_a_layer(name):
    kind, options, weights, feeds, reference = CASES[name]
    fetch = run(inputs(*feeds) + described(kind, options, feeds), trained(it=weights), *feeds)
    close(fetch("y"), reference(*(value.astype(np.float64) for value in feeds)))


def test_every_type_has_a_case():
    nothing = {"Silence", "ROIPooling", "SoftmaxWithLoss", "Accuracy"}  # the last three have tests of their own
    data = {"Data", "DummyData", "HDF5Data", "ImageData", "Input", "MemoryData", "VideoData", "WindowData"}
    assert {case[0] for case in CASES.values()} | nothing | data == set(caffe_translator.TranslatorRegistry.registry_)


POOLS = [(2, 2, 0, "MAX"), (3, 2, 0, "AVE"), (3, 2, 1, "AVE"), (3, 3, 1, "MAX"), (2, 2, 1, "MAX")]


def test_functions_of_the_types():
    from caffe2.python.caffe_translator import TranslateConv, TranslatePRelu

    registry = caffe_translator.TranslatorRegistry.registry_
    assert TranslateConv is registry["Convolution"] and TranslatePRelu is registry["PReLU"]
    assert caffe_translator.TranslateElementWise is registry["Eltwise"]
    with pytest.raises(AttributeError, match="TranslateNothing"):
        caffe_translator.TranslateNothing  # noqa: B018


def test_extents_of_pooling():
    """All small extents, also with the pads that replace the rule."""
    for extent in range(4, 12):
        x = draw(1, 2, extent, extent + 1)
        for kernel, stride, pad, method in [
            (2, 2, 0, "MAX"),
            (3, 2, 0, "AVE"),
            (3, 2, 1, "AVE"),
            (3, 3, 1, "MAX"),
            (2, 2, 1, "MAX"),
        ]:
            text = inputs(x) + layer(
                "Pooling", f"pooling_param {{ pool: {method} kernel_size: {kernel} stride: {stride} pad: {pad} }}"
            )
            want = ref.pool(x.astype(float), (kernel,) * 2, (stride,) * 2, (pad,) * 2, mean=method == "AVE")
            for removed in (False, True):
                workspace.ResetWorkspace()
                close(run(text, trained(), x, remove_legacy_pad=removed)("y"), want)


def test_roi_pooling_losses_and_metrics():
    rois = np.float32([[0, 0, 0, 3, 3], [1, 2, 1, 5, 6]])
    text = inputs(X, rois) + layer(
        "ROIPooling", "roi_pooling_param { pooled_h: 2 pooled_w: 2 spatial_scale: 1 }", ("data", "other")
    )
    fetch = run(text, trained(), X, rois)
    assert fetch("y").shape == (2, 4, 2, 2) and fetch("y")[0, 0, 0, 0] == X[0, 0, :2, :2].max()
    labels = np.int32([1, 4, 0])
    text = 'input: "data" input: "other"' + layer("SoftmaxWithLoss", "", ("data", "other"))
    workspace.ResetWorkspace()
    want = -np.log(ref.softmax(V.astype(float)))[np.arange(3), labels].mean()
    close(run(text, trained(), V, labels)("y"), want)
    text = 'input: "data" input: "other"' + layer("Accuracy", "accuracy_param { top_k: 2 }", ("data", "other"))
    best = np.argsort(-V, 1)[:, :2]
    close(run(text, trained(), V, labels)("y"), np.mean([label in row for label, row in zip(labels, best)]))


RESIDUAL = """
name: "residual" input: "data" input_dim: 2 input_dim: 4 input_dim: 7 input_dim: 6
layer { name: "conv" type: "Convolution" bottom: "data" top: "a"
        convolution_param { num_output: 6 kernel_size: 3 pad: 1 } }
layer { name: "bn" type: "BatchNorm" bottom: "a" top: "a" }
layer { name: "scale" type: "Scale" bottom: "a" top: "a" scale_param { bias_term: true } }
layer { name: "relu" type: "ReLU" bottom: "a" top: "a" }
layer { name: "conv2" type: "Convolution" bottom: "a" top: "b"
        convolution_param { num_output: 6 kernel_size: 1 bias_term: false } }
layer { name: "scale2" type: "Scale" bottom: "b" top: "b" }
layer { name: "sum" type: "Eltwise" bottom: "b" bottom: "a" top: "a" }
layer { name: "drop" type: "Dropout" bottom: "a" top: "a" include { phase: TRAIN } }
layer { name: "pool" type: "Pooling" bottom: "a" top: "pool" pooling_param { pool: AVE kernel_size: 3 stride: 2 } }
layer { name: "fc" type: "InnerProduct" bottom: "pool" top: "fc" inner_product_param { num_output: 5 } }
layer { name: "prob" type: "Softmax" bottom: "fc" top: "prob" }
layer { name: "loss" type: "EuclideanLoss" bottom: "fc" bottom: "label" top: "loss" include { phase: TRAIN } }
"""


def residual_weights():
    six = (6,)
    return {
        "conv": [W["conv"], W["b"]],
        "bn": [draw(*six, seed=5), draw(*six, seed=6) ** 2, [2.0]],
        "scale": [draw(*six, seed=7), draw(*six, seed=8)],
        "conv2": [draw(6, 6, 1, 1, seed=9)],
        "scale2": [draw(*six, seed=10)],
        "fc": [draw(5, 6 * 3 * 3, seed=11), draw(5, seed=12)],
    }


def residual_reference(x):
    w = {name: [np.asarray(blob, np.float64) for blob in blobs] for name, blobs in residual_weights().items()}
    a = ref.batch_norm(ref.conv(x, *w["conv"], pad=(1, 1)), *w["bn"][:2], 2.0)
    a = np.maximum(a * ref.along(w["scale"][0], 4, 1) + ref.along(w["scale"][1], 4, 1), 0)
    b = ref.conv(a, w["conv2"][0]) * ref.along(w["scale2"][0], 4, 1)
    return ref.softmax(ref.pool(a + b, (3, 3), (2, 2), mean=True).reshape(len(x), -1) @ w["fc"][0].T + w["fc"][1])


@pytest.mark.parametrize("v1", [False, True])
def test_a_net_of_layers_in_place(v1):
    """Several layers write the same blob, with parameters of the same kind; weights of old files are read as well."""
    weights = trained(v1=v1, old_shapes=("fc", "scale") if v1 else (), **residual_weights())
    close(run(RESIDUAL, weights, X)("prob"), residual_reference(F8))


def test_layers_of_old_files():
    text = """
    name: "old" input: "data" input_dim: 2 input_dim: 4 input_dim: 7 input_dim: 6
    layers { name: "it" type: CONVOLUTION bottom: "data" top: "a" blobs_lr: 1 blobs_lr: 2
             convolution_param { num_output: 6 kernel_size: 3 } }
    layers { name: "r" type: RELU bottom: "a" top: "a" }
    layers { name: "p" type: POOLING bottom: "a" top: "p" pooling_param { pool: MAX kernel_size: 2 stride: 2 } }
    layers { name: "n" type: LRN bottom: "p" top: "n" lrn_param { local_size: 3 } }
    layers { name: "fc" type: INNER_PRODUCT bottom: "n" top: "y" inner_product_param { num_output: 5 } }
    layers { name: "s" type: SOFTMAX_LOSS bottom: "y" bottom: "label" top: "loss" include { phase: TRAIN } }
    """
    fc = [draw(5, 6 * 3 * 2), draw(5)]
    fetch = run(text, trained(v1=True, old_shapes=("it", "fc"), it=[W["conv"], W["b"]], fc=fc), X)
    a = ref.pool(np.maximum(ref.conv(F8, W["conv"], W["b"]), 0), (2, 2), (2, 2))
    close(fetch("y"), ref.lrn(a, 3).reshape(2, -1) @ fc[0].T + fc[1])


def test_the_state_of_a_net():
    text = inputs(X) + (
        layer("ReLU", "include { phase: TRAIN }") + layer("TanH", 'include { stage: "deploy" not_stage: "old" }')
        + layer("Sigmoid", "include { phase: TEST max_level: 1 } exclude { min_level: 0 }")
    )  # fmt: skip

    def types(**state):
        net, _ = caffe_translator.TranslateModel(net_of(text), trained(), is_test=True, net_state=NetState(**state))
        return [op.type for op in net.op]

    assert types() == types(level=1) == ["Sigmoid"] and types(level=2) == []
    assert types(phase=0) == ["Relu"] and types(phase=0, stage=["deploy"]) == ["Relu", "Tanh"]
    assert types(stage=["deploy", "old"]) == ["Sigmoid"]


def test_training_mode():
    text = inputs(X) + layer("BatchNorm", "", top="a") + layer("Dropout", "", ("a",), name="drop")
    weights = trained(it=[W["c"], W["d"] ** 2, [1.0]])
    net, _ = caffe_translator.TranslateModel(net_of(text), weights)
    assert list(net.op[0].output) == ["a", "a_mean", "a_var", "a_saved_mean", "a_saved_var"]
    assert not arguments(net.op[0])["is_test"] and not arguments(net.op[1])["is_test"]
    text = text.replace('type: "BatchNorm"', 'type: "BatchNorm" batch_norm_param { use_global_stats: true }')
    net, _ = caffe_translator.TranslateModel(net_of(text), weights)
    assert arguments(net.op[0])["is_test"] and list(net.op[0].output) == ["a"]


def test_a_translator_of_ones_own():
    @caffe_translator.TranslatorRegistry.Register("Double")
    def translate(layer, pretrained_blobs, is_test, **kwargs):
        assert kwargs["input_dims"] == list(X.shape) and is_test and pretrained_blobs[0].tolist() == [2]
        op = caffe_translator.BaseTranslate(layer, "Scale")
        caffe_translator.AddArgument(op, "scale", float(pretrained_blobs[0][0]))
        return op, []

    try:
        close(run(inputs(X) + layer("Double"), trained(it=[[2.0]]), X)("y"), 2 * F8)
    finally:
        del caffe_translator.TranslatorRegistry.registry_["Double"]


REFUSED = {
    "another type": (
        "Convolutoin",
        "",
        [],
        "no translator for layers of type 'Convolutoin'; .*did you mean 'Convolution'",
    ),
    "no weights": ("Convolution", "kernel_size: 3", [], "the trained net has 0 blobs .*needs 2; give the .caff"),
    "stochastic": ("Pooling", "pool: STOCHASTIC kernel_size: 2", [], "stochastic pooling is not supported"),
    "windows in pads": ("Pooling", "pool: AVE kernel_size: 2 stride: 2 pad: 1", [], "is entirely in the padding"),
    "another region": ("LRN", "norm_region: WITHIN_CHANNEL", [], "region must be ACROSS_CHANNELS"),
    "statistics": ("BatchNorm", "", [W["c"], W["c"], [0.0]], "no running mean and variance: their divisor is"),
    "a dilated deconv": ("Deconvolution", "kernel_size: 3 dilation: 2", [W["deconv"], W["b3"]], "dilation"),
    "an old fc": ("InnerProduct", "", [draw(2, 3, 4), draw(2)], r"got shape \(2, 3, 4\)"),
    "a large crop": ("Crop", "offset: 5", [], "exceeds its input"),
    "a part of axes": ("Reshape", "axis: 1", [], "axis and num_axes must be 0 and -1, got 1 and -1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_layers(name):
    kind, options, weights, message = REFUSED[name]
    feeds = [X, Z] if kind == "Crop" else [X]
    text = inputs(*feeds) + described(kind, options, feeds)
    with pytest.raises(NetError, match=f"Caffe layer 'it'.*{message}"):
        caffe_translator.TranslateModel(net_of(text), trained(it=weights), is_test=True)


def test_refused_nets():
    def translate(text, weights=None, **options):
        return caffe_translator.TranslateModel(net_of(text), weights or trained(), is_test=True, **options)

    with pytest.raises(NetError, match="'conv1' is in the form of files before 2013; convert the net with"):
        translate('layers { layer { name: "conv1" } }')
    with pytest.raises(NetError, match="has no layers for the state"):
        translate('name: "empty"')
    with pytest.raises(NetError, match="layers in 'layer' and in 'layers'"):
        translate("layers { type: RELU }" + layer("ReLU"))
    twice = trained(it=[W["c"]])
    twice.layer.add().CopyFrom(twice.layer[0])
    with pytest.raises(NetError, match="several layers named 'it'"):
        translate(layer("ReLU"), twice)
    short = trained(it=[W["c"]])
    short.layer[0].blobs[0].shape.dim[0] = 5
    with pytest.raises(NetError, match=r"layer 'it': a blob of shape \(5,\) has 4 values"):
        translate(layer("ReLU"), short)
    pooled = layer("Pooling", "pooling_param { kernel_size: 2 }")
    with pytest.raises(NetError, match="depend on the shape of the net's input; give it in input_dims"):
        translate('input: "data"' + pooled, remove_legacy_pad=True)
    assert translate('input: "data"' + pooled, remove_legacy_pad=True, input_dims=X.shape)
    with pytest.raises(NetError, match="give the shape of the net's input in input_dims"):
        translate('input: "data" input: "other"' + layer("Crop", "", ("data", "other")))


def test_softmax_of_unknown_shapes(caplog):
    text = 'input: "data"' + layer("Softmax")
    close(run(text, trained(), V)("y"), ref.softmax(V.astype(float)))
    assert "it is taken for a matrix" in caplog.text


def test_the_values_of_legacy_pad():
    values = (caffe2_legacy_pb2.NOTSET, caffe2_legacy_pb2.VALID, caffe2_legacy_pb2.SAME)
    assert (*values, caffe2_legacy_pb2.CAFFE_LEGACY_POOLING) == (0, 1, 2, 3)


def test_the_command(tmp_path, capsys):
    (tmp_path / "deploy.prototxt").write_text(RESIDUAL)
    weights = trained(**residual_weights())
    (tmp_path / "net.caffemodel").write_bytes(weights.SerializeToString())
    command = [str(tmp_path / "deploy.prototxt"), str(tmp_path / "net.caffemodel"), "--remove_legacy_pad"]
    command += ["--init_net", str(tmp_path / "init_net.pb"), "--predict_net", str(tmp_path / "predict_net.pb")]
    assert caffe_translator.main(command) == 0
    want = residual_reference(F8)
    init, predict = ((tmp_path / f"{name}_net.pb").read_bytes() for name in ("init", "predict"))
    close(workspace.Predictor(init, predict).run([X])[0], want)
    close(load_predictor(tmp_path).run(data=X)["prob"], want)
    assert files.load_text(tmp_path / "predict_net.pbtxt", NetDef) == files.load(tmp_path / "predict_net.pb", NetDef)
    assert caffe_translator.main([str(tmp_path / "none.prototxt"), *command[1:]]) == 1
    assert "none.prototxt" in capsys.readouterr().err


SCRIPT = """
from caffe.proto import caffe_pb2
from caffe2.proto import caffe2_pb2
from caffe2.python import caffe_translator
from google.protobuf import text_format
net, weights = caffe_pb2.NetParameter(), caffe_pb2.NetParameter()
text_format.Merge('input: "data" layer { name: "r" type: "ReLU" bottom: "data" top: "y" }', net)
translated, params = caffe_translator.TranslateModel(net, weights, is_test=True)
assert isinstance(translated, caffe2_pb2.NetDef)
print(translated.op[0].type, caffe_pb2.PoolingParameter.AVE)
"""


def test_a_script_finds_caffes_messages():
    command = [sys.executable, "-m", "netbuilder.caffe2", "-c", SCRIPT]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout == "Relu 1\n"


def test_the_init_net():
    params = caffe_translator.TranslateModel(net_of(RESIDUAL), trained(**residual_weights()), is_test=True)[1]
    init = caffe_translator.ConvertTensorProtosToInitNet(params, "data")
    assert init.op[-1] == make_op("ConstantFill", [], ["data"], shape=[1])
    workspace.RunNetOnce(init)
    np.testing.assert_array_equal(workspace.FetchBlob("a_w"), W["conv"])
