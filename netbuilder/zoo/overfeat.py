"""OverFeat: five convolutions and three fully connected layers."""

from __future__ import annotations

from typing import Any, NamedTuple

from netbuilder.model import ModelHelper, brew
from netbuilder.proto import ArgumentError
from netbuilder.zoo.layers import Blob, add_head

__all__ = ["create_overfeat"]


class _Layer(NamedTuple):
    filters: int
    kernel: int
    stride: int
    pad: int
    pooled: bool


_LAYERS = (
    _Layer(96, 11, 4, 0, True),
    _Layer(256, 5, 1, 0, True),
    _Layer(512, 3, 1, 1, False),
    _Layer(1024, 3, 1, 1, False),
    _Layer(1024, 3, 1, 1, True),
)
_HIDDEN = (3072, 4096)
_LEAST = 71  # minimum height and width, which give one pixel after the last pooling


def create_overfeat(
    model: ModelHelper,
    data: Blob,
    num_input_channels: int,
    num_labels: int,
    label: Blob | None = None,
    is_test: bool = False,
    no_loss: bool = False,
    *,
    hidden: tuple[int, int] = _HIDDEN,
    image_size: int = 231,
) -> Any:
    """Add OverFeat, the paper's fast net; without dropout, as in Caffe2's benchmark of convolutional nets.

    Args:
        data: images, (N, num_input_channels, image_size, image_size); usually 231x231 pixels.
        num_labels: number of classes; the scores are ``fc8``.
        label: classes, (N,), int32.
        is_test: ignored: all layers are the same in training.
        no_loss: return the scores.
        hidden: lengths of the two hidden vectors.
        image_size: height and width in pixels, at least 71.

    Returns:
        The scores (N, num_labels) if ``no_loss``, (softmax, loss) if there is a label, otherwise the softmax.

    Raises:
        ArgumentError: the images are too small.

    Source: Sermanet et al., "OverFeat: integrated recognition, localization and detection using convolutional
    networks", 2013, arXiv:1312.6229, table 1.
    """
    if image_size < _LEAST:
        raise ArgumentError(f"create_overfeat: image_size must be at least {_LEAST} pixels, got {image_size}")
    blob: Blob = data
    dim, size = num_input_channels, image_size
    for number, layer in enumerate(_LAYERS, 1):
        blob = brew.conv(
            model, blob, f"conv{number}", dim, layer.filters, layer.kernel, stride=layer.stride, pad=layer.pad
        )
        blob = brew.relu(model, blob, blob)
        size = (size + 2 * layer.pad - layer.kernel) // layer.stride + 1
        if layer.pooled:
            blob = brew.max_pool(model, blob, f"pool{number}", kernel=2, stride=2)
            size //= 2
        dim = layer.filters
    dim *= size * size
    for number, length in enumerate(hidden, 6):
        blob = brew.fc(model, blob, f"fc{number}", dim, length)
        blob = brew.relu(model, blob, blob)
        dim = length
    return add_head(model, brew.fc(model, blob, "fc8", dim, num_labels), label, no_loss)
