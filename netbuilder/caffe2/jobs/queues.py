"""Queues as pipes between tasks."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from netbuilder.caffe2.jobs.readers import LOCAL_SETUP, Pipe, Reader, Writer
from netbuilder.caffe2.records import Field
from netbuilder.graph import ExecutionStep, Net, execution_step
from netbuilder.proto import NetError

__all__ = ["Queue", "QueueReader", "QueueWrapper", "QueueWriter", "close_queue", "dequeue", "enqueue"]

_LOG = logging.getLogger(__name__)


def enqueue(net: Net, queue: Any, data_blobs: Sequence[Any], status: Any = None) -> Any:
    """Add operators that enqueue blobs; return the blob that is true if the queue is closed.

    Args:
        status: that blob; None: a new one.
    """
    blobs: list[Any] = []
    for blob in data_blobs:
        if blob in blobs:
            _LOG.warning("blob %s is enqueued twice in queue %s: a copy is made", blob, queue)
            blob = net.Copy(blob)
        blobs.append(blob)
    results = net.SafeEnqueueBlobs([queue, *blobs], [*blobs, net.NextBlob("status") if status is None else status])
    return results[-1]


def dequeue(
    net: Net,
    queue: Any,
    num_blobs: int,
    status: Any = None,
    field_names: Sequence[str] | None = None,
    num_records: int = 1,
) -> tuple[list[Any], Any]:
    """Add operators that dequeue blobs; return these, and the blob that is true if the queue is closed.

    Args:
        num_blobs: number of blobs per record.
        status: that blob; None: a new one.
        field_names: names for the blobs.
        num_records: number of records to dequeue and concatenate.
    """
    if field_names is not None and len(field_names) != num_blobs:
        raise NetError(f"dequeue: {len(field_names)} field_names for {num_blobs} blobs")
    names = [net.NextName(name) for name in field_names] if field_names else []
    names = names or [net.NextName("data", i) for i in range(num_blobs)]
    status = net.NextName("status") if status is None else status
    *blobs, stopped = net.SafeDequeueBlobs(queue, [*names, status], num_records=num_records)
    return blobs, stopped


def close_queue(step: Any, *queues: Any) -> ExecutionStep:
    """Return a step that runs ``step``, then closes queues."""
    net = Net("close_queue_net")
    for queue in queues:
        net.CloseBlobsQueue([queue], 0)
    return execution_step("close_queue_step", [step, execution_step(f"{net.Name()}_step", net)])


class QueueReader(Reader):
    """Dequeues records."""

    def __init__(self, wrapper: QueueWrapper, num_dequeue_records: int = 1) -> None:
        if wrapper.schema() is None:
            raise NetError("queue: its schema is not known; give one, or write to the queue first")
        super().__init__(wrapper.schema())
        self._wrapper = wrapper
        self._num_dequeue_records = num_dequeue_records

    def setup_ex(self, init_net: Net, exit_net: Net | None) -> None:
        if exit_net is not None:
            exit_net.CloseBlobsQueue([self._wrapper.queue()], 0)

    def read_ex(self, local_init_net: Net, local_finish_net: Net | None) -> tuple[list[Net], Any, list[Any]]:
        self._wrapper._new_reader(local_init_net)
        net = Net("dequeue")
        fields, status = dequeue(
            net,
            self._wrapper.queue(),
            len(self.schema().field_names()),
            field_names=self.schema().field_names(),
            num_records=self._num_dequeue_records,
        )
        return [net], status, fields

    def read(self, net: Net) -> tuple[Any, Any]:
        nets, status, fields = self.read_ex(net, None)
        for read_net in nets:
            net.AppendNet(read_net)
        return status, fields


class QueueWriter(Writer):
    """Enqueues records."""

    def __init__(self, wrapper: QueueWrapper) -> None:
        self._wrapper = wrapper

    def setup_ex(self, init_net: Net, exit_net: Net) -> None:
        exit_net.CloseBlobsQueue([self._wrapper.queue()], 0)

    def write_ex(self, fields: Any, local_init_net: Net, local_finish_net: Net, status: Any) -> list[Net]:
        self._wrapper._new_writer(self.schema(), local_init_net)
        net = Net("enqueue")
        enqueue(net, self._wrapper.queue(), fields, status)
        return [net]


class QueueWrapper(Pipe):
    """An existing queue as a pipe.

    Args:
        handler: its blob.
        schema: of the records.
        num_dequeue_records: number of records that a read dequeues and concatenates.
    """

    def __init__(self, handler: Any, schema: Field | None = None, num_dequeue_records: int = 1) -> None:
        super().__init__(schema, LOCAL_SETUP)
        self._queue = handler
        self._num_dequeue_records = num_dequeue_records

    def reader(self) -> QueueReader:
        return QueueReader(self, num_dequeue_records=self._num_dequeue_records)

    def writer(self) -> QueueWriter:
        return QueueWriter(self)

    def queue(self) -> Any:
        """Return the blob of the queue."""
        return self._queue


class Queue(QueueWrapper):
    """A queue that is created when a group of tasks that uses it starts.

    Args:
        capacity: largest number of records.
        schema: of the records; None: that of the first writer.
        name: of its blob.
        num_dequeue_records: number of records that a read dequeues and concatenates.
    """

    def __init__(
        self, capacity: int, schema: Field | None = None, name: str = "queue", num_dequeue_records: int = 1
    ) -> None:
        net = Net(name)
        super().__init__(net.AddExternalInput(net.NextName("handler")), schema, num_dequeue_records)
        self.capacity = capacity

    def setup(self, global_init_net: Net) -> None:
        if self.schema() is None:
            raise NetError("queue: its schema is not known; give one, or add a writer first")
        names = self.schema().field_names()
        global_init_net.CreateBlobsQueue(
            [], [self._queue], capacity=self.capacity, num_blobs=len(names), field_names=names
        )
