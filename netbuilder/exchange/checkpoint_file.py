"""Checkpoint files: blobs as Caffe2's Save operator stores them, after a record with the state of the training.

The record is a string blob, ``MANIFEST``, with JSON: step, metric, random state, and a checksum of each blob. Caffe2
reads such a file like its own. Files that Caffe2 wrote, without the record, can be read too, but then only their
structure is checked.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from typing import Any

import numpy as np

from netbuilder.data import BlobParts, blob_records, read_minidb, record_name, record_number, write_minidb
from netbuilder.exchange.checkpoint_manifest import FORMAT, parse_manifest, seal
from netbuilder.exchange.divided import Divided, give_divided, records_of, taken
from netbuilder.exchange.own_rows import OwnRows, hash_of, record_digest
from netbuilder.proto import PROTO_CPU, BlobProto, DeviceOption, NetError, ParseError, files
from netbuilder.proto.call_checks import checked
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.runtime import RandomState

__all__ = ["MANIFEST", "Checkpoint", "read_checkpoint", "read_manifest", "write_checkpoint", "write_whole"]

Array = np.ndarray[Any, np.dtype[Any]]
PathLike = str | os.PathLike[str]

MANIFEST = "!!NETBUILDER_CHECKPOINT"
"""Name of the blob with the state of the training and the checksums."""

_MARK = FORMAT  # stored with each tensor, so that a file that lost its manifest is not mistaken for one of Caffe2's
_SHOWN = 20  # problems that an error lists
_UNKNOWN = "0" * 64  # in place of the checksum of a divided value, until its elements have been written


@dataclass(frozen=True)
class Checkpoint:
    """All that training needs to resume.

    Args:
        blobs: values by name, without device prefix: parameters, computed parameters, the optimizer's state. Those
            whose elements are in several processes are ``Divided``.
        step: how many times the main net had run.
        metric: the number by which the best checkpoint is chosen.
        model: name of the model.
        net: name of its main net.
        random: state of the random operators.
        readers: for each database reader, how many records of its current pass it had read.
        state: the caller's own state: text, numbers, None, and lists and dicts (with text as keys) of these.

    Raises:
        NetError: ``step`` is not 0 or a positive integer, or ``metric`` is not a single number.
    """

    blobs: Mapping[str, Any]
    step: int = 0
    metric: float | None = None
    model: str = ""
    net: str = ""
    random: RandomState | None = None
    readers: Mapping[str, int] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.step, bool) or not isinstance(self.step, (int, np.integer)) or self.step < 0:
            raise NetError(f"checkpoint: step must be the number of completed steps, 0 or more, got {self.step!r}")
        object.__setattr__(self, "metric", _as_number(self.metric))

    @property
    def is_divided(self) -> bool:
        """Whether elements of some values are in other processes."""
        return any(isinstance(value, Divided) for value in self.blobs.values())


@checked()
def write_checkpoint(path: PathLike, checkpoint: Checkpoint) -> None:
    """Write a checkpoint, whole or not at all; an existing file is replaced.

    If it has divided values, all processes call it: the first one writes, and gets the elements of the others, some
    megabytes at a time.

    Raises:
        NetError: a blob is neither a tensor nor a string, or ``state`` cannot be stored as JSON.
        OSError: the file cannot be written; an existing one is unchanged.
    """
    if not give_divided(checkpoint.blobs):
        with taken(checkpoint.blobs) as pieces:
            write_whole(path, checkpoint, pieces)


def write_whole(path: PathLike, checkpoint: Checkpoint, pieces: Mapping[str, Iterator[Array]]) -> None:
    """Write a checkpoint in the process that writes it; see ``write_checkpoint``.

    Args:
        path: the file.
        checkpoint: to be written.
        pieces: those of its divided values.
    """
    blobs = {name: _as_array(value) for name, value in checkpoint.blobs.items()}
    digests = {name: _UNKNOWN if name in pieces else _digest(name, value) for name, value in blobs.items()}
    records = {name: [_UNKNOWN] * count for name in pieces if (count := blobs[name].records) > 1}

    def manifest() -> tuple[str, bytes]:
        found = {**fields, "blobs": digests} | ({"records": records} if records else {})
        return next(iter(blob_records(MANIFEST, seal(found))))

    fields = {
        "step": checkpoint.step,
        "metric": checkpoint.metric,
        "model": checkpoint.model,
        "net": checkpoint.net,
        "random": checkpoint.random and {
            "seed": checkpoint.random.seed, "iterations": dict(checkpoint.random.iterations)
        },
        "readers": dict(checkpoint.readers),
        "state": dict(checkpoint.state),
    }  # fmt: skip
    write_minidb(path, _records(manifest(), blobs, pieces, digests, records), manifest if pieces else None)


@checked()
def read_checkpoint(path: PathLike, own: Mapping[str, Callable[[tuple[int, ...]], slice]] | None = None) -> Checkpoint:
    """Read a checkpoint, whole or not at all.

    Args:
        path: written by ``write_checkpoint``, or by Caffe2's Save and Checkpoint operators.
        own: name of a blob -> function that is given its shape and returns which of its rows this process keeps; the
            blob is ``Divided``. What other processes keep is not read where the file has a checksum of each record, as
            those of divided blobs have; otherwise all of it is checked. None: all blobs are read whole.

    Raises:
        FileNotFoundError: there is no such file.
        ParseError: the file is truncated, damaged or not a checkpoint; the message lists all problems.
    """
    rows = {name: OwnRows(choose) for name, choose in (own or {}).items()}
    parts, manifest, problems = _parts(path, rows)
    blobs: dict[str, Any] = {}
    for name, divided in rows.items():
        if divided.shape is not None:
            blobs[name] = divided.value()
    for name in parts.names:
        try:
            blobs[name] = parts.value(name, "the file")
        except ParseError as error:
            problems.append(str(error))
    if manifest is not None:
        found = {name: _digest(name, value) for name, value in blobs.items() if name not in rows}
        found |= {
            name: manifest["blobs"].get(name, "") if divided.digests else divided.digest
            for name, divided in rows.items()
            if name in blobs
        }
        problems += _differences(found, manifest["blobs"])
    elif any(_MARK in device.extra_info for device in parts.devices.values()):
        problems.insert(0, f"the record {MANIFEST!r}, with the step and the checksums, is missing")
    elif not blobs and not problems:
        problems.append("it holds no blobs")
    if problems:
        more = f"\n  and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        listed = "".join(f"\n  - {text}" for text in dict.fromkeys(problems[:_SHOWN]))
        raise ParseError(f"{os.fspath(path)!r} is not a complete checkpoint; nothing is loaded from it:{listed}{more}")
    if manifest is None:
        return Checkpoint(blobs)
    drawn = manifest["random"]
    return Checkpoint(
        blobs,
        step=manifest["step"],
        metric=manifest["metric"],
        model=manifest["model"],
        net=manifest["net"],
        random=drawn and RandomState(drawn["seed"], drawn["iterations"]),
        readers=manifest["readers"],
        state=manifest["state"],
    )


def read_manifest(path: PathLike) -> dict[str, Any] | None:
    """Return the manifest of a checkpoint without reading the blobs; None if the file has no manifest.

    Raises:
        FileNotFoundError: there is no such file.
        ParseError: the manifest is damaged, or the file is not a checkpoint.
    """
    for key, value in read_minidb(path):
        if key != MANIFEST.encode():
            return None
        where = f"{os.fspath(path)}, its first record"
        return parse_manifest(files.parse(value, BlobProto, source=where).content, where)
    return None


def _records(
    first: tuple[str, bytes],
    blobs: Mapping[str, Any],
    pieces: Mapping[str, Iterator[Array]],
    digests: dict[str, str],
    records: dict[str, list[str]],
) -> Iterator[tuple[str, bytes]]:
    """Yield the records of a file; ``digests`` gets those of divided values, ``records`` that of each of several."""
    yield first
    device = DeviceOption(device_type=PROTO_CPU, extra_info=[_MARK])
    for name, value in blobs.items():
        found, number = hash_of(value.dtype, value.shape) if name in pieces else None, itertools.count()

        def note(chunk: Array, found: Any = found, name: str = name, number: Iterator[int] = number) -> None:
            found.update(chunk.view(np.uint8).data)
            if name in records:
                place = next(number)
                records[name][place] = record_digest(blobs[name].shape, place, chunk)

        yield from records_of(name, value, pieces, device=device, note=note)
        if found is not None:
            digests[name] = found.hexdigest()


def _as_number(value: Any) -> float | None:
    """Return a metric as a float; it may be an array with one element, such as the blob of an accuracy."""
    if value is None:
        return None
    try:
        (number,) = np.asarray(value, np.float64).reshape(-1)
    except (TypeError, ValueError):
        raise NetError(f"checkpoint: metric must be one number or None, got {value!r}") from None
    return float(number)


def _as_array(value: Any) -> Any:
    """Return a string or a NumPy scalar as an array without dimensions; anything else unchanged."""
    if isinstance(value, np.generic):
        return np.asarray(value)
    if isinstance(value, (str, bytes)):
        text = np.empty((), object)
        text[()] = value.encode() if isinstance(value, str) else value
        return text
    return value


def _digest(name: str, value: Any) -> str:
    """Return the checksum of an array's type, shape and elements in row-major order."""
    if not isinstance(value, np.ndarray):
        raise NetError(f"blob {name!r}: a checkpoint can hold tensors and strings, not {value!r}")
    found = hash_of(value.dtype, value.shape)
    if value.dtype == object:
        for item in value.reshape(-1):
            text = item.encode() if isinstance(item, str) else bytes(item)
            found.update(f"{len(text)} ".encode() + text)
    else:
        found.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
    return found.hexdigest()


