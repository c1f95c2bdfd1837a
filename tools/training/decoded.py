"""Labeled images that are decoded on demand, split into training and held-out samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from netbuilder.data import DummyImages, ImageLoader, ImageSet, ImageSubset, image_folder, read_npz_images
from netbuilder.data.image_batch import DifferentSizesError
from netbuilder.data.image_sets import part_folder
from netbuilder.proto import NetError, ParseError
from netbuilder.tools.databases.sources import open_source
from netbuilder.tools.training.fed_images import FedImages
from netbuilder.tools.training.input_options import InputOptions

__all__ = ["DUMMY", "HELD_OUT", "DecodedImages", "decoded_arrays", "decoded_images"]

Array = np.ndarray[Any, np.dtype[Any]]

HELD_OUT = 5
"""Every fifth sample is held out if the data has no test part."""

DUMMY = "dummy"
"""Name of a data set of random images, to measure speed."""

_DUMMY_COUNT, _DUMMY_CLASSES = 1280, 10


class DecodedImages:
    """Batches of decoded images of a set, with the interface of ``Images``.

    Args:
        images: the set.
        options: their preprocessing.
        is_test: test mode, without random changes.
        classes: number of classes.
        pixels: batches have pixels (N, H, W, C), uint8, which the net normalizes.
    """

    def __init__(
        self, images: ImageSet, options: InputOptions, *, is_test: bool, classes: int, pixels: bool = False
    ) -> None:
        self.class_count = classes
        self.classes = images.classes
        self.preparation = options.preparation()
        self._images, self._options, self._is_test = images, options, is_test
        self._loader = ImageLoader(
            images, options.transform(is_test=is_test), threads=options.threads, skip_damaged=options.skip_damaged,
            max_pixels=options.max_pixels, pixels=pixels,
        )  # fmt: skip
        self._shape: tuple[int, ...] | None = None

    def __len__(self) -> int:
        return len(self._images)

    def as_pixels(self) -> DecodedImages:
        """Return these images with batches of pixels; themselves, if an option makes floats of pixels."""
        if self._loader.transform.changes_colors:
            return self
        return DecodedImages(
            self._images, self._options, is_test=self._is_test, classes=self.class_count, pixels=True
        )  # fmt: skip

    @property
    def fed(self) -> FedImages:
        """How they get into a net."""
        transform = self._loader.transform
        scales = (tuple(transform.mean), tuple(transform.std)) if self._loader.pixels else None
        return FedImages(self.shape, scales)

    @property
    def damaged(self) -> int:
        """Number of images skipped so far."""
        return len(self._loader.damaged)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one image: channels, height, width."""
        if self._shape is None:
            images, _ = next(self._loader.batches(np.arange(len(self)), 1, replace=True))
            self._shape = (images.shape[3], *images.shape[1:3]) if self._loader.pixels else images.shape[1:]
        return self._shape

    def batches(
        self,
        size: int,
        rng: np.random.Generator | None = None,
        start: int = 0,
        *,
        reuse: bool = False,
        part: Callable[[int, int], Array] | None = None,
    ) -> Iterator[tuple[Array, Array]]:
        """Yield batches of images and labels.

        Args:
            size: samples per batch; the last batch may be smaller.
            rng: shuffles the samples; damaged images are replaced by those after them. None: in order, damaged images
                are skipped.
            start: number of batches to skip at the beginning.
            reuse: overwrite the images when the next batch is requested.
            part: see ``ImageLoader.batches``.

        Raises:
            NetError: a label is too large.
        """
        if rng is None:
            order, epoch = np.arange(len(self)), 0
        else:
            order, epoch = rng.permutation(len(self)), int(rng.integers(1 << 31))
        batches = self._loader.batches(
            order, size, epoch=epoch, replace=rng is not None, reuse=reuse, skip=start, part=part
        )
        for images, labels in _of_one_size(batches):
            if len(labels) and not 0 <= labels.min() <= labels.max() < self.class_count:
                raise NetError(
                    f"--data: labels must be in [0, {self.class_count}), got {labels.min()} to {labels.max()}; give "
                    f"--classes {labels.max() + 1}, or more"
                )
            if len(labels):
                yield images, labels


def _of_one_size(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield batches; the error for images of several sizes names the options of the command line."""
    try:
        yield from batches
    except DifferentSizesError as error:
        raise DifferentSizesError(
            f"--data: {error.found}", "--scale 256 --crop 224, or --recipe, which resizes photos and chooses the rate"
        ) from error


def decoded_images(source: str, options: InputOptions) -> tuple[DecodedImages, DecodedImages]:
    """Return training and held-out samples.

    Args:
        source: a folder of class folders, or a folder with two of these (``part_folder``); a database of images; an
            ``.npz`` file; a CSV list; or "dummy", 1280 images of noise of the size ``crop``.
        options: their preprocessing. Without ``test_data`` and a test part, every fifth sample is held out.

    Raises:
        FileNotFoundError, NetError, ParseError: see ``open_source``; or the two parts have different classes.
    """
    return _pair(source, *_parts(source, options), options)


def decoded_arrays(train: ImageSet, test: ImageSet, options: InputOptions) -> tuple[DecodedImages, DecodedImages]:
    """Return training and held-out samples from two sets."""
    return _pair("arrays", train, test, options)


def _pair(source: str, train: ImageSet, test: ImageSet, options: InputOptions) -> tuple[DecodedImages, DecodedImages]:
    if train.classes and test.classes and train.classes != test.classes:
        only = sorted(set(train.classes) ^ set(test.classes))[:5]
        raise NetError(
            f"data {source!r}: training and held-out images must have the same classes; only one of them has "
            f"{', '.join(only)}"
        )
    classes = options.classes or len(train.classes)
    if not classes:
        classes = int(max(train.labels().max(), test.labels().max())) + 1
    return (
        DecodedImages(train, options, is_test=False, classes=classes),
        DecodedImages(test, options, is_test=True, classes=classes),
    )


def _parts(source: str, options: InputOptions) -> tuple[ImageSet, ImageSet]:
    if source == DUMMY:
        side, channels = options.crop, 1 if options.gray else 3
        whole: ImageSet = DummyImages(_DUMMY_COUNT, side, side, channels, classes=options.classes or _DUMMY_CLASSES)
    elif options.test_data is not None:
        return open_source(source), open_source(options.test_data)
    else:
        path = Path(source)
        train, test = part_folder(path, "train"), part_folder(path, "val")
        if train is not None and test is not None:
            return image_folder(train), image_folder(test)
        whole = open_source(source)
        if path.suffix == ".npz":
            try:
                return whole, read_npz_images(path, "test")
            except ParseError:
                pass  # it has no test part
    held_out = np.arange(len(whole)) % HELD_OUT == HELD_OUT - 1
    if len(whole) < HELD_OUT:
        raise NetError(f"data {source!r}: {len(whole)} images are too few to hold out every fifth; give --test-data")
    return ImageSubset(whole, np.flatnonzero(~held_out)), ImageSubset(whole, np.flatnonzero(held_out))
