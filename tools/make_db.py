"""Write a database of images, or describe one: ``netbuilder-make-db``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from netbuilder.data import DATABASES, database_type, decoding_threads
from netbuilder.data.image_sets import part_folder
from netbuilder.proto import NetError
from netbuilder.proto.errors import counted
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.tools.common_options import (
    max_pixels_option,
    upright_option,
)
from netbuilder.tools.databases.inspecting import describe_database
from netbuilder.tools.databases.sources import open_source
from netbuilder.tools.databases.writing import Choices, check_database, write_database
from netbuilder.tools.options import OptionsParser, argument, option, switch
from netbuilder.tools.parser import count, whole_number
from netbuilder.tools.progress import Progress
from netbuilder.tools.reporting import reporting

__all__ = ["main"]


@dataclass(frozen=True, kw_only=True)
class _Options:
    """Write a database of images with labels and check it, or describe one."""

    source: str | None = argument(
        "a folder with one folder of images for each class, or with two such folders, train and val or test, or with "
        "IDX files; a CSV list of paths and labels; an .npz file; an IDX file of images; or a database",
        nargs="?",
    )
    database: str = argument("the database: a folder for lmdb, a file for minidb")
    inspect: bool = switch("describe the database; give no source")
    type: str | None = option(
        "type of the database (default: the suffix of its name, or lmdb if it has none)", choices=sorted(DATABASES)
    )
    part: str = option(
        "the part to read if the source has two; test: the held-out one", default="train", choices=["train", "test"]
    )
    labels: str | None = option("the IDX file of labels, if the source is an IDX file of images", metavar="FILE")
    root: str | None = option(
        "folder that paths in a CSV list are relative to (default: the folder of the list)", metavar="FOLDER"
    )
    resize: int = option(
        "resize each image so that its shorter side has N pixels", type=whole_number(), default=0, group="records"
    )
    size: tuple[int, int] | None = option(
        "resize each image to this size", type=count, nargs=2, metavar=("HEIGHT", "WIDTH")
    )
    encode: str = option(
        "store the image files unchanged (keep, the default; JPEG if they are resized or turned upright), JPEG, "
        "or pixels",
        default="keep",
        choices=["keep", "jpeg", "raw"],
    )
    quality: int = option("quality of JPEG, 1 to 100", type=whole_number(1, 100), default=95, metavar="Q")
    shuffle: int | None = option("shuffle the images, with this seed", type=whole_number(), metavar="SEED")
    skip_damaged: bool = switch("skip images that cannot be decoded")
    upright: bool = upright_option()
    max_pixels: int | None = max_pixels_option()
    threads: int | None = option("decode and encode in N threads (default: one for each core, at most 16)")
    replace: bool = switch("replace a database that exists")
    no_check: bool = switch("do not read the database back to check it")


def _problem(found: _Options) -> str | None:
    if found.inspect != (found.source is None):
        return "give SOURCE and DATABASE, or --inspect and DATABASE"
    if found.resize and found.size:
        return "--resize and --size cannot be given together"
    try:
        decoding_threads(found.threads)
    except NetError as error:
        return f"--threads: {error}"
    return None


@reporting("netbuilder-make-db", output_optional=True)
def main(arguments: Sequence[str] | None = None) -> int:
    """Write a database, or describe one, as the command line says; return the exit status."""
    parser = OptionsParser(_Options, prog="netbuilder-make-db")
    found = parser.parse(arguments)
    if problem := _problem(found):
        parser.error(problem)
    if found.inspect:
        with Progress("read", None) as progress:
            lines = describe_database(found.database, found.type, progress.advance, max_pixels=found.max_pixels)
        print("\n".join(lines))
    else:
        _make(found.source or "", found)
    return 0


def _make(source: str, found: _Options) -> None:
    images = open_source(source, part=found.part, labels=found.labels, root=found.root)
    choices = Choices(
        resize=found.resize, size=found.size, encode=found.encode,
        quality=found.quality, shuffle=found.shuffle, skip_damaged=found.skip_damaged, threads=found.threads,
        max_pixels=found.max_pixels, upright=found.upright,
    )  # fmt: skip
    kind = found.type or _kind(Path(found.database))
    _check_target(Path(found.database), found.replace)
    with Progress("write", len(images)) as progress:
        written = write_database(images, found.database, kind, choices, progress.advance)
    for text in written.skipped:
        print(f"skipped: {text}", file=sys.stderr)
    if not found.no_check:
        with Progress("check", len(written.sums)) as progress:
            check_database(found.database, kind, written, progress.advance, max_pixels=found.max_pixels)
    folder = part_folder(source, found.part)
    print(
        f"{found.database}: {kind}, {counted(len(written.sums), 'record')}{f' of {folder}' if folder else ''}, "
        f"{counted(len(written.labels), 'label')}"
        + (f", {counted(len(written.skipped), 'damaged image')} skipped" if written.skipped else "")
        + ("" if found.no_check else "; read back, all records match")
    )


def _kind(path: Path) -> str:
    """Return the type of database that a suffix names.

    Raises:
        NetError: the suffix is unknown.
    """
    end = path.suffix.removeprefix(".").lower()
    if end in DATABASES or not end:
        return end or "lmdb"
    raise NetError(
        f"{str(path)!r}: the suffix {path.suffix!r} is not a type of database; use "
        f"{' or '.join(f'.{kind}' for kind in sorted(DATABASES))}, or give --type"
    )


def _check_target(path: Path, replace: bool) -> None:
    """Raise NetError if ``path`` exists, unless it is a database that may be replaced."""
    if not path.exists() or path.is_dir() and not any(path.iterdir()):
        return
    if not replace:
        raise NetError(f"{str(path)!r}: exists; give --replace to overwrite it, or another name")
    if path.is_dir() and database_type(path) is None:
        raise NetError(f"{str(path)!r} is a folder but not a database, so it is not overwritten; give another name")


if __name__ == "__main__":
    sys.exit(main())
