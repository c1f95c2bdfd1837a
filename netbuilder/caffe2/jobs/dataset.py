"""Dataset: records in blobs, with readers and writers."""

from __future__ import annotations

from typing import Any

from netbuilder.caffe2.jobs.readers import Reader, Writer
from netbuilder.caffe2.records import Field, InitEmptyRecord, from_blob_list, from_column_list
from netbuilder.graph import ExecutionStep, NameScope, Net, execution_step
from netbuilder.proto import NetError

__all__ = ["Dataset", "execution_step_with_progress"]


def execution_step_with_progress(name: str, init_net: Net, substeps: Any, rows_read: Any) -> ExecutionStep:
    """Return a step that runs ``substeps``, and prints a count of rows every five seconds.

    Args:
        name: of the step.
        init_net: ignored.
        substeps: steps or nets.
        rows_read: the blob with the count.
    """
    net = Net("report_net")
    net.Python(lambda inputs, outputs: print(f"rows read: {inputs[0].data}"))([rows_read], [])
    return execution_step(name, substeps, report_net=net, concurrent_substeps=True, report_interval=5)


class Dataset:
    """Records in blobs, one for each column; rows of nested lists are concatenated.

    Args:
        fields: a record, or names of columns like those of ``field_names``.
        name: prefix of its blobs.

    A record without blobs gets them from ``init_empty``.
    """

    def __init__(self, fields: Any, name: str | None = None) -> None:
        if not isinstance(fields, Field):
            if not isinstance(fields, list):
                raise TypeError(f"Dataset: fields must be a schema.Struct or a list of names, got {fields!r}")
            fields = from_column_list(fields)
        self.schema: Any = fields
        self.name = name or "dataset"
        self.field_blobs: Any = fields.field_blobs() if fields.has_blobs() else None

    def trim(self, net: Net, multiple_of: int) -> None:
        """Add operators that drop rows at the end, so that their number is a multiple of ``multiple_of``."""
        blobs = self.get_blobs()
        net.TrimDataset(blobs, blobs, fields=self.field_names(), multiple_of=multiple_of)

    def init_empty(self, init_net: Net) -> None:
        """Add operators that make new, empty blobs.

        Fields of unknown type begin as float32 without rows; the first rows appended determine their type.
        """
        self.field_blobs = InitEmptyRecord(init_net, self.schema.clone_schema()).field_blobs()

    def init_from_dataframe(self, net: Net, dataframe: Any) -> None:
        """Add operators that fill it with the columns of a pandas DataFrame, which must match the record."""
        if len(self.field_names()) != len(dataframe.columns):
            raise NetError(
                f"dataset {self.name!r} has {len(self.field_names())} columns, but the table has {dataframe.shape[1]}"
            )
        self.field_blobs = [
            net.Const(dataframe[name].values, blob_out=net.NextBlob(name)) for name in self.field_names()
        ]

    def get_blobs(self) -> list[Any]:
        """Return the blobs of its columns.

        Raises:
            NetError: it has no blobs yet.
        """
        if self.field_blobs is None:
            raise NetError(
                f"dataset {self.name!r} has no blobs yet; call init_empty, or construct it from a record with blobs"
            )
        return list(self.field_blobs)

    def content(self) -> Any:
        """Return the record with its blobs."""
        return from_blob_list(self.schema, self.get_blobs())

    def field_names(self) -> list[str]:
        """Return the names of its columns."""
        names: list[str] = self.schema.field_names()
        return names

    def field_types(self) -> list[Any]:
        """Return the types of its columns."""
        types: list[Any] = self.schema.field_types()
        return types

    def reader(
        self,
        init_net: Net | None = None,
        cursor_name: str | None = None,
        batch_size: int = 1,
        enforce_batch_size: bool = False,
    ) -> DatasetReader:
        """Return a reader of its rows, in order.

        Args:
            init_net: sets up the reader; None: the caller calls ``setup_ex``.
            cursor_name: name of the cursor's blob.
            batch_size: rows per read.
            enforce_batch_size: drop a smaller batch at the end.
        """
        reader = DatasetReader(self, cursor_name, batch_size, enforce_batch_size)
        if init_net is not None:
            reader.setup_ex(init_net, None)
        return reader

    def random_reader(
        self,
        init_net: Net | None = None,
        indices: Any = None,
        cursor_name: str | None = None,
        batch_size: int = 1,
        loop_over: bool = False,
        enforce_batch_size: bool = False,
    ) -> DatasetRandomReader:
        """Return a reader of its rows in the order of ``indices``, or in that of ``sort_and_shuffle``.

        Args:
            init_net, cursor_name, batch_size, enforce_batch_size: see ``reader``.
            indices: a blob of row numbers, int64.
            loop_over: start again at the end.
        """
        reader = DatasetRandomReader(self, cursor_name, indices, batch_size, loop_over, enforce_batch_size)
        if init_net is not None:
            reader.setup_ex(init_net, None)
        return reader

    def writer(self, init_net: Net | None = None) -> DatasetWriter:
        """Return a writer that appends rows; for ``init_net`` see ``reader``."""
        writer = DatasetWriter(self.content())
        if init_net is not None:
            writer.setup_ex(init_net, None)
        return writer


