"""How images get into a net: normalized by the host, or as bytes that the net normalizes on its GPU."""

from __future__ import annotations

from netbuilder.model import ModelHelper
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["DATA", "FedImages"]

DATA = "data"
"""The blob of normalized images, (N, C, H, W), that nets read."""

_PIXELS = "pixels"


@dataclass(frozen=True)
class FedImages:
    """The images that a net is fed.

    Args:
        shape: channels, height and width.
        normalization: mean and standard deviation, of which each has one number or one for each channel, if the net is
            fed pixels (N, H, W, C), uint8; None: images are normalized before they are fed.
    """

    shape: tuple[int, ...]
    normalization: tuple[tuple[float, ...], tuple[float, ...]] | None = None

    @property
    def blob(self) -> str:
        """The input of the net."""
        return DATA if self.normalization is None else _PIXELS

    def add(self, model: ModelHelper) -> None:
        """Add to a net what makes ``DATA`` of its input, before what reads it."""
        if self.normalization is not None:
            mean, std = self.normalization
            model.net.NormalizeImages(self.blob, DATA, mean=list(mean), std=list(std))
