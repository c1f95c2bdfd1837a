"""Checkpoints in minidb files, as Caffe2 wrote them."""

import numpy as np
import pytest

import golden_data
from netbuilder.data import read_blobs, read_minidb, write_minidb
from netbuilder.proto import ParseError

FOLDER = golden_data.GOLDEN / "exports" / "checkpoint_types"


@pytest.mark.parametrize(("name", "least"), [("plain", 8), ("chunked", 2)])
def test_every_type_is_read_back(name, least):
    with np.load(FOLDER / "blobs.npz") as saved:
        want = {key: saved[key] for key in saved.files}
    got = read_blobs(FOLDER / f"{name}.minidb")
    checked = 0
    for key, value in want.items():
        if key not in got:
            continue
        checked += 1
        if value.dtype.kind in "SU":
            assert [bytes(v) for v in got[key].reshape(-1)] == [
                np.asarray(v).item() for v in value.astype("S").reshape(-1)
            ]
            continue
        assert got[key].dtype == value.dtype
        np.testing.assert_array_equal(got[key], value)
    assert checked == len(got)
    assert checked >= least


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
