"""Labeled images, in memory or decoded on demand, split into training and held-out samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from netbuilder.data import ImageArrays, digits, dummy_batches, read_idx
from netbuilder.exchange import ImagePreparation
from netbuilder.proto import ParseError
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.tools.databases.sources import IDX_PARTS, check_source, is_idx_folder
from netbuilder.tools.training.decoded import DUMMY, HELD_OUT, DecodedImages, decoded_arrays, decoded_images
from netbuilder.tools.training.fed_images import FedImages
from netbuilder.tools.training.input_options import InputOptions

__all__ = ["Images", "load_images"]

Array = np.ndarray[Any, np.dtype[Any]]
_DUMMY_SHAPE, _DUMMY_CLASSES = (2560, 3, 32, 32), 10
_NO_OPTIONS = InputOptions()


@dataclass(frozen=True)
class Images:
    """Images (N, C, H, W), float32, and their labels (N,), int32; their preprocessing, and names of classes."""

    images: Array
    labels: Array
    preparation: ImagePreparation | None = None
    classes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one image: channels, height, width."""
        return tuple(self.images.shape[1:])

    @property
    def fed(self) -> FedImages:
        """How they get into a net."""
        return FedImages(self.shape)

    @property
    def class_count(self) -> int:
        """Number of classes."""
        return int(self.labels.max()) + 1

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
            rng: shuffles the samples; None: in order.
            start: number of batches to skip at the beginning.
            reuse: ignored for images in memory.
            part: see ``ImageLoader.batches``.
        """
        order = np.arange(len(self)) if rng is None else rng.permutation(len(self))
        for first in range(start * size, len(self), size):
            chosen = order[first : first + size]
            if part is not None:
                chosen = chosen[part(first // size, len(chosen))]
            if len(chosen):
                yield self.images[chosen], self.labels[chosen]


def load_images(
    source: str, options: InputOptions = _NO_OPTIONS
) -> tuple[Images, Images] | tuple[DecodedImages, DecodedImages]:
    """Return training and held-out samples.

    Args:
        source: "digits", the bundled scans of digits, of which every fifth is held out; "dummy", random images of shape
            (3, 32, 32), or of the size ``crop``, with labels from 0 to 9 in rotation; a folder with the four
            files of an IDX data set such as MNIST or Fashion-MNIST, compressed by gzip or not; or a source of
            ``decoded_images``. Digits and IDX files are normalized by mean and deviation of the training samples,
            unless options change the images; then they are treated like decoded ones.
        options: of decoded images.

    Raises:
        FileNotFoundError: the folder, or one of its files, does not exist.
        ParseError: a file is damaged, or images and labels do not match.
        NetError: see ``decoded_images``.
    """
    if source not in (DUMMY, "digits"):
        check_source(source, "--data: ", "digits, dummy, ")
    if options.test_data is not None:
        check_source(options.test_data, "--test-data: ")
    if _is_decoded(source, options):
        return decoded_images(source, options)
    if source == DUMMY:
        return _normalized(*_split(*_dummy()))
    if source == "digits":
        parts = _split(*digits())
        names = tuple(map(str, range(10)))
    else:
        parts = _idx(Path(source), "train"), _idx(Path(source), "test")
        names = ()
    if options.transforms:
        train, test = (_pixels(part, f"data {source!r}", names) for part in parts)
        return decoded_arrays(train, test, replace(options, gray=True))
    return _normalized(*parts, names=names)


def _split(images: Array, labels: Array) -> tuple[Images, Images]:
    held_out = np.arange(len(labels)) % HELD_OUT == HELD_OUT - 1
    return Images(images[~held_out], labels[~held_out]), Images(images[held_out], labels[held_out])


def _normalized(train: Images, test: Images, names: tuple[str, ...] = ()) -> tuple[Images, Images]:
    """Return images from 0 to 1 normalized by mean and deviation of the training images."""
    mean, deviation = train.images.mean(), max(float(train.images.std()), 1e-6)
    prepared = ImagePreparation(scale=1 / 255, mean=(float(mean),), std=(deviation,))
    one, other = (
        Images(((part.images - mean) / deviation).astype(np.float32), part.labels, prepared, names)
        for part in (train, test)
    )
    return one, other


def _pixels(part: Images, name: str, classes: tuple[str, ...]) -> ImageArrays:
    """Return images from 0 to 1 as pixels from 0 to 255."""
    pixels = np.rint(part.images[:, 0] * 255).astype(np.uint8)
    found = ImageArrays(pixels, part.labels, name)
    found.classes = classes
    return found


def _dummy() -> tuple[Array, Array]:
    images = next(dummy_batches({"data": _DUMMY_SHAPE}))["data"]
    labels = np.arange(len(images)) // HELD_OUT % _DUMMY_CLASSES  # held-out samples have all labels too
    return images, labels.astype(np.int32)


def _is_decoded(source: str, options: InputOptions) -> bool:
    """Whether the images at ``source`` are decoded on demand: a file, a database, or a folder of folders."""
    path = Path(source)
    if source == DUMMY:
        return options.crop > 0
    if path.is_file():
        return True
    return path.is_dir() and not is_idx_folder(path)


def _idx(folder: Path, part: str) -> Images:
    found = []
    for name in IDX_PARTS[part]:
        paths = [folder / name, folder / f"{name}.gz"]
        path = next((p for p in paths if p.is_file()), None)
        if path is None:
            raise FileNotFoundError(
                f"data {str(folder)!r} has neither a file {paths[0].name} nor {paths[1].name}; give a folder with the "
                "four files of an IDX data set, one of class folders with images, a database, or 'digits'"
            )
        found.append(read_idx(path))
    images, labels = found
    if images.ndim != 3 or labels.shape != images.shape[:1]:
        raise ParseError(
            f"data {str(folder)!r}: {part} images of shape {images.shape} and labels of shape {labels.shape} "
            "do not match; they must be (N, H, W) and (N,)"
        )
    return Images(images[:, None].astype(np.float32) / 255, labels.astype(np.int32))
