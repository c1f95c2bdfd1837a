"""Indexes: IntIndexCreate and the other makers, IndexGet, IndexLoad, IndexStore, IndexFreeze, IndexSize."""

import numpy as np
import pytest

from checks import run_plain
from netbuilder.data.key_index import Index
from netbuilder.ops.core.operator import STRING, TensorSpec
from netbuilder.ops.features.index import (
    IndexFreeze,
    IndexGet,
    IndexLoad,
    IndexSize,
    IndexStore,
    IntIndexCreate,
    LongIndexCreate,
    StringIndexCreate,
)
from netbuilder.proto import ArgumentError, BlobProto, NetError, OperatorError, ShapeError
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from suite import OperatorSuite, f32, i32, refusal

OBJECT = TensorSpec((), STRING)
KEYS = {
    "IntIndexCreate": np.int32([5, 7, 5, 9]),
    "LongIndexCreate": np.int64([2**40, 7, 2**40, 9]),
    "StringIndexCreate": np.array([b"b", b"a", b"b", b"c"], object),
}


class _Object(OperatorSuite):
    no_gradient = "works on a shared object"
    refusals = ()

    def test_refusals(self):
        op = self.operator()
        with pytest.raises(ShapeError, match="input 0 must be an index, got a tensor of type float32"):
            op.infer(f32(3), *[i32(2)] * (op.n_in - 1))


class _Makes(OperatorSuite):
    no_gradient = "makes an object"

    @property
    def refusals(self):
        return (refusal(self.operator(max_elements=0), [], "max_elements must be positive", ArgumentError),)

    def draw(self, data):
        return self.operator(), []

    def test_forward(self):
        """Keys are numbered from 1 in order of arrival; a frozen index returns 0 for others."""
        name = self.operator.__name__
        keys = KEYS[name]
        workspace = Workspace()
        workspace.run_operator_once(make_op(name, [], ["index"]))
        workspace.feed("keys", keys)
        workspace.feed("other", keys[::-1][:1].reshape(1, 1))
        for op_type, inputs, output in (
            ("IndexGet", ["index", "keys"], "numbers"),
            ("IndexSize", ["index"], "size"),
            ("IndexStore", ["index"], "stored"),
        ):
            workspace.run_operator_once(make_op(op_type, inputs, [output]))
        np.testing.assert_array_equal(workspace.fetch("numbers"), [1, 2, 1, 3])
        assert (workspace.fetch("size").shape, int(workspace.fetch("size"))) == ((), 4)
        assert list(workspace.fetch("stored")) == list(keys[[0, 1, 3]])
        for op in (
            make_op("IndexLoad", ["index", "other"], ["index"]),
            make_op("IndexFreeze", ["index"], ["index"]),
            make_op("IndexGet", ["index", "keys"], ["numbers"]),
        ):
            workspace.run_operator_once(op)
        np.testing.assert_array_equal(workspace.fetch("numbers"), [0, 0, 0, 1])


class TestIntIndexCreate(_Makes):
    operator = IntIndexCreate


class TestLongIndexCreate(_Makes):
    operator = LongIndexCreate


class TestStringIndexCreate(_Makes):
    operator = StringIndexCreate


def loaded():
    index = Index(np.dtype(np.int32))
    index.load(np.int32([5, 6]))
    return index


class TestIndexGet(_Object):
    operator = IndexGet

    def draw(self, data):
        return IndexGet(), [loaded(), np.int32([[6, 8, 5, 8]])]

    def reference(self, op, index, keys):
        return [np.array([[2, 3, 1, 3]])]


class TestIndexLoad(_Object):
    operator = IndexLoad

    def draw(self, data):
        return IndexLoad(skip_first_entry=True), [loaded(), np.int32([4, 3])]

    def test_forward(self):
        op, given = self.draw(None)
        (index,) = run_plain(op, given)
        assert index.keys.tolist() == [3]


class TestIndexStore(_Object):
    operator = IndexStore

    def draw(self, data):
        return IndexStore(), [loaded()]

    def reference(self, op, index):
        return [np.array([5, 6])]


class TestIndexFreeze(TestIndexStore):
    operator = IndexFreeze

    def draw(self, data):
        return IndexFreeze(), [loaded()]

    def test_forward(self):
        (index,) = run_plain(*self.draw(None))
        assert index.frozen
        assert index.get(np.int32([6, 7])).tolist() == [2, 0]


class TestIndexSize(TestIndexStore):
    operator = IndexSize

    def draw(self, data):
        return IndexSize(), [loaded()]

    def reference(self, op, index):
        return [np.array(3)]


def test_no_room():
    index = Index(np.dtype(np.int32), 3)
    with pytest.raises(OperatorError, match="has capacity for 3 elements, number 0 included, but needs 4"):
        index.get(np.int32([5, 7, 9]))
    assert len(index) == 1


def test_repeated_keys():
    with pytest.raises(OperatorError, match="some occur twice"):
        loaded().load(np.int32([1, 1]))


def test_keys_of_another_type():
    with pytest.raises(ShapeError, match="keys must be of the index's type, int32, got int64"):
        run_plain(IndexGet(), [loaded(), np.int64([5])])


def test_no_index():
    with pytest.raises(NetError, match="must be what IntIndexCreate, LongIndexCreate or StringIndexCreate makes"):
        run_plain(IndexSize(), [np.array([b"x"], object)])


def test_a_record_keeps_keys_and_whether_it_is_frozen():
    from netbuilder.data.object_records import kind_named, kind_of

    index = loaded()
    index.frozen = True
    kind, blob = kind_of(index), BlobProto(name="index")
    kind.write(blob, index)
    read = kind_named(kind.name).read(blob)
    assert (read.keys.tolist(), read.frozen, read.max_elements) == ([5, 6], True, 2**31 - 1)
    assert (blob.content, kind.name) == (b"2147483647 1", "std::unique_ptr<caffe2::IndexBase>")
