"""Checkpoints in minidb files, as Caffe2 wrote them."""

import numpy as np
import pytest

import golden_data
from netbuilder.data import BlobParts, blob_records, read_blobs, read_minidb, record_name, write_blobs, write_minidb
from netbuilder.proto import BlobProto, NetError, ParseError

FOLDER = golden_data.GOLDEN / "exports" / "checkpoint_types"


@pytest.mark.parametrize("name", ["plain", "chunked"])
def test_every_type_is_read_back(name):
    export = golden_data.export("checkpoint_types")
    want = export.arrays["blobs"] | {"strings": np.array([b"alpha", b"", b"b\x00c"], object)}
    got = read_blobs(FOLDER / f"{name}.minidb")
    assert sorted(got) == sorted(export.meta["files"][f"{name}.minidb"]["blobs"])
    for key, value in got.items():
        assert value.dtype == want[key].dtype
        np.testing.assert_array_equal(value, want[key], err_msg=key)


def test_a_missing_chunk_is_named(tmp_path):
    records = list(read_minidb(FOLDER / "chunked.minidb"))
    many = next(key for key, _ in records if key.endswith(b"#%1"))
    write_minidb(tmp_path / "few.minidb", [(k, v) for k, v in records if k != many])
    with pytest.raises(ParseError, match="missing|has only"):
        read_blobs(tmp_path / "few.minidb")


def test_a_record_that_is_no_blob(tmp_path):
    write_minidb(tmp_path / "bad.minidb", [("key", b"\xff\xff\xff")])
    with pytest.raises(ParseError, match=r"bad.minidb, record 'key'"):
        read_blobs(tmp_path / "bad.minidb")


@pytest.mark.parametrize(("name", "chunk_size"), [("plain", 1_000_000), ("chunked", 100)])
def test_records_are_those_of_caffe2(tmp_path, name, chunk_size):
    """Same keys; same messages, but for the field data_format, which has its default."""
    blobs = read_blobs(FOLDER / f"{name}.minidb")
    write_blobs(tmp_path / "ours.minidb", blobs, chunk_size=chunk_size)
    ours, theirs = (dict(read_minidb(path)) for path in (tmp_path / "ours.minidb", FOLDER / f"{name}.minidb"))
    assert ours.keys() == theirs.keys()
    for key, value in ours.items():
        want = BlobProto.FromString(theirs[key])
        want.tensor.ClearField("data_format")
        assert BlobProto.FromString(value) == want, key


@pytest.mark.parametrize("value", ["text", b"text", np.array(b"text", object)])
def test_a_string_is_one_record(value):
    ((key, record),) = blob_records("name", value)
    assert key == "name"
    parts = BlobParts()
    parts.add(record_name(key.encode()), BlobProto.FromString(record), "here")
    assert parts.value("name", "here").item() == b"text"


def test_what_cannot_be_stored_is_refused(tmp_path):
    with pytest.raises(NetError, match="blob 'x': only tensors, strings, .* can be stored, got dict"):
        write_blobs(tmp_path / "x.minidb", {"x": {}})
    with pytest.raises(NetError, match="chunk_size must be a number of elements"):
        list(blob_records("x", np.zeros(2), chunk_size=-1))
    assert list(tmp_path.iterdir()) == []


def cursor(place):
    content = b"a b:lengths b:values "
    blob = BlobProto(name="x", type="std::unique_ptr<TreeCursor>", content=content)
    blob.tensor.int64_data.extend(place)
    return blob


def test_cursors():
    parts = BlobParts()
    parts.add("x", cursor([2, 3]), "here")
    read = parts.value("x", "here")
    assert (read.names, read.place) == (["a", "b:lengths", "b:values"], [2, 3])
    ((key, data),) = blob_records("y", read)
    assert key == "y" and BlobProto.FromString(data).tensor.int64_data == [2, 3]


def record(value, segment=None, name="x"):
    ((_, data),) = blob_records(name, np.asarray(value), chunk_size=0)
    blob = BlobProto.FromString(data)
    if segment is not None:
        blob.tensor.segment.begin, blob.tensor.segment.end = segment
    return blob


@pytest.mark.parametrize(
    ("blobs", "message"),
    [
        ([record([1.0, 2]), record([1.0, 2])], "elements 0 to 2 of blob 'x' occur twice"),
        ([record([1.0, 2], (1, 3))], "elements 0 to 1 of blob 'x' are missing"),
        ([record([1.0, 2]), record([1.0, 2, 3])], r"chunk of shape \(3,\), where earlier chunks of 'x' have \(2,\)"),
        ([record([1.0, 2]), record([1, 2])], "chunk of int64, where earlier chunks of 'x' are float64"),
        ([record([1.0, 2]), BlobProto(name="x", type="std::string", content=b"s")], "has blob 'x' twice"),
        (
            [BlobProto(name="x", type="std::map")],
            "blob 'x' has the unknown type 'std::map'; known are 'Tensor', 'std::string', ",
        ),
        (
            [cursor([3])],
            r"here: a cursor over the columns .* must have one position, 0 or greater, per domain, got \[3\]",
        ),
        ([cursor([3, -1])], "must have one position, 0 or greater, per domain"),
        ([cursor([]), cursor([])], "has blob 'x' twice"),
    ],
)
def test_records_that_do_not_fit(blobs, message):
    parts = BlobParts()
    with pytest.raises(ParseError, match=message):
        for blob in blobs:
            parts.add("x", blob, "here")
        parts.value("x", "here")
