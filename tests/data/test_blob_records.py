"""Checkpoints in minidb files, as Caffe2 wrote them."""

import numpy as np
import pytest

import golden_data
from netbuilder.data import read_blobs, read_minidb, write_minidb
from netbuilder.proto import ParseError

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
    with pytest.raises(ParseError, match="missing|elements only"):
        read_blobs(tmp_path / "few.minidb")


def test_a_record_that_is_no_blob(tmp_path):
    write_minidb(tmp_path / "bad.minidb", [("key", b"\xff\xff\xff")])
    with pytest.raises(ParseError, match=r"bad.minidb, record 'key'"):
        read_blobs(tmp_path / "bad.minidb")
