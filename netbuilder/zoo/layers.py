"""Layers that several nets of the zoo have: normalized convolutions, fully connected ends, classifier heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from netbuilder.graph.blob import BlobReference
from netbuilder.model import Initializer, ModelHelper, ParameterTags, brew
from netbuilder.proto import ArgumentError
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.proto.suggestions import did_you_mean

__all__ = [
    "MSRA",
    "SMALL",
    "Blob",
    "NormalizedConv",
    "add_dense",
    "add_dropout",
    "add_head",
    "add_linear",
    "add_pooled_scores",
    "chosen",
    "divisible",
]


Blob = str | BlobReference

MSRA: tuple[str, dict[str, Any]] = ("MSRAFill", {})
"""Initializer of the weights of convolutions: He, Zhang, Ren and Sun, 2015, arXiv:1502.01852."""

SMALL: tuple[str, dict[str, Any]] = ("GaussianFill", {"std": 0.02})
"""Initializer of the weights of transformers."""

S = TypeVar("S")


def chosen(create: str, size: str | S, sizes: Mapping[str, S]) -> S:
    """Return the row of a table of sizes, or a row that is given itself.

    Raises:
        ArgumentError: there is no size of this name.
    """
    if not isinstance(size, str):
        return size
    if size not in sizes:
        raise ArgumentError(
            f"{create}: size must be one of {', '.join(sizes)}, or such a row itself; got {size!r}"
            f"{did_you_mean(size, sizes)}"
        )
    return sizes[size]


def divisible(channels: float, by: int = 8) -> int:
    """Return the number of channels that is a multiple of ``by``, nearest to the one given and at least 90 % of it."""
    rounded = max(by, int(channels + by / 2) // by * by)
    return rounded + by if rounded < 0.9 * channels else rounded


_IN_PLACE = ("relu", "relu6")


@dataclass(frozen=True)
class NormalizedConv:
    """Adds convolutions (Conv without bias, SpatialBN and an activation), all in training mode or all in test mode.

    Args:
        model: model that gets the layers.
        is_test: normalize by running averages.
        bn_epsilon, bn_momentum: see ``brew.spatial_bn``.
        activation: a helper, such as "relu6" or "swish", which is added in place of Relu.
    """

    model: ModelHelper
    is_test: bool | int
    bn_epsilon: float = 1e-5
    bn_momentum: float = 0.9
    activation: str = "relu"

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
            relu: add the activation.
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
        return self.activate(result) if relu else result

    def activate(self, blob: BlobReference) -> BlobReference:
        """Add only the activation, in place if its gradient needs no other blob than its result."""
        helper = getattr(brew, self.activation)
        made: BlobReference = helper(self.model, blob, blob if self.activation in _IN_PLACE else f"{blob}_active")
        return made

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


def add_linear(
    model: ModelHelper, blob: Blob, name: str, dim_in: int, dim_out: int, *, bias: bool = True, axis: int = 1
) -> BlobReference:
    """Add a fully connected layer of a transformer; without ``bias``, its bias is a constant 0."""
    if not bias:
        model.create_param(f"{name}_b", [dim_out], Initializer("ConstantFill"), ParameterTags.COMPUTED_PARAM)
    return brew.fc(model, blob, name, dim_in, dim_out, weight_init=SMALL, axis=axis)


def add_pooled_scores(
    model: ModelHelper, blob: Blob, dim: int, num_labels: int, *, dropout: float = 0.0, is_test: bool = False
) -> BlobReference:
    """Add the mean over the image plane, dropout, and the layer ``scores``, (N, num_labels)."""
    pooled = brew.average_pool(model, blob, "final_avg", global_pooling=1)
    return brew.fc(model, add_dropout(model, pooled, "final_drop", dropout, is_test), "scores", dim, num_labels)


def add_head(model: ModelHelper, scores: BlobReference, label: Blob | None, no_loss: bool) -> Any:
    """Return ``scores`` if ``no_loss``; (softmax, loss) if there are labels; otherwise the softmax."""
    if no_loss:
        return scores
    if label is not None:
        return model.net.SoftmaxWithLoss([scores, label], ["softmax", "loss"])
    return brew.softmax(model, scores, "softmax")
