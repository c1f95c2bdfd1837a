"""Arrays of .npz files: as NumPy reads them; what claims more than the file holds, or is no array, is refused."""

import io
import zipfile

import numpy as np
import pytest

from netbuilder.data import read_npz
from netbuilder.proto import ParseError


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_are_those_that_were_saved(tmp_path, save):
    values = {
        "a": np.arange(6.0).reshape(2, 3), "turned": np.asfortranarray(np.arange(6, dtype=np.int8).reshape(2, 3)),
        "scalar": np.float32(3), "none": np.zeros((0, 2)), "folder/b": np.array(["x", "yz"]),
    }  # fmt: skip
    save(tmp_path / "x.npz", **values)
    found = read_npz(tmp_path / "x.npz")
    assert found.keys() == values.keys()
    for name, value in values.items():
        np.testing.assert_array_equal(found[name], value)
        assert found[name].dtype == value.dtype and found[name].flags.writeable


def pack(path, header, data, method=zipfile.ZIP_STORED):
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, header)
    with zipfile.ZipFile(path, "w", method) as file:
        file.writestr("x.npy", out.getvalue() + data)


@pytest.mark.parametrize("shape", [(2**40,), (2**33, 2**33), (3,), (-1,), (1, 2**62, 0)])
def test_a_shape_that_the_file_does_not_hold_is_refused(tmp_path, shape):
    pack(tmp_path / "x.npz", {"descr": "<f4", "fortran_order": False, "shape": shape}, bytes(8))
    with pytest.raises(ParseError, match=r"x.npz' cannot be read as npz: 'x.npy': shape .* makes"):
        read_npz(tmp_path / "x.npz")


def test_objects_are_never_loaded(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.array([{}], object))
    with pytest.raises(ParseError, match="'x.npy' holds Python objects, which are not loaded"):
        read_npz(tmp_path / "x.npz")


def test_damaged_files_are_named(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.zeros(100))
    whole = (tmp_path / "x.npz").read_bytes()
    for data in (b"", whole[:-30], whole[:300] + b"\xff" + whole[301:], b"text"):
        (tmp_path / "bad.npz").write_bytes(data)
        with pytest.raises(ParseError, match="bad.npz' cannot be read as npz: "):
            read_npz(tmp_path / "bad.npz")
    with pytest.raises(FileNotFoundError):
        read_npz(tmp_path / "none.npz")
