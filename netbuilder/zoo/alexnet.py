"""AlexNet: five convolutions and three fully connected layers, in two towers or in one."""

from __future__ import annotations

from typing import Any

from netbuilder.graph.blob import BlobReference
from netbuilder.model import ModelHelper, brew
from netbuilder.proto import ArgumentError
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.zoo.layers import Blob, add_dense, add_head

__all__ = ["create_alexnet"]


@dataclass(frozen=True)
class _Layer:
    kernel: int
    stride: int
    pad: int
    pooled: bool


_LAYERS = (
    _Layer(11, 4, 2, True),
    _Layer(5, 1, 2, True),
    _Layer(3, 1, 1, False),
    _Layer(3, 1, 1, False),
    _Layer(3, 1, 1, True),
)
_FILTERS = {1: (64, 192, 384, 256, 256), 2: (96, 256, 384, 384, 256)}
_GROUPED = (2, 4, 5)  # layers in which each tower reads only its own channels
_NORMALIZED = (1, 2)
_POOL = 3
_LEAST = 63


def create_alexnet(
    model: ModelHelper,
    data: Blob,
    num_input_channels: int,
    num_labels: int,
    label: Blob | None = None,
    is_test: bool = False,
    no_loss: bool = False,
    *,
    towers: int = 2,
    dropout: float = 0.5,
    hidden: int = 4096,
    image_size: int = 224,
) -> Any:
    """Add AlexNet.

    Two towers are the net of 2012: 96, 256, 384, 384 and 256 filters; the filters of the second, fourth and fifth
    layers read half of the channels each (``group``), and the first two layers are followed by LRN. One tower is the
    net of 2014: 64, 192, 384, 256 and 256 filters, without groups and LRN, as in Caffe2's benchmark of convolutional
    nets, which has no dropout.

    Args:
        data: images, (N, num_input_channels, image_size, image_size).
        num_labels: number of classes; the scores are ``fc8``.
        label: classes, (N,), int32.
        is_test: no dropout.
        no_loss: return the scores.
        towers: 1 or 2.
        dropout: dropout probability of the hidden vectors, in [0, 1).
        hidden: length of the hidden vectors.
        image_size: height and width in pixels, at least 63.

    Returns:
        The scores (N, num_labels) if ``no_loss``, (softmax, loss) if there is a label, otherwise the softmax.

    Raises:
        ArgumentError: ``towers`` is neither 1 nor 2, or the images are too small.

    Source: Krizhevsky, Sutskever and Hinton, "ImageNet classification with deep convolutional neural networks",
    2012; one tower: Krizhevsky, "One weird trick for parallelizing convolutional neural networks", 2014,
    arXiv:1404.5997. Padding of the first layer as in Caffe2's benchmark: 224 pixels become 55, as in the first paper.
    """
    if towers not in _FILTERS:
        raise ArgumentError(f"create_alexnet: towers must be 1 or 2, got {towers}")
    if image_size < _LEAST:
        raise ArgumentError(f"create_alexnet: image_size must be at least {_LEAST} pixels, got {image_size}")
    blob: Blob = data
    dim, size = num_input_channels, image_size
    for number, (layer, filters) in enumerate(zip(_LAYERS, _FILTERS[towers]), 1):
        blob = brew.conv(
            model, blob, f"conv{number}", dim, filters, layer.kernel,
            stride=layer.stride, pad=layer.pad, group=towers if number in _GROUPED else 1,
        )  # fmt: skip
        blob = brew.relu(model, blob, blob)
        size = (size + 2 * layer.pad - layer.kernel) // layer.stride + 1
        if towers == 2 and number in _NORMALIZED:
            # One output: the second, the scale, is not read here, and the libraries do not compute it.
            blob = model.net.LRN(blob, f"norm{number}", size=5, alpha=5e-4, beta=0.75, bias=2.0)
        if layer.pooled:
            blob = brew.max_pool(model, blob, f"pool{number}", kernel=_POOL, stride=2)
            size = (size - _POOL) // 2 + 1
        dim = filters
    assert isinstance(blob, BlobReference)
    scores = add_dense(model, blob, dim * size * size, num_labels, hidden=hidden, dropout=dropout, is_test=is_test)
    return add_head(model, scores, label, no_loss)
