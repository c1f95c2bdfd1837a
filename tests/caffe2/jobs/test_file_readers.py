"""Readers of text files, of data sets in databases, and of another reader's records, cached in one.

What they give was compared with what Caffe2's gave on the same files.
"""

import numpy as np
import pytest

from netbuilder import Net, Plan, Workspace
from netbuilder.caffe2.jobs.dataset import Dataset
from netbuilder.caffe2.jobs.file_readers import CachedReader, DBFileReader, TextFileReader
from netbuilder.caffe2.record_values import FeedRecord
from netbuilder.caffe2.records import List, NewRecord, Scalar, Struct
from netbuilder.graph import execution_step
from netbuilder.proto import NetError, OperatorError, ParseError

COLUMNS = Struct(("word", np.str_), ("number", np.float32))


def batches(workspace, reader, init, *, most=20):
    """What a reader gives until it stops, batch by batch."""
    net = Net("read")
    reader.setup_ex(init, Net("finish"))
    should_stop, blobs = reader.read(net)
    workspace.run_net_once(init)
    workspace.create_net(net)
    found = []
    for _ in range(most):
        workspace.run_net(net)
        if workspace.fetch(should_stop):
            return found
        found.append([workspace.fetch(blob).tolist() for blob in blobs])
    raise AssertionError("it does not stop")


def read_text(path, content, **options):
    path.write_bytes(content)
    init = Net("open")
    return batches(Workspace(), TextFileReader(init, str(path), COLUMNS, **options), init)


@pytest.mark.parametrize(
    ("content", "options", "expected"),
    [
        (b"x\t1.5\ny\t2\nz\t-3e2\n", {"batch_size": 2}, [[[b"x", b"y"], [1.5, 2.0]], [[b"z"], [-300.0]]]),
        (b"x\t1\ny\t2\nz\t3\n", {"batch_size": 4, "num_passes": 2},
         [[[b"x", b"y", b"z", b"x"], [1, 2, 3, 1]], [[b"y", b"z"], [2, 3]]]),
        (b"x\t1\r\ny\t2\r\n", {"batch_size": 2}, [[[b"x", b"y"], [1, 2]]]),
        (b'a\\tb\t2\n"q\t4\n', {}, [[[b"a\\tb"], [2]], [[b'"q'], [4]]]),
        (b"x\t1\n", {"num_passes": 0}, []),
        (b"", {}, []),
    ],
)  # fmt: skip
def test_text(tmp_path, content, options, expected):
    assert read_text(tmp_path / "rows.txt", content, **options) == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"x\t1\ny\t2", "row 2: 2 columns; each row must have"),
        (b"x\t1\n\ny\t2\n", "row 2: 1 columns; each row must have 2, separated by tabs"),
        (b"x\t1\t2\n", "row 1: 3 columns"),
        (b"x\tqq\n", "column 1, of type FLOAT: could not convert"),
    ],
)
def test_wrong_text(tmp_path, content, message):
    with pytest.raises(ParseError, match=message):
        read_text(tmp_path / "rows.txt", content, batch_size=4)


def test_text_refusals(tmp_path):
    with pytest.raises(TypeError, match="schema must be a schema.Struct"):
        TextFileReader(Net("open"), "f", Scalar(np.float32))
    with pytest.raises(NetError, match="must be scalars, but 'a' is"):
        TextFileReader(Net("open"), "f", Struct(("a", List(np.float32))))
    with pytest.raises(NetError, match="strings or float32, but field 'a' is int32; cast it after reading"):
        TextFileReader(Net("open"), "f", Struct(("a", np.int32)))
    init = Net("open")
    TextFileReader(init, str(tmp_path / "none"), COLUMNS)
    with pytest.raises(OperatorError, match="No such file"):
        Workspace().run_net_once(init)


def data_set(workspace, init):
    record = NewRecord(init, Struct(("label", np.int32), ("tags", List(np.float32))))
    FeedRecord(record, [np.int32([1, 2, 3]), np.int32([1, 0, 2]), np.float32([5, 6, 7])], workspace)
    return Dataset(record, name="kept")


def run_steps(workspace, *steps):
    plan = Plan("plan")
    for step in steps:
        plan.AddStep(step)
    workspace.run_plan(plan)


def rows(reader):
    """The rows of a reader of single rows, sorted."""
    return sorted(batches(Workspace(), reader, Net("open")))


def test_records_kept_in_a_database(tmp_path):
    path = tmp_path / "rows.db"
    workspace, init = Workspace(), Net("init")
    original = data_set(workspace, init).reader(init, batch_size=2)
    cached = CachedReader(original, str(path), "minidb", batch_size=1)
    assert cached.name == "rows_cached_reader" and cached.schema().field_names() == [
        "label",
        "tags:lengths",
        "tags:values",
    ]
    run_steps(workspace, execution_step("init", init), cached.build_cache_step())
    written = path.read_bytes()
    run_steps(workspace, cached.build_cache_step())  # it is there
    assert path.read_bytes() == written
    expected = [[[1], [1], [5.0]], [[2], [0], []], [[3], [2], [6.0, 7.0]]]
    assert rows(cached) == expected
    names = ["label", "tags:lengths", "tags:values"]
    assert rows(DBFileReader(str(path), "minidb", batch_size=1, field_names=names)) == expected
    reader = DBFileReader(str(path), "minidb", batch_size=1)
    assert reader.name == "rows_db_file_reader" and reader.schema().field_names() == names
    assert rows(reader) == expected
    with pytest.raises(AssertionError, match="does not stop"):
        batches(Workspace(), DBFileReader(str(path), "minidb", batch_size=2, loop_over=True), Net("open"))


def test_database_refusals(tmp_path):
    with pytest.raises(FileNotFoundError):
        DBFileReader(str(tmp_path / "none"), "minidb")
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(NetError, match="has no blobs, so there are no columns"):
        DBFileReader(str(tmp_path / "empty"), "minidb")
    with pytest.raises(NetError, match="is not set up; call setup_ex"):
        DBFileReader("none", "minidb", field_names=["a"]).read(Net("read"))
    with pytest.raises(NetError, match=r"must be one of \['lmdb', 'minidb'\], got 'LevelDB'"):
        CachedReader(data_set(Workspace(), Net("init")).reader(), "x")
