"""CreateMap, KeyValueToMap, MapToKeyValue and how maps are stored; KeySplit."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.data.key_map import KeyMap, empty_map
from netbuilder.data.object_records import kind_named, kind_of
from netbuilder.ops.core.operator import STRING, TensorSpec
from netbuilder.ops.features.maps import CreateMap, KeySplit, KeyValueToMap, MapToKeyValue
from netbuilder.proto import ArgumentError, BlobProto, NetError, ParseError, ShapeError, TensorProto, TensorProtos
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from suite import OperatorSuite, f32, i32, i64, refusal

OBJECT = TensorSpec((), STRING)
WHOLE = [np.int32, np.int64]


class TestCreateMap(OperatorSuite):
    operator = CreateMap
    no_gradient = "makes an object"
    refusals = (
        refusal(CreateMap(key_dtype=1), [], r"key_dtype must be INT32 \(2\) or INT64 \(10\), got 1", ArgumentError),
    )

    def draw(self, data):
        return CreateMap(), []

    def test_forward(self):
        (made,) = run_plain(CreateMap(value_dtype=TensorProto.INT64), [])
        assert (made, made.key_type, made.value_type) == ({}, np.int32, np.int64)


class TestKeyValueToMap(OperatorSuite):
    operator = KeyValueToMap
    no_gradient = "makes an object"
    refusals = (
        refusal(KeyValueToMap(), [f32(2), i32(2)], "keys must have elements of type int32 or int64, got float32"),
        refusal(KeyValueToMap(), [i64(2), i64(3)], r"values must have 2 elements, got shape \(3,\)"),
    )

    def draw(self, data):
        return KeyValueToMap(), [np.int32([5, 3, 5, 9]), np.int64([1, 2, 3, 4])]

    def test_forward(self):
        """As Caffe2 does, the first of the keys that are equal counts."""
        (made,) = run_plain(*self.draw(None))
        assert made == {5: 1, 3: 2, 9: 4}
        assert (made.key_type, made.value_type) == (np.int32, np.int64)


class TestMapToKeyValue(OperatorSuite):
    operator = MapToKeyValue
    no_gradient = "integers have none"
    refuses_nothing = "whether its input is a map is seen when it runs"

    def draw(self, data):
        entries = empty_map(data.draw(st.sampled_from(WHOLE)), data.draw(st.sampled_from(WHOLE)))
        entries.update(data.draw(st.dictionaries(st.integers(-5, 5), st.integers(-5, 5))))
        return MapToKeyValue(), [entries]

    def reference(self, op, entries):
        return [np.array(list(entries), int), np.array(list(entries.values()), int)]

    def test_types_and_other_objects(self):
        keys, values = run_plain(MapToKeyValue(), [empty_map(np.int64, np.int32)])
        assert (keys.dtype, values.dtype, keys.shape) == (np.int64, np.int32, (0,))
        with pytest.raises(NetError, match="input 0 must be what CreateMap or KeyValueToMap makes, got dict"):
            run_plain(MapToKeyValue(), [{}])


class TestKeySplit(OperatorSuite):
    operator = KeySplit
    no_gradient = "integers have none"
    refusals = (
        refusal(
            KeySplit(categorical_limit=3), [i64(4)], "and the number of outputs; got 3 for 2", ArgumentError, n_out=2
        ),
        refusal(KeySplit(), [i64(4)], "categorical_limit must be positive", ArgumentError),
    )

    def test_flops(self):
        assert KeySplit(categorical_limit=2).with_arity(1, 2).flops(i64(4)) == 0

    def draw(self, data):
        limit = data.draw(st.integers(1, 4))
        keys = data.draw(st.lists(st.integers(0, limit - 1), max_size=8))
        return KeySplit(categorical_limit=limit).with_arity(1, limit), [np.array(keys, np.int64)]

    def reference(self, op, keys):
        return [np.array([i for i, key in enumerate(keys) if key == k], int) for k in range(op.categorical_limit)]

    def test_keys_out_of_range_and_of_another_type(self):
        op = KeySplit(categorical_limit=2).with_arity(1, 2)
        with pytest.raises(
            ShapeError, match=r"keys must lie in \[0, 2\), the categorical_limit, got values from -1 to 2"
        ):
            run_plain(op, [np.int64([2, 0, -1])])
        with pytest.raises(ShapeError, match="keys must be int64, got int32"):
            run_plain(op, [np.int32([1])])

    def test_keys_of_more_axes(self):
        assert [
            y.tolist() for y in run_plain(KeySplit(categorical_limit=3).with_arity(1, 3), [np.int64([[0, 2], [1, 2]])])
        ] == [
            [0],
            [2],
            [1, 3],
        ]


def test_types_of_maps():
    with pytest.raises(ArgumentError, match="keys and values of int32 or int64, got float32 and int32"):
        empty_map(np.float32, np.int32)


# Bytes that Caffe2's release wrote for the keys [5, 3, 9, -2] and the values [1, 2, 3, 4], int32 and int64.
STORED = bytes.fromhex(
    "0a1d08041002220dfeffffffffffffffff010903054202080 05a0408001004".replace(" ", "")
    + "0a140804100a420208005204040302015a0408001004"
)


def test_records_as_caffe2_writes_them():
    kind = kind_named("(std::unordered_map<int32_t, int64_t>)")
    found = kind.read(BlobProto(name="m", content=STORED))
    assert found == {5: 1, 3: 2, 9: 3, -2: 4}
    assert isinstance(found, KeyMap) and (found.key_type, found.value_type) == (np.int32, np.int64)
    blob = BlobProto(name="m")
    kind_of(found).write(blob, found)
    ours, theirs = TensorProtos.FromString(blob.content), TensorProtos.FromString(STORED)
    for tensor in theirs.protos:
        tensor.ClearField("device_detail")
    for tensor in ours.protos:
        tensor.ClearField("device_detail")
    assert ours == theirs
    assert kind_of(found) is kind


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"\xff", "record is broken"), (b"", "got nothing"), (STORED, "keys of int64 as values of int64, got 4 of int32")],
)
def test_broken_records(content, message):
    with pytest.raises(ParseError, match=message):
        kind_named("(std::unordered_map<int64_t, int64_t>)").read(BlobProto(content=content))


def test_files_keep_maps(tmp_path):
    workspace = Workspace()
    workspace.feed("keys", np.int64([7, -1]))
    workspace.feed("values", np.int32([1, 2]))
    workspace.run_operator_once(make_op("KeyValueToMap", ["keys", "values"], ["map"]))
    workspace.run_operator_once(make_op("CreateMap", [], ["none"]))
    where = {"db": str(tmp_path / "db"), "db_type": "minidb", "absolute_path": 1}
    workspace.run_operator_once(make_op("Save", ["map", "none"], [], **where))
    again = Workspace()
    again.run_operator_once(make_op("Load", [], ["map", "none"], **where))
    assert again.fetch("map") == {7: 1, -1: 2}
    assert again.fetch("none") == {} and again.fetch("none").key_type == np.int32
