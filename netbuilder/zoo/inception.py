"""Inception v1, also called GoogLeNet: nine modules of four branches each."""

from __future__ import annotations

from typing import Any, NamedTuple

from netbuilder.graph.blob import BlobReference
from netbuilder.model import ModelHelper, brew
from netbuilder.proto import ArgumentError
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.zoo.layers import Blob, NormalizedConv, add_dropout, add_head

__all__ = ["STAGES", "Branches", "create_inception_v1"]


class Branches(NamedTuple):
    """How many channels the convolutions of a module have, in each of its branches."""

    one: int
    three_reduce: int
    three: int
    five_reduce: int
    five: int
    pool: int

    @property
    def total(self) -> int:
        return self.one + self.three + self.five + self.pool


STAGES = {
    3: {"a": Branches(64, 96, 128, 16, 32, 32), "b": Branches(128, 128, 192, 32, 96, 64)},
    4: {
        "a": Branches(192, 96, 208, 16, 48, 64),
        "b": Branches(160, 112, 224, 24, 64, 64),
        "c": Branches(128, 128, 256, 24, 64, 64),
        "d": Branches(112, 144, 288, 32, 64, 64),
        "e": Branches(256, 160, 320, 32, 128, 128),
    },
    5: {"a": Branches(256, 160, 320, 32, 128, 128), "b": Branches(384, 192, 384, 48, 128, 128)},
}
"""Stage -> letter of a module -> channels of its branches."""

_WITH_CLASSIFIER = ("4a", "4d")
_CLASSIFIER_WEIGHT, _CLASSIFIER_DROPOUT, _CLASSIFIER_HIDDEN = 0.3, 0.7, 1024
_CLASSIFIER_KERNEL, _CLASSIFIER_STRIDE, _CLASSIFIER_FILTERS = 5, 3, 128
_DOWNSAMPLING = 16  # from the images to stage 4


@dataclass(frozen=True)
class _Layers:
    """Adds the layers, with or without batch normalization."""

    norm: NormalizedConv
    batch_norm: bool

    @property
    def model(self) -> ModelHelper:
        return self.norm.model

    def conv(self, blob: Blob, name: str, dim_in: int, dim_out: int, kernel: int, stride: int = 1) -> BlobReference:
        pad = kernel // 2
        result = brew.conv(
            self.model, blob, name, dim_in, dim_out, kernel, stride=stride, pad=pad, no_bias=self.batch_norm
        )
        if self.batch_norm:
            result = self.norm.normalize(result, f"{name}_spatbn", dim_out)
        return brew.relu(self.model, result, result)

    def pool(self, blob: Blob, name: str, stride: int = 2) -> BlobReference:
        return brew.max_pool(self.model, blob, name, kernel=3, stride=stride, pad=1)

    def lrn(self, blob: Blob, name: str) -> BlobReference:
        # One output: the second, the scale, is not read here, and the libraries do not compute it.
        result: BlobReference = self.model.net.LRN(blob, name, size=5, alpha=1e-4, beta=0.75, bias=1.0)
        return result

    def module(self, blob: Blob, name: str, dim_in: int, channels: Branches) -> BlobReference:
        one = self.conv(blob, f"{name}_1x1", dim_in, channels.one, 1)
        three = self.conv(blob, f"{name}_3x3_reduce", dim_in, channels.three_reduce, 1)
        three = self.conv(three, f"{name}_3x3", channels.three_reduce, channels.three, 3)
        five = self.conv(blob, f"{name}_5x5_reduce", dim_in, channels.five_reduce, 1)
        five = self.conv(five, f"{name}_5x5", channels.five_reduce, channels.five, 5)
        pooled = self.pool(blob, f"{name}_pool", stride=1)
        projected = self.conv(pooled, f"{name}_pool_proj", dim_in, channels.pool, 1)
        return brew.concat(self.model, [one, three, five, projected], name)


