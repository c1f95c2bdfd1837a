"""What was read of models, kept on file: a later process that reads the same model takes the net from there.

The files are in the folder ``onnx`` of the folder ``NETBUILDER_CACHE`` (see ``netbuilder.engines.choices``), one for
each model and way of reading it, named by a hash of the model's bytes, of netbuilder's sources and of the packages that
take part; and one for each model's file, with that hash, which serves as long as the system says that the file is
unchanged, as do those with its constants, if it has such. What is kept is the net, what else is known of the model, and
the constants that were computed; the others are in these files. So nodes are neither checked nor translated again, and
the package onnx is not imported.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
import time
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from netbuilder import exchange, graph, ops, passes, proto
from netbuilder.engines.choices import cache_folder
from netbuilder.engines.kept_files import mark_of, mark_of_sources, read_kept, write_kept
from netbuilder.exchange.onnx.loading import (
    ConstantElsewhere,
    FileIdentity,
    LoadedModel,
    ModelFile,
    file_identity,
    read_elsewhere,
)
from netbuilder.exchange.onnx.read_model import ReadModel
from netbuilder.proto import NetDef

__all__ = ["KeptModel", "kept_model"]

Array = np.ndarray[Any, Any]

_LEAST = 1 << 20
"""Bytes of constants from which on a model is kept: small ones are read in no time."""

_MOST = 1 << 25
"""Bytes of a file."""

_SUFFIX = ".model"
"""Of the names of files."""

_SETTLED = 2
"""Seconds after which a further change of a file has another time, whatever the file system's resolution."""

_LENGTH = struct.Struct("<Q")


class KeptModel:
    """The place of what was read of a model.

    Args:
        path: of the file.
        file: the model.
    """

    def __init__(self, path: Path, file: ModelFile) -> None:
        self._path, self._file = path, file
        self._elsewhere = cache(partial(read_elsewhere, file.folder))

    def find(self) -> ReadModel | None:
        """Return what was read; None if nothing was kept, or a file with constants has changed."""
        content = read_kept(self._path)
        if content is None:
            return None
        start = _LENGTH.size
        end = start + _LENGTH.unpack_from(content)[0]
        stored = json.loads(content[start:end])
        if not self._are_unchanged(stored["others"]):
            return None
        rest = memoryview(content)[end:]
        parameters = {name: self._array(place, rest) for name, place in stored["parameters"].items()}
        return ReadModel(
            NetDef.FromString(bytes(rest[: stored["net"]])),
            parameters,
            tuple(stored["inputs"]),
            tuple(stored["outputs"]),
            {name: None if found is None else tuple(found) for name, found in stored["extents"].items()},
            {name: np.dtype(kind) for name, kind in stored["dtypes"].items()},
            trained=tuple(stored["trained"]),
            joined=stored["joined"],
        )

    def keep(self, read: ReadModel, loaded: LoadedModel) -> None:
        """Write what was read, if a file can hold it."""
        if read.reference_nodes or not all(map(_is_plain, read.dtypes.values())):
            return
        if not all(_is_plain(value.dtype) for value in read.parameters.values()):
            return
        if sum(value.nbytes for value in loaded.constants.values()) < _LEAST:
            return
        if not all(map(_is_settled, loaded.others.values())) or not self._are_unchanged(loaded.others):
            return
        inside = [name for name in loaded.constants if name not in loaded.elsewhere]
        if len(inside) != len(self._file.large):  # some are of types that NumPy has not
            return
        places_of: dict[int, dict[str, Any]] = {
            id(loaded.constants[name]): {"large": number} for number, name in enumerate(inside)
        }
        places_of |= {id(loaded.constants[name]): {"elsewhere": place} for name, place in loaded.elsewhere.items()}
        parts = [read.net.SerializeToString()]
        places = dict[str, Any]()
        for name, value in read.parameters.items():
            place: dict[str, Any] = {"shape": value.shape, "type": value.dtype.str}
            if id(value) in places_of:
                place |= places_of[id(value)]
            else:
                place |= {"at": sum(map(len, parts)), "writeable": value.flags.writeable}
                parts.append(value.tobytes())
            places[name] = place
        head = json.dumps({
            "net": len(parts[0]), "parameters": places, "inputs": read.inputs, "outputs": read.outputs,
            "extents": dict(read.extents), "dtypes": {name: dtype.str for name, dtype in read.dtypes.items()},
            "trained": read.trained, "joined": read.joined, "others": loaded.others,
        }).encode()  # fmt: skip
        content = b"".join([_LENGTH.pack(len(head)), head, *parts])
        if len(content) <= _MOST:
            write_kept(self._path, content)

    def _are_unchanged(self, others: Mapping[str, Sequence[int]]) -> bool:
        """Whether files of the model's folder are those that they were."""
        try:
            found = [file_identity(os.stat(os.path.join(self._file.folder, name))) for name in others]
        except OSError:
            return False
        return found == [tuple(each) for each in others.values()]

    def _array(self, place: Mapping[str, Any], rest: memoryview) -> Array:
        dtype, shape = np.dtype(place["type"]), place["shape"]
        if "large" in place:
            return self._file.large[place["large"]].data.view(dtype).reshape(shape)
        if "elsewhere" in place:
            return self._elsewhere(ConstantElsewhere(*place["elsewhere"])).view(dtype).reshape(shape)
        made = np.frombuffer(rest, dtype, math.prod(shape), place["at"]).reshape(shape).copy()
        made.flags.writeable = place["writeable"]
        return made


def kept_model(file: ModelFile, options: Any) -> KeptModel | None:
    """Return the place of a model that is read with some options; None if models like it are not kept."""
    folder = cache_folder()
    if folder is None or not file.may_use_others and sum(each.data.size for each in file.large) < _LEAST:
        return None
    about = f"{_surroundings()}\0{options!r}\0"
    return KeptModel(folder / "onnx" / f"{_hash_of(file, about, folder / 'onnx')}{_SUFFIX}", file)


def _hash_of(file: ModelFile, about: str, folder: Path) -> str:
    """Return a hash of a model and of what is said about it, from a file in ``folder`` if the model's is unchanged."""
    identity = file_identity(file.status)
    seen = folder / f"{hashlib.sha256(f'{about}{identity}'.encode()).hexdigest()[:40]}{_SUFFIX}"
    known = read_kept(seen)
    if known is not None:
        return known.decode()
    found = hashlib.sha256(about.encode())
    parts: list[Any] = [file.light]
    for each in file.large:
        parts += [each.head, bytes([each.field]), each.data]
    for part in parts:
        found.update(_LENGTH.pack(len(part)))
        found.update(part)
    if _is_settled(identity):
        write_kept(seen, found.hexdigest()[:40].encode())
    return found.hexdigest()[:40]


def _is_settled(identity: FileIdentity) -> bool:
    """Whether a file was not written just before it was seen, so that its next change shows."""
    *_, modified, changed = identity
    return time.time() - max(modified, changed) / 1e9 > _SETTLED


@cache
def _surroundings() -> str:
    """Return what the reading of a model depends on besides the model."""
    folders = [os.path.dirname(str(each.__file__)) for each in (exchange, graph, ops, passes, proto)]
    return "\n".join([mark_of_sources(folders), *map(mark_of, ("numpy", "onnx", "ml_dtypes"))])


def _is_plain(dtype: np.dtype[Any]) -> bool:
    return np.dtype(dtype.str) == dtype
