"""Queues of blobs, with which nets in different threads exchange records: CreateBlobsQueue and related operators."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.data.blobs_queue import BlobsQueue, QueueClosedError
from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.operator import STRING, Operator
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError, NetError, OperatorDef, ShapeError
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "CloseBlobsQueue",
    "CreateBlobsQueue",
    "DequeueBlobs",
    "EnqueueBlobs",
    "SafeDequeueBlobs",
    "SafeEnqueueBlobs",
    "record_here",
    "unchanged",
]

_MAX_BLOBS = 100


@register
@dataclass(frozen=True)
class CreateBlobsQueue(Operator):
    """Create a queue of ``capacity`` records, each of ``num_blobs`` blobs.

    With ``enforce_unique_name``, it is an error if the blob already holds a queue.
    """

    signature = "-> queue: object"
    stateful = True
    flops_per_element = 0
    capacity: int = 1
    num_blobs: int = 1
    enforce_unique_name: bool = False
    field_names: tuple[str, ...] = ()

    def check(self) -> None:
        if self.capacity < 1 or self.num_blobs < 1:
            raise ArgumentError(
                f"CreateBlobsQueue: capacity and num_blobs must be at least 1, got {self.capacity}, {self.num_blobs}"
            )
        if self.field_names and len(self.field_names) != self.num_blobs:
            raise ArgumentError(
                f"CreateBlobsQueue: {len(self.field_names)} field_names for {self.num_blobs} blobs; give one per blob"
            )


@kernel(CreateBlobsQueue)
def create_blobs_queue(op: CreateBlobsQueue, ctx: RunContext) -> tuple[Any, ...]:
    name = ctx.op_def.output[0] if ctx.op_def.output else ""
    if op.enforce_unique_name and ctx.workspace is not None and ctx.workspace.has(name):
        previous = ctx.workspace.get(name).buffer
        if isinstance(previous, BlobsQueue):
            raise NetError(f"CreateBlobsQueue: blob {name!r} is already a queue, and enforce_unique_name is given")
    return (BlobsQueue(op.num_blobs, op.capacity, name, op.field_names),)


class _Enqueue(Operator):
    """Base of both operators that add blobs to a queue."""

    signature = "queue, blob* ->"
    dynamic = True
    stateful = True
    waits = True
    must_inplace = tuple((i + 1, i) for i in range(_MAX_BLOBS))


@register
@dataclass(frozen=True)
class EnqueueBlobs(_Enqueue):
    """Add a copy of the blobs to a queue, waiting for space; a closed queue that is full is an error.

    The outputs are the blobs themselves, which keep their values (in Caffe2 they lose them).
    """

    signature = """
        queue: object
        blob* (...): any
        -> blob+ (...): any, the inputs
    """

    def check(self) -> None:
        if self.n_out != self.n_in - 1 or self.n_in > _MAX_BLOBS:
            raise ArgumentError(
                f"EnqueueBlobs takes a queue and up to {_MAX_BLOBS} blobs, which are its outputs too; "
                f"got {self.n_in} inputs and {self.n_out} outputs"
            )


@register
@dataclass(frozen=True)
class SafeEnqueueBlobs(_Enqueue):
    """As EnqueueBlobs; the last output is whether the queue was closed and full, so that nothing was added."""

    signature = """
        queue: object
        blob* (...): any
        -> blob (...): any
        -> status+ (...): any, further blobs, then the status, bool
    """

    def check(self) -> None:
        if self.n_out != self.n_in or not 2 <= self.n_in <= _MAX_BLOBS:
            raise ArgumentError(
                f"SafeEnqueueBlobs takes a queue and up to {_MAX_BLOBS} blobs, its outputs are these and a status; "
                f"got {self.n_in} inputs and {self.n_out} outputs"
            )


def _queue(op: Operator, value: Any, blobs: int) -> BlobsQueue:
    if not isinstance(value, BlobsQueue):
        raise NetError(f"{op.type}: its first input must be the queue that CreateBlobsQueue makes, got {value!r}")
    if blobs != value.num_blobs:
        raise NetError(f"{op.type}: queue {value.name!r} has {value.num_blobs} blobs per record, got {blobs}")
    return value


def _write(op: Operator, queue: Any, blobs: tuple[Any, ...]) -> None:
    _queue(op, queue, len(blobs)).write([blob.copy() if hasattr(blob, "dtype") else blob for blob in blobs])


@kernel(EnqueueBlobs)
def enqueue_blobs(op: EnqueueBlobs, ctx: RunContext, queue: Any, *blobs: Any) -> tuple[Any, ...]:
    _write(op, queue, blobs)
    return blobs


@kernel(SafeEnqueueBlobs)
def safe_enqueue_blobs(op: SafeEnqueueBlobs, ctx: RunContext, queue: Any, *blobs: Any) -> tuple[Any, ...]:
    try:
        _write(op, queue, blobs)
        failed = False
    except QueueClosedError:
        failed = True
    return (*blobs, ctx.xp.asarray(np.array(failed)))


@register
@dataclass(frozen=True)
class DequeueBlobs(Operator):
    """Remove the first record of a queue, waiting for one; a closed queue that is empty is an error.

    So is a queue that stays empty for ``timeout_secs``, unless that is 0.
    """

    signature = "queue: object -> blob+ (...): any"
    dynamic = True
    stateful = True
    waits = True
    timeout_secs: float = 0.0

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return []  # a source: no gradient

    def check(self) -> None:
        if self.timeout_secs < 0:
            raise ArgumentError(f"DequeueBlobs: timeout_secs must not be negative, got {self.timeout_secs}")


@kernel(DequeueBlobs)
def dequeue_blobs(op: DequeueBlobs, ctx: RunContext, queue: Any) -> tuple[Any, ...]:
    return record_here(ctx, _queue(op, queue, op.n_out).read(op.timeout_secs))


@register
@dataclass(frozen=True)
class SafeDequeueBlobs(Operator):
    """Remove ``num_records`` records of a queue; the last output is whether it was closed and empty.

    If so, the other outputs keep their values. Several records are concatenated along the first axis; of a closed queue
    there may be fewer.
    """

    signature = """
        queue: object
        -> blob (...): any
        -> status+ (...): any, further blobs, then the status, bool
    """
    dynamic = True
    stateful = True
    waits = True
    num_records: int = 1

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return []  # a source: no gradient

    def check(self) -> None:
        if self.num_records < 1:
            raise ArgumentError(f"SafeDequeueBlobs: num_records must be at least 1, got {self.num_records}")


@kernel(SafeDequeueBlobs)
def safe_dequeue_blobs(op: SafeDequeueBlobs, ctx: RunContext, queue: Any) -> tuple[Any, ...]:
    source = _queue(op, queue, op.n_out - 1)
    records: list[tuple[Any, ...]] = []
    try:
        while len(records) < op.num_records:
            records.append(record_here(ctx, source.read()))
    except QueueClosedError:
        pass
    status = ctx.xp.asarray(np.array(not records))
    if not records:
        return (*(unchanged(ctx, name) for name in ctx.op_def.output[:-1]), status)
    if len(records) == 1:
        return (*records[0], status)
    return (*(_concatenated(op, ctx, values) for values in zip(*records)), status)


def record_here(ctx: RunContext, record: Any) -> tuple[Any, ...]:
    """Return the values of a record, on the device of the operator."""
    tensors = (hasattr(value, "dtype") and value.dtype != STRING for value in record)
    to_here = ctx.xp.asarray if ctx.is_gpu else ctx.host
    return tuple(to_here(value) if is_tensor else value for value, is_tensor in zip(record, tensors))


def unchanged(ctx: RunContext, name: str) -> Any:
    """Return the present value of a blob, for an output that keeps it."""
    blob = ctx.workspace.make(name)
    blob.materialize()
    return blob.buffer


def _concatenated(op: SafeDequeueBlobs, ctx: RunContext, values: Any) -> Any:
    shapes = [value.shape for value in values if hasattr(value, "shape")]
    if len(shapes) < len(values) or not all(shape and shape[1:] == shapes[0][1:] for shape in shapes):
        raise ShapeError(
            f"SafeDequeueBlobs: {len(values)} records can be concatenated only if they hold tensors that differ only "
            f"in the first axis, got shapes {shapes}"
        )
    xp = np if values[0].dtype == STRING else ctx.xp
    return xp.concatenate(values)


@register
@dataclass(frozen=True)
class CloseBlobsQueue(Operator):
    """Close a queue: operators that wait for it, or would have to, return; remaining records can be read."""

    signature = "queue: object ->"
    dynamic = True
    stateful = True


@kernel(CloseBlobsQueue)
def close_blobs_queue(op: CloseBlobsQueue, ctx: RunContext, queue: Any) -> tuple[Any, ...]:
    if not isinstance(queue, BlobsQueue):
        raise NetError(f"CloseBlobsQueue: its input must be the queue that CreateBlobsQueue makes, got {queue!r}")
    queue.close()
    return ()
