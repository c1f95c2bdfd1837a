"""Blobs saved to and loaded from databases: Save, Checkpoint, Snapshot, Load, DBExists."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from netbuilder.data.db_reader import DATABASES, DBReader, read_records, write_records
from netbuilder.data.stored_blobs import CHUNK_SIZE, BlobParts, blob_records, record_name
from netbuilder.engines.gpu import gpu
from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.operator import STRING, Operator, TensorSpec
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.records.blobs_queue import unchanged
from netbuilder.ops.records.serialization_options import as_bfloat16, option_of, parse_options
from netbuilder.proto import PROTO_CUDA, ArgumentError, BlobError, BlobProto, DeviceOption, NetError, OperatorDef
from netbuilder.proto.files import parse
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.proto.netbuilder_pb2 import BlobSerializationOptions

__all__ = ["Checkpoint", "DBExists", "Load", "Save", "Snapshot"]

_DEFAULT_CHUNKS = -1
_CONVERSION = re.compile(r"%(%|[-+ 0]*\d*l{0,2}[diu])")


@dataclass(frozen=True)
class _Saving(Operator):
    """Base of the operators that write blobs to a database."""

    signature = "X+ ->"
    dynamic = True
    stateful = True
    inputs_on_host = True
    flops_per_element = 0
    db: str = ""
    db_type: str = ""
    absolute_path: bool = False
    strip_prefix: str = ""
    blob_name_overrides: tuple[str, ...] = ()
    chunk_size: int = _DEFAULT_CHUNKS
    options: bytes = b""

    def check(self) -> None:
        if not self.db:
            raise ArgumentError(f"{self.type}: db, the path of the file, must be given")
        if self.db_type.lower() not in DATABASES:
            raise ArgumentError(
                f"{self.type}: db_type must be {' or '.join(map(repr, DATABASES))}; got {self.db_type!r}"
            )
        if self.chunk_size < _DEFAULT_CHUNKS:
            raise ArgumentError(
                f"{self.type}: chunk_size must be a number of elements, 0 (no chunks) or -1 (the default), "
                f"got {self.chunk_size}"
            )
        parse_options(self.type, self.options)
        if self.blob_name_overrides and self.strip_prefix:
            raise ArgumentError(f"{self.type}: give strip_prefix or blob_name_overrides, not both")
        if self.blob_name_overrides and len(self.blob_name_overrides) != self.n_in:
            raise ArgumentError(
                f"{self.type}: blob_name_overrides must have one name for each of {self.n_in} inputs, "
                f"got {len(self.blob_name_overrides)}"
            )

    def stored_names(self, blobs: Sequence[str]) -> list[str]:
        """Return the names of the blobs in the file.

        Raises:
            NetError: two of them are the same.
        """
        names = list(self.blob_name_overrides) or [_stripped(blob, self.strip_prefix) for blob in blobs]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise NetError(f"{self.type}: several blobs would be stored as {twice}; the inputs are {list(blobs)}")
        return names


@register
@dataclass(frozen=True)
class Save(_Saving):
    """Write blobs to a file, completely or not at all; an existing file is replaced.

    ``db_type`` is "minidb", or "lmdb", which is a folder.

    A name in the file is the blob's without everything up to the end of the first ``strip_prefix`` in it, or one of
    ``blob_name_overrides``. A path is relative to the workspace's root folder unless ``absolute_path`` is set.
    ``chunk_size`` is the number of elements per record. ``options``, a serialized SerializationOptions, is for single
    blobs: the first option whose ``blob_name_regex`` matches a name gives its ``chunk_size``; with ``float_format``
    FLOAT_BFLOAT16, float32 is rounded to two bytes.
    """

    signature = "X+ (...): any ->"
    effects = "touches files"


@register
@dataclass(frozen=True)
class Checkpoint(_Saving):
    """Write all inputs to a file as Save does, every ``every`` iterations, counted by the first input.

    ``db`` is a pattern for the iteration, such as "checkpoint_%08d.db".
    """

    signature = "iter {1}: int, X* (...): any ->"
    effects = "touches files"
    every: int = 1

    def check(self) -> None:
        super().check()
        if self.every < 1:
            raise ArgumentError(f"{self.type}: every must be at least 1, got {self.every}")
        found = [text for text in _CONVERSION.findall(self.db) if text != "%"]
        if len(found) > 1 or "%" in _CONVERSION.sub("", self.db):
            raise ArgumentError(
                f"{self.type}: db may contain one conversion of an integer, such as %08d, got {self.db!r}"
            )


@register
@dataclass(frozen=True)
class Snapshot(Checkpoint):
    """The old name of Checkpoint."""

    signature = "iter {1}: int, X* (...): any ->"
    effects = "touches files"


@kernel(Save)
def save(op: Save, ctx: RunContext, *values: Any) -> tuple[Any, ...]:
    _write(op, ctx, op.db, values)
    return ()


@kernel(Checkpoint)
@kernel(Snapshot)
def checkpoint(op: Checkpoint, ctx: RunContext, *values: Any) -> tuple[Any, ...]:
    counter = ctx.host(values[0]) if hasattr(values[0], "dtype") else values[0]
    if not isinstance(counter, np.ndarray) or counter.dtype.kind not in "iu" or counter.size != 1:
        raise NetError(f"{op.type}: its first input must be the iteration, one integer, got {counter!r}")
    iteration = int(counter.reshape(()))
    if iteration % op.every == 0:
        _write(op, ctx, _CONVERSION.sub(lambda m: _formatted(m[0], iteration), op.db), values)
    return ()


def _formatted(conversion: str, iteration: int) -> str:
    return "%" if conversion == "%%" else (conversion.rstrip("diul") + "d") % iteration


def _write(op: _Saving, ctx: RunContext, db: str, values: Iterable[Any]) -> None:
    names = op.stored_names(ctx.op_def.input)
    options = parse_options(op.type, op.options)
    device = ctx.op_def.device_option if ctx.is_gpu else None
    arrays = [ctx.host(v) if hasattr(v, "dtype") and v.dtype != STRING else v for v in values]
    write_records(
        _path(ctx, db, op.absolute_path),
        op.db_type.lower(),
        (
            record
            for name, array in zip(names, arrays)
            for record in _records(op, name, array, option_of(options, name), device)
        ),
    )


def _records(
    op: _Saving, name: str, value: Any, option: BlobSerializationOptions, device: DeviceOption | None
) -> Iterator[tuple[str, bytes]]:
    chunk_size = option.chunk_size if option.chunk_size > 0 else op.chunk_size
    return blob_records(
        name,
        value,
        chunk_size=CHUNK_SIZE if chunk_size == _DEFAULT_CHUNKS else chunk_size,
        device=device,
        bfloat16=as_bfloat16(option, getattr(value, "dtype", None)),
    )


@register
@dataclass(frozen=True)
class Load(Operator):
    """Read blobs from files (``db``, or several ``dbs``), or from readers given as inputs.

    Blobs are found by the outputs' names, or by ``source_blob_names``. From a name in the file, everything up to the
    end of the first ``strip_prefix`` is removed, then ``add_prefix`` is prepended. ``load_all`` loads all blobs of the
    files. A missing blob is an error unless ``allow_incomplete`` is set; then the output keeps its value. With
    ``keep_device``, blobs are stored on the devices that they were saved from, not on the operator's. No blob is set
    before all are read.
    """

    signature = "reader*: object -> blob* (...): any"
    dynamic = True
    stateful = True
    effects = "touches files"
    flops_per_element = 0
    db: str = ""
    dbs: tuple[str, ...] = ()
    db_type: str = ""
    absolute_path: bool = False
    add_prefix: str = ""
    strip_prefix: str = ""
    source_blob_names: tuple[str, ...] = ()
    keep_device: bool = False
    load_all: bool = False
    allow_incomplete: bool = False

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return []  # a source: no gradient

    def check(self) -> None:
        if not self.n_in and not self.db and not self.dbs:
            raise ArgumentError("Load: db, the path of the file, dbs or a reader as input must be given")
        if self.db and self.dbs:
            raise ArgumentError(f"Load: give db or dbs, not both; got {self.db!r} and {list(self.dbs)}")
        if len(set(self.dbs)) < len(self.dbs):
            raise ArgumentError(f"Load: dbs must be distinct, got {list(self.dbs)}")
        if self.source_blob_names and (self.strip_prefix or self.load_all):
            other = "strip_prefix" if self.strip_prefix else "load_all"
            raise ArgumentError(f"Load: give source_blob_names or {other}, not both")
        if self.source_blob_names and len(self.source_blob_names) != self.n_out:
            raise ArgumentError(
                f"Load: source_blob_names must have one name for each of {self.n_out} outputs, "
                f"got {len(self.source_blob_names)}"
            )

    def loaded_name(self, key: bytes) -> str:
        """Return the name by which a record's blob is found."""
        return self.add_prefix + _stripped(record_name(key), self.strip_prefix)


