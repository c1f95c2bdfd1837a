"""Description of a database in a few lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from netbuilder.data import describe_record, open_records, read_class_names, read_image_record
from netbuilder.proto import ParseError
from netbuilder.proto.errors import counted

__all__ = ["describe_database"]

_FIRST = 5  # number of keys shown
_KINDS = 10  # number of kinds of records shown
_LABELS = 20  # number of labels shown
_DECODED = 100  # number of images decoded to find their sizes


def describe_database(
    path: str, db_type: str | None, tick: Callable[[int], object], *, max_pixels: int | None = None
) -> list[str]:
    """Return lines about a database: count, types, shapes of images, labels, first keys.

    All records are read, and the first hundred images decoded.

    Raises:
        As ``open_records``.
    """
    records = open_records(path, db_type)
    lines = [f"{path}: {records.db_type}, {len(records)} records"]
    kinds: Counter[str] = Counter()
    labels: Counter[int | None] = Counter()
    shapes: Counter[str] = Counter()
    keys, bytes_, damaged = [], 0, []
    for number in range(len(records)):
        key, value = records[number]
        bytes_ += len(value)
        keys += [repr(key.decode(errors="backslashreplace"))] if number < _FIRST else []
        kinds[describe_record(value)] += 1
        try:
            found = read_image_record(value, repr(key), datum=value[:1] != b"\n")
            if number < _DECODED:
                shapes[" x ".join(map(str, found.pixels(max_pixels=max_pixels).shape))] += 1
            labels[found.label] += 1
        except ParseError as error:
            labels[None] += 1
            damaged.append(str(error))
        tick(1)
    lines.append(f"bytes: {bytes_:,}, {bytes_ // max(len(records), 1):,} per record")
    lines += [f"first keys: {', '.join(keys)}"] if keys else []
    lines += [f"records: {count} of {kind}" for kind, count in kinds.most_common(_KINDS)]
    lines += [f"records: of {counted(len(kinds) - _KINDS, 'more kind')}"] if len(kinds) > _KINDS else []
    lines += [f"images: {count} of the first {_DECODED} are {shape}" for shape, count in shapes.most_common(_KINDS)]
    known = {label: count for label, count in labels.items() if label is not None}
    lines += _labels(known, read_class_names(path, records.db_type))
    if damaged:
        lines.append(f"{counted(len(damaged), 'record')} without a readable image and label; the first: {damaged[0]}")
    return lines


def _labels(labels: dict[int, int], names: Sequence[str]) -> list[str]:
    if not labels:
        return []
    lines = [f"labels: {len(labels)} different, from {min(labels)} to {max(labels)}"]
    for label in sorted(labels)[:_LABELS]:
        name = f" ({names[label]})" if 0 <= label < len(names) and names[label] else ""
        lines.append(f"  {label}{name}: {labels[label]}")
    return lines + ([f"  and {len(labels) - _LABELS} more"] if len(labels) > _LABELS else [])
