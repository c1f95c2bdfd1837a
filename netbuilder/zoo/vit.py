"""Vision transformers: ViT, and DeiT, which has the same layers and, if it was distilled, a second classifier."""

from __future__ import annotations

from typing import Any

from netbuilder.graph.blob import BlobReference
from netbuilder.model import Initializer, ModelHelper, brew
from netbuilder.proto import ArgumentError
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.zoo.layers import SMALL, Blob, add_dropout, add_head, add_linear, chosen

__all__ = ["VIT", "ViT", "create_vit"]

_EPSILON = 1e-6


@dataclass(frozen=True)
class ViT:
    """A size of ViT.

    Args:
        dim: length of the vectors.
        layers: number of blocks.
        heads: of the attention, a divisor of ``dim``.
        patch: height and width of a patch, in pixels.
        distilled: whether a second vector and classifier learn from a teacher.
    """

    dim: int
    layers: int
    heads: int
    patch: int = 16
    distilled: bool = False


VIT: dict[str, ViT] = {
    "vit-s16": ViT(384, 12, 6),
    "vit-b16": ViT(768, 12, 12),
    "vit-b32": ViT(768, 12, 12, patch=32),
    "deit-tiny": ViT(192, 12, 3),
    "deit-small": ViT(384, 12, 6),
    "deit-base": ViT(768, 12, 12),
    "deit-tiny-distilled": ViT(192, 12, 3, distilled=True),
    "deit-small-distilled": ViT(384, 12, 6, distilled=True),
    "deit-base-distilled": ViT(768, 12, 12, distilled=True),
}
"""The sizes of both papers."""


def create_vit(
    model: ModelHelper,
    data: Blob,
    num_input_channels: int,
    num_labels: int,
    size: str | ViT = "vit-b16",
    label: Blob | None = None,
    is_test: bool = False,
    no_loss: bool = False,
    *,
    dropout: float = 0.0,
    image_size: int = 224,
) -> Any:
    """Add a vision transformer.

    Args:
        data: images, (N, num_input_channels, image_size, image_size).
        num_labels: number of classes; the scores are ``scores``, of distilled nets the mean of ``class_scores`` and
            ``distilled_scores``.
        size: one of ``VIT``, or such a row.
        label: classes, (N,), int32.
        is_test: no dropout.
        no_loss: return the scores.
        dropout: dropout probability of vectors and weights of the attention, in [0, 1).
        image_size: height and width in pixels, a multiple of a patch's.

    Returns:
        The scores (N, num_labels) if ``no_loss``, (softmax, loss) if there is a label, otherwise the softmax.

    Raises:
        ArgumentError: ``size`` is unknown, or the images cannot be divided into patches.

    Source: Dosovitskiy et al., "An Image is Worth 16x16 Words", 2020, arXiv:2010.11929; Touvron et al., "Training
    data-efficient image transformers", 2020, arXiv:2012.12877.
    """
    table = chosen("create_vit", size, VIT)
    dim = table.dim
    if image_size < 1 or image_size % table.patch:
        raise ArgumentError(f"create_vit: image_size must be a multiple of {table.patch} pixels, got {image_size}")
    side, first = image_size // table.patch, 1 + table.distilled
    small = Initializer(SMALL[0], **SMALL[1])
    x = brew.conv(model, data, "patches", num_input_channels, dim, table.patch, weight_init=SMALL, stride=table.patch)
    x = brew.transpose(model, brew.reshape(model, x, "patch_rows", shape=[0, dim, -1]), "patch_vectors", axes=[0, 2, 1])
    kinds = ["class", "distilled"][:first]
    vectors = [model.create_param(f"{kind}_vector", [1, 1, dim], small) for kind in kinds]
    x = brew.concat(model, [*(_for_batch(model, vector, x) for vector in vectors), x], "vectors", axis=1)
    positions = model.create_param("positions", [1, side * side + first, dim], small)
    x = add_dropout(model, brew.add(model, [x, positions], "placed"), "placed_drop", dropout, is_test)
    for layer in range(1, table.layers + 1):
        x = brew.transformer_block(
            model, x, f"block{layer}", dim, table.heads, epsilon=_EPSILON, dropout=dropout, is_test=bool(is_test),
            weight_init=SMALL,
        )  # fmt: skip
    x = brew.layer_norm(model, x, "final_norm", dim, axis=2, epsilon=_EPSILON)
    scores = []
    for number, kind in enumerate(kinds):
        vector = brew.slice(model, x, f"{kind}_row", starts=[0, number], ends=[-1, number + 1])
        vector = brew.squeeze(model, vector, f"{kind}_features", dims=[1])
        name = f"{kind}_scores" if table.distilled else "scores"
        scores.append(add_linear(model, vector, name, dim, num_labels))
    if table.distilled:
        scores = [brew.scale(model, brew.add(model, scores, "sum_of_scores"), "scores", scale=0.5)]
    return add_head(model, scores[0], label, no_loss)


def _for_batch(model: ModelHelper, vector: BlobReference, like: BlobReference) -> BlobReference:
    """Return a vector (1, 1, dim) once for each sample of ``like``, (N, T, dim)."""
    rows = brew.slice(model, like, f"{vector}_like", starts=[0, 0], ends=[-1, 1])
    zeros = model.net.ConstantFill(rows, f"{vector}_zeros", value=0.0)
    return brew.add(model, [zeros, vector], f"{vector}_rows")
