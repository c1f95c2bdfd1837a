"""Mixup and CutMix: samples of a batch are mixed in pairs, and labels become probabilities of classes."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.proto import ArgumentError, NetError

__all__ = ["BatchMixer", "class_probabilities"]

Array = np.ndarray[Any, np.dtype[Any]]

_STREAM = 0x6D6978  # separates these random numbers from others with the same seed


def class_probabilities(labels: Array, classes: int, smoothing: float = 0.0) -> Array:
    """Return the probability of each class, (N, classes), float32, with label smoothing.

    Args:
        labels: (N,), whole numbers.
        classes: number of classes.
        smoothing: in [0, 1); the label gets 1 - smoothing, and smoothing is spread evenly over all classes.

    Raises:
        NetError: a label is not in [0, classes).

    Source of smoothing: Szegedy et al., "Rethinking the Inception architecture", 2015, arXiv:1512.00567, section 7.
    """
    labels = np.asarray(labels)
    if labels.size and not 0 <= labels.min() <= labels.max() < classes:
        raise NetError(f"labels must be in [0, {classes}), got {labels.min()} to {labels.max()}")
    found = np.full((len(labels), classes), smoothing / classes, np.float32)
    found[np.arange(len(labels)), labels] += 1 - smoothing
    return found


class BatchMixer:
    """Mixes the samples of a batch with those of the same batch in another order.

    Mixup: an image becomes ``l * image + (1 - l) * other``. CutMix: a box with the share ``1 - l`` of the area is
    taken from the other image. ``l`` is drawn from Beta(alpha, alpha) for each batch, and labels are mixed by the same
    share. Random choices follow from the seed, the epoch and the number of the batch alone, so they are the same on
    any number of devices, and in a resumed run.

    Args:
        classes: number of classes.
        mixup, cutmix: alpha of each, usually 0.2 and 1.0; 0: never. With both, each batch is mixed by one of them,
            drawn with equal chances.
        smoothing: share of each label that is spread over all classes, see ``class_probabilities``.
        seed: of random choices.

    Raises:
        ArgumentError: a number is out of range.

    Sources: Zhang et al., "mixup: Beyond empirical risk minimization", 2017, arXiv:1710.09412; Yun et al., "CutMix",
    2019, arXiv:1905.04899.
    """

    def __init__(
        self, classes: int, *, mixup: float = 0.0, cutmix: float = 0.0, smoothing: float = 0.0, seed: int = 0
    ) -> None:
        for name, alpha in (("mixup", mixup), ("cutmix", cutmix)):
            if not 0 <= alpha < float("inf"):
                raise ArgumentError(f"{name}: alpha must be 0 (never) or greater, usually 0.2 to 1, got {alpha}")
        if not 0 <= smoothing < 1:
            raise ArgumentError(f"label smoothing must be in [0, 1), got {smoothing}")
        if classes < 1:
            raise ArgumentError(f"mixing needs 1 class or more, got {classes}")
        self._classes, self._mixup, self._cutmix = classes, mixup, cutmix
        self._smoothing, self._seed = smoothing, seed

    @property
    def mixes(self) -> bool:
        """Whether samples are mixed."""
        return bool(self._mixup or self._cutmix)

    def others(self, count: int, *, epoch: int, number: int) -> Array:
        """Return with which sample each of the ``count`` samples of a batch is mixed, as indices in the batch."""
        return self._draw(count, epoch, number)[2]

    def __call__(
        self, images: Array, labels: Array, *, epoch: int, number: int, count: int | None = None
    ) -> tuple[Array, Array, Array]:
        """Return images, labels and the probability of each class; the arguments are left unchanged.

        Args:
            images: (N, C, H, W), floats; or, if only boxes are pasted, pixels (N, H, W, C), uint8.
            labels: (N,), whole numbers.
            epoch, number: of the batch; random choices follow from them.
            count: number of samples of the batch, if ``images`` are only some of them, followed by those with which
                ``others`` says that they are mixed: the first N / 2 are mixed, and returned.

        Returns:
            images of the same shape and type; for each the label with the larger share; (N, classes), float32.

        Raises:
            NetError: a label is out of range, or pixels are to be added up by mixup.
        """
        if self._mixup and images.dtype == np.uint8:
            raise NetError(f"mixup adds images, which must be floats, got {images.dtype}; normalize them before")
        targets = class_probabilities(labels, self._classes, self._smoothing)
        if not self.mixes:
            return images, labels, targets
        cuts, share, others, rng = self._draw(len(labels) if count is None else count, epoch, number)
        own = slice(None)
        if count is not None:
            half = len(labels) // 2
            own, others = slice(half), np.arange(half, len(labels))
        if cuts:
            images, share = _with_box(images[own], images[others], share, rng)
        else:
            mixed = images[own] * images.dtype.type(share)
            mixed += images[others] * images.dtype.type(1 - share)
            images = mixed
        targets = targets[own] * np.float32(share) + targets[others] * np.float32(1 - share)
        return images, labels[own] if share >= 0.5 else labels[others], targets

    def _draw(self, count: int, epoch: int, number: int) -> tuple[bool, float, Array, np.random.Generator]:
        """Return whether a box is pasted, the share of each sample, its partners, and a generator for the box."""
        rng = np.random.default_rng([self._seed, epoch, number, _STREAM])
        cuts = bool(self._cutmix) and (not self._mixup or rng.random() < 0.5)
        alpha = self._cutmix if cuts else self._mixup
        share = float(rng.beta(alpha, alpha))
        return cuts, share, rng.permutation(count), rng


def _with_box(images: Array, others: Array, share: float, rng: np.random.Generator) -> tuple[Array, float]:
    """Return images with a box of the other ones pasted in, and the share of the area that is unchanged."""
    pixels = images.dtype == np.uint8
    height, width = images.shape[1:3] if pixels else images.shape[2:]
    side = (1 - share) ** 0.5
    high, wide = round(height * side), round(width * side)
    top, left = int(rng.integers(height)) - high // 2, int(rng.integers(width)) - wide // 2
    rows = slice(max(top, 0), min(top + high, height))
    columns = slice(max(left, 0), min(left + wide, width))
    mixed = images.copy()
    box = (slice(None), rows, columns) if pixels else (slice(None), slice(None), rows, columns)
    mixed[box] = others[box]
    area = max(rows.stop - rows.start, 0) * max(columns.stop - columns.start, 0)
    return mixed, 1 - area / (height * width)
