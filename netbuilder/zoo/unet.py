"""U-Net: a contracting and an expanding path, with the features of each resolution passed across."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from netbuilder.graph.blob import BlobReference
from netbuilder.model import ModelHelper, brew
from netbuilder.proto import ArgumentError
from netbuilder.zoo.layers import MSRA, Blob, NormalizedConv, chosen

__all__ = ["UNET", "create_unet"]

UNET: dict[str, Sequence[int]] = {"small": (16, 32, 64, 128), "usual": (64, 128, 256, 512, 1024)}
"""Size -> channels of each resolution."""


def create_unet(
    model: ModelHelper,
    data: Blob,
    num_input_channels: int,
    num_labels: int,
    size: str | Sequence[int] = "usual",
    label: Blob | None = None,
    is_test: bool = False,
    no_loss: bool = False,
    *,
    bn_epsilon: float = 1e-5,
    bn_momentum: float = 0.9,
) -> Any:
    """Add a U-Net with batch normalization and padded convolutions, for a class of each pixel.

    Args:
        data: images, (N, num_input_channels, H, W), H and W multiples of 2 ** (number of resolutions - 1).
        num_labels: number of classes; the scores are ``scores``.
        size: one of ``UNET``, or such a row.
        label: classes, (N, H, W), int32.
        is_test: normalize by running averages.
        no_loss: return the scores.
        bn_epsilon, bn_momentum: of batch normalization, see ``brew.spatial_bn``.

    Returns:
        The scores (N, num_labels, H, W) if ``no_loss``, (softmax, loss) if there is a label, otherwise the softmax.

    Raises:
        ArgumentError: ``size`` is unknown, or has fewer than two resolutions.

    Source: Ronneberger, Fischer and Brox, "U-Net: Convolutional Networks for Biomedical Image Segmentation", 2015,
    arXiv:1505.04597.
    """
    channels = chosen("create_unet", size, UNET)
    if len(channels) < 2:
        raise ArgumentError(f"create_unet: size must have the channels of two resolutions or more, got {channels}")
    conv = NormalizedConv(model, is_test, bn_epsilon, bn_momentum)

    def twice(blob: Blob, name: str, dim_in: int, dim_out: int) -> BlobReference:
        inner = conv(blob, f"{name}_conv1", dim_in, dim_out, 3, pad=1)
        return conv(inner, f"{name}_conv2", dim_out, dim_out, 3, pad=1)

    x: Blob = data
    dim, across = num_input_channels, []
    for level, width in enumerate(channels, 1):
        if level > 1:
            x = brew.max_pool(model, x, f"down{level}_pool", kernel=2, stride=2)
        x = twice(x, f"down{level}", dim, width)
        across.append(x)
        dim = width
    for level in range(len(channels) - 1, 0, -1):
        width = channels[level - 1]
        x = brew.conv_transpose(model, x, f"up{level}", dim, width, 2, weight_init=MSRA, stride=2)
        x = twice(
            brew.concat(model, [across[level - 1], x], f"up{level}_concat", axis=1), f"up{level}", 2 * width, width
        )
        dim = width
    scores = brew.conv(model, x, "scores", dim, num_labels, 1)
    if no_loss:
        return scores
    if label is None:
        return brew.softmax(model, scores, "softmax", axis=1, one_axis=True)
    return model.net.SpatialSoftmaxWithLoss([scores, label], ["softmax", "loss"])