def _parts(path: PathLike, rows: Mapping[str, OwnRows]) -> tuple[BlobParts, dict[str, Any] | None, list[str]]:
    """Return what can be read of a file: its blobs, its manifest, and the problems found.

    Args:
        path: the file.
        rows: get the records of their blobs.
    """
    parts, manifest, problems = BlobParts(), None, []

    def passed_over(key: bytes) -> bool:
        of = rows.get(record_name(key))
        return of is not None and of.passes_over(record_number(key))

    try:
        for key, value in read_minidb(path, passed_over):
            where = f"record {key.decode(errors='replace')}"
            try:
                blob = files.parse(value, BlobProto, source=where)
                if blob.name != record_name(key):
                    raise ParseError(f"{where} holds the blob {blob.name!r}, but its key names another")
                if blob.name == MANIFEST:
                    manifest = parse_manifest(blob.content, where)
                    for name, digests in manifest.get("records", {}).items():
                        if name in rows:
                            rows[name].digests = digests
                elif blob.name in rows and blob.type == "Tensor":
                    rows[blob.name].add(blob, where, record_number(key))
                else:
                    parts.add(blob.name, blob, where)
            except ParseError as error:
                problems.append(str(error))
    except ParseError as error:  # of the file: its name is removed, since the error message begins with it
        problems.append(str(error).removeprefix(f"{os.fspath(path)!r}").lstrip(": "))
    problems += [text for name, divided in rows.items() if (text := divided.problem(name))]
    return parts, manifest, problems


def _differences(found: Mapping[str, str], digests: Mapping[str, str]) -> list[str]:
    return [
        *(f"blob {name!r} is missing" for name in digests if name not in found),
        *(f"blob {name!r} was not saved with the others" for name in found if name not in digests),
        *(
            f"blob {name!r} is damaged: its checksum is wrong"
            for name, digest in found.items()
            if name in digests and digest != digests[name]
        ),
    ]
