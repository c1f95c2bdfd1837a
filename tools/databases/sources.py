"""Sources of images for netbuilder-make-db; the kind of source is recognized from the path."""

from __future__ import annotations

import os
from pathlib import Path

from netbuilder.data import (
    ImageArrays,
    ImageDatabase,
    ImageSet,
    database_type,
    image_folder,
    image_list,
    read_idx,
    read_npz_images,
)
from netbuilder.data.image_sets import SUFFIXES, folder_text, part_folder
from netbuilder.proto import NetError

__all__ = ["IDX_PARTS", "check_source", "is_idx_folder", "open_source"]

IDX_PARTS = {"train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
             "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")}  # fmt: skip
"""Names of the files of images and labels in a folder of IDX files."""


_KINDS = (
    "a folder with one folder of images for each class (CLASS/IMAGE.jpg), a folder with IDX files, a database, an .npz "
    "file, or a CSV list of paths and labels"
)


def check_source(source: str | os.PathLike[str], option: str = "", also: str = "") -> None:
    """Check that a set of images may be at ``source``, as what is there shows.

    Args:
        source: its path.
        option: the beginning of errors.
        also: what else may be given.

    Raises:
        FileNotFoundError: nothing is there.
        NetError: it is a single image, a file of another kind, or a folder without what a set has.
    """
    path = Path(source)
    if not path.exists():
        raise FileNotFoundError(f"{option}{str(path)!r} does not exist; give {also}{_KINDS}")
    if path.is_file() and path.suffix.lower() in SUFFIXES:
        raise NetError(f"{option}{str(path)!r} is a single image; give {also}{_KINDS}")
    if path.is_dir() and not is_idx_folder(path) and database_type(path) is None:
        if not any(entry.is_dir() and not entry.name.startswith(".") for entry in path.iterdir()):
            raise NetError(f"{option}{str(path)!r} {folder_text(path)}; give {also}{_KINDS}")


def is_idx_folder(folder: Path) -> bool:
    """Say whether a folder has one of the files of an IDX data set."""
    names = [name for part in IDX_PARTS.values() for name in part]
    return any((folder / f"{name}{end}").is_file() for name in names for end in ("", ".gz"))


def open_source(
    source: str | os.PathLike[str], *, part: str = "train", labels: str | None = None, root: str | None = None
) -> ImageSet:
    """Return the images at ``source``.

    Args:
        source: a folder of class folders, or with two of these (``part_folder``), or of IDX files such as MNIST's; a
            CSV list; an ``.npz`` file; an IDX file of images; or a database of images.
        part: "train" or "test", if the source has both.
        labels: the IDX file of labels, if the source is an IDX file of images.
        root: folder that paths in a list are relative to.

    Raises:
        FileNotFoundError: there is no such source.
        NetError: it is of none of these kinds, or damaged; or it has no part "test".
    """
    path = Path(source)
    check_source(path)
    if labels is not None:
        return ImageArrays(read_idx(path), read_idx(labels), str(path))
    if path.suffix == ".npz":
        return read_npz_images(path, part)
    if path.is_dir() and (files := _idx_files(path, part)):
        return ImageArrays(read_idx(files[0]), read_idx(files[1]), str(files[0]))
    if (folder := part_folder(path, part)) is not None:
        return image_folder(folder)
    if part == "test":
        raise NetError(f"--part test: {str(path)!r} has no parts, such as folders train and test; leave --part out")
    if path.suffix == ".csv":
        return image_list(path, root=root)
    kind = database_type(path)
    if kind == "minidb" and "idx" in path.name:
        raise NetError(f"{str(path)!r}: looks like an IDX file of images; give the file of labels too (--labels FILE)")
    if kind is not None:
        return ImageDatabase(path, kind)
    return image_folder(path)


def _idx_files(folder: Path, part: str) -> list[Path]:
    """Return the files of images and labels; [] unless both exist."""
    found = [p for name in IDX_PARTS[part] for p in (folder / name, folder / f"{name}.gz") if p.is_file()]
    return found if len(found) == 2 else []
