"""Nets of Caffe as Caffe2's translator reads them: their inputs, the layers in use, old layers, and weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from netbuilder.proto import NetError
from netbuilder.proto.caffe_pb2 import LayerParameter, NetParameter, V1LayerParameter

__all__ = ["DATA_LAYERS", "blob_array", "input_shapes", "is_included", "layers_of", "weights_of"]

Array = np.ndarray[Any, np.dtype[Any]]

DATA_LAYERS = (
    "Data", "DummyData", "HDF5Data", "ImageData", "Input", "MemoryData", "VideoData", "WindowData",
)  # fmt: skip
"""The types of layers whose outputs are the net's inputs."""

_IRREGULAR = {
    "BNLL": "BNLL", "DUMMY_DATA": "DummyData", "HDF5_DATA": "HDF5Data", "HDF5_OUTPUT": "HDF5Output",
    "IM2COL": "Im2col", "LRN": "LRN", "MVN": "MVN", "RELU": "ReLU", "TANH": "TanH", "ABSVAL": "AbsVal",
    "ARGMAX": "ArgMax", "SOFTMAX_LOSS": "SoftmaxWithLoss",
}  # fmt: skip
_MOVED = ("bottom", "top", "name", "blobs", "include", "exclude", "loss_weight")


def layers_of(net: NetParameter) -> list[LayerParameter]:
    """Return a net's layers; those of files before 2014 (``layers``) in today's form.

    Raises:
        NetError: it has layers of both forms, or of the form before 2013.
    """
    if net.layer and net.layers:
        raise NetError(f"Caffe net {net.name!r} has layers in 'layer' and in 'layers'; a net must have one kind")
    return list(net.layer) if not net.layers else [_upgraded(net, old) for old in net.layers]


def _upgraded(net: NetParameter, old: V1LayerParameter) -> LayerParameter:
    if old.HasField("layer"):
        raise NetError(
            f"Caffe net {net.name!r}: layer {old.layer.name!r} is in the form of files before 2013; convert the net "
            "with Caffe's upgrade_net_proto_text or upgrade_net_proto_binary first"
        )
    name = V1LayerParameter.LayerType.Name(old.type)
    layer = LayerParameter(type=_IRREGULAR.get(name) or "".join(part.title() for part in name.split("_")))
    for field, value in old.ListFields():
        if field.name in _MOVED:
            target = getattr(layer, field.name)
            if isinstance(target, str):
                layer.name = value
            else:
                target.extend(value)
        elif field.name.endswith("_param"):
            getattr(layer, field.name).CopyFrom(value)
    return layer


def is_included(state: Any, layer: Any) -> bool:
    """Whether a net in this state uses a layer: one of its include rules holds, or, if it has none, no exclude rule."""
    if layer.include:
        return any(_holds(state, rule) for rule in layer.include)
    return not any(_holds(state, rule) for rule in layer.exclude)


def _holds(state: Any, rule: Any) -> bool:
    stages = set(state.stage)
    return (
        (not rule.HasField("phase") or rule.phase == state.phase)
        and (not rule.HasField("min_level") or state.level >= rule.min_level)
        and (not rule.HasField("max_level") or state.level <= rule.max_level)
        and stages.issuperset(rule.stage)
        and stages.isdisjoint(rule.not_stage)
    )


def input_shapes(net: Any, layers: Sequence[Any]) -> dict[str, tuple[int, ...] | None]:
    """Return the shapes of a net's inputs, None where it does not say, by name in the order of the net.

    Args:
        net: the net, which may list its inputs.
        layers: those in use; the outputs of ``DATA_LAYERS`` are inputs too.
    """
    found: dict[str, tuple[int, ...] | None] = {}
    for index, name in enumerate(net.input):
        dims = net.input_dim[4 * index : 4 * index + 4]
        shape = net.input_shape[index].dim if index < len(net.input_shape) else dims
        found[name] = tuple(map(int, shape)) or None
    for layer in layers:
        if layer.type in DATA_LAYERS:
            shapes = list(layer.input_param.shape) if layer.type == "Input" else []
            for index, name in enumerate(layer.top):
                shape = shapes[min(index, len(shapes) - 1)].dim if shapes else ()
                found[name] = tuple(map(int, shape)) or None
    return found


def weights_of(nets: Any) -> Mapping[str, list[Array]]:
    """Return the weights of a trained net by the names of its layers.

    Raises:
        NetError: two layers with weights have the same name, or a blob does not have as many values as its shape.
    """
    found: dict[str, list[Array]] = {}
    for layer in [*nets.layer, *nets.layers]:
        if layer.blobs and layer.name in found:
            raise NetError(f"the weights of Caffe net {nets.name!r} have several layers named {layer.name!r}")
        if layer.blobs:
            found[layer.name] = [blob_array(blob, f"layer {layer.name!r}") for blob in layer.blobs]
    return found


def blob_array(blob: Any, where: str = "blob") -> Array:
    """Return the values of a BlobProto, float32, in the shape that it gives (four extents in old files).

    Args:
        blob: the message.
        where: what has it, for the error.

    Raises:
        NetError: the number of values is not that of the shape.
    """
    shape = tuple(blob.shape.dim)
    if blob.num:
        shape = (blob.num, blob.channels, blob.height, blob.width)
    values = np.array(blob.double_data if blob.double_data else blob.data, np.float32)
    if values.size != np.prod(shape, dtype=object):
        raise NetError(f"{where}: a blob of shape {shape} has {values.size} values")
    return values.reshape(shape)
