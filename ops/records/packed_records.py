"""Rows of records packed into objects, and unpacked: PackRecords, UnPackRecords."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.data.blob_values import BlobObject
from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.operator import STRING
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.records.datasets import Arrays, OnHost, tree_of
from netbuilder.proto import NetError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["PackRecords", "PackedRecord", "UnPackRecords"]


class PackedRecord(BlobObject):
    """Columns of a record in one object, which UnPackRecords unpacks.


    Attributes:
        fields: the columns.
    """

    def __init__(self, fields: Arrays) -> None:
        self.fields = fields


@register
@dataclass(frozen=True)
class PackRecords(OnHost):
    """packed = objects, one per row of a record, or a single one for all rows with ``pack_to_single_shared_ptr``."""

    signature = """
        field+ (...): any
        -> packed (N) or (): string, objects
    """
    fields: tuple[str, ...] = ()
    pack_to_single_shared_ptr: bool = False


@kernel(PackRecords)
def pack_records(op: PackRecords, ctx: RunContext, *fields: Any) -> Arrays:
    tree = tree_of(op, op.fields, fields)
    if op.pack_to_single_shared_ptr:
        packed = np.empty(1, STRING)
        packed[0] = PackedRecord(tuple(field.copy() for field in fields))
        return (packed,)
    offsets = tree.places(fields)
    packed = np.empty(len(offsets) - 1, STRING)
    for i in range(len(packed)):
        packed[i] = PackedRecord(tuple(part.copy() for part in tree.rows(fields, offsets[i], offsets[i + 1])))
    return (packed,)


@register
@dataclass(frozen=True)
class UnPackRecords(OnHost):
    """field = the columns of packed records: the inverse of PackRecords. For no rows, prototypes give their types."""

    signature = """
        packed (N): string, objects
        prototype* (...): any
        -> field+ (...): any
    """
    fields: tuple[str, ...] = ()


@kernel(UnPackRecords)
def unpack_records(op: UnPackRecords, ctx: RunContext, packed: Any, *prototypes: Any) -> Arrays:
    records = list(packed.reshape(-1))
    if not all(isinstance(record, PackedRecord) and len(record.fields) == op.n_out for record in records):
        raise NetError(f"UnPackRecords: its first input must be the output of PackRecords for {op.n_out} columns")
    if records:
        return tuple(np.concatenate(parts) for parts in zip(*(record.fields for record in records)))
    if len(prototypes) != op.n_out:
        raise NetError("UnPackRecords: there are no rows, so prototypes of the columns must be given as further inputs")
    return tuple(prototype[:0].copy() for prototype in prototypes)
