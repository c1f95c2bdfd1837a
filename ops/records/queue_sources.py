"""Queues of blobs as sources: WeightedSampleDequeueBlobs, and CreateBlobsQueueDB, which reads one as a database."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.data.blobs_queue import BlobsQueue, QueueClosedError
from netbuilder.data.queue_reader import QueueReader
from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.objects import shared_object
from netbuilder.ops.core.operator import Operator
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.records.blobs_queue import record_here, unchanged
from netbuilder.proto import ArgumentError, NetError, OperatorDef
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["CreateBlobsQueueDB", "WeightedSampleDequeueBlobs"]


@dataclass(frozen=True)
class _OfQueues(Operator):
    dynamic = True
    stateful = True
    flops_per_element = 0

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return []  # a source: no gradient


@register
@dataclass(frozen=True)
class WeightedSampleDequeueBlobs(_OfQueues):
    """Remove the first record of one of several queues, drawn with ``weights`` (by default with equal probability).

    The last output is whether that queue was closed and empty; if so, the others keep their values. With
    ``table_idx_blob``, the output of that index becomes the index of the queue, int32, of shape (1,).
    """

    signature = """
        queue+: object
        -> blob (...): any
        -> status+ (...): any, further blobs, then the status, bool
    """
    waits = True
    draws = True
    weights: tuple[float, ...] = ()
    table_idx_blob: int = -1

    def check(self) -> None:
        given = self.weights
        if given and (len(given) != self.n_in or min(given) < 0 or not sum(given) > 0):
            raise ArgumentError(
                f"WeightedSampleDequeueBlobs: weights must have one number for each of {self.n_in} queues, none "
                f"negative and not all 0, got {list(given)}"
            )
        if not -1 <= self.table_idx_blob < self.n_out - 1:
            raise ArgumentError(
                "WeightedSampleDequeueBlobs: table_idx_blob must be -1 or an output before the status, "
                f"[0, {self.n_out - 1}), got {self.table_idx_blob}"
            )


@kernel(WeightedSampleDequeueBlobs)
def weighted_sample_dequeue_blobs(op: WeightedSampleDequeueBlobs, ctx: RunContext, *queues: Any) -> tuple[Any, ...]:
    sources = [shared_object(op, queue, BlobsQueue, "CreateBlobsQueue") for queue in queues]
    for source in sources:
        if source.num_blobs != op.n_out - 1:
            raise NetError(
                f"{op.type}: queue {source.name!r} has {source.num_blobs} blobs per record, got {op.n_out - 1} outputs "
                "for them"
            )
    sums = np.cumsum(op.weights or [1.0] * len(sources))
    drawn = float(ctx.host(ctx.uniform((1,), per_sample=True))[0]) * sums[-1]
    chosen = int(np.searchsorted(sums, drawn, side="right"))
    try:
        record, closed = [*record_here(ctx, sources[chosen].read())], False
        if op.table_idx_blob >= 0:
            record[op.table_idx_blob] = ctx.xp.asarray(np.array([chosen], np.int32))
    except QueueClosedError:
        record, closed = [unchanged(ctx, name) for name in ctx.op_def.output[:-1]], True
    return (*record, ctx.xp.asarray(np.array(closed)))


@register
@dataclass(frozen=True)
class CreateBlobsQueueDB(_OfQueues):
    """reader = a reader like CreateDB's of a queue's records, whose blob ``value_blob_index`` is the value.

    Blob ``key_blob_index`` is the key (-1: keys are empty); both are strings. A queue that is closed and empty is an
    error, as is one that stays empty for ``timeout_secs``, unless that is 0.
    """

    signature = "queue: object -> reader: object"
    effects = "touches files"
    key_blob_index: int = -1
    value_blob_index: int = 0
    timeout_secs: float = 0.0

    def check(self) -> None:
        if self.key_blob_index < -1 or self.value_blob_index < 0 or self.timeout_secs < 0:
            raise ArgumentError(
                "CreateBlobsQueueDB: key_blob_index must be -1 or more, value_blob_index and timeout_secs 0 or more, "
                f"got {self.key_blob_index}, {self.value_blob_index}, {self.timeout_secs}"
            )


@kernel(CreateBlobsQueueDB)
def create_blobs_queue_db(op: CreateBlobsQueueDB, ctx: RunContext, queue: Any) -> tuple[Any, ...]:
    source = shared_object(op, queue, BlobsQueue, "CreateBlobsQueue")
    return (QueueReader(source, key=op.key_blob_index, value=op.value_blob_index, timeout=op.timeout_secs),)
