"""GivenTensor fills."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.fills.given_fill import (
    GivenTensorBoolFill,
    GivenTensorByteStringToUInt8Fill,
    GivenTensorDoubleFill,
    GivenTensorFill,
    GivenTensorInt16Fill,
    GivenTensorInt64Fill,
    GivenTensorIntFill,
    GivenTensorStringFill,
)
from netbuilder.proto import ArgumentError
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from suite import OperatorSuite, f32, i64, refusal


def shared_refusals(cls, values):
    return (
        refusal(cls(shape=(7,), values=values), [], r"as many elements as shape \(7,\), 7, got"),
        refusal(cls(shape=(2, 3), values=values), [f32(2)], "not both", ArgumentError),
        refusal(cls(input_as_shape=True, values=values), [i64(1)], "only when the net runs"),
    )


class _Given(OperatorSuite):
    no_gradient = "no gradient passes"
    values = (1, 0, 3, 4, 1, 0)

    def draw(self, data):
        args, inputs = data.draw(
            st.sampled_from(
                [
                    ({"shape": (2, 3)}, []),
                    ({"shape": (6,)}, []),
                    ({}, [np.zeros((3, 2), np.float32)]),
                    ({"extra_shape": (2,)}, [np.zeros(3, np.int32)]),
                    ({"input_as_shape": True}, [np.int64([1, 6])]),
                ]
            )
        )
        return self.operator(values=self.values, **args), inputs

    def reference(self, op, like=None):
        shape = op.shape
        if like is not None:
            shape = tuple(like.astype(int)) if op.input_as_shape else like.shape + op.extra_shape
        return [np.array(self.values).reshape(shape)]


class TestGivenTensorFill(_Given):
    operator, values = GivenTensorFill, (0.5, -1.25, 3.0, 0.0, 1e-3, 7.0)
    refusals = (
        *shared_refusals(GivenTensorFill, (1.0, 2.0)),
        refusal(GivenTensorFill(shape=(1,), values=(b"a",)), [], "list of float32 elements", ArgumentError),
        refusal(GivenTensorFill(shape=(1,), values=(1.0,), dtype="int32"), [], "list of int32", ArgumentError),
    )


class TestGivenTensorDoubleFill(_Given):
    operator, values = GivenTensorDoubleFill, (0.5, -1.25, 3.0, 0.0, 0.25, 7.0)
    refusals = shared_refusals(GivenTensorDoubleFill, (1.0, 2.0))


class TestGivenTensorBoolFill(_Given):
    operator, values = GivenTensorBoolFill, (1, 0, 0, 1, 1, 0)
    refusals = shared_refusals(GivenTensorBoolFill, (1, 0))


class TestGivenTensorInt16Fill(_Given):
    operator = GivenTensorInt16Fill
    refusals = (
        *shared_refusals(GivenTensorInt16Fill, (1, 2)),
        refusal(GivenTensorInt16Fill(shape=(1,), values=(1.5,)), [], "list of int16", ArgumentError),
    )


class TestGivenTensorIntFill(_Given):
    operator = GivenTensorIntFill
    refusals = shared_refusals(GivenTensorIntFill, (1, 2))


class TestGivenTensorInt64Fill(_Given):
    operator, values = GivenTensorInt64Fill, (1, -(2**40), 3, 4, 5, 6)
    refusals = shared_refusals(GivenTensorInt64Fill, (1, 2))


class TestGivenTensorByteStringToUInt8Fill(_Given):
    operator = GivenTensorByteStringToUInt8Fill
    refusals = (
        *shared_refusals(GivenTensorByteStringToUInt8Fill, (b"ab",)),
        refusal(GivenTensorByteStringToUInt8Fill(values=(1,)), [], "one string of bytes", ArgumentError),
    )

    def draw(self, data):
        op, inputs = super().draw(data)
        return type(op)(
            shape=op.shape, extra_shape=op.extra_shape, input_as_shape=op.input_as_shape, values=(bytes(self.values),)
        ), inputs


class TestGivenTensorStringFill(_Given):
    operator = GivenTensorStringFill
    refusals = (
        *shared_refusals(GivenTensorStringFill, (b"a", b"b")),
        refusal(GivenTensorStringFill(shape=(1,), values=(1,)), [], "list of object elements", ArgumentError),
    )
    values = (b"a", b"", b"\xff\x00", b"four", b"5", b"six")

    def reference(self, op, like=None):
        shape = super().reference(op, like)[0].shape
        return [np.array(self.values, object).reshape(shape)]

    def test_inplace(self):
        workspace = Workspace()
        workspace.feed("x", np.zeros((3, 2), np.float32))
        workspace.run_operator_once(make_op("GivenTensorStringFill", ["x"], ["x"], values=list(self.values)))
        assert workspace.fetch("x").tolist() == [[b"a", b""], [b"\xff\x00", b"four"], [b"5", b"six"]]


def test_dtype_of_the_float_fill():
    (y,) = run_plain(GivenTensorFill(shape=(2,), values=(1, 2), dtype=10), [])
    assert y.dtype == np.int64
    assert y.tolist() == [1, 2]


@pytest.mark.parametrize("shape", [[0], [2, 0]])
def test_no_values(shape):
    workspace = Workspace()
    workspace.run_operator_once(make_op("GivenTensorFill", [], ["y"], shape=shape, values=[]))
    assert workspace.fetch("y").shape == tuple(shape)
