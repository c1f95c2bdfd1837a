"""A batch of images that threads fill, and warnings of batches that look wrong."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future
from typing import Any

import numpy as np

from netbuilder.proto import ShapeError

__all__ = ["DifferentSizesError", "ImageBatch", "warn_if_suspicious"]


Array = np.ndarray[Any, np.dtype[Any]]

_log = logging.getLogger("netbuilder.input")

_FEW = 8  # fewer labels than this may all be equal by chance


class DifferentSizesError(ShapeError):
    """Images of a batch have different sizes.

    Args:
        found: which, and their sizes.
        options: what makes them alike.
    """

    def __init__(self, found: str, options: str) -> None:
        super().__init__(f"{found}; give {options}")
        self.found = found

    def __reduce__(self) -> tuple[type[ShapeError], tuple[str]]:
        return ShapeError, (str(self),)


class ImageBatch:
    """A batch that threads fill, each at its own indices.

    Args:
        size: number of images.
        channels: of each image.
        memory: buffer of an earlier batch, which may be overwritten.
        pixels: images are pixels (H, W, C), uint8; else (C, H, W), float32.
    """

    def __init__(self, size: int, channels: int, memory: Array | None = None, *, pixels: bool = False) -> None:
        self.size, self._channels, self._pixels = size, channels, pixels
        self._futures: list[Future[None]] = []
        self._left, self._done = 0, threading.Event()
        self._memory = memory
        self._images: Array | None = None
        self._labels = np.zeros(size, np.int32)
        self._filled = np.zeros(size, np.bool_)
        self._lock = threading.Lock()

    def image(self, place: int, size: tuple[int, int], where: str) -> Array:
        """Return the buffer of one image.

        Args:
            place: its index in the batch.
            size: its height and width.
            where: name of the image in errors.

        Raises:
            ShapeError: other images of the batch are of another size.
        """
        if self._images is None:
            with self._lock:
                if self._images is None:
                    self._images = self._fitting(size)
        other = self._images.shape[1:3] if self._pixels else self._images.shape[2:]
        if other != size:
            found = f"{where} has {size[0]} x {size[1]} pixels, another image of its batch {other[0]} x {other[1]}"
            raise DifferentSizesError(found, "crop, or scale and warp")
        image: Array = self._images[place]
        return image

    def _fitting(self, size: tuple[int, int]) -> Array:
        shape = (*size, self._channels) if self._pixels else (self._channels, *size)
        if self._memory is None or self._memory.shape[1:] != shape or len(self._memory) < self.size:
            self._memory = np.empty((self.size, *shape), np.uint8 if self._pixels else np.float32)
        return self._memory[: self.size]

    def filled(self, place: int, label: int) -> None:
        """Mark the image at an index as written."""
        self._labels[place] = label
        self._filled[place] = True

    def expect(self, parts: int) -> None:
        """Set the number of parts that fill the batch."""
        self._left = parts

    def begin(self, part: Future[None]) -> None:
        """Add a part that has been given to a thread."""
        self._futures.append(part)
        part.add_done_callback(self._one_done)

    def _one_done(self, _: Future[None]) -> None:
        with self._lock:
            self._left -= 1
            if not self._left:
                self._done.set()

    def memory(self) -> list[Array]:
        """Return the buffer for another batch to use, if there is one."""
        return [] if self._memory is None else [self._memory]

    def whole(self) -> tuple[Array, Array]:
        """Wait for the threads; return images and labels.

        Raises:
            Exception: what a thread raised.
        """
        self._done.wait()  # wait once for all: waking up after each part would evict the decoders' cache
        for part in self._futures:
            part.result()
        if self._images is None:
            return np.empty((0, 0, 0, 0), np.uint8 if self._pixels else np.float32), self._labels[:0]
        if self._filled.all():
            return self._images, self._labels
        return self._images[self._filled], self._labels[self._filled]


def warn_if_suspicious(images: Array, labels: Array) -> None:
    """Log a warning if a batch was probably read wrongly: images of one color, or labels that are all equal.

    Args:
        images: (N, C, H, W).
        labels: (N,).
    """
    flat = np.ptp(images, axis=(2, 3)).max(axis=1) == 0 if images.size > len(images) else np.zeros(0, np.bool_)
    if flat.any():
        _log.warning(
            "%d of %d images in the first batch have one color only, the first with the values %s; "
            "check the format in which the images are stored",
            flat.sum(), len(images), images[flat.argmax(), :, 0, 0].tolist(),
        )  # fmt: skip
    if len(labels) >= _FEW and (labels == labels.flat[0]).all():
        _log.warning(
            "all %d labels in the first batch are %s; is the set sorted by class, or are labels read wrongly?",
            len(labels), labels.flat[0],
        )  # fmt: skip
