"""Random changes of color: saturation, brightness, contrast, and light along the principal components of photographs.

Sources: Howard, "Some improvements on deep convolutional neural network based image classification", 2013,
arXiv:1312.5402, section 2.2; Krizhevsky, Sutskever and Hinton, "ImageNet classification with deep convolutional neural
networks", 2012, section 4.1, with the usual principal components of ImageNet's training images.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["EIGENVALUES", "EIGENVECTORS", "jitter", "lighting"]

Array = np.ndarray[Any, np.dtype[Any]]

EIGENVALUES = (0.2175, 0.0188, 0.0045)
"""Of the covariance of red, green and blue over pixels from 0 to 1."""

EIGENVECTORS = ((-0.5675, 0.7192, 0.4009), (-0.5808, -0.0045, -0.8140), (-0.5836, -0.6948, 0.4203))
"""Eigenvectors: rows are red, green and blue, columns the components."""

_GRAY = np.array([0.114, 0.587, 0.299], np.float32)


def jitter(
    image: Array, rng: np.random.Generator, *, saturation: float = 0.4, brightness: float = 0.4, contrast: float = 0.4
) -> Array:
    """Return an image with changed saturation, brightness and contrast, in random order.

    Each is multiplied by a factor drawn from [1 - x, 1 + x]. Values may leave [0, 255]; they are not clipped.

    Args:
        image: (H, W, 3), blue, green, red.
    """
    image = image.astype(np.float32)
    shares = (saturation, brightness, contrast)
    for kind in rng.permutation(3):
        factor = np.float32(1 + rng.uniform(-shares[kind], shares[kind]))
        if kind == 1:
            image *= factor
            continue
        gray = (image @ _GRAY)[:, :, None]
        middle = gray if kind == 0 else gray.mean()
        image = middle + factor * (image - middle)
    return image


def lighting(image: Array, rng: np.random.Generator, std: float = 0.1) -> Array:
    """Return an image with one random color added to all pixels, drawn along the principal components.

    Args:
        image: (H, W, 3), blue, green, red, from 0 to 255.
        std: standard deviation of the factors of the components.
    """
    factors = rng.normal(0.0, std, 3) * EIGENVALUES
    added = 255 * (np.array(EIGENVECTORS) @ factors)[::-1]
    return image.astype(np.float32) + added.astype(np.float32)
