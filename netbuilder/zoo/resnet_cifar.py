"""Residual nets for small images such as CIFAR's: 20, 32, 44, 56 or 110 layers, or any other 6 n + 2."""

from __future__ import annotations

from typing import Any

from netbuilder.model import ModelHelper
from netbuilder.proto import ArgumentError
from netbuilder.zoo.layers import Blob, NormalizedConv, add_head
from netbuilder.zoo.residual import ResNetBuilder
from netbuilder.zoo.resnet import add_scores

__all__ = ["create_resnet_cifar"]

_FILTERS = (16, 32, 64)


def create_resnet_cifar(
    model: ModelHelper,
    data: Blob,
    num_input_channels: int,
    num_labels: int,
    num_layers: int = 20,
    label: Blob | None = None,
    is_test: bool = False,
    no_loss: bool = False,
    *,
    bn_epsilon: float = 1e-5,
    bn_momentum: float = 0.9,
) -> Any:
    """Add a residual net of three stages with 16, 32 and 64 channels; the second and third halve the image.

    Args:
        data: images, (N, num_input_channels, H, W); usually 32x32 pixels, at least 4x4.
        num_labels: number of classes; the scores are ``last_out_L<num_labels>``.
        num_layers: 6 n + 2 for n blocks per stage.
        label: classes, (N,), int32.
        is_test: normalize by running averages.
        no_loss: return the scores.
        bn_epsilon, bn_momentum: of batch normalization, see ``brew.spatial_bn``.

    Returns:
        The scores (N, num_labels) if ``no_loss``, (softmax, loss) if there is a label, otherwise the softmax.

    Raises:
        ArgumentError: ``num_layers`` is not 6 n + 2 with n at least 1.

    Source: He, Zhang, Ren and Sun, "Deep residual learning for image recognition", 2016, arXiv:1512.03385,
    section 4.2; the shortcut of a block that doubles the channels is a convolution.
    """
    blocks, rest = divmod(num_layers - 2, 6)
    if rest or blocks < 1:
        raise ArgumentError(f"create_resnet_cifar: num_layers must be 6 n + 2 (8, 14, 20, 32, ...), got {num_layers}")
    conv = NormalizedConv(model, is_test, bn_epsilon, bn_momentum)
    conv1 = conv(data, "conv1", num_input_channels, _FILTERS[0], 3, pad=1)
    builder = ResNetBuilder(model, conv1, 1, is_test, bn_epsilon, bn_momentum)
    before = _FILTERS[0]
    for stage, filters in enumerate(_FILTERS):
        for block in range(blocks):
            builder.add_simple_block(before, filters, down_sampling=stage > 0 and block == 0)
            before = filters
    return add_head(model, add_scores(builder, before, num_labels, 1), label, no_loss)
