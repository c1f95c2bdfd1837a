"""Reading from databases: CreateDB opens one, TensorProtosDBInput reads batches of tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.data.db_reader import DBReader
from netbuilder.data.tensor_records import proto_to_tensor
from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.operator import STRING, Operator
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError, NetError, OperatorDef, ParseError, ShapeError, TensorProtos
from netbuilder.proto.files import parse
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["CreateDB", "TensorProtosDBInput"]


@register
@dataclass(frozen=True)
class CreateDB(Operator):
    """Open a database; reader reads its records or, with shards, every ``num_shards``-th one from ``shard_id`` on."""

    signature = "-> reader: object"
    stateful = True
    effects = "touches files"
    db: str = ""
    db_type: str = "leveldb"
    num_shards: int = 1
    shard_id: int = 0

    def check(self) -> None:
        if not self.db:
            raise ArgumentError("CreateDB: db, the path of the database, must be given")


@kernel(CreateDB)
def create_db(op: CreateDB, ctx: RunContext) -> tuple[Any, ...]:
    return (DBReader(op.db, op.db_type, num_shards=op.num_shards, shard_id=op.shard_id),)


@register
@dataclass(frozen=True)
class TensorProtosDBInput(Operator):
    """Read ``batch_size`` records and stack their tensors along a new first axis; 0: one record, not stacked.

    A record is a TensorProtos with one tensor per output. The last record is followed by the first, also within a
    batch.
    """

    signature = "reader: object -> data+ (...): any"
    dynamic = True
    stateful = True
    effects = "touches files"
    waits = True
    batch_size: int = 0

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return []  # a source: no gradient

    def check(self) -> None:
        if self.batch_size < 0:
            raise ArgumentError(f"TensorProtosDBInput: batch_size must not be negative, got {self.batch_size}")


def _read(op: TensorProtosDBInput, reader: DBReader) -> list[np.ndarray[Any, Any]]:
    """Return the tensors of the next record."""
    key, value = reader.read()
    where = f"{reader.path}, record {key.decode(errors='replace')}"
    record = parse(value, TensorProtos, source=where)
    if len(record.protos) != op.n_out:
        raise NetError(
            f"TensorProtosDBInput: {where!r} has {len(record.protos)} tensors, but the operator has {op.n_out} outputs"
        )
    try:
        return [proto_to_tensor(proto) for proto in record.protos]
    except ParseError as error:
        raise ParseError(f"TensorProtosDBInput: {where!r}: {error}") from error


@kernel(TensorProtosDBInput)
def tensor_protos_db_input(op: TensorProtosDBInput, ctx: RunContext, reader: Any) -> tuple[Any, ...]:
    if not isinstance(reader, DBReader):
        raise NetError(f"TensorProtosDBInput: its input must be the reader that CreateDB makes, got {reader!r}")
    if op.batch_size == 0:
        batch = _read(op, reader)
    else:
        batch = [_stack(parts, j) for j, parts in enumerate(zip(*(_read(op, reader) for _ in range(op.batch_size))))]
    return tuple(array if array.dtype == STRING else ctx.xp.asarray(array) for array in batch)


def _stack(parts: Any, number: int) -> np.ndarray[Any, Any]:
    first = parts[0]
    for part in parts:
        if part.shape != first.shape or part.dtype != first.dtype:
            raise ShapeError(
                f"TensorProtosDBInput: tensor {number} of the records of a batch has shapes {first.shape} and "
                f"{part.shape}, types {first.dtype} and {part.dtype}; they must be the same"
            )
    return np.stack(parts)
