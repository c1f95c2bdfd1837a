"""Swin transformers: attention within windows, which every second block shifts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from netbuilder.graph.blob import BlobReference
from netbuilder.model import Initializer, ModelHelper, ParameterTags, brew
from netbuilder.proto import ArgumentError
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.zoo.layers import SMALL, Blob, add_head, add_linear, chosen

__all__ = ["SWIN", "Swin", "create_swin"]

_SKIPPED = {"tiny": 0.2, "small": 0.3, "base": 0.5}
_UNSEEN = -100.0  # added to the scores of pixels that are neighbors only because windows were shifted around the border


@dataclass(frozen=True)
class Swin:
    """A size of Swin.

    Args:
        dim: channels of the first stage; each stage doubles them.
        layers: blocks of each stage.
        heads: heads of each stage.
        window: height and width of a window, in patches.
        patch: height and width of a patch, in pixels.
    """

    dim: int
    layers: Sequence[int]
    heads: Sequence[int]
    window: int = 7
    patch: int = 4


SWIN: dict[str, Swin] = {
    "tiny": Swin(96, (2, 2, 6, 2), (3, 6, 12, 24)),
    "small": Swin(96, (2, 2, 18, 2), (3, 6, 12, 24)),
    "base": Swin(128, (2, 2, 18, 2), (4, 8, 16, 32)),
}
"""The paper's sizes."""