@kernel(Load)
def load(op: Load, ctx: RunContext, *readers: Any) -> tuple[Any, ...]:
    outputs = list(ctx.op_def.output)
    if twice := sorted({blob for blob in outputs if outputs.count(blob) > 1}):
        raise NetError(f"Load: the outputs must be distinct, {twice} occur more than once")
    requested = list(op.source_blob_names) or outputs
    parts, where = BlobParts(), []
    for source, records in _sources(op, ctx, readers):
        where.append(source)
        for key, value in records:
            name = op.loaded_name(key)
            if op.load_all or name in requested:
                origin = f"{source}, record {key.decode(errors='replace')!r}"
                parts.add(name, parse(value, BlobProto, source=origin), origin)
    found = {name: parts.value(name, ", ".join(where)) for name in parts.names}
    missing = [name for name in requested if name not in found]
    if missing and not op.allow_incomplete:
        raise BlobError(
            f"Load: {', '.join(map(repr, where))} has no blobs {missing}; give allow_incomplete=1 to load without them"
        )
    devices = _kept_devices(parts.devices) if op.keep_device else {}
    if op.load_all:
        for name in found.keys() - set(requested):
            _feed(ctx, name, found[name], devices.get(name))
    return tuple(
        _feed(ctx, blob, found[name], devices.get(name)) if name in found else unchanged(ctx, blob)
        for blob, name in zip(outputs, requested)
    )


