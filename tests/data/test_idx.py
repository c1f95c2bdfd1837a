"""IDX files."""

import gzip
import struct

import numpy as np
import pytest

from netbuilder.data import read_idx
from netbuilder.proto import ParseError


def idx(kind, shape, data):
    return bytes([0, 0, kind, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + data


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize(
    ("kind", "dtype"), [(8, "u1"), (9, "i1"), (0x0B, "i2"), (0x0C, "i4"), (0x0D, "f4"), (0x0E, "f8")]
)
def test_every_type(tmp_path, kind, dtype, pack):
    array = np.arange(-3, 3).reshape(2, 3, 1).astype(dtype)
    path = tmp_path / "images.idx"
    path.write_bytes(pack(idx(kind, array.shape, array.astype(">" + dtype).tobytes())))
    got = read_idx(path)
    assert got.dtype == np.dtype(dtype)
    assert got.flags.writeable
    np.testing.assert_array_equal(got, array)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no IDX file.*got nothing"),
        (b"PNG\x00\x00", "no IDX file.*got 50 4e 47 00"),
        (idx(8, (2, 3), b"123"), r"shape \(2, 3\) of uint8 makes 18 bytes with the header, got 15"),
        (idx(8, (2,), b"123"), r"shape \(2,\) of uint8 makes 10 bytes with the header, got 11"),
        (bytes([0, 0, 8, 3, 0]), "cut short: 3 axes need a header of 16 bytes, got 5"),
        (gzip.compress(b"x" * 100, mtime=0)[:-9], "cannot be unpacked by gzip"),
        (b"\x1f\x8bnothing", "cannot be unpacked by gzip"),
    ],
)
def test_broken_files_are_refused(tmp_path, data, message):
    path = tmp_path / "broken.idx"
    path.write_bytes(data)
    with pytest.raises(ParseError, match=f"broken.idx.: {message}"):
        read_idx(path)


def test_a_missing_file():
    with pytest.raises(FileNotFoundError, match=r"nowhere\.idx"):
        read_idx("nowhere.idx")
