"""Queues that change the batch size: CreateRebatchingQueue, EnqueueRebatchingQueue and related operators."""

from __future__ import annotations

from typing import Any

from netbuilder.data.rebatching_queue import RebatchingQueue
from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.objects import shared_object
from netbuilder.ops.core.operator import STRING, Operator, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError, NetError, OperatorDef
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["CloseRebatchingQueue", "CreateRebatchingQueue", "DequeueRebatchingQueue", "EnqueueRebatchingQueue"]


@dataclass(frozen=True)
class _OnQueue(Operator):
    """Base: samples in a queue are stored on the host."""

    dynamic = True
    stateful = True
    flops_per_element = 0

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return []  # a source: no gradient

    def queue(self, value: Any, blobs: int | None = None) -> RebatchingQueue:
        """Return the queue, which must have ``blobs`` blobs per sample."""
        found = shared_object(self, value, RebatchingQueue, "CreateRebatchingQueue")
        if blobs is not None and blobs != found.num_blobs:
            raise NetError(f"{self.type}: queue {found.name!r} has {found.num_blobs} blobs per sample, got {blobs}")
        return found


@register
@dataclass(frozen=True)
class CreateRebatchingQueue(_OnQueue):
    """Create a queue of ``capacity`` samples, each of ``num_blobs`` tensors."""

    signature = "-> queue: object"
    dynamic = False
    num_blobs: int = 1
    capacity: int = 1

    def check(self) -> None:
        if self.capacity < 1 or self.num_blobs < 1:
            raise ArgumentError(
                "CreateRebatchingQueue: num_blobs and capacity must be at least 1, "
                f"got {self.num_blobs}, {self.capacity}"
            )


@kernel(CreateRebatchingQueue)
def create_rebatching_queue(op: CreateRebatchingQueue, ctx: RunContext) -> tuple[Any, ...]:
    name = ctx.op_def.output[0] if ctx.op_def.output else ""
    return (RebatchingQueue(op.num_blobs, op.capacity, name),)


@register
@dataclass(frozen=True)
class EnqueueRebatchingQueue(_OnQueue):
    """Add tensors to a queue as one sample or, with ``enqueue_batch``, each of their rows as one, waiting for space.

    A closed queue is an error.
    """

    signature = "queue: object, tensor+ (...): any ->"
    waits = True
    enqueue_batch: bool = False


@kernel(EnqueueRebatchingQueue)
def enqueue_rebatching_queue(op: EnqueueRebatchingQueue, ctx: RunContext, queue: Any, *tensors: Any) -> tuple[Any, ...]:
    found = op.queue(queue, len(tensors))
    for number, tensor in enumerate(tensors):
        require(hasattr(tensor, "dtype"), op, f"input {number + 1} must be a tensor, got {type(tensor).__name__}")
    copies = [tensor.copy() if tensor.dtype == STRING else ctx.host(tensor).copy() for tensor in tensors]
    found.write(copies, batch=op.enqueue_batch)
    return ()


@register
@dataclass(frozen=True)
class DequeueRebatchingQueue(_OnQueue):
    """Remove ``num_elements`` samples of a queue, waiting for them, and stack their tensors along a new first axis.

    Of a closed queue there may be fewer; one that is closed and empty is an error.
    """

    signature = "queue: object -> tensor+ (N, ...): any"
    waits = True
    num_elements: int = 1

    def check(self) -> None:
        if self.num_elements < 1:
            raise ArgumentError(f"DequeueRebatchingQueue: num_elements must be at least 1, got {self.num_elements}")


@kernel(DequeueRebatchingQueue)
def dequeue_rebatching_queue(op: DequeueRebatchingQueue, ctx: RunContext, queue: Any) -> tuple[Any, ...]:
    batch = op.queue(queue, op.n_out).read(op.num_elements)
    return tuple(array if array.dtype == STRING else ctx.xp.asarray(array) for array in batch)


@register
@dataclass(frozen=True)
class CloseRebatchingQueue(_OnQueue):
    """Close a queue: nothing more can be added; remaining samples can be read."""

    signature = "queue: object ->"


@kernel(CloseRebatchingQueue)
def close_rebatching_queue(op: CloseRebatchingQueue, ctx: RunContext, queue: Any) -> tuple[Any, ...]:
    op.queue(queue).close()
    return ()
