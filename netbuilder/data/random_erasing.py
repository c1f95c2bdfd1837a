"""Random erasing: a box of an image is replaced by noise."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Erased", "draw_erased", "erase"]

Array = np.ndarray[Any, np.dtype[Any]]

_AREA = (0.02, 1 / 3)  # least and greatest share of the image
_RATIO = 0.3  # least height per width; the greatest is its inverse
_TRIES = 10


class Erased(NamedTuple):
    """A box of an image, and the seed of the noise that replaces it."""

    top: int
    left: int
    height: int
    width: int
    seed: int


def draw_erased(height: int, width: int, share: float, rng: np.random.Generator) -> Erased | None:
    """Return the box to erase; None: the image is left as it is.

    Args:
        height, width: of the image.
        share: probability of erasing.
        rng: source of random numbers.

    Source: Zhong et al., "Random erasing data augmentation", 2017, arXiv:1708.04896, algorithm 1.
    """
    if rng.random() >= share:
        return None
    for _ in range(_TRIES):
        area, ratio = height * width * rng.uniform(*_AREA), math.exp(rng.uniform(math.log(_RATIO), -math.log(_RATIO)))
        high, wide = round((area * ratio) ** 0.5), round((area / ratio) ** 0.5)
        if 0 < high < height and 0 < wide < width:
            top, left = int(rng.random() * (height - high + 1)), int(rng.random() * (width - wide + 1))
            return Erased(top, left, high, wide, int(rng.integers(1 << 32)))
    return None


def erase(image: Array, box: Erased | None) -> Array:
    """Return an image (H, W, C) with values from 0 to 255, drawn uniformly, in a box; it is left unchanged itself."""
    if box is None:
        return image
    noise = np.random.default_rng(box.seed).integers(0, 256, (box.height, box.width, image.shape[2]), np.uint8)
    image = image.copy()
    image[box.top : box.top + box.height, box.left : box.left + box.width] = noise
    return image
