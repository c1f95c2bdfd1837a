"""Sets of labeled images: folders of classes, lists of files, arrays, databases, and random images."""

from __future__ import annotations

import csv
import io
import logging
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from netbuilder.data.class_names import read_class_names
from netbuilder.data.image_records import ImageRecord, read_image_record
from netbuilder.data.npz_file import read_npz
from netbuilder.data.record_list import RecordList, open_records
from netbuilder.proto import NetError, ParseError, opened_files
from netbuilder.proto.errors import counted

__all__ = [
    "SUFFIXES",
    "DummyImages",
    "ImageArrays",
    "ImageDatabase",
    "ImageFiles",
    "ImageSet",
    "ImageSubset",
    "folder_text",
    "image_folder",
    "image_list",
    "part_folder",
    "read_npz_images",
    "visible_files",
]


Array = np.ndarray[Any, np.dtype[Any]]
PathLike = str | os.PathLike[str]

_log = logging.getLogger("netbuilder.input")

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".pgm", ".tif", ".tiff", ".webp")
"""File name suffixes of images."""

_TRAIN, _HELD_OUT = ("train", "training"), ("val", "valid", "validation", "test", "testing")
_LAYOUT = "CLASS/IMAGE.jpg, or both train/CLASS/IMAGE.jpg and val/CLASS/IMAGE.jpg (or valid, validation, test)"

_LARGEST = 2**31 - 1  # the largest label
_NUMBER = re.compile("-?[0-9]+")
_LISTS = {("path", "label"), ("file", "label"), ("filename", "label"), ("image", "label"), ("path", "class")}


class ImageSet(Protocol):
    """Images by number: ``len(images)``; ``images[k]``, a record; ``labels()``; names of its classes, if any."""

    classes: tuple[str, ...]

    def __len__(self) -> int: ...

    def __getitem__(self, number: int) -> ImageRecord: ...

    def labels(self) -> Array:
        """Return all labels, int32."""


class ImageFiles:
    """Image files with labels.

    Args:
        files: their paths.
        labels: their labels, as many whole numbers.
        classes: names of the labels from 0 on, or none.
    """

    def __init__(self, files: Sequence[str], labels: Sequence[int], classes: Sequence[str] = ()) -> None:
        self.files = list(files)
        self.classes = tuple(classes)
        self._labels = np.array(labels, np.int32)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> ImageRecord:
        path = self.files[number]
        return ImageRecord(path, opened_files.read_bytes(path), (self._labels[number : number + 1],))

    def labels(self) -> Array:
        return self._labels


def image_folder(path: PathLike) -> ImageFiles:
    """Return the images in a folder with one folder for each class: ``path/CLASS/.../IMAGE``.

    Classes are numbered from 0 on in the order of their names, images sorted by path within them. Hidden files and
    folders, whose names begin with a dot, and files without a suffix of images are left out; the log has a warning with
    the number of each.

    Raises:
        FileNotFoundError: there is no such folder.
        NetError: it has no folders, or one of them has no images, or the name of a part of a data set, such as "train";
            the message says what is there.
    """
    root = Path(path)
    if not root.is_dir():
        raise FileNotFoundError(f"{str(root)!r}: no such folder of images")
    classes = _visible_folders(root)
    if parts := [name for name in classes if name.lower() in (*_TRAIN, *_HELD_OUT)]:
        raise NetError(
            f"{str(root)!r}: a class must not have the name of a part of a data set, got "
            f"{' and '.join(map(repr, parts))}; the layout must be {_LAYOUT}: add the part that is missing, give "
            f"{str(root / parts[0])!r} if that has the classes, or rename the class"
        )
    if not classes:
        raise NetError(
            f"{str(root)!r} {folder_text(root)}; it must have a folder with images for each class: CLASS/IMAGE.jpg"
        )
    files: list[str] = []
    labels: list[int] = []
    others = hidden = 0
    for label, name in enumerate(classes):
        found, left_out = visible_files(root / name)
        images = [file for file in found if file.lower().endswith(SUFFIXES)]
        others += len(found) - len(images)
        hidden += left_out
        if not images:
            raise NetError(
                f"{str(root / name)!r}: the folder of a class must hold images, and this one "
                f"{folder_text(root / name)}; remove it, or add images ({', '.join(SUFFIXES)})"
            )
        files += images
        labels += [label] * len(images)
    if hidden:
        _log.warning("%s: hidden files and folders, whose names begin with a dot, left out: %d", root, hidden)
    if others:
        _log.warning("%s: files ignored because their names do not end like those of images: %d", root, others)
    return ImageFiles(files, labels, classes)


