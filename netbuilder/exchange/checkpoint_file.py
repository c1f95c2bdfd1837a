"""Checkpoint files: blobs as Caffe2's Save operator stores them, after a record with the state of the training.

The record is a string blob, ``MANIFEST``, with JSON: step, metric, random state, and a checksum of each blob. Caffe2
reads such a file like its own. Files that Caffe2 wrote, without the record, can be read too, but then only their
structure is checked.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any

import numpy as np

from netbuilder.data import BlobParts, blob_records, read_minidb, record_name, write_minidb
from netbuilder.exchange.checkpoint_manifest import FORMAT, parse_manifest, seal
from netbuilder.proto import PROTO_CPU, BlobProto, DeviceOption, NetError, ParseError, files
from netbuilder.proto.call_checks import checked
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.runtime import RandomState

__all__ = ["MANIFEST", "Checkpoint", "read_checkpoint", "read_manifest", "write_checkpoint"]

Array = np.ndarray[Any, np.dtype[Any]]
PathLike = str | os.PathLike[str]

MANIFEST = "!!NETBUILDER_CHECKPOINT"
"""Name of the blob with the state of the training and the checksums."""

_MARK = FORMAT  # stored with each tensor, so that a file that lost its manifest is not mistaken for one of Caffe2's
_SHOWN = 20  # problems that an error lists


@dataclass(frozen=True)
class Checkpoint:
    """All that training needs to resume.

    Args:
        blobs: values by name, without device prefix: parameters, computed parameters, the optimizer's state.
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

    blobs: Mapping[str, Array]
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


@checked()
def write_checkpoint(path: PathLike, checkpoint: Checkpoint) -> None:
    """Write a checkpoint, whole or not at all; an existing file is replaced.

    Raises:
        NetError: a blob is neither a tensor nor a string, or ``state`` cannot be stored as JSON.
        OSError: the file cannot be written; an existing one is unchanged.
    """
    blobs = {name: _as_array(value) for name, value in checkpoint.blobs.items()}
    manifest = {
        "step": checkpoint.step,
        "metric": checkpoint.metric,
        "model": checkpoint.model,
        "net": checkpoint.net,
        "random": checkpoint.random and {
            "seed": checkpoint.random.seed, "iterations": dict(checkpoint.random.iterations)
        },
        "readers": dict(checkpoint.readers),
        "state": dict(checkpoint.state),
        "blobs": {name: _digest(name, value) for name, value in blobs.items()},
    }  # fmt: skip
    write_minidb(path, _records(seal(manifest), blobs))


@checked()
def read_checkpoint(path: PathLike) -> Checkpoint:
    """Read a checkpoint, whole or not at all.

    Args:
        path: written by ``write_checkpoint``, or by Caffe2's Save and Checkpoint operators.

    Raises:
        FileNotFoundError: there is no such file.
        ParseError: the file is truncated, damaged or not a checkpoint; the message lists all problems.
    """
    parts, manifest, problems = _parts(path)
    blobs: dict[str, Array] = {}
    for name in parts.names:
        try:
            blobs[name] = parts.value(name, "the file")
        except ParseError as error:
            problems.append(str(error))
    if manifest is not None:
        problems += _differences(blobs, manifest["blobs"])
    elif any(_MARK in device.extra_info for device in parts.devices.values()):
        problems.insert(0, f"the record {MANIFEST!r}, with the step and the checksums, is missing")
    elif not blobs and not problems:
        problems.append("it holds no blobs")
    if problems:
        more = f"\n  and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        listed = "".join(f"\n  - {text}" for text in dict.fromkeys(problems[:_SHOWN]))
        raise ParseError(f"{os.fspath(path)!r}: is not a complete checkpoint; nothing is loaded from it:{listed}{more}")
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


def _records(manifest: bytes, blobs: Mapping[str, Array]) -> Iterator[tuple[str, bytes]]:
    yield from blob_records(MANIFEST, manifest)
    device = DeviceOption(device_type=PROTO_CPU, extra_info=[_MARK])
    for name, value in blobs.items():
        yield from blob_records(name, value, device=device)


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
    found = hashlib.sha256(f"{'strings' if value.dtype == object else value.dtype.name} {value.shape} ".encode())
    if value.dtype == object:
        for item in value.reshape(-1):
            text = item.encode() if isinstance(item, str) else bytes(item)
            found.update(f"{len(text)} ".encode() + text)
    else:
        found.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
    return found.hexdigest()


def _parts(path: PathLike) -> tuple[BlobParts, dict[str, Any] | None, list[str]]:
    """Return what can be read of a file: its blobs, its manifest, and the problems found."""
    parts, manifest, problems = BlobParts(), None, []
    try:
        for key, value in read_minidb(path):
            where = f"record {key.decode(errors='replace')}"
            try:
                blob = files.parse(value, BlobProto, source=where)
                if blob.name != record_name(key):
                    raise ParseError(f"{where}: holds the blob {blob.name!r}, but its key names another")
                if blob.name == MANIFEST:
                    manifest = parse_manifest(blob.content, where)
                else:
                    parts.add(blob.name, blob, where)
            except ParseError as error:
                problems.append(str(error))
    except ParseError as error:  # of the file: its name is removed, since the error message begins with it
        problems.append(str(error).removeprefix(f"{os.fspath(path)!r}: "))
    return parts, manifest, problems


def _differences(blobs: Mapping[str, Array], digests: Mapping[str, str]) -> list[str]:
    return [
        *(f"blob {name!r} is missing" for name in digests if name not in blobs),
        *(f"blob {name!r} was not saved with the others" for name in blobs if name not in digests),
        *(
            f"blob {name!r} is damaged: its checksum is wrong"
            for name, value in blobs.items()
            if name in digests and _digest(name, value) != digests[name]
        ),
    ]
