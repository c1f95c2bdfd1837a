"""Layers that several nets of the zoo have: normalized convolutions, fully connected ends, classifier heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from netbuilder.graph.blob import BlobReference
from netbuilder.model import ModelHelper, brew

__all__ = ["MSRA", "Blob", "NormalizedConv", "add_dense", "add_dropout", "add_head"]


Blob = str | BlobReference

MSRA: tuple[str, dict[str, Any]] = ("MSRAFill", {})
"""Initializer of the weights of convolutions: He, Zhang, Ren and Sun, 2015, arXiv:1502.01852."""


@dataclass(frozen=True)
class NormalizedConv:
    """Adds convolutions (Conv without bias, SpatialBN and Relu), all in training mode or all in test mode.

    Args:
        model: model that gets the layers.
        is_test: normalize by running averages.
        bn_epsilon, bn_momentum: see ``brew.spatial_bn``.
    """

    model: ModelHelper
    is_test: bool | int
    bn_epsilon: float = 1e-5
    bn_momentum: float = 0.9

    def __call__(
        self,
        blob: Blob,
        name: str,
        dim_in: int,
        dim_out: int,
        kernel: int | tuple[int, int],
        *,
        stride: int = 1,
        pad: int | Sequence[int] = 0,
        group: int = 1,
        relu: bool = True,
    ) -> BlobReference:
        """Add one convolution.

        Args:
            kernel, stride, pad: in pixels; ``pad`` for all borders, or (top and bottom, left and right).
            relu: add the Relu.
        """
        if not isinstance(pad, int):
            high, wide = pad
            pads: dict[str, Any] = {"pad_t": high, "pad_b": high, "pad_l": wide, "pad_r": wide}
        else:
            pads = {"pad": pad}
        result = brew.conv(
            self.model, blob, name, dim_in, dim_out, list(kernel) if isinstance(kernel, tuple) else kernel,
            weight_init=MSRA, group=group, stride=stride, no_bias=1, **pads,
        )  # fmt: skip
        result = self.normalize(result, f"{name}_spatbn", dim_out)
        return brew.relu(self.model, result, result) if relu else result

    def normalize(self, blob: Blob, name: str, channels: int) -> BlobReference:
        """Add only the batch normalization."""
        return brew.spatial_bn(
            self.model, blob, name, channels,
            epsilon=self.bn_epsilon, momentum=self.bn_momentum, is_test=1 if self.is_test else 0,
        )  # fmt: skip


def add_dropout(model: ModelHelper, blob: BlobReference, name: str, ratio: float, is_test: bool) -> BlobReference:
    """Add a Dropout with probability ``ratio``; return ``blob`` itself if nothing is dropped."""
    if is_test or ratio == 0:
        return blob
    return brew.dropout(model, blob, name, ratio=ratio, is_test=0)


def add_dense(
    model: ModelHelper, blob: BlobReference, dim_in: int, num_labels: int, *, hidden: int, dropout: float, is_test: bool
) -> BlobReference:
    """Add the end of AlexNet and VGG: ``fc6`` and ``fc7`` with Relu and dropout, and the scores ``fc8``.

    Args:
        blob: features, (N, ...) with ``dim_in`` elements each.
        hidden: length of the two hidden vectors.
        dropout: dropout probability of the hidden vectors, in [0, 1).

    Returns:
        The scores, (N, num_labels).
    """
    for number in (6, 7):
        blob = brew.fc(model, blob, f"fc{number}", dim_in, hidden)
        blob = brew.relu(model, blob, blob)
        blob = add_dropout(model, blob, f"drop{number}", dropout, is_test)
        dim_in = hidden
    return brew.fc(model, blob, "fc8", dim_in, num_labels)


def add_head(model: ModelHelper, scores: BlobReference, label: Blob | None, no_loss: bool) -> Any:
    """Return ``scores`` if ``no_loss``; (softmax, loss) if there are labels; otherwise the softmax."""
    if no_loss:
        return scores
    if label is not None:
        return model.net.SoftmaxWithLoss([scores, label], ["softmax", "loss"])
    return brew.softmax(model, scores, "softmax")
