"""ShuffleNet: residual units of grouped convolutions, with channel shuffles between them."""

from __future__ import annotations

from typing import Any

from netbuilder.graph.blob import BlobReference
from netbuilder.model import ModelHelper, brew
from netbuilder.proto import ArgumentError
from netbuilder.zoo.layers import Blob, NormalizedConv, add_head

__all__ = ["create_shufflenet"]

_CHANNELS = {1: 144, 2: 200, 3: 240, 4: 272, 8: 384}
"""Number of groups -> channels of the first stage; each stage doubles them."""

_UNITS = (4, 8, 4)
_STEM, _NARROWING = 24, 4


def create_shufflenet(
    model: ModelHelper,
    data: Blob,
    num_input_channels: int,
    num_labels: int,
    groups: int = 3,
    label: Blob | None = None,
    is_test: bool = False,
    no_loss: bool = False,
    *,
    bn_epsilon: float = 1e-5,
    bn_momentum: float = 0.9,
) -> Any:
    """Add ShuffleNet (the first version, of full width).

    Args:
        data: images, (N, num_input_channels, H, W); usually 224x224 pixels.
        num_labels: number of classes; the scores are ``last_out_L<num_labels>``.
        groups: number of groups of the convolutions 1x1: 1, 2, 3, 4 or 8.
        label: classes, (N,), int32.
        is_test: normalize by running averages.
        no_loss: return the scores.
        bn_epsilon, bn_momentum: of batch normalization, see ``brew.spatial_bn``.

    Returns:
        The scores (N, num_labels) if ``no_loss``, (softmax, loss) if there is a label, otherwise the softmax.

    Raises:
        ArgumentError: ``groups`` is not supported.

    Source: Zhang, Zhou, Lin and Sun, "ShuffleNet: an extremely efficient convolutional neural network for mobile
    devices", 2017, arXiv:1707.01083, table 1 and figure 2.
    """
    if groups not in _CHANNELS:
        raise ArgumentError(f"create_shufflenet: groups must be one of {sorted(_CHANNELS)}, got {groups}")
    conv = NormalizedConv(model, is_test, bn_epsilon, bn_momentum)
    blob = conv(data, "conv1", num_input_channels, _STEM, 3, stride=2, pad=1)
    blob = brew.max_pool(model, blob, "pool1", kernel=3, stride=2, pad=1)
    dim = _STEM
    for stage, count in enumerate(_UNITS):
        channels = _CHANNELS[groups] << stage
        for number in range(count):
            # As in the paper, the first convolution is not grouped, because its input has few channels.
            first = 1 if stage == number == 0 else groups
            blob = _unit(conv, blob, f"stage{stage + 2}_{number + 1}", dim, channels, groups, first, halve=number == 0)
            dim = channels
    blob = brew.average_pool(model, blob, "pool5", kernel=7, stride=1, global_pooling=True)
    return add_head(model, brew.fc(model, blob, f"last_out_L{num_labels}", dim, num_labels), label, no_loss)


def _unit(
    conv: NormalizedConv, blob: Blob, name: str, dim_in: int, dim_out: int, groups: int, first: int, *, halve: bool
) -> BlobReference:
    """Add a unit; with ``halve`` it has stride 2, and its pooled input is concatenated instead of added."""
    model = conv.model
    inner, made = dim_out // _NARROWING, dim_out - dim_in if halve else dim_out
    branch = conv(blob, f"{name}_conv1", dim_in, inner, 1, group=first)
    if groups > 1:
        branch = model.net.ChannelShuffle(branch, f"{name}_shuffle", group=groups, kernel=1)
    branch = conv(
        branch, f"{name}_conv2", inner, inner, 3, stride=2 if halve else 1, pad=1, group=inner, relu=False
    )  # fmt: skip
    branch = conv(branch, f"{name}_conv3", inner, made, 1, group=groups, relu=False)
    if halve:
        mean = brew.average_pool(model, blob, f"{name}_pool", kernel=3, stride=2, pad=1)
        joined = brew.concat(model, [mean, branch], f"{name}_join")
    else:
        joined = brew.sum(model, [branch, blob], f"{name}_join")
    return brew.relu(model, joined, joined)