def _sources(op: Load, ctx: RunContext, readers: Sequence[Any]) -> Iterator[tuple[str, Iterator[tuple[bytes, bytes]]]]:
    """Yield each source's name and its records."""
    for reader in readers:
        if not isinstance(reader, DBReader):
            raise NetError(f"Load: its inputs must be readers that CreateDB makes, got {reader!r}")
        yield reader.path, reader.rest()
    if not readers:
        for db in op.dbs or (op.db,):
            path = _path(ctx, db, op.absolute_path)
            yield path, read_records(path, op.db_type.lower())


def _kept_devices(devices: dict[str, DeviceOption]) -> dict[str, DeviceOption]:
    for device in devices.values():
        if device.device_type == PROTO_CUDA:
            gpu(device.device_id)  # raise before any state changes
    return devices


def _feed(ctx: RunContext, name: str, value: Any, device: DeviceOption | None) -> Any:
    """Set a blob of the workspace; return its buffer."""
    is_numbers = hasattr(value, "dtype") and value.dtype != STRING
    if device is None and is_numbers:
        value = ctx.xp.asarray(value)
    ctx.workspace.feed(name, value, device if is_numbers else None)
    return ctx.workspace.get(name).buffer


@register
@dataclass(frozen=True)
class DBExists(Operator):
    """exists = whether there is a database at a path."""

    signature = "-> exists () or (1): bool"
    stateful = True
    effects = "touches files"
    outputs_on_host = True
    flops_per_element = 0
    db_name: str = ""
    db_type: str = ""
    absolute_path: bool = False

    def check(self) -> None:
        if not self.db_name:
            raise ArgumentError("DBExists: db_name, the path of the database, must be given")

    def infer(self) -> tuple[TensorSpec, ...]:
        return (TensorSpec((), np.dtype(np.bool_)),)


@kernel(DBExists)
def db_exists(op: DBExists, ctx: RunContext) -> tuple[Any, ...]:
    return (np.array(os.path.exists(_path(ctx, op.db_name, op.absolute_path))),)


def _stripped(name: str, prefix: str) -> str:
    _, found, rest = name.partition(prefix) if prefix else (name, "", "")
    return rest if found else name


def _path(ctx: RunContext, db: str, absolute: bool) -> str:
    return db if absolute else os.path.normpath(os.path.join(getattr(ctx.workspace, "root_folder", "."), db))