def create_inception_v1(
    model: ModelHelper,
    data: Blob,
    num_input_channels: int,
    num_labels: int,
    label: Blob | None = None,
    is_test: bool = False,
    no_loss: bool = False,
    *,
    lrn: bool = True,
    batch_norm: bool = False,
    auxiliary: bool = False,
    dropout: float = 0.4,
    image_size: int = 224,
    bn_epsilon: float = 1e-5,
    bn_momentum: float = 0.9,
) -> Any:
    """Add Inception v1.

    Args:
        data: images, (N, num_input_channels, H, W); usually 224x224 pixels.
        num_labels: number of classes; the scores are ``last_out_L<num_labels>``.
        label: classes, (N,), int32.
        is_test: no dropout and no auxiliary classifiers; normalize by running averages.
        no_loss: return the scores; no auxiliary classifiers.
        lrn: local response normalization before the modules, as in the paper; Caffe2's benchmark of convolutional
            nets does not have it.
        batch_norm: instead of LRN, batch normalization after each convolution, which then has no bias.
        auxiliary: in training, add the paper's two classifiers after modules 4a and 4d; their losses are added to the
            loss with weight 0.3.
        dropout: dropout probability of the last vectors, in [0, 1).
        image_size: height and width in pixels; used only with ``auxiliary``, and then at least 65.
        bn_epsilon, bn_momentum: of batch normalization, see ``brew.spatial_bn``.

    Returns:
        The scores (N, num_labels) if ``no_loss``, (softmax, loss) if there is a label, otherwise the softmax. With
        auxiliary classifiers the loss is ``total_loss``, whose first term is ``loss``.

    Raises:
        ArgumentError: the images are too small for auxiliary classifiers.

    Source: Szegedy et al., "Going deeper with convolutions", 2014, arXiv:1409.4842, table 1. Max pooling pads by one
    pixel, as in Caffe2's benchmark.
    """
    auxiliary = auxiliary and label is not None and not (is_test or no_loss)
    size = -(-image_size // _DOWNSAMPLING)
    if auxiliary and size < _CLASSIFIER_KERNEL:
        least = _DOWNSAMPLING * (_CLASSIFIER_KERNEL - 1) + 1
        raise ArgumentError(
            f"create_inception_v1: image_size must be at least {least} for auxiliary classifiers, got {image_size}"
        )
    layers = _Layers(NormalizedConv(model, is_test, bn_epsilon, bn_momentum), batch_norm)
    blob, dim = _stem(layers, data, num_input_channels, lrn=lrn and not batch_norm), 192
    inner = {}
    for stage, modules in STAGES.items():
        if stage > min(STAGES):
            blob = layers.pool(blob, f"pool{stage - 1}")
        for letter, channels in modules.items():
            blob = layers.module(blob, f"inception_{stage}{letter}", dim, channels)
            dim = channels.total
            inner[f"{stage}{letter}"] = (blob, dim)
    blob = brew.average_pool(model, blob, "pool5", kernel=7, stride=1, global_pooling=True)
    blob = add_dropout(model, blob, "drop5", dropout, is_test)
    head = add_head(model, brew.fc(model, blob, f"last_out_L{num_labels}", dim, num_labels), label, no_loss)
    if not auxiliary:
        return head
    softmax, loss = head
    losses = [_classifier(layers, name, *inner[name], size, num_labels, label) for name in _WITH_CLASSIFIER]
    return softmax, brew.sum(model, [loss, *losses], "total_loss")


def _stem(layers: _Layers, data: Blob, num_input_channels: int, *, lrn: bool) -> BlobReference:
    blob = layers.pool(layers.conv(data, "conv1", num_input_channels, 64, 7, stride=2), "pool1")
    if lrn:
        blob = layers.lrn(blob, "norm1")
    blob = layers.conv(layers.conv(blob, "conv2_reduce", 64, 64, 1), "conv2", 64, 192, 3)
    if lrn:
        blob = layers.lrn(blob, "norm2")
    return layers.pool(blob, "pool2")


def _classifier(
    layers: _Layers, name: str, blob: BlobReference, dim: int, size: int, num_labels: int, label: Blob | None
) -> BlobReference:
    model, prefix = layers.model, f"auxiliary_{name}"
    pooled = brew.average_pool(model, blob, f"{prefix}_pool", kernel=_CLASSIFIER_KERNEL, stride=_CLASSIFIER_STRIDE)
    size = (size - _CLASSIFIER_KERNEL) // _CLASSIFIER_STRIDE + 1
    blob = layers.conv(pooled, f"{prefix}_conv", dim, _CLASSIFIER_FILTERS, 1)
    blob = brew.fc(model, blob, f"{prefix}_fc", _CLASSIFIER_FILTERS * size * size, _CLASSIFIER_HIDDEN)
    blob = add_dropout(model, brew.relu(model, blob, blob), f"{prefix}_drop", _CLASSIFIER_DROPOUT, is_test=False)
    scores = brew.fc(model, blob, f"{prefix}_L{num_labels}", _CLASSIFIER_HIDDEN, num_labels)
    _, loss = model.net.SoftmaxWithLoss(
        [scores, label], [f"{prefix}_softmax", f"{prefix}_loss"], scale=_CLASSIFIER_WEIGHT
    )
    return loss
