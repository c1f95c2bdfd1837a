"""SqueezeNet: modules that squeeze the channels and expand them again, and no fully connected layer."""

from __future__ import annotations

from typing import Any, NamedTuple

from netbuilder.graph.blob import BlobReference
from netbuilder.model import ModelHelper, brew
from netbuilder.proto import ArgumentError
from netbuilder.zoo.dense import add_dropout
from netbuilder.zoo.head import add_head

__all__ = ["create_squeezenet"]

Blob = str | BlobReference


class _Version(NamedTuple):
    filters: int  # of the first convolution
    kernel: int
    pooled: tuple[int, ...]  # the layers with a pooling after them; 1 is the first convolution
    least: int  # pixels a side that leave one after the last pooling


_VERSIONS = {"1.0": _Version(96, 7, (1, 4, 8), 37), "1.1": _Version(64, 3, (1, 3, 5), 31)}
_SQUEEZED = {2: 16, 3: 16, 4: 32, 5: 32, 6: 48, 7: 48, 8: 64, 9: 64}
_EXPANDED = 4  # times as many channels, by either window


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
    """Add SqueezeNet.

    Args:
        data: images, (N, num_input_channels, image_size, image_size); 227x227 pixels is usual.
        num_labels: number of classes; the scores are ``last_out_L<num_labels>``.
        label: classes, (N,), int32.
        is_test: leave the dropout out.
        no_loss: stop at the scores.
        version: "1.0", the paper's net, or "1.1", with 2.4 times fewer operations.
        dropout: share of the last module's result that is set to 0 in training, in [0, 1).
        image_size: height and width in pixels, at least 37 in version 1.0 and 31 in 1.1.

    Returns:
        The scores (N, num_labels, 1, 1) as (N, num_labels) if ``no_loss``, (softmax, loss) if there is a label, else
        the softmax.

    Raises:
        ArgumentError: there is no such version, or the images are too small.

    Source: Iandola et al., "SqueezeNet: AlexNet-level accuracy with 50x fewer parameters and <0.5MB model size", 2016,
    arXiv:1602.07360, table 1; version 1.1 as its authors released it.
    """
    made = _VERSIONS.get(version)
    if made is None:
        raise ArgumentError(f"create_squeezenet: version must be one of {sorted(_VERSIONS)}, got {version!r}")
    if image_size < made.least:
        raise ArgumentError(
            f"create_squeezenet: images must have {made.least} pixels a side at least, got {image_size}"
        )
    blob = _conv(model, data, "conv1", num_input_channels, made.filters, made.kernel, stride=2)
    dim = made.filters
    for layer in range(1, 10):
        if layer > 1:
            blob, dim = _fire(model, blob, f"fire{layer}", dim, _SQUEEZED[layer])
        if layer in made.pooled:
            blob = brew.max_pool(model, blob, f"pool{layer}", kernel=3, stride=2)
    blob = add_dropout(model, blob, "drop9", dropout, is_test)
    blob = _conv(model, blob, "conv10", dim, num_labels, 1, weight_init=("GaussianFill", {"std": 0.01}))
    blob = brew.average_pool(model, blob, "pool10", kernel=13, stride=1, global_pooling=True)
    return add_head(model, model.net.Flatten(blob, f"last_out_L{num_labels}"), label, no_loss)


def _fire(model: ModelHelper, blob: Blob, name: str, dim: int, squeezed: int) -> tuple[BlobReference, int]:
    blob = _conv(model, blob, f"{name}_squeeze1x1", dim, squeezed, 1)
    channels = _EXPANDED * squeezed
    one = _conv(model, blob, f"{name}_expand1x1", squeezed, channels, 1)
    three = _conv(model, blob, f"{name}_expand3x3", squeezed, channels, 3, pad=1)
    return brew.concat(model, [one, three], f"{name}_concat"), 2 * channels


def _conv(
    model: ModelHelper, blob: Blob, name: str, dim_in: int, dim_out: int, kernel: int, **options: Any
) -> BlobReference:
    result = brew.conv(model, blob, name, dim_in, dim_out, kernel, **options)
    return brew.relu(model, result, result)
