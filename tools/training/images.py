"""Labelled images in memory, divided into a part to train on and a part held out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from netbuilder.data import digits, dummy_batches, read_idx
from netbuilder.proto import ParseError

__all__ = ["Images", "load_images"]

Array = np.ndarray[Any, np.dtype[Any]]
_DUMMY_SHAPE, _DUMMY_CLASSES = (2560, 3, 32, 32), 10
_HELD_OUT = 5  # every fifth sample is held out where the data set has no test part of its own
_IDX_PARTS = {"train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
              "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")}  # fmt: skip


@dataclass(frozen=True)
class Images:
    """Images (N, C, H, W), float32, and their labels (N,), int32."""

    images: Array
    labels: Array

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one image: channels, height, width."""
        return tuple(self.images.shape[1:])

    def batches(self, size: int, rng: np.random.Generator | None = None) -> Iterator[tuple[Array, Array]]:
        """Yield batches of images and labels.

        Args:
            size: samples a batch.
            rng: shuffles the samples, and what does not fill a batch is left out (another part each epoch);
                None: in order, the last batch as large as it comes.
        """
        order = np.arange(len(self)) if rng is None else rng.permutation(len(self))
        end = len(self) if rng is None else len(self) - len(self) % size
        for start in range(0, end, size):
            chosen = order[start : min(start + size, end)]
            yield self.images[chosen], self.labels[chosen]


def load_images(source: str) -> tuple[Images, Images]:
    """Return the samples to train on and those held out, normalised by the mean and deviation of the former.

    Args:
        source: "digits", the bundled scans of digits, of which every fifth is held out; "dummy", random images of shape
            (3, 32, 32) with labels from 0 to 9 in turn, to time nets; or a folder with the four
            files of an IDX data set such as MNIST or Fashion-MNIST, packed by gzip or not.

    Raises:
        FileNotFoundError: the folder, or one of its files, is not there.
        ParseError: a file is damaged, or images and labels do not fit.
    """
    if source in ("digits", "dummy"):
        images, labels = digits() if source == "digits" else _dummy()
        held_out = np.arange(len(labels)) % _HELD_OUT == _HELD_OUT - 1
        train, test = Images(images[~held_out], labels[~held_out]), Images(images[held_out], labels[held_out])
    else:
        train, test = (_idx(Path(source), part) for part in ("train", "test"))
    mean, deviation = train.images.mean(), max(float(train.images.std()), 1e-6)
    return tuple(Images(((p.images - mean) / deviation).astype(np.float32), p.labels) for p in (train, test))  # type: ignore[return-value]


def _dummy() -> tuple[Array, Array]:
    images = next(dummy_batches({"data": _DUMMY_SHAPE}))["data"]
    labels = np.arange(len(images)) // _HELD_OUT % _DUMMY_CLASSES  # those held out have all labels, too
    return images, labels.astype(np.int32)


def _idx(folder: Path, part: str) -> Images:
    found = []
    for name in _IDX_PARTS[part]:
        paths = [folder / name, folder / f"{name}.gz"]
        path = next((p for p in paths if p.is_file()), None)
        if path is None:
            raise FileNotFoundError(
                f"data {str(folder)!r}: neither {paths[0].name} nor {paths[1].name} is there; give a folder with the "
                "four files of an IDX data set, or 'digits'"
            )
        found.append(read_idx(path))
    images, labels = found
    if images.ndim != 3 or labels.shape != images.shape[:1]:
        raise ParseError(
            f"data {str(folder)!r}: {part} images of shape {images.shape} and labels of shape {labels.shape} "
            "do not fit; wanted (N, H, W) and (N,)"
        )
    return Images(images[:, None].astype(np.float32) / 255, labels.astype(np.int32))