def part_folder(path: PathLike, part: str) -> Path | None:
    """Return the folder of a part of a data set, for ``image_folder``; None if the set at ``path`` has no two parts.

    The parts are folders named train (or training), and val, valid, validation, test or testing, in upper or lower
    case.

    Args:
        path: of the set.
        part: "train"; "val": the first of the held-out parts in the order above; or "test": test, or else that one.
    """
    root = Path(path)
    found = {name.lower(): root / name for name in (_visible_folders(root) if root.is_dir() else ())}
    train, held_out = ([found[name] for name in names if name in found] for names in (_TRAIN, _HELD_OUT))
    if not train or not held_out:
        return None
    if part == "train":
        return train[0]
    return found.get("test", held_out[0]) if part == "test" else held_out[0]


def _visible_folders(root: Path) -> list[str]:
    return sorted(entry.name for entry in os.scandir(root) if entry.is_dir() and not _is_hidden(entry.name))


def _is_hidden(name: str) -> bool:
    return name.startswith(".")


def visible_files(folder: PathLike) -> tuple[list[str], int]:
    """Return the files in a folder and in those below it, sorted, and how many hidden entries were left out."""
    found: list[str] = []
    hidden = 0
    for place, folders, names in os.walk(folder):
        hidden += sum(map(_is_hidden, (*folders, *names)))
        folders[:] = [name for name in folders if not _is_hidden(name)]
        found += [os.path.join(place, name) for name in names if not _is_hidden(name)]
    return sorted(found), hidden


def folder_text(folder: Path) -> str:
    """Say what is in a folder that has not what it should have: images, hidden entries, others, or nothing."""
    names = sorted(os.listdir(folder))
    images = [name for name in names if name.lower().endswith(SUFFIXES) and not _is_hidden(name)]
    if images:
        return f"has {counted(len(images), 'image')}, such as {images[0]!r}, but no folders of classes"
    if all(map(_is_hidden, names)):
        return "is empty" if not names else f"has only hidden entries, such as {names[0]!r}"
    shown = [name for name in names if not _is_hidden(name)]
    return f"has no images, but {counted(len(shown), 'other entry', 'other entries')}, such as {shown[0]!r}"


def image_list(path: PathLike, *, root: PathLike | None = None) -> ImageFiles:
    """Return the images that a CSV file lists, one per line: path and label.

    Labels are whole numbers, or names of classes, which are then numbered in sorted order. A first line "path,label"
    is skipped.

    Args:
        path: the CSV file.
        root: the folder that relative paths start from; None: the folder of the list.

    Raises:
        FileNotFoundError: there is no such file.
        ParseError: a line does not have two fields, the list is empty, a label is negative, or only some are numbers.
    """
    place = Path(root) if root is not None else Path(path).parent
    rows: list[tuple[str, str]] = []
    data = opened_files.read_bytes(path)
    try:
        lines = csv.reader(io.StringIO(data.decode("utf-8-sig"), newline=""))
        for fields in lines:
            row = [field.strip() for field in fields]
            if not any(row) or lines.line_num == 1 and tuple(field.lower() for field in row) in _LISTS:
                continue
            if len(row) != 2 or not all(row) or "\0" in row[0]:
                raise ParseError(f"{os.fspath(path)!r}, line {lines.line_num} must be path,label; got {fields}")
            rows.append((row[0], row[1]))
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ParseError(
            f"{os.fspath(path)!r}, line {line}: byte {error.start} is not UTF-8 text; save the list in UTF-8"
        ) from None
    except csv.Error as error:
        raise ParseError(f"{os.fspath(path)!r}, line {lines.line_num} cannot be read as CSV: {error}") from None
    if not rows:
        raise ParseError(f"{os.fspath(path)!r} lists no images")
    labels, classes = _numbered([label for _, label in rows], os.fspath(path))
    return ImageFiles([str(place / name) for name, _ in rows], labels, classes)


def _numbered(texts: list[str], path: str) -> tuple[list[int], list[str]]:
    """Return labels as numbers, and the names of the classes if labels are names."""
    numbers = [_NUMBER.fullmatch(text) is not None for text in texts]
    if all(numbers):
        labels = [int(text) if len(text) < 20 else _LARGEST + 1 for text in texts]
        for label, text in zip(labels, texts):
            if not 0 <= label <= _LARGEST:
                raise ParseError(f"{path!r}: labels must be from 0 to {_LARGEST}, got {text[:40]}")
        return labels, []
    if any(numbers):
        raise ParseError(
            f"{path!r}: labels must be either all whole numbers or all names; got {texts[numbers.index(True)]!r} "
            f"and {texts[numbers.index(False)]!r}"
        )
    classes = sorted(set(texts))
    return [classes.index(text) for text in texts], classes


