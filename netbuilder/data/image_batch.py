"""A batch of images in the making, and a look at what came of it."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future
from typing import Any

import numpy as np

from netbuilder.proto import ShapeError

__all__ = ["ImageBatch", "look_at_images"]

Array = np.ndarray[Any, np.dtype[Any]]

_log = logging.getLogger("netbuilder.input")

_FEW = 8  # labels that may be all alike by chance


class ImageBatch:
    """A batch in the making; threads fill places of their own.

    Args:
        size: images that fit.
        channels: of each.
        memory: of an earlier batch, which may be written again.
    """

    def __init__(self, size: int, channels: int, memory: Array | None = None) -> None:
        self.size, self._channels = size, channels
        self._futures: list[Future[None]] = []
        self._left, self._done = 0, threading.Event()
        self._memory = memory
        self._images: Array | None = None
        self._labels = np.zeros(size, np.int32)
        self._filled = np.zeros(size, np.bool_)
        self._lock = threading.Lock()

    def image(self, place: int, size: tuple[int, int], where: str) -> Array:
        """Return where the image at a place lies, (C, H, W).

        Args:
            place: from 0 on.
            size: its height and width.
            where: what to call it in errors.

        Raises:
            ShapeError: other images of the batch are of another size.
        """
        if self._images is None:
            with self._lock:
                if self._images is None:
                    self._images = self._fitting((self._channels, *size))
        if self._images.shape[2:] != size:
            raise ShapeError(
                f"{where}: is of {size[0]} x {size[1]} pixels, another one of its batch of "
                f"{self._images.shape[2]} x {self._images.shape[3]}; give crop, or scale and warp"
            )
        found: Array = self._images[place]
        return found

    def _fitting(self, shape: tuple[int, ...]) -> Array:
        if self._memory is None or self._memory.shape[1:] != shape or len(self._memory) < self.size:
            self._memory = np.empty((self.size, *shape), np.float32)
        return self._memory[: self.size]

    def filled(self, place: int, label: int) -> None:
        """Note that the image at a place is there."""
        self._labels[place] = label
        self._filled[place] = True

    def expect(self, parts: int) -> None:
        """Say of how many parts the work consists."""
        self._left = parts

    def begin(self, part: Future[None]) -> None:
        """Take over a part that has been given to the threads."""
        self._futures.append(part)
        part.add_done_callback(self._one_done)

    def _one_done(self, _: Future[None]) -> None:
        with self._lock:
            self._left -= 1
            if not self._left:
                self._done.set()

    def memory(self) -> list[Array]:
        """Return the memory that another batch can have, if there is any."""
        return [] if self._memory is None else [self._memory]

    def whole(self) -> tuple[Array, Array]:
        """Wait for the threads; return images and labels.

        Raises:
            Exception: what a thread raised.
        """
        self._done.wait()  # once: who wakes up after each part takes the core and its cache from those that decode
        for part in self._futures:
            part.result()
        if self._images is None:
            return np.empty((0, 0, 0, 0), np.float32), self._labels[:0]
        if self._filled.all():
            return self._images, self._labels
        return self._images[self._filled], self._labels[self._filled]


def look_at_images(images: Array, labels: Array) -> None:
    """Log a warning of a batch that looks like one that was read wrongly: images of one colour, labels all alike.

    Args:
        images: (N, C, H, W).
        labels: (N,).
    """
    flat = np.ptp(images, axis=(2, 3)).max(axis=1) == 0 if images.size > len(images) else np.zeros(0, np.bool_)
    if flat.any():
        _log.warning(
            "%d of %d images in the first batch are of one colour, the first with the values %s; are they read as they "
            "were written?", flat.sum(), len(images), images[flat.argmax(), :, 0, 0].tolist(),
        )  # fmt: skip
    if len(labels) >= _FEW and (labels == labels.flat[0]).all():
        _log.warning(
            "all %d labels in the first batch are %s; is the set sorted by class, or are labels read wrongly?",
            len(labels), labels.flat[0],
        )  # fmt: skip
