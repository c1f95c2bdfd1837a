"""Base classes of readers and writers of records, which add operators to nets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from netbuilder.caffe2.jobs.task import TaskGroup
from netbuilder.caffe2.records import Field, Struct, from_blob_list
from netbuilder.graph import BlobReference, ExecutionStep, Net, execution_step
from netbuilder.proto import NetError

__all__ = ["Pipe", "PipedReaderBuilder", "Reader", "ReaderBuilder", "Writer"]


def blobs_of(fields: Any) -> list[Any]:
    """Return the blobs of a record, of a list of blobs, or one blob, as a list."""
    if isinstance(fields, Field):
        return fields.field_blobs()
    return list(fields) if isinstance(fields, (list, tuple)) else [fields]


class Reader:
    """Base class of readers, which return a record for each read until there are no more.

    Subclasses implement ``read``, or ``read_ex`` if they need several nets, and optionally ``setup_ex``.

    Args:
        schema: of its records; None: unknown.
    """

    def __init__(self, schema: Field | None = None) -> None:
        self._schema = schema

    def schema(self) -> Any:
        """Return the schema of its records.

        Raises:
            NetError: it is unknown.
        """
        if self._schema is None:
            raise NetError(f"{type(self).__name__} has no schema; give it one")
        return self._schema

    def _set_schema(self, schema: Field | None) -> None:
        self._schema = schema

    def setup_ex(self, init_net: Net, finish_net: Net | None) -> None:
        """Add operators to ``init_net``, run once before all reads, and to ``finish_net``, run after them."""

    def read_ex(self, local_init_net: Net, local_finish_net: Net | None) -> tuple[list[Net], Any, list[Any]]:
        """Return nets that read a record, the blob that is true if there was no record, and the blobs read.

        Args:
            local_init_net, local_finish_net: nets that run in the same thread before the first and after the last read.
        """
        read_net = Net("reader_body")
        should_stop, fields = self.read(read_net)
        return [read_net], should_stop, fields

    def read_record_ex(self, local_init_net: Net, local_finish_net: Net | None) -> tuple[list[Net], Any, Any]:
        """Like ``read_ex``, but return a record instead of its blobs."""
        nets, should_stop, fields = self.read_ex(local_init_net, local_finish_net)
        return nets, should_stop, self._as_record(fields)

    def _as_record(self, fields: Any) -> Any:
        if self._schema is None or isinstance(fields, Field):
            return fields
        return from_blob_list(self._schema, list(fields))

    def read(self, read_net: Net) -> tuple[Any, Any]:
        """Add operators that read a record; return the blob that is true if there was no record, and the blobs read."""
        raise NotImplementedError("readers must implement `read`")

    def reset(self, net: Net) -> None:
        """Add operators that make the reader start again."""
        raise NotImplementedError("this reader cannot be reset")

    def read_record(self, read_net: Net) -> tuple[Any, Any]:
        """Like ``read``, but return a record instead of its blobs."""
        should_stop, fields = self.read(read_net)
        return should_stop, self._as_record(fields)

    def execution_step(
        self, reader_net_name: str | None = None, external_should_stop: Any = None
    ) -> tuple[ExecutionStep, Any]:
        """Return a step that reads until there is nothing left, and the record that it reads.

        Args:
            reader_net_name: name of its net.
            external_should_stop: a blob that also ends the step when it is true.
        """
        net = Net(reader_net_name or "reader")
        should_stop, fields = self.read_record(net)
        if external_should_stop is not None:
            should_stop = net.Or([external_should_stop, should_stop])
        return execution_step(f"{net.Name()}_step", net, should_stop_blob=should_stop), fields


class Writer:
    """Base class of writers.

    Subclasses implement ``write``, or ``write_ex`` for several nets, and optionally ``setup_ex`` and ``commit``.
    """

    _schema: Any = None

    def schema(self) -> Any:
        """Return the schema of its records; None as long as it is unknown."""
        return self._schema

    def write(self, writer_net: Net, fields: Any) -> None:
        """Add operators that write a list of blobs."""
        raise NotImplementedError("writers must implement `write`")

    def write_record(self, writer_net: Net, fields: Any) -> None:
        """Add operators that write a record, or list of blobs."""
        self.write(writer_net, self._blobs(fields))

    def setup_ex(self, init_net: Net, finish_net: Net) -> None:
        """Add operators to ``init_net``, run once before all writes, and to ``finish_net``, run after them."""
        self.commit(finish_net)

    def write_ex(self, fields: Any, local_init_net: Net, local_finish_net: Net, stop_blob: Any) -> list[Net]:
        """Return nets that write a list of blobs; ``stop_blob`` becomes true if nothing more can be written."""
        net = Net("write_net")
        self.write(net, fields)
        return [net]

    def write_record_ex(
        self, fields: Any, local_init_net: Net, local_finish_net: Net, stop_blob: Any = None
    ) -> tuple[list[Net], Any]:
        """Return nets that write a record, or blobs, and the blob that becomes true if nothing more can be written."""
        if stop_blob is None:
            stop_blob = BlobReference(local_init_net.NextName("dequeue_status"), local_init_net)
        return self.write_ex(self._blobs(fields), local_init_net, local_finish_net, stop_blob), stop_blob

    def _blobs(self, fields: Any) -> list[Any]:
        if isinstance(fields, Field):
            self._schema = fields
        return blobs_of(fields)

    def commit(self, finish_net: Net | None) -> None:
        """Add operators that finish writing."""


class ReaderBuilder:
    """Makes readers of one source, one for each thread."""

    def schema(self) -> Any:
        """Return the schema of the records."""
        raise NotImplementedError(f"{type(self).__name__}: subclasses must implement schema")

    def setup(self, **kwargs: Any) -> dict[str, Any]:
        """Do one-time setup; return arguments for ``new_reader``."""
        return {}

    def new_reader(self, **kwargs: Any) -> Reader:
        """Return a reader."""
        raise NotImplementedError(f"{type(self).__name__}: subclasses must implement new_reader")


class PipedReaderBuilder(ReaderBuilder):
    """Makes readers of pipes whose inputs are another builder's readers.

    Args:
        builder: makes the input readers.
        piper: called with such a reader and the arguments of ``new_reader`` by name; returns a reader or pipe.
    """

    def __init__(self, builder: ReaderBuilder, piper: Callable[..., Any]) -> None:
        self._builder = builder
        self._piper = piper

    def schema(self) -> Any:
        return self._builder.schema()

    def setup(self, **kwargs: Any) -> dict[str, Any]:
        return self._builder.setup(**kwargs)

    def new_reader(self, **kwargs: Any) -> Reader:
        made: Any = self._piper(reader=self._builder.new_reader(**kwargs), **kwargs)
        return made if isinstance(made, Reader) else made.reader()


class Pipe:
    """Base class of pipes, which have writers at one end and readers at the other.

    Args:
        schema: of the records; None: that of the first writer.
        obj_key: attribute of a writer's or reader's net that holds the pipe, so that it is set up; None: no attribute.
    """

    def __init__(self, schema: Field | None = None, obj_key: str | None = None) -> None:
        self._num_writers = 0
        self._num_readers = 0
        self._schema = schema
        self._obj_key = obj_key

    def schema(self) -> Any:
        """Return the schema of the records; None as long as it is unknown."""
        return self._schema

    def setup(self, global_init_net: Net) -> None:
        """Add operators that create it."""

    def reader(self) -> Reader:
        """Return a reader of it."""
        raise NotImplementedError(f"{type(self).__name__}: subclasses must implement reader")

    def writer(self) -> Writer:
        """Return a writer to it."""
        raise NotImplementedError(f"{type(self).__name__}: subclasses must implement writer")

    def num_readers(self) -> int:
        """Return how many readers have been used."""
        return self._num_readers

    def num_writers(self) -> int:
        """Return how many writers have been used."""
        return self._num_writers

    def _new_writer(self, writer_schema: Any, writer_init_net: Net) -> None:
        if writer_schema is not None and self._schema is None:
            self._schema = writer_schema
        self._num_writers += 1
        if self._obj_key is not None:
            writer_init_net.add_attribute(self._obj_key, self)

    def _new_reader(self, reader_init_net: Net) -> None:
        self._num_readers += 1
        if self._obj_key is not None:
            reader_init_net.add_attribute(self._obj_key, self)


def struct_of(names: Sequence[str], readers: Sequence[Any]) -> Struct:
    """Return a record with the records of several readers as fields."""
    if len(names) != len(readers) or not names:
        raise NetError(f"composite reader: {len(names)} names for {len(readers)} readers; give one for each")
    return Struct(*((name, reader.schema()) for name, reader in zip(names, readers)))


LOCAL_SETUP = TaskGroup.LOCAL_SETUP
