"""SqueezeNet: modules that squeeze the channels and expand them again, and no fully connected layer."""

from __future__ import annotations

from typing import Any, NamedTuple

from netbuilder.graph.blob import BlobReference
from netbuilder.model import ModelHelper, brew
from netbuilder.ops.core.conv_geometry import CAFFE_LEGACY_POOLING
from netbuilder.proto import ArgumentError
from netbuilder.zoo.layers import Blob, add_dropout, add_head

__all__ = ["create_squeezenet"]


class _Version(NamedTuple):
    filters: int  # filters of the first convolution
    kernel: int
    pooled: tuple[int, ...]  # numbers of the layers that are followed by pooling; 1 is the first convolution
    least: int  # minimum height and width, which give one pixel after the last pooling


_VERSIONS = {"1.0": _Version(96, 7, (1, 4, 8), 37), "1.1": _Version(64, 3, (1, 3, 5), 31)}
_SQUEEZED = {2: 16, 3: 16, 4: 32, 5: 32, 6: 48, 7: 48, 8: 64, 9: 64}
_EXPANSION = 4  # ratio of the channels of each expanding convolution to the squeezed channels


def create_squeezenet(
    model: ModelHelper,
    data: Blob,
    num_input_channels: int,
    num_labels: int,
    label: Blob | None = None,
    is_test: bool = False,
    no_loss: bool = False,
    *,
    version: str = "1.1",
    dropout: float = 0.5,
    image_size: int = 227,
) -> Any:
    """Add SqueezeNet, whose pooling rounds extents up.

    Args:
        data: images, (N, num_input_channels, image_size, image_size); usually 227x227 pixels.
        num_labels: number of classes; the scores are ``last_out_L<num_labels>``.
        label: classes, (N,), int32.
        is_test: no dropout.
        no_loss: return the scores.
        version: "1.0", the paper's net, or "1.1", with 2.4 times fewer operations.
        dropout: dropout probability of the output of the last module, in [0, 1).
        image_size: height and width in pixels, at least 37 in version 1.0 and 31 in 1.1.

    Returns:
        The scores, flattened to (N, num_labels), if ``no_loss``, (softmax, loss) if there is a label, otherwise the
        softmax.

    Raises:
        ArgumentError: ``version`` is not supported, or the images are too small.

    Source: Iandola et al., "SqueezeNet: AlexNet-level accuracy with 50x fewer parameters and <0.5MB model size", 2016,
    arXiv:1602.07360, table 1; version 1.1 as its authors released it.
    """
    variant = _VERSIONS.get(version)
    if variant is None:
        raise ArgumentError(f"create_squeezenet: version must be one of {sorted(_VERSIONS)}, got {version!r}")
    if image_size < variant.least:
        raise ArgumentError(f"create_squeezenet: image_size must be at least {variant.least} pixels, got {image_size}")
    blob = _conv(model, data, "conv1", num_input_channels, variant.filters, variant.kernel, stride=2)
    dim = variant.filters
    for layer in range(1, 10):
        if layer > 1:
            blob, dim = _fire(model, blob, f"fire{layer}", dim, _SQUEEZED[layer])
        if layer in variant.pooled:
            blob = brew.max_pool(model, blob, f"pool{layer}", kernel=3, stride=2, legacy_pad=CAFFE_LEGACY_POOLING)
    blob = add_dropout(model, blob, "drop9", dropout, is_test)
    blob = _conv(model, blob, "conv10", dim, num_labels, 1, weight_init=("GaussianFill", {"std": 0.01}))
    blob = brew.average_pool(model, blob, "pool10", kernel=13, stride=1, global_pooling=True)
    return add_head(model, model.net.Flatten(blob, f"last_out_L{num_labels}"), label, no_loss)


def _fire(model: ModelHelper, blob: Blob, name: str, dim: int, squeezed: int) -> tuple[BlobReference, int]:
    blob = _conv(model, blob, f"{name}_squeeze1x1", dim, squeezed, 1)
    channels = _EXPANSION * squeezed
    one = _conv(model, blob, f"{name}_expand1x1", squeezed, channels, 1)
    three = _conv(model, blob, f"{name}_expand3x3", squeezed, channels, 3, pad=1)
    return brew.concat(model, [one, three], f"{name}_concat"), 2 * channels


def _conv(
    model: ModelHelper, blob: Blob, name: str, dim_in: int, dim_out: int, kernel: int, **options: Any
) -> BlobReference:
    result = brew.conv(model, blob, name, dim_in, dim_out, kernel, **options)
    return brew.relu(model, result, result)