class ImageArrays:
    """Images in memory.

    Args:
        images: uint8, (N, H, W) or (N, H, W, C), C being 1 or 3; colors are red, green, blue, as usual in such files.
        labels: whole numbers, (N,) or (N, 1).
        name: name of the set in errors.

    Raises:
        ParseError: a type or shape is wrong.
    """

    def __init__(self, images: Array, labels: Array, name: str = "images") -> None:
        if images.ndim == 3:
            images = images[..., None]
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] not in (1, 3):
            raise ParseError(
                f"{name}: images must be uint8 of shape (N, H, W), (N, H, W, 1) or (N, H, W, 3), got {images.dtype} "
                f"of {images.shape}"
            )
        if labels.dtype.kind not in "iu" or labels.size != len(images) or labels.shape[:1] != images.shape[:1]:
            raise ParseError(
                f"{name}: labels must be {len(images)} whole numbers, got {labels.dtype} of {labels.shape}"
            )
        if labels.size and not 0 <= labels.min() <= labels.max() <= _LARGEST:
            raise ParseError(f"{name}: labels must be from 0 to {_LARGEST}, got {labels.min()} to {labels.max()}")
        self.classes: tuple[str, ...] = ()
        self._images, self._labels, self._name = images, labels.reshape(-1).astype(np.int32), name

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, number: int) -> ImageRecord:
        pixels = np.ascontiguousarray(self._images[number][:, :, ::-1])
        return ImageRecord(f"{self._name}, image {number}", pixels, (self._labels[number : number + 1],))

    def labels(self) -> Array:
        return self._labels


_NPZ = {
    "train": (("x_train", "y_train"), ("train_images", "train_labels"), ("images", "labels"), ("x", "y")),
    "test": (("x_test", "y_test"), ("test_images", "test_labels")),
}


def read_npz_images(path: PathLike, part: str = "train") -> ImageArrays:
    """Return the images in an ``.npz`` file.

    Args:
        path: the file. Its arrays are named "images" and "labels", or "x" and "y", or, where there are two parts,
            "x_train", "y_train", "x_test", "y_test", or "train_images" and so on.
        part: "train" or "test".

    Raises:
        FileNotFoundError: there is no such file.
        ParseError: it is not an npz file, lacks the arrays, or they do not match.
    """
    name, found = os.fspath(path), read_npz(path)
    for images, labels in _NPZ[part]:
        if images in found and labels in found:
            return ImageArrays(found[images], found[labels], name)
    raise ParseError(
        f"{name!r} has no {part} images: it must have one of the pairs of arrays {_NPZ[part]}, got {sorted(found)}"
    )


class ImageDatabase:
    """The images of a database.

    Args:
        path: of the database.
        db_type: "lmdb" or "minidb"; None: recognized by its files.
        datum: whether records are Caffe's Datum; None: as the first record is.

    Raises:
        As ``open_records``; ParseError: the first record is not an image with a label, or the file of class names is
            damaged.
    """

    def __init__(self, path: PathLike, db_type: str | None = None, *, datum: bool | None = None) -> None:
        self.records: RecordList = open_records(path, db_type)
        self._labels: Array | None = None
        if not len(self.records):
            raise ParseError(f"{self.records.path!r}: the database is empty")
        key, value = self.records[0]
        self._datum = value[:1] != b"\n" if datum is None else datum  # TensorProtos begin with their first field
        self._read(key, value).label  # noqa: B018  (raises if the record has no label)
        self.classes = read_class_names(path, self.records.db_type)

    def __len__(self) -> int:
        return len(self.records)

    def _read(self, key: bytes, value: bytes) -> ImageRecord:
        return read_image_record(
            value, f"{self.records.path}, record {key.decode(errors='replace')}", datum=self._datum
        )

    def __getitem__(self, number: int) -> ImageRecord:
        return self._read(*self.records[number])

    def labels(self) -> Array:
        """Return all labels, int32; the first call reads the whole database."""
        if self._labels is None:
            self._labels = np.array([self[k].label for k in range(len(self))], np.int32)
        return self._labels


class ImageSubset:
    """Some images of a set.

    Args:
        images: the set.
        numbers: their indices in the set.
    """

    def __init__(self, images: ImageSet, numbers: Array) -> None:
        self._images, self._numbers = images, numbers
        self.classes = images.classes

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, number: int) -> ImageRecord:
        return self._images[int(self._numbers[number])]

    def labels(self) -> Array:
        found: Array = self._images.labels()[self._numbers]
        return found


class DummyImages:
    """Random images with labels that depend on their index, to measure speed without a data set.

    Args:
        count: number of images.
        height, width, channels: of each.
        classes: image k has the label ``k % classes``.
        seed: of the 16 random images, which are used in rotation.
    """

    def __init__(self, count: int, height: int, width: int, channels: int = 3, *, classes: int = 10, seed: int = 0):
        if min(count, height, width, classes) < 1 or channels not in (1, 3):
            raise NetError(
                f"dummy images: count, height, width and classes must be 1 or more, and channels 1 or 3; "
                f"got {count} of {height} x {width} x {channels} in {classes} classes"
            )
        rng = np.random.default_rng(seed)
        self._noise = rng.integers(0, 256, (min(count, 16), height, width, channels), np.uint8)
        self._labels = (np.arange(count) % classes).astype(np.int32)
        self.classes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, number: int) -> ImageRecord:
        pixels = self._noise[number % len(self._noise)]
        return ImageRecord(f"dummy image {number}", pixels, (self._labels[number : number + 1],))

    def labels(self) -> Array:
        return self._labels
