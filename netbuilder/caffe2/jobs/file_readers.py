"""Readers of files: text files, data sets in databases, and databases that cache another reader's records."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from netbuilder.caffe2.jobs.cluster import Cluster
from netbuilder.caffe2.jobs.dataset import Dataset
from netbuilder.caffe2.jobs.pipeline import pipe
from netbuilder.caffe2.jobs.readers import Reader
from netbuilder.caffe2.jobs.task import TaskGroup
from netbuilder.caffe2.records import InitEmptyRecord, Scalar, Struct
from netbuilder.data import record_name
from netbuilder.data.db_reader import DATABASES, read_records
from netbuilder.graph import ExecutionStep, NameScope, Net, execution_step
from netbuilder.proto import NetError, TensorProto

__all__ = ["CachedReader", "DBFileReader", "TextFileReader"]


class TextFileReader(Reader):
    """Reads a text file with a row per line and tab-separated columns.

    Args:
        init_net: net to which the operator is added that opens the file.
        filename: the file.
        schema: a Struct of scalars, strings or float32, one for each column.
        num_passes: how many times the file is read.
        batch_size: rows per read.

    Raises:
        TypeError: the schema is not a Struct.
        NetError: a field is not a scalar, or of another type.
    """

    def __init__(self, init_net: Net, filename: str, schema: Struct, num_passes: int = 1, batch_size: int = 1) -> None:
        if not isinstance(schema, Struct):
            raise TypeError(f"TextFileReader: schema must be a schema.Struct, got {schema!r}")
        for name, child in schema.fields.items():
            if not isinstance(child, Scalar):
                raise NetError(f"TextFileReader: the schema's fields must be scalars, but {name!r} is {child!r}")
        types = [_text_type(name, dtype) for name, dtype in zip(schema.field_names(), schema.field_types())]
        super().__init__(schema)
        self._handler = init_net.CreateTextFileReader([], filename=filename, num_passes=num_passes, field_types=types)
        self._batch_size = batch_size

    def read(self, net: Net) -> tuple[Any, list[Any]]:
        blobs = net.TextFileReaderRead([self._handler], len(self.schema().field_names()), batch_size=self._batch_size)
        fields = list(blobs) if isinstance(blobs, (list, tuple)) else [blobs]
        return net.IsEmpty([fields[0]], net.NextName("should_stop")), fields


def _text_type(name: str, dtype: Any) -> int:
    kind = np.dtype(dtype)
    if kind.kind in "OSU":
        return TensorProto.STRING
    if kind != np.float32:
        raise NetError(
            f"TextFileReader: columns must be strings or float32, but field {name!r} is {kind}; cast it after reading"
        )
    return TensorProto.FLOAT


class DBFileReader(Reader):
    """Reads the rows of a data set, whose columns are blobs in a database, in a random order.

    Args:
        db_path: the database, written by Save with a blob for each column; the nets of ``setup_ex`` read it.
        db_type: "minidb" or "lmdb".
        name: prefix of its blobs; None: the file's name.
        batch_size: rows per read.
        loop_over: start again at the end.
        field_names: the columns; None: all blobs of the database, sorted by name.

    Raises:
        FileNotFoundError: there is no such database, and ``field_names`` is None.
    """

    default_name_suffix = "db_file_reader"

    def __init__(
        self,
        db_path: str,
        db_type: str,
        name: str | None = None,
        batch_size: int = 100,
        loop_over: bool = False,
        field_names: Sequence[str] | None = None,
    ) -> None:
        self.db_path = os.fspath(db_path)
        self.db_type = db_type
        self.name = name or f"{self._extract_db_name_from_db_path()}_{self.default_name_suffix}"
        self.batch_size = batch_size
        self.loop_over = loop_over
        super().__init__(self._init_reader_schema(field_names))
        self.ds = Dataset(self._schema, name=f"{self.name}_dataset")
        self.ds_reader: Any = None

    def _extract_db_name_from_db_path(self) -> str:
        return os.path.splitext(os.path.basename(self.db_path))[0]

    def _init_reader_schema(self, field_names: Any = None) -> Any:
        if field_names is None:
            found = {record_name(key) for key, _ in read_records(self.db_path, self.db_type.lower())}
            field_names = sorted(found)
        if not field_names:
            raise NetError(f"{type(self).__name__}: {self.db_path!r} has no blobs, so there are no columns")
        return Dataset(list(field_names)).schema

    def setup_ex(self, init_net: Net, finish_net: Net | None) -> None:
        if self.ds_reader is not None:
            return
        self._init_field_blobs_as_empty(init_net)
        self._feed_field_blobs_from_db_file(init_net)
        self.ds_reader = self.ds.random_reader(init_net, batch_size=self.batch_size, loop_over=self.loop_over)
        self.ds_reader.sort_and_shuffle(init_net)
        self.ds_reader.computeoffset(init_net)

    def _init_field_blobs_as_empty(self, init_net: Net) -> None:
        with NameScope(self.name):
            record = InitEmptyRecord(init_net, self.ds.schema.clone_schema())  # the file stores the types
        self.ds.field_blobs = record.field_blobs()

    def _feed_field_blobs_from_db_file(self, net: Net) -> None:
        net.Load(
            [],
            self.ds.get_blobs(),
            db=self.db_path,
            db_type=self.db_type,
            absolute_path=True,
            source_blob_names=self.ds.field_names(),
        )

    def read(self, read_net: Net) -> tuple[Any, list[Any]]:
        if self.ds_reader is None:
            raise NetError(f"reader {self.name!r} is not set up; call setup_ex, or read it through a pipe")
        result: tuple[Any, list[Any]] = self.ds_reader.read(read_net)
        return result


class CachedReader(DBFileReader):
    """Caches the records of another reader in a database, and reads them from there in a random order.

    Run the step that ``build_cache_step`` returns first.

    Args:
        original_reader: the other reader, which must have a schema.
        db_path: the database.
        db_type: "minidb" or "lmdb".
        name, batch_size, loop_over: see ``DBFileReader``.
    """

    default_name_suffix = "cached_reader"

    def __init__(
        self,
        original_reader: Reader,
        db_path: str,
        db_type: str = "LevelDB",
        name: str | None = None,
        batch_size: int = 100,
        loop_over: bool = False,
    ) -> None:
        if not original_reader:
            raise NetError("CachedReader needs a reader whose records it caches")
        if db_type.lower() not in DATABASES:
            raise NetError(f"CachedReader: db_type must be one of {sorted(DATABASES)}, got {db_type!r}")
        self.original_reader = original_reader
        super().__init__(db_path, db_type, name, batch_size, loop_over)

    def _init_reader_schema(self, *args: Any, **kwargs: Any) -> Any:
        return self.original_reader.schema().clone_schema()

    def build_cache_step(self, overwrite: bool = False) -> ExecutionStep:
        """Return a step that reads the other reader to its end, and writes the database.

        Args:
            overwrite: replace an existing database; otherwise the step does nothing if there is one.
        """
        if os.path.exists(self.db_path) and not overwrite:
            return execution_step("build_cache", Net("cache_exists"))
        init, save = Net("init"), Net("save")
        with NameScope(self.name):
            self.ds.init_empty(init)
        with Cluster(), NameScope(self.name), TaskGroup() as copying:
            pipe(self.original_reader, self.ds.writer(), num_threads=16)
        self._save_field_blobs_to_db_file(save)
        return execution_step("build_cache", [execution_step("init", init), copying.to_task().get_step(), save])

    def _save_field_blobs_to_db_file(self, net: Net) -> None:
        net.Save(
            self.ds.get_blobs(),
            [],
            db=self.db_path,
            db_type=self.db_type,
            blob_name_overrides=self.ds.field_names(),
            absolute_path=True,
        )
