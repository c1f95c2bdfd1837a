"""Convolutions with normalization over the batch after them, as several nets of the zoo are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from netbuilder._renamed import moved_names
from netbuilder.graph.blob import BlobReference
from netbuilder.model import ModelHelper, brew

__all__ = ["NormalizedConv"]

__getattr__ = moved_names(__name__, {"NormalisedConv": f"{__name__}:NormalizedConv"})

Blob = str | BlobReference


@dataclass(frozen=True)
class NormalizedConv:
    """Adds Conv without bias, SpatialBN and Relu.

    Args:
        model: gets the layers.
        is_test: normalize by running averages.
        bn_epsilon, bn_momentum: see ``brew.spatial_bn``.
    """

    model: ModelHelper
    is_test: bool
    bn_epsilon: float
    bn_momentum: float

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
        """Add one convolution; extents in pixels, ``pad`` for all borders, or (above and below, left and right)."""
        if not isinstance(pad, int):
            high, wide = pad
            pads: dict[str, Any] = {"pad_t": high, "pad_b": high, "pad_l": wide, "pad_r": wide}
        else:
            pads = {"pad": pad}
        result = brew.conv(
            self.model, blob, name, dim_in, dim_out, list(kernel) if isinstance(kernel, tuple) else kernel,
            weight_init=("MSRAFill", {}), group=group, stride=stride, no_bias=1, **pads,
        )  # fmt: skip
        result = brew.spatial_bn(
            self.model, result, f"{name}_spatbn", dim_out,
            epsilon=self.bn_epsilon, momentum=self.bn_momentum, is_test=1 if self.is_test else 0,
        )  # fmt: skip
        return brew.relu(self.model, result, result) if relu else result
