"""Stores as blobs, with keys and values that the processes of a run share: ids, checks and health, never gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.data.blob_values import BlobObject
from netbuilder.data.stored_blobs import BlobParts, blob_records
from netbuilder.distributed.stores import DEFAULT_TIMEOUT, FileStore, RedisStore, Store
from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.objects import shared_object
from netbuilder.ops.core.operator import STRING, Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError, BlobProto
from netbuilder.proto.files import parse
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "FileStoreHandlerCreate",
    "RedisStoreHandlerCreate",
    "StoreAdd",
    "StoreGet",
    "StoreHandler",
    "StoreSet",
    "StoreWait",
    "store_of",
]

_OBJECT = TensorSpec((), STRING)


class StoreHandler(BlobObject):
    """A store in a blob.

    Args:
        store: the store.
    """

    def __init__(self, store: Store) -> None:
        self.store = store


@dataclass(frozen=True)
class _OnHost(Operator):
    stateful = True
    outputs_on_host = True
    inputs_on_host = True
    flops_per_element = 0

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        for spec in inputs[:1]:
            require(spec.dtype == STRING, self, f"input 0 must be a store, got a tensor of type {spec.dtype}")
        return (_OBJECT,) * self.n_out


def store_of(op: Operator, value: Any) -> Store:
    """Return the store in an input of an operator."""
    return shared_object(op, value, StoreHandler, "FileStoreHandlerCreate").store


@register
@dataclass(frozen=True)
class FileStoreHandlerCreate(_OnHost):
    """Make a store in the folder ``path``, which all processes see; ``prefix`` begins all keys."""

    signature = "-> handler: object"
    effects = "touches files"
    path: str = ""
    prefix: str = ""

    def check(self) -> None:
        if not self.path:
            raise ArgumentError("FileStoreHandlerCreate: path must name a folder, got ''")


@kernel(FileStoreHandlerCreate)
def file_store_handler_create(op: FileStoreHandlerCreate, ctx: RunContext) -> tuple[Any, ...]:
    store: Store = FileStore(op.path)
    return (StoreHandler(store.with_prefix(op.prefix) if op.prefix else store),)


@register
@dataclass(frozen=True)
class RedisStoreHandlerCreate(_OnHost):
    """Make a store on a Redis server, which needs the extra ``redis``; ``prefix`` begins all keys."""

    signature = "-> handler: object"
    effects = "connects to a server"
    host: str = ""
    port: int = 6379
    prefix: str = ""

    def check(self) -> None:
        if not self.host or not 0 < self.port < 1 << 16:
            raise ArgumentError(
                f"RedisStoreHandlerCreate: host must name a server and port lie in [1, 65535], got {self.host!r}, "
                f"{self.port}"
            )


@kernel(RedisStoreHandlerCreate)
def redis_store_handler_create(op: RedisStoreHandlerCreate, ctx: RunContext) -> tuple[Any, ...]:
    return (StoreHandler(RedisStore(op.host, op.port, op.prefix)),)


@register
@dataclass(frozen=True)
class StoreSet(_OnHost):
    """Store a blob under the key ``blob_name``, by default its own name."""

    signature = "handler: object, data (...): any ->"
    blob_name: str = ""


@kernel(StoreSet)
def store_set(op: StoreSet, ctx: RunContext, handler: Any, data: Any) -> tuple[Any, ...]:
    name = op.blob_name or ctx.op_def.input[1]
    [(_, record)] = blob_records(name, data, chunk_size=0)
    store_of(op, handler).set(name, record)
    return ()


@register
@dataclass(frozen=True)
class StoreGet(_OnHost):
    """Return what StoreSet stored under the key ``blob_name``, by default the output's name; wait for it.

    Not to find it in ``timeout_secs`` is an error.
    """

    signature = """
        handler: object
        -> data (...): any, as stored
    """
    dynamic = True
    blob_name: str = ""
    timeout_secs: float = DEFAULT_TIMEOUT


@kernel(StoreGet)
def store_get(op: StoreGet, ctx: RunContext, handler: Any) -> tuple[Any, ...]:
    name = op.blob_name or ctx.op_def.output[0]
    store = store_of(op, handler)
    where = f"key {name!r} of {store}"
    parts = BlobParts()
    parts.add(name, parse(store.get(name, op.timeout_secs), BlobProto, source=where), where)
    return (parts.value(name, where),)


@register
@dataclass(frozen=True)
class StoreAdd(_OnHost):
    """Add ``add_value`` to the number under the key ``blob_name``, initially 0; value = the sum.

    No other process sees or changes the number in between.
    """

    signature = "handler: object -> value (1): int64"
    blob_name: str = ""
    add_value: int = 1

    def check(self) -> None:
        if not self.blob_name:
            raise ArgumentError("StoreAdd: blob_name must be the key of the number, got ''")

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        super().infer(*inputs)
        return (TensorSpec((1,), np.dtype(np.int64)),)


@kernel(StoreAdd)
def store_add(op: StoreAdd, ctx: RunContext, handler: Any) -> tuple[Any, ...]:
    return (np.array([store_of(op, handler).add(op.blob_name, op.add_value)], np.int64),)


@register
@dataclass(frozen=True)
class StoreWait(_OnHost):
    """Wait until all keys are there, at most ``timeout_secs``; they are ``blob_name``, or the strings in ``names``."""

    signature = "handler: object, names? (...): string ->"
    blob_name: tuple[str, ...] = ()
    timeout_secs: float = DEFAULT_TIMEOUT

    def check(self) -> None:
        if bool(self.blob_name) == (self.n_in > 1):
            raise ArgumentError(
                "StoreWait: give the keys either by blob_name or by an input, "
                f"got blob_name={list(self.blob_name)} and {self.n_in - 1} such inputs"
            )

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        for spec in inputs[1:]:
            require(spec.dtype == STRING, self, f"names must be strings, got a tensor of type {spec.dtype}")
        return super().infer(*inputs)


@kernel(StoreWait)
def store_wait(op: StoreWait, ctx: RunContext, handler: Any, *names: Any) -> tuple[Any, ...]:
    keys = list(op.blob_name)
    for given in names:
        keys += [each.decode() for each in np.asarray(given, object).ravel()]
    store_of(op, handler).wait(keys, op.timeout_secs)
    return ()
