"""IDX files."""

import gzip
import struct
import tracemalloc

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
        (b"", "is not an IDX file.*got nothing"),
        (b"PNG\x00\x00", "is not an IDX file.*got 50 4e 47 00"),
        (idx(8, (2, 3), b"123"), r"shape \(2, 3\) of uint8 makes 18 bytes with the header, got 15"),
        (idx(8, (2,), b"123"), r"shape \(2,\) of uint8 makes 10 bytes with the header, got 11"),
        (bytes([0, 0, 8, 3, 0]), "truncated: 3 axes need a header of 16 bytes, got 5"),
        (gzip.compress(b"x" * 100, mtime=0)[:-9], "cannot be unpacked by gzip"),
        (b"\x1f\x8bnothing", "cannot be unpacked by gzip"),
    ],
)
def test_broken_files_are_refused(tmp_path, data, message):
    path = tmp_path / "broken.idx"
    path.write_bytes(data)
    with pytest.raises(ParseError, match=f"broken.idx.:? {message}"):
        read_idx(path)


def test_a_missing_file():
    with pytest.raises(FileNotFoundError, match=r"nowhere\.idx"):
        read_idx("nowhere.idx")


def idx_header(kind, *extents):
    return bytes([0, 0, kind, len(extents)]) + np.array(extents, ">u4").tobytes()


def test_claims_of_packed_files_are_bounded(tmp_path):
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(idx_header(8, 2, 3) + bytes(1 << 26)))
    tracemalloc.start()
    try:
        with pytest.raises(ParseError, match=r"images.gz': shape \(2, 3\) of uint8 makes 18 bytes .* got \d+ or more"):
            read_idx(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 22
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("extents", [(2**32 - 1,) * 3, (2**31, 2**31, 4), (2**32 - 1, 2**32 - 1, 0)])
def test_extents_whose_product_overflows_are_refused(tmp_path, extents):
    for name, data in (("x", idx_header(8, *extents)), ("x.gz", gzip.compress(idx_header(8, *extents)))):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ParseError, match=rf"{name}': (shape|no array can have)"):
            read_idx(tmp_path / name)
