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
from netbuilder.proto import NetError

__all__ = ["IDX_PARTS", "open_source"]

IDX_PARTS = {"train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
             "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")}  # fmt: skip
"""Names of the files of images and labels in a folder of IDX files."""


def open_source(
    source: str | os.PathLike[str], *, part: str = "train", labels: str | None = None, root: str | None = None
) -> ImageSet:
    """Return the images at ``source``.

    Args:
        source: a folder of class folders, or of IDX files such as MNIST's; a CSV list; an ``.npz`` file; an
            IDX file of images; or a database of images.
        part: "train" or "test", if the source has both.
        labels: the IDX file of labels, if the source is an IDX file of images.
        root: folder that paths in a list are relative to.

    Raises:
        FileNotFoundError: there is no such source.
        NetError: it is of none of these kinds, or damaged.
    """
    path = Path(source)
    if labels is not None:
        return ImageArrays(read_idx(path), read_idx(labels), str(path))
    if path.suffix == ".csv":
        return image_list(path, root=root)
    if path.suffix == ".npz":
        return read_npz_images(path, part)
    if path.is_dir() and (files := _idx_files(path, part)):
        return ImageArrays(read_idx(files[0]), read_idx(files[1]), str(files[0]))
    kind = database_type(path)
    if kind == "minidb" and "idx" in path.name:
        raise NetError(f"{str(path)!r}: looks like an IDX file of images; give the file of labels too (--labels FILE)")
    if kind is not None:
        return ImageDatabase(path, kind)
    if not path.exists():
        raise FileNotFoundError(f"{str(path)!r}: no such folder or file of images")
    return image_folder(path)


def _idx_files(folder: Path, part: str) -> list[Path]:
    """Return the files of images and labels; [] unless both exist."""
    found = [p for name in IDX_PARTS[part] for p in (folder / name, folder / f"{name}.gz") if p.is_file()]
    return found if len(found) == 2 else []