def create_swin(
    model: ModelHelper,
    data: Blob,
    num_input_channels: int,
    num_labels: int,
    size: str | Swin = "tiny",
    label: Blob | None = None,
    is_test: bool = False,
    no_loss: bool = False,
    *,
    image_size: int = 224,
    stochastic_depth: float | None = None,
) -> Any:
    """Add a Swin transformer.

    Args:
        data: images, (N, num_input_channels, image_size, image_size).
        num_labels: number of classes; the scores are ``scores``.
        size: one of ``SWIN``, or such a row.
        label: classes, (N,), int32.
        is_test: no sample skips a block.
        no_loss: return the scores.
        image_size: height and width in pixels; windows must divide the patches of each stage (224 for the usual sizes).
        stochastic_depth: as for ``create_convnext``.

    Returns:
        The scores (N, num_labels) if ``no_loss``, (softmax, loss) if there is a label, otherwise the softmax.

    Raises:
        ArgumentError: ``size`` is unknown, or windows do not divide the images.

    Source: Liu et al., "Swin Transformer: Hierarchical Vision Transformer using Shifted Windows", 2021,
    arXiv:2103.14030.
    """
    table = chosen("create_swin", size, SWIN)
    unit = table.patch * table.window << len(table.layers) - 1
    if image_size < 1 or image_size % unit:
        raise ArgumentError(f"create_swin: image_size must be a multiple of {unit} pixels, got {image_size}")
    skipped = (_SKIPPED[size] if isinstance(size, str) else 0.0) if stochastic_depth is None else stochastic_depth
    step, number = 0.0 if is_test else skipped / max(1, sum(table.layers) - 1), 0
    dim, side = table.dim, image_size // table.patch
    x = brew.conv(model, data, "patches", num_input_channels, dim, table.patch, weight_init=SMALL, stride=table.patch)
    x = brew.transpose(model, x, "patch_vectors", axes=[0, 2, 3, 1])
    x = brew.layer_norm(model, x, "patch_norm", dim, axis=3)
    for stage, (layers, heads) in enumerate(zip(table.layers, table.heads), 1):
        if stage > 1:
            x = _merged(model, x, f"stage{stage}_merge", dim, side)
            dim, side = 2 * dim, side // 2
        for layer in range(layers):
            windows = _Windows(side, table.window, table.window // 2 if layer % 2 and side > table.window else 0)
            x = _add_block(model, x, f"stage{stage}_{layer + 1}", dim, heads, windows, step * number)
            number += 1
    x = brew.layer_norm(model, x, "final_norm", dim, axis=3)
    x = brew.reduce_mean(model, x, "final_avg", axes=[1, 2], keepdims=0)
    return add_head(model, add_linear(model, x, "scores", dim, num_labels), label, no_loss)


def _merged(model: ModelHelper, blob: Blob, name: str, dim: int, side: int) -> BlobReference:
    """Join the vectors of 2 x 2 neighbors, and project them to 2 ``dim`` features."""
    half = side // 2
    x = brew.reshape(model, blob, f"{name}_pairs", shape=[-1, half, 2, half, 2, dim])
    x = brew.transpose(model, x, f"{name}_neighbors", axes=[0, 1, 3, 4, 2, 5])
    x = brew.reshape(model, x, f"{name}_joined", shape=[-1, half, half, 4 * dim])
    x = brew.layer_norm(model, x, f"{name}_norm", 4 * dim, axis=3)
    return add_linear(model, x, name, 4 * dim, 2 * dim, bias=False, axis=3)


@dataclass(frozen=True)
class _Windows:
    """The windows of an image of ``side`` x ``side`` vectors, shifted by ``shift``."""

    side: int
    extent: int
    shift: int

    @property
    def number(self) -> int:
        return (self.side // self.extent) ** 2

    @property
    def vectors(self) -> int:
        return self.extent**2

    def split(self, x: Any) -> Any:
        """Return an array (side, side) as (windows, vectors)."""
        count = self.side // self.extent
        return x.reshape(count, self.extent, count, self.extent).swapaxes(1, 2).reshape(self.number, self.vectors)

    def neighbors(self) -> Any:
        """Return, (windows, vectors, vectors), 0 for neighbors in the image, and ``_UNSEEN`` for others."""
        ends = [self.side - self.extent, self.side - self.shift]
        region = np.searchsorted(ends, np.arange(self.side), side="right")
        regions = self.split(3 * region[:, None] + region)
        return np.where(regions[:, :, None] == regions[:, None], 0.0, _UNSEEN)

    def offsets(self) -> Any:
        """Return, (vectors, vectors), the rows of the table of biases by the vectors' relative positions."""
        rows, columns = np.divmod(np.arange(self.vectors), self.extent)
        down, right = (x[:, None] - x[None] + self.extent - 1 for x in (rows, columns))
        return down * (2 * self.extent - 1) + right


def _constant(model: ModelHelper, name: str, fill: str, values: Any) -> BlobReference:
    return model.create_param(
        name, list(values.shape), Initializer(fill, values=values.ravel().tolist()), ParameterTags.COMPUTED_PARAM
    )


def _add_block(
    model: ModelHelper, blob: Blob, name: str, dim: int, heads: int, windows: _Windows, skipped: float
) -> BlobReference:
    x = brew.layer_norm(model, blob, f"{name}_norm1", dim, axis=3)
    x = _rolled(model, x, f"{name}_rolled", -windows.shift)
    x = _add_attention(model, x, f"{name}_attention", dim, heads, windows)
    x = _rolled(model, x, f"{name}_back", windows.shift)
    x = brew.stochastic_depth(model, x, f"{name}_attention_survived", skipped, is_test=False)
    x = brew.add(model, [blob, x], f"{name}_attended")
    inner = brew.layer_norm(model, x, f"{name}_norm2", dim, axis=3)
    inner = brew.gelu(model, add_linear(model, inner, f"{name}_fc1", dim, 4 * dim, axis=3), f"{name}_active")
    inner = add_linear(model, inner, f"{name}_fc2", 4 * dim, dim, axis=3)
    inner = brew.stochastic_depth(model, inner, f"{name}_survived", skipped, is_test=False)
    return brew.add(model, [x, inner], name)


def _rolled(model: ModelHelper, blob: BlobReference, name: str, by: int) -> BlobReference:
    """Return images (N, H, W, C) moved down and to the right; what leaves them enters on the other side."""
    if by == 0:
        return blob
    for axis, what in ((1, "down"), (2, "right")):
        whole, cut = [0] * axis, -1 - by if by > 0 else -by
        head = brew.slice(model, blob, f"{name}_{what}_head", starts=[*whole, 0], ends=[*[-1] * axis, cut])
        tail = brew.slice(model, blob, f"{name}_{what}_tail", starts=[*whole, cut], ends=[*[-1] * axis, -1])
        blob = brew.concat(model, [tail, head], f"{name}_{what}", axis=axis)
    return blob


def _add_attention(model: ModelHelper, blob: Blob, name: str, dim: int, heads: int, windows: _Windows) -> BlobReference:
    """Add attention within windows; those of a shifted image, whose borders differ, are heads of one sample."""
    count, extent, vectors = windows.side // windows.extent, windows.extent, windows.vectors
    together, width = windows.number if windows.shift else 1, dim // heads
    x = brew.reshape(model, blob, f"{name}_pixels", shape=[-1, count, extent, count, extent, dim])
    x = brew.transpose(model, x, f"{name}_windows", axes=[0, 1, 3, 2, 4, 5])
    x = brew.reshape(model, x, f"{name}_vectors", shape=[-1, vectors, dim])
    qkv = add_linear(model, x, f"{name}_qkv", dim, 3 * dim, axis=2)
    parts = []
    for part, what in zip(brew.split(model, qkv, [f"{name}_{what}" for what in "qkv"], axis=2), "qkv"):
        part = brew.reshape(model, part, f"{name}_{what}_parts", shape=[-1, together, vectors, heads, width])
        part = brew.transpose(model, part, f"{name}_{what}_by_head", axes=[0, 1, 3, 2, 4])
        parts.append(brew.reshape(model, part, f"{name}_{what}_heads", shape=[-1, together * heads, vectors, width]))
    bias = _add_bias(model, name, heads, windows)
    y = model.net.Attention([*parts, bias], f"{name}_seen")
    y = brew.reshape(model, y, f"{name}_by_head", shape=[-1, together, heads, vectors, width])
    y = brew.transpose(model, y, f"{name}_by_vector", axes=[0, 1, 3, 2, 4])
    y = add_linear(model, brew.reshape(model, y, f"{name}_joined", shape=[-1, vectors, dim]), name, dim, dim, axis=2)
    y = brew.reshape(model, y, f"{name}_in_windows", shape=[-1, count, count, extent, extent, dim])
    y = brew.transpose(model, y, f"{name}_in_rows", axes=[0, 1, 3, 2, 4, 5])
    return brew.reshape(model, y, f"{name}_image", shape=[-1, windows.side, windows.side, dim])


def _add_bias(model: ModelHelper, name: str, heads: int, windows: _Windows) -> BlobReference:
    """Return what is added to the scores: a learned bias by relative position and, if shifted, the borders."""
    rows, vectors = (2 * windows.extent - 1) ** 2, windows.vectors
    table = model.create_param(f"{name}_bias_w", [rows, heads], Initializer(SMALL[0], **SMALL[1]), ParameterTags.WEIGHT)
    offsets = _constant(model, f"{name}_offsets", "GivenTensorIntFill", windows.offsets())
    bias = brew.gather(model, [table, offsets], f"{name}_bias_rows", dense_gradient=1)
    bias = brew.transpose(model, bias, f"{name}_bias", axes=[2, 0, 1])
    if not windows.shift:
        return bias
    borders = _constant(model, f"{name}_borders", "GivenTensorFill", windows.neighbors()[:, None])
    bias = brew.add(model, [bias, borders], f"{name}_bordered")
    return brew.reshape(model, bias, f"{name}_masks", shape=[windows.number * heads, vectors, vectors])
