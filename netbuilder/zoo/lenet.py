"""LeNet: two convolutions and two fully connected layers, for images of digits."""

from __future__ import annotations

from typing import Any

from netbuilder.model import ModelHelper, brew
from netbuilder.proto import ArgumentError
from netbuilder.zoo.layers import Blob, add_head

__all__ = ["create_lenet"]

_KERNEL = 5
_FILTERS = (20, 50)
_HIDDEN = 500


def create_lenet(
    model: ModelHelper,
    data: Blob,
    num_input_channels: int = 1,
    num_labels: int = 10,
    label: Blob | None = None,
    no_loss: bool = False,
    *,
    image_size: int = 28,
) -> Any:
    """Add LeNet with max pooling and Relu.

    Args:
        data: images, (N, num_input_channels, image_size, image_size).
        num_labels: number of classes.
        label: classes, (N,), int32.
        no_loss: return the scores.
        image_size: height and width in pixels, at least 16.

    Returns:
        The scores (N, num_labels) if ``no_loss``, (softmax, loss) if there is a label, otherwise the softmax.

    Raises:
        ArgumentError: the images are too small.

    Source: LeCun, Bottou, Bengio and Haffner, "Gradient-based learning applied to document recognition",
    1998, in the form of Caffe's example.
    """
    size = image_size
    for _ in _FILTERS:
        size = (size - _KERNEL + 1) // 2
    if size < 1:
        raise ArgumentError(f"create_lenet: image_size must be at least 16 pixels, got {image_size}")
    blob: Blob = data
    dim = num_input_channels
    for i, filters in enumerate(_FILTERS, 1):
        blob = brew.conv(model, blob, f"conv{i}", dim, filters, _KERNEL)
        blob = brew.max_pool(model, blob, f"pool{i}", kernel=2, stride=2)
        dim = filters
    blob = brew.fc(model, blob, "fc3", dim * size * size, _HIDDEN)
    blob = brew.relu(model, blob, blob)
    return add_head(model, brew.fc(model, blob, "pred", _HIDDEN, num_labels), label, no_loss)