class DatasetReader(Reader):
    """Reads the rows of a data set in order."""

    def __init__(
        self, dataset: Dataset, name: str | None, batch_size: int = 1, enforce_batch_size: bool = False
    ) -> None:
        super().__init__(dataset.content())
        self.dataset = dataset
        self.name = name or dataset.name + "_cursor"
        self.batch_size = batch_size
        self.enforce_batch_size = enforce_batch_size
        self.cursor: Any = None

    def setup_ex(self, init_net: Net, exit_net: Net | None) -> None:
        if self.cursor is None:
            self.cursor = init_net.CreateTreeCursor([], init_net.NextBlob(self.name), fields=self.dataset.field_names())

    def _made(self) -> Any:
        if self.cursor is None:
            raise NetError(f"reader {self.name!r} is not set up; give reader() the init_net, or call setup_ex")
        return self.cursor

    def read(self, read_net: Net) -> tuple[Any, list[Any]]:
        content = self.dataset.content()
        with NameScope(read_net.NextName(self.name)):
            fields = read_net.ReadNextBatch(
                [self._made(), *content.field_blobs()],
                content.field_names(),
                batch_size=self.batch_size,
                enforce_batch_size=self.enforce_batch_size,
            )
            fields = list(fields) if isinstance(fields, tuple) else [fields]
            return read_net.IsEmpty([fields[0]]), fields

    def reset(self, net: Net) -> None:
        net.ResetCursor([self._made()], [])


class DatasetRandomReader(Reader):
    """Reads the rows of a data set in another order."""

    def __init__(
        self,
        dataset: Dataset,
        name: str | None,
        indices: Any,
        batch_size: int = 1,
        loop_over: bool = False,
        enforce_batch_size: bool = False,
    ) -> None:
        super().__init__(dataset.content())
        self.dataset = dataset
        self.cursor: Any = None
        self.name = name or dataset.name + "_cursor"
        self.indices = indices
        self.batch_size = batch_size
        self.loop_over = loop_over
        self.enforce_batch_size = enforce_batch_size
        self.offsets: Any = None

    def setup_ex(self, init_net: Net, exit_net: Net | None) -> None:
        if self.cursor is None:
            self.cursor = init_net.CreateTreeCursor([], init_net.NextBlob(self.name), fields=self.dataset.field_names())

    def reset(self, net: Net) -> None:
        net.ResetCursor([self.cursor], [])

    def computeoffset(self, net: Net) -> None:
        """Add operators that compute where each row begins; they must run before the first read."""
        self.reset(net)
        self.offsets = net.ComputeOffset([self.cursor, *self.dataset.content().field_blobs()], "offsets")

    def sort_and_shuffle(
        self, net: Net, sort_by_field: str | None = None, shuffle_size: int = 1, batch_size: int = 1
    ) -> None:
        """Compute the order: windows of ``shuffle_size`` batches are sorted by a column, then shuffled."""
        column = -1 if not sort_by_field else self.dataset.content().field_names().index(sort_by_field)
        self.reset(net)
        self.indices = net.SortAndShuffle(
            [self.cursor, *self.dataset.content().field_blobs()],
            "indices",
            sort_by_field_idx=column,
            shuffle_size=shuffle_size,
            batch_size=batch_size,
        )

    def read(self, read_net: Net) -> tuple[Any, list[Any]]:
        if self.indices is None or self.offsets is None:
            raise NetError(
                f"reader {self.name!r}: give indices or call sort_and_shuffle, and call computeoffset, before reading"
            )
        content = self.dataset.content()
        with NameScope(read_net.NextName(self.name)):
            fields = read_net.ReadRandomBatch(
                [self.cursor, self.indices, self.offsets, *content.field_blobs()],
                content.field_names(),
                batch_size=self.batch_size,
                enforce_batch_size=self.enforce_batch_size,
                loop_over=self.loop_over,
            )
            fields = list(fields) if isinstance(fields, tuple) else [fields]
            return read_net.IsEmpty([fields[0]]), fields


class DatasetWriter(Writer):
    """Appends rows to a data set; thread-safe."""

    def __init__(self, content: Field) -> None:
        self._content = content
        self.mutex: Any = None

    def setup_ex(self, init_net: Net, exit_net: Net | None) -> None:
        if self.mutex is None:
            self.mutex = init_net.CreateMutex([])
        if exit_net is not None:
            self.commit(exit_net)

    def write(self, writer_net: Net, fields: Any) -> None:
        if self.mutex is None:
            raise NetError("the writer is not set up; give writer() the init_net, or call setup_ex")
        blobs = self._content.field_blobs()
        if len(fields) != len(blobs):
            raise NetError(f"writer: the data set has {len(blobs)} columns, got {len(fields)}")
        writer_net.AtomicAppend([self.mutex, *blobs, *fields], blobs)

    def commit(self, finish_net: Net | None) -> None:
        if finish_net is not None:
            finish_net.CheckDatasetConsistency(self._content.field_blobs(), [], fields=self._content.field_names())
