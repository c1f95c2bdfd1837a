"""StringPrefix, StringSuffix, StringStartsWith, StringEndsWith, StringEquals, StringJoin."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.core.operator import STRING
from netbuilder.ops.records.strings import (
    StringEndsWith,
    StringEquals,
    StringJoin,
    StringPrefix,
    StringStartsWith,
    StringSuffix,
)
from netbuilder.proto import ArgumentError, ShapeError
from netbuilder.runtime import Workspace
from suite import OperatorSuite, f32, refusal

PARTS = [b"", b"a", b"ab", b"abc", b"cab\x00", "hé".encode()]


class _Strings(OperatorSuite):
    no_gradient = "strings have none"
    values = {}

    @property
    def refusals(self):
        return (refusal(self.operator(), [f32(2)], "strings must have elements of type string"),)

    def draw(self, data):
        shape = data.draw(st.sampled_from([(), (0,), (5,), (2, 3)]))
        strings = np.empty(shape, STRING)
        for where in np.ndindex(*shape):
            strings[where] = b"".join(data.draw(st.lists(st.sampled_from(PARTS), max_size=3)))
        return self.operator(**{name: data.draw(options) for name, options in self.values.items()}), [strings]

    def reference(self, op, strings):
        made = np.empty(strings.shape, op.result_type)
        for where in np.ndindex(*strings.shape):
            made[where] = self.one(op, strings[where])
        return [made]


class TestStringPrefix(_Strings):
    operator = StringPrefix
    values = {"length": st.integers(0, 9)}

    @property
    def refusals(self):
        return (
            *super().refusals,
            refusal(self.operator(length=-1), [f32(2)], "not be negative, got -1", ArgumentError),
        )

    def one(self, op, text):
        return bytes(byte for i, byte in enumerate(text) if i < op.length)


class TestStringSuffix(TestStringPrefix):
    operator = StringSuffix

    def one(self, op, text):
        return bytes(byte for i, byte in enumerate(text) if len(text) - i <= op.length)


class TestStringStartsWith(_Strings):
    operator = StringStartsWith
    values = {"prefix": st.sampled_from(PARTS)}

    def one(self, op, text):
        return text.find(op.prefix) == 0


class TestStringEndsWith(_Strings):
    operator = StringEndsWith
    values = {"suffix": st.sampled_from(PARTS)}

    def one(self, op, text):
        return text[::-1].find(op.suffix[::-1]) == 0


class TestStringEquals(_Strings):
    operator = StringEquals
    values = {"text": st.sampled_from(PARTS)}

    def one(self, op, text):
        return list(text) == list(op.text)


class TestStringJoin(OperatorSuite):
    operator = StringJoin
    no_gradient = "strings have none"
    refusals = (
        refusal(StringJoin(axis=2), [f32(2, 2)], "axis must be 0 or 1, got 2", ArgumentError),
        refusal(StringJoin(axis=1), [f32(2)], r"axis 1 needs a matrix, got shape \(2,\)"),
        refusal(StringJoin(), [f32(2, 0)], "a vector or a matrix with elements"),
        refusal(StringJoin(), [f32(1, 1, 1)], "a vector or a matrix with elements"),
    )

    def draw(self, data):
        shape = data.draw(st.sampled_from([(3,), (2, 3), (1, 1)]))
        x = np.array(data.draw(st.lists(st.integers(-9, 9), min_size=6, max_size=6)))[: int(np.prod(shape))]
        axis = data.draw(st.integers(0, len(shape) - 1))
        return StringJoin(axis=axis, delimiter=data.draw(st.sampled_from([b",", b"--"]))), [x.reshape(shape)]

    def reference(self, op, x):
        rows = [[n] for n in x] if x.ndim == 1 else x if op.axis == 0 else zip(*x)
        return [np.array(["".join(f"{n}{op.delimiter.decode()}" for n in row).encode() for row in rows], STRING)]


@pytest.mark.parametrize(
    ("x", "joined"),
    [
        (np.float32([[1, 2.5, 1e10], [0.1, 1 / 3, -1e-7]]), [b"1,2.5,1e+10,", b"0.1,0.333333,-1e-07,"]),
        (np.float64([[np.inf, np.nan, -0.0]]), [b"inf,nan,-0,"]),
        (np.array([[True, False]]), [b"1,0,"]),
        (np.array([b"", "hé".encode()], STRING), [b",", "hé,".encode()]),
    ],
)
def test_join_as_caffe2_does(x, joined):
    assert run_plain(StringJoin(), [x])[0].tolist() == joined


def test_a_net_reads_strings_that_were_fed():
    from netbuilder.proto.arguments import make_op

    workspace = Workspace()
    workspace.feed("s", np.array(["user:1", "item:2"]))
    workspace.run_operator_once(make_op("StringStartsWith", ["s"], ["of_users"], prefix="user:"))
    assert workspace.fetch("of_users").tolist() == [True, False]
    workspace.feed("n", np.float32([1]))
    with pytest.raises(ShapeError, match="StringEquals: strings must have elements of type string, got float32"):
        workspace.run_operator_once(make_op("StringEquals", ["n"], ["y"], text="a"))
