"""RecordQueue: a queue that threads fill from a reader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from netbuilder.caffe2.jobs.queues import dequeue, enqueue
from netbuilder.caffe2.jobs.readers import Reader, Writer
from netbuilder.caffe2.records import Field, from_column_list
from netbuilder.graph import ExecutionStep, NameScope, Net, execution_step
from netbuilder.runtime.execute import default

__all__ = ["RecordQueue"]


class _QueueReader(Reader):
    def __init__(self, blobs_queue: Any, schema: Field, name: str | None = None) -> None:
        super().__init__(schema)
        self.blobs_queue = blobs_queue
        self.name = name

    def read(self, read_net: Net) -> tuple[Any, list[Any]]:
        with NameScope(read_net.NextName(self.name)):
            fields, status = dequeue(read_net, self.blobs_queue, len(self.schema().field_names()))
        return status, fields


class _QueueWriter(Writer):
    def __init__(self, blobs_queue: Any, schema: Field) -> None:
        self.blobs_queue = blobs_queue
        self._schema = schema

    def write(self, writer_net: Net, fields: Any) -> None:
        enqueue(writer_net, self.blobs_queue, fields)


class RecordQueue:
    """A queue in the current workspace; the constructor creates it.

    Args:
        fields: schema of its records, a record or names of columns.
        name: prefix of its nets.
        capacity: largest number of records.
        enforce_unique_name: raise an error if a queue of this name exists.
        num_threads: number of threads that fill it.
    """

    def __init__(
        self,
        fields: Any,
        name: str | None = None,
        capacity: int = 1,
        enforce_unique_name: bool = False,
        num_threads: int = 1,
    ) -> None:
        self.schema = fields if isinstance(fields, Field) else from_column_list(fields)
        self.name = name or "queue"
        self.num_threads = num_threads
        init = Net(self.name + "/init_net")
        self.blobs_queue = init.CreateBlobsQueue(
            [],
            init.NextBlob(self.name),
            capacity=capacity,
            num_blobs=len(self.schema.field_names()),
            enforce_unique_name=enforce_unique_name,
        )
        default.workspace().run_net_once(init)
        self.writer = _QueueWriter(self.blobs_queue, self.schema)
        self.reader = _QueueReader(self.blobs_queue, self.schema, self.name + "_reader")
        close = Net(self.name + "/exit_net")
        close.CloseBlobsQueue([self.blobs_queue], 0)
        self.exit_step = execution_step(f"{close}_close_step", close)

    def build(
        self, reader: Reader, process: Callable[[Net, Field], Field] | None = None
    ) -> tuple[Reader, ExecutionStep, ExecutionStep, Field]:
        """Return a reader of the queue, a step that fills it, a step that closes it, and the schema of its records.

        Args:
            reader: source of the records.
            process: adds operators that process a record to a net, and returns the result.
        """
        steps = []
        for number in range(self.num_threads):
            read, write = Net(f"reader_{number}"), Net(f"queue_writer{number}")
            should_stop, record = reader.read_record(read)
            if process is not None:
                record = process(write, record)
            self.writer.write(write, record.field_blobs())
            parts = [execution_step(net.Name(), net) for net in (read, write)]
            steps.append(execution_step(f"producer_{number}", parts, should_stop_blob=should_stop))
        fill = execution_step("producers", steps, concurrent_substeps=True)
        return self.reader, fill, self.exit_step, self.schema
