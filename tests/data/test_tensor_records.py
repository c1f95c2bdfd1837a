"""TensorProto and NumPy arrays."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import golden_data
from netbuilder.data import proto_to_tensor, proto_values, read_minidb, tensor_to_proto
from netbuilder.proto import BlobProto, NetError, ParseError, TensorProto

FOLDER = golden_data.GOLDEN / "exports" / "checkpoint_types"
DTYPES = ["f4", "f8", "f2", "i1", "i2", "i4", "i8", "u1", "u2", "?", ">f4", ">i8"]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_arrays_come_back(data):
    dtype = np.dtype(data.draw(st.sampled_from(DTYPES)))
    array = data.draw(hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)))
    proto = TensorProto.FromString(tensor_to_proto(array, "x").SerializeToString())
    back = proto_to_tensor(proto)
    assert back.dtype == dtype.newbyteorder("=")
    assert back.flags.writeable
    np.testing.assert_array_equal(back, array)


def test_strings_come_back_as_bytes():
    for strings in (["a", "bß"], [b"a", "bß".encode()], np.array([["a", "bß"]], object), np.array([b"a", b"b\xff"])):
        array = np.asarray(strings)
        back = proto_to_tensor(tensor_to_proto(array))
        assert back.shape == array.shape
        assert back.ravel().tolist() == [s.encode() if isinstance(s, str) else bytes(s) for s in array.ravel()]


@pytest.mark.parametrize("record", list(read_minidb(FOLDER / "plain.minidb")), ids=lambda r: r[0].decode())
def test_tensors_that_caffe2_saved(record):
    """Every record of a checkpoint gives the array that was saved, and is made again from it, field by field."""
    saved = BlobProto.FromString(record[1])
    array = proto_to_tensor(saved.tensor)
    if saved.name == "strings":
        assert array.tolist() == [b"alpha", b"", b"b\x00c"]
    else:
        expected = np.load(FOLDER / "expected.npz")[saved.name]
        assert array.dtype == expected.dtype
        np.testing.assert_array_equal(array, expected)
    made = tensor_to_proto(array, saved.name, segment=(0, array.size))
    made.device_detail.CopyFrom(saved.tensor.device_detail)
    if saved.tensor.HasField("data_format"):
        made.data_format = saved.tensor.data_format
    assert made == saved.tensor


def test_the_segments_of_a_chunked_tensor_make_the_whole():
    parts: dict[str, list[TensorProto]] = {}
    for _, value in read_minidb(FOLDER / "chunked.minidb"):
        saved = BlobProto.FromString(value)
        parts.setdefault(saved.name, []).append(saved.tensor)
    name, tensors = next((n, t) for n, t in parts.items() if len(t) > 1)
    whole = np.concatenate([proto_values(t) for t in sorted(tensors, key=lambda t: t.segment.begin)])
    np.testing.assert_array_equal(whole, np.load(FOLDER / "expected.npz")[name].ravel())
    with pytest.raises(ParseError, match="one segment of a larger tensor"):
        proto_to_tensor(tensors[0])


def test_a_segment_holds_a_part():
    proto = tensor_to_proto(np.arange(6, dtype=np.float32).reshape(2, 3), "x", segment=(2, 5))
    assert list(proto.dims) == [2, 3]
    assert proto_values(proto).tolist() == [2, 3, 4]
    with pytest.raises(NetError, match=r"segment \(2, 7\) must be in \[0, 6\]"):
        tensor_to_proto(np.zeros(6), segment=(2, 7))


def test_bytes_and_bfloat16_are_read():
    np.testing.assert_array_equal(
        proto_to_tensor(TensorProto(dims=[3], data_type=TensorProto.BYTE, byte_data=b"\x00\x7f\xff")), [0, 127, 255]
    )
    halves = np.float32([1.5, -2]).view(np.uint32) >> 16
    proto = TensorProto(dims=[2], data_format=1, raw_data=halves.astype("<u2").tobytes())
    np.testing.assert_array_equal(proto_to_tensor(proto), [1.5, -2])


def test_wrong_messages_and_arrays_are_refused():
    with pytest.raises(ParseError, match=r"'x' holds 2 elements of type FLOAT where its dims \[3\] need 3"):
        proto_to_tensor(TensorProto(name="x", dims=[3], float_data=[1, 2]))
    with pytest.raises(ParseError, match=r"dims \[-1\] are impossible"):
        proto_to_tensor(TensorProto(dims=[-1], float_data=[1]))
    with pytest.raises(ParseError, match="type UNDEFINED cannot be read"):
        proto_to_tensor(TensorProto(data_type=TensorProto.UNDEFINED))
    with pytest.raises(ParseError, match="bfloat16 data must be of type FLOAT"):
        proto_to_tensor(TensorProto(dims=[1], data_format=1, raw_data=b"\0\0\0"))
    with pytest.raises(NetError, match="'x': elements of type complex128 cannot be stored; convert to one of"):
        tensor_to_proto(np.zeros(2, complex), "x")
    with pytest.raises(NetError, match="objects must hold strings or bytes only"):
        tensor_to_proto(np.array([object()]))
