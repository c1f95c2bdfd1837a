"""Inception v3: eleven modules whose large convolutions are factorized into 3x3, 1xn and nx1 convolutions."""

from __future__ import annotations

from typing import Any

from netbuilder.graph.blob import BlobReference
from netbuilder.model import ModelHelper, brew
from netbuilder.proto import ArgumentError
from netbuilder.zoo.layers import Blob, NormalizedConv, add_dropout, add_head

__all__ = ["create_inception_v3"]

_LEAST = 75  # minimum height and width, which give one pixel for the last modules


def create_inception_v3(
    model: ModelHelper,
    data: Blob,
    num_input_channels: int,
    num_labels: int,
    label: Blob | None = None,
    is_test: bool = False,
    no_loss: bool = False,
    *,
    dropout: float = 0.5,
    image_size: int = 299,
    bn_epsilon: float = 1e-3,
    bn_momentum: float = 0.9,
) -> Any:
    """Add Inception v3, without the auxiliary classifier; average pooling counts the border, as in torchvision.

    Args:
        data: images, (N, num_input_channels, image_size, image_size); usually 299x299 pixels.
        num_labels: number of classes; the scores are ``last_out_L<num_labels>``.
        label: classes, (N,), int32.
        is_test: no dropout; normalize by running averages.
        no_loss: return the scores.
        dropout: dropout probability of the last vectors, in [0, 1).
        image_size: height and width in pixels, at least 75.
        bn_epsilon, bn_momentum: of batch normalization, see ``brew.spatial_bn``.

    Returns:
        The scores (N, num_labels) if ``no_loss``, (softmax, loss) if there is a label, otherwise the softmax.

    Raises:
        ArgumentError: the images are too small.

    Source: Szegedy, Vanhoucke, Ioffe, Shlens and Wojna, "Rethinking the inception architecture for computer vision",
    2015, arXiv:1512.00567, table 1 and figures 5 to 7, 10; numbers of channels as in the authors' released net.
    """
    if image_size < _LEAST:
        raise ArgumentError(f"create_inception_v3: image_size must be at least {_LEAST} pixels, got {image_size}")
    layers = _Layers(model, NormalizedConv(model, is_test, bn_epsilon, bn_momentum))
    blob = layers.stem(data, num_input_channels)
    dim = 192
    for letter, pooled in zip("bcd", (32, 64, 64)):
        blob, dim = layers.module_a(blob, f"mixed_5{letter}", dim, pooled)
    blob, dim = layers.reduction_b(blob, "mixed_6a", dim)
    for letter, channels in zip("bcde", (128, 160, 160, 192)):
        blob, dim = layers.module_c(blob, f"mixed_6{letter}", dim, channels)
    blob, dim = layers.reduction_d(blob, "mixed_7a", dim)
    for letter in "bc":
        blob, dim = layers.module_e(blob, f"mixed_7{letter}", dim)
    blob = brew.average_pool(model, blob, "pool8", kernel=8, stride=1, global_pooling=True)
    blob = add_dropout(model, blob, "drop8", dropout, is_test)
    return add_head(model, brew.fc(model, blob, f"last_out_L{num_labels}", dim, num_labels), label, no_loss)


Output = tuple[BlobReference, int]
"""The output of a module and its number of channels."""


