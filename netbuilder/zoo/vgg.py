"""VGG: 8 to 16 convolutions 3x3 in five stages, and three fully connected layers."""

from __future__ import annotations

from typing import Any

from netbuilder.graph.blob import BlobReference
from netbuilder.model import ModelHelper, brew
from netbuilder.proto import ArgumentError
from netbuilder.zoo.layers import MSRA, Blob, NormalizedConv, add_dense, add_head

__all__ = ["VGG_STAGES", "create_vgg"]

VGG_STAGES = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
"""Number of layers -> convolutions in each of the five stages."""

_FILTERS = (64, 128, 256, 512, 512)
_LEAST = 2 ** len(_FILTERS)


def create_vgg(
    model: ModelHelper,
    data: Blob,
    num_input_channels: int,
    num_labels: int,
    num_layers: int = 16,
    label: Blob | None = None,
    is_test: bool = False,
    no_loss: bool = False,
    *,
    batch_norm: bool = False,
    dropout: float = 0.5,
    hidden: int = 4096,
    image_size: int = 224,
    bn_epsilon: float = 1e-5,
    bn_momentum: float = 0.9,
) -> Any:
    """Add a VGG net of 11, 13, 16 or 19 layers (the paper's A, B, D and E).

    Args:
        data: images, (N, num_input_channels, image_size, image_size).
        num_labels: number of classes; the scores are ``fc8``.
        num_layers: convolutions and fully connected layers.
        label: classes, (N,), int32.
        is_test: no dropout; normalize by running averages.
        no_loss: return the scores.
        batch_norm: batch normalization after each convolution.
        dropout: dropout probability of the hidden vectors, in [0, 1).
        hidden: length of the hidden vectors.
        image_size: height and width in pixels, at least 32.
        bn_epsilon, bn_momentum: of batch normalization, see ``brew.spatial_bn``.

    Returns:
        The scores (N, num_labels) if ``no_loss``, (softmax, loss) if there is a label, otherwise the softmax.

    Raises:
        ArgumentError: ``num_layers`` is not supported, or the images are too small.

    Source: Simonyan and Zisserman, "Very deep convolutional networks for large-scale image recognition", 2014,
    arXiv:1409.1556, table 1; weights of the convolutions are initialized as in He, Zhang, Ren and Sun, "Delving deep
    into rectifiers", 2015, arXiv:1502.01852, so that deep nets train without pretraining.
    """
    if num_layers not in VGG_STAGES:
        raise ArgumentError(f"create_vgg: num_layers must be one of {sorted(VGG_STAGES)}, got {num_layers}")
    if image_size < _LEAST:
        raise ArgumentError(f"create_vgg: image_size must be at least {_LEAST} pixels, got {image_size}")
    norm = NormalizedConv(model, is_test, bn_epsilon, bn_momentum)
    blob: Blob = data
    dim, size = num_input_channels, image_size
    for stage, (count, filters) in enumerate(zip(VGG_STAGES[num_layers], _FILTERS), 1):
        for number in range(1, count + 1):
            name = f"conv{stage}_{number}"
            blob = brew.conv(model, blob, name, dim, filters, 3, weight_init=MSRA, pad=1)
            if batch_norm:
                blob = norm.normalize(blob, f"{name}_spatbn", filters)
            blob = brew.relu(model, blob, blob)
            dim = filters
        blob = brew.max_pool(model, blob, f"pool{stage}", kernel=2, stride=2)
        size //= 2
    assert isinstance(blob, BlobReference)
    scores = add_dense(model, blob, dim * size * size, num_labels, hidden=hidden, dropout=dropout, is_test=is_test)
    return add_head(model, scores, label, no_loss)
