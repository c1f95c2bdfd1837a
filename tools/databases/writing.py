"""Writing databases of images, and reading them back to check them."""

from __future__ import annotations

import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np

from netbuilder.data import (
    ImageSet,
    decoding_threads,
    encode_jpeg,
    image_record,
    open_records,
    read_image_record,
    read_records,
    resize_image,
    write_named_records,
)
from netbuilder.data.orientation import find_orientation
from netbuilder.proto import NetError, ParseError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Choices", "Written", "check_database", "write_database"]

Tick = Callable[[int], object]


@dataclass(frozen=True)
class Choices:
    """Options for writing records.

    Args:
        resize: length of the shorter side; 0: unchanged.
        size: height and width; None: unchanged.
        encode: "keep" (image files unchanged; JPEG if they are resized or turned, and arrays as "raw"), "jpeg" or
            "raw".
        quality: of JPEG, 1 to 100.
        shuffle: seed to shuffle the images; None: keep the order of the source.
        skip_damaged: skip images that cannot be decoded; otherwise they are errors.
        threads: number of threads that decode and encode; None: one for each core.
        max_pixels: largest image that is decoded, height times width; None: the default of ``decode_image``.
        upright: turn images as the orientation says that cameras store, see ``decode_image``.
    """

    resize: int = 0
    size: tuple[int, int] | None = None
    encode: str = "keep"
    quality: int = 95
    shuffle: int | None = None
    skip_damaged: bool = False
    threads: int | None = None
    max_pixels: int | None = None
    upright: bool = True


@dataclass
class Written:
    """What was written: checksums of the records in order, counts of labels, and messages about skipped images."""

    sums: list[int] = field(default_factory=list)
    labels: Counter[int] = field(default_factory=Counter)
    skipped: list[str] = field(default_factory=list)


def write_database(images: ImageSet, path: str, db_type: str, choices: Choices, tick: Tick) -> Written:
    """Write the images to a new database, and the names of their classes next to it.

    A key is the number of the record in eight digits, and, for files, the file's name.

    Args:
        images: the source.
        path, db_type: of the database.
        choices: options.
        tick: called with 1 for each image.

    Raises:
        ParseError: an image is damaged.
        NetError: nothing is left to write.
        OSError: the database cannot be written.
    """
    order = np.arange(len(images))
    if choices.shuffle is not None:
        order = np.random.default_rng(choices.shuffle).permutation(order)
    written = Written()
    write_named_records(path, db_type, _records(images, order, choices, written, tick), images.classes)
    return written


def _records(
    images: ImageSet, order: Any, choices: Choices, written: Written, tick: Tick
) -> Iterator[tuple[str, bytes]]:
    threads = decoding_threads(choices.threads)
    files = getattr(images, "files", None)
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[tuple[int, Future[tuple[bytes, int]]]] = deque()
        numbers = iter(order)
        try:
            while True:
                while len(waiting) < 4 * threads and (number := next(numbers, None)) is not None:
                    waiting.append((int(number), pool.submit(_record, images, int(number), choices)))
                if not waiting:
                    break
                number, future = waiting.popleft()
                try:
                    value, label = future.result()
                except ParseError as error:
                    if not choices.skip_damaged:
                        raise
                    written.skipped.append(str(error))
                    tick(1)
                    continue
                key = f"{len(written.sums):08}"
                if files is not None:
                    key += "_" + "/".join(Path(files[number]).parts[-2:])[-200:]
                written.sums.append(zlib.crc32(value))
                written.labels[label] += 1
                tick(1)
                yield key, value
        finally:
            pool.shutdown(cancel_futures=True)
    if not written.sums:
        why = (
            f"all {len(images)} images are damaged, the first: {written.skipped[0]}" if written.skipped else "no images"
        )
        raise NetError(f"the source has nothing to write: {why}")


def _record(images: ImageSet, number: int, choices: Choices) -> tuple[bytes, int]:
    """Return a record and its label; unchanged images are decoded too, so that no damaged one is written."""
    found = images[number]
    pixels = found.pixels(max_pixels=choices.max_pixels, upright=choices.upright)
    sized = _sized(pixels, choices, found.where)
    encode = choices.encode
    if encode == "keep":
        if not isinstance(found.image, bytes):
            encode = "raw"
            sized = sized[:, :, :1] if found.image.shape[2] == 1 else sized
        elif sized is not pixels or choices.upright and find_orientation(found.image) != 1:
            encode = "jpeg"  # other readers of the database may not know orientations
    if encode == "keep":
        return image_record(found.image, found.label), found.label
    ready = encode_jpeg(sized, choices.quality) if encode == "jpeg" else np.ascontiguousarray(sized)
    return image_record(ready, found.label), found.label


def _sized(pixels: Any, choices: Choices, where: str) -> Any:
    height, width = pixels.shape[:2]
    if choices.size is not None:
        return resize_image(pixels, *choices.size, interpolation="area")
    if choices.resize:
        shorter = min(height, width)
        new = (height * choices.resize // shorter, width * choices.resize // shorter)
        try:
            return resize_image(pixels, *new, interpolation="area")
        except NetError as error:  # one that is long and narrow
            raise ParseError(f"{where} has {height} x {width} pixels; {error}") from None
    return pixels


def check_database(path: str, db_type: str, written: Written, tick: Tick, *, max_pixels: int | None = None) -> None:
    """Read a database back and compare it with what was written, record by record.

    Raises:
        NetError: a record or label is missing, added or different.
        ParseError: a record cannot be read, or its image cannot be decoded.
    """
    if len(open_records(path, db_type)) != len(written.sums):
        raise NetError(
            f"{path!r} holds {len(open_records(path, db_type))} records, but {len(written.sums)} were written"
        )
    labels: Counter[int] = Counter()
    with ThreadPoolExecutor(decoding_threads()) as pool:
        waiting: deque[Future[int]] = deque()
        for number, (key, value) in enumerate(read_records(path, db_type)):
            where = f"{path}, record {key.decode(errors='replace')}"
            if zlib.crc32(value) != written.sums[number]:
                raise NetError(f"{where}: differs from what was written; check the disk")
            waiting.append(pool.submit(_label, value, where, max_pixels))
            if len(waiting) > 64:
                labels[waiting.popleft().result()] += 1
            tick(1)
        labels.update(future.result() for future in waiting)
    if labels != written.labels:
        raise NetError(f"{path!r}: the labels differ from those that were written; check the disk")


def _label(value: bytes, where: str, max_pixels: int | None) -> int:
    record = read_image_record(value, where)
    record.pixels(max_pixels=max_pixels)
    return record.label