class _Layers:
    """Adds the stem and the modules, with the letters that they have in the released net."""

    def __init__(self, model: ModelHelper, conv: NormalizedConv) -> None:
        self._model, self._conv = model, conv

    def stem(self, data: Blob, num_input_channels: int) -> BlobReference:
        conv = self._conv
        blob = conv(data, "conv_1a", num_input_channels, 32, 3, stride=2)
        blob = conv(conv(blob, "conv_2a", 32, 32, 3), "conv_2b", 32, 64, 3, pad=1)
        blob = self._halved(blob, "pool_2")
        blob = conv(conv(blob, "conv_3b", 64, 80, 1), "conv_4a", 80, 192, 3)
        return self._halved(blob, "pool_4")

    def module_a(self, blob: Blob, name: str, dim: int, pooled: int) -> Output:
        conv = self._conv
        one = conv(blob, f"{name}_1x1", dim, 64, 1)
        five = conv(conv(blob, f"{name}_5x5_reduce", dim, 48, 1), f"{name}_5x5", 48, 64, 5, pad=2)
        twice = conv(conv(blob, f"{name}_3x3_reduce", dim, 64, 1), f"{name}_3x3_1", 64, 96, 3, pad=1)
        twice = conv(twice, f"{name}_3x3_2", 96, 96, 3, pad=1)
        return self._joined(name, [(one, 64), (five, 64), (twice, 96), self._pooled(blob, name, dim, pooled)])

    def reduction_b(self, blob: Blob, name: str, dim: int) -> Output:
        conv = self._conv
        three = conv(blob, f"{name}_3x3", dim, 384, 3, stride=2)
        twice = conv(conv(blob, f"{name}_3x3_reduce", dim, 64, 1), f"{name}_3x3_1", 64, 96, 3, pad=1)
        twice = conv(twice, f"{name}_3x3_2", 96, 96, 3, stride=2)
        return self._joined(name, [(three, 384), (twice, 96), (self._halved(blob, f"{name}_pool"), dim)])

    def module_c(self, blob: Blob, name: str, dim: int, inner: int) -> Output:
        one = self._conv(blob, f"{name}_1x1", dim, 192, 1)
        once = self._conv(blob, f"{name}_7x7_reduce", dim, inner, 1)
        once = self._flat(once, f"{name}_7x7", inner, [(7, inner), (-7, 192)])
        twice = self._conv(blob, f"{name}_7x7twice_reduce", dim, inner, 1)
        twice = self._flat(twice, f"{name}_7x7twice", inner, [(-7, inner), (7, inner), (-7, inner), (7, 192)])
        return self._joined(name, [(one, 192), (once, 192), (twice, 192), self._pooled(blob, name, dim, 192)])

    def reduction_d(self, blob: Blob, name: str, dim: int) -> Output:
        conv = self._conv
        three = conv(conv(blob, f"{name}_3x3_reduce", dim, 192, 1), f"{name}_3x3", 192, 320, 3, stride=2)
        seven = conv(blob, f"{name}_7x7_reduce", dim, 192, 1)
        seven = self._flat(seven, f"{name}_7x7", 192, [(7, 192), (-7, 192)])
        seven = conv(seven, f"{name}_7x7_3x3", 192, 192, 3, stride=2)
        return self._joined(name, [(three, 320), (seven, 192), (self._halved(blob, f"{name}_pool"), dim)])

    def module_e(self, blob: Blob, name: str, dim: int) -> Output:
        conv = self._conv
        one = conv(blob, f"{name}_1x1", dim, 320, 1)
        three = conv(blob, f"{name}_3x3_reduce", dim, 384, 1)
        twice = conv(conv(blob, f"{name}_3x3twice_reduce", dim, 448, 1), f"{name}_3x3twice", 448, 384, 3, pad=1)
        parts = [(one, 320)]
        for branch, prefix in ((three, f"{name}_3x3"), (twice, f"{name}_3x3twice")):
            parts += [
                (self._flat(branch, f"{prefix}_wide", 384, [(3, 384)]), 384),
                (self._flat(branch, f"{prefix}_high", 384, [(-3, 384)]), 384),
            ]
        return self._joined(name, [*parts, self._pooled(blob, name, dim, 192)])

    def _flat(self, blob: BlobReference, name: str, dim: int, windows: list[tuple[int, int]]) -> BlobReference:
        """Add convolutions (extent, channels): 1 x extent if the extent is positive, otherwise extent x 1."""
        for number, (extent, channels) in enumerate(windows, 1):
            border = abs(extent) // 2
            kernel, pad = ((1, extent), (0, border)) if extent > 0 else ((-extent, 1), (border, 0))
            suffix = f"_{number}" if len(windows) > 1 else ""
            blob = self._conv(blob, name + suffix, dim, channels, kernel, pad=pad)
            dim = channels
        return blob

    def _pooled(self, blob: Blob, name: str, dim: int, channels: int) -> Output:
        mean = brew.average_pool(
            self._model, blob, f"{name}_pool", kernel=3, stride=1, pad=1, count_include_pad=True
        )  # fmt: skip
        return self._conv(mean, f"{name}_pool_proj", dim, channels, 1), channels

    def _halved(self, blob: Blob, name: str) -> BlobReference:
        return brew.max_pool(self._model, blob, name, kernel=3, stride=2)

    def _joined(self, name: str, parts: list[Output]) -> Output:
        return brew.concat(self._model, [blob for blob, _ in parts], name), sum(channels for _, channels in parts)
