"""Comparisons, logic, Where."""

import operator

import numpy as np
from hypothesis import strategies as st

from netbuilder.ops.math.compare import EQ, GE, GT, LE, LT, NE, And, Conditional, Not, Or, Where, WhereGradient, Xor
from netbuilder.proto import ArgumentError
from suite import OperatorSuite, f32, i32, refusal


def bools(*shape):
    return f32(*shape).with_dtype(bool)


def integers(data, shape, dtype):
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    return rng.integers(0, 3, shape).astype(dtype)


class _Pair(OperatorSuite):
    no_gradient = "it has none"
    dtypes = (np.float32, np.int32, np.int64, np.bool_)
    function = None

    def draw(self, data):
        args, shape = data.draw(
            st.sampled_from(
                [
                    ({}, (2, 3)),
                    ({}, (3,)),
                    ({}, (2, 1)),
                    ({}, (2, 1, 1)),
                    ({"broadcast": True}, (3,)),
                    ({"broadcast": True}, ()),
                    ({"broadcast": True, "axis": 0}, (2,)),
                ]
            )
        )
        dtype = data.draw(st.sampled_from(self.dtypes))
        return self.operator(**args), [integers(data, (2, 3), dtype), integers(data, shape, dtype)]

    def reference(self, op, a, b):
        b = b.reshape(2, 1) if op.axis == 0 else b
        a, b = np.broadcast_arrays(a, b)
        found = [type(self).function(x, y) for x, y in zip(a.ravel().tolist(), b.ravel().tolist())]
        return [np.array(found).reshape(a.shape)]


def shared_refusals(cls):
    return (
        refusal(cls(), [f32(2, 3).with_dtype(object)] * 2, "cannot compare"),
        refusal(cls(axis=1), [bools(2, 3), bools(2)], "need broadcast=1", ArgumentError),
    )


class TestEQ(_Pair):
    operator, function = EQ, staticmethod(operator.eq)
    refusals = (*shared_refusals(EQ), refusal(EQ(), [f32(2), i32(2)], "the same type"))


class TestNE(_Pair):
    operator, function = NE, staticmethod(operator.ne)
    refusals = shared_refusals(NE)


class TestLT(_Pair):
    operator, function = LT, staticmethod(operator.lt)
    refusals = shared_refusals(LT)


class TestLE(_Pair):
    operator, function = LE, staticmethod(operator.le)
    refusals = (*shared_refusals(LE), refusal(LE(), [f32(2), f32(3)], "do not broadcast"))


class TestGT(_Pair):
    operator, function = GT, staticmethod(operator.gt)
    refusals = shared_refusals(GT)


class TestGE(_Pair):
    operator, function = GE, staticmethod(operator.ge)
    refusals = shared_refusals(GE)


class _Logic(_Pair):
    dtypes = (np.bool_,)


def logic_refusals(cls):
    return (*shared_refusals(cls), refusal(cls(), [i32(2), i32(2)], "cannot compare elements of type int32"))


class TestAnd(_Logic):
    operator, function = And, staticmethod(operator.and_)
    refusals = logic_refusals(And)


class TestOr(_Logic):
    operator, function = Or, staticmethod(operator.or_)
    refusals = logic_refusals(Or)


class TestXor(_Logic):
    operator, function = Xor, staticmethod(operator.xor)
    refusals = logic_refusals(Xor)


class TestNot(OperatorSuite):
    operator = Not
    no_gradient = "it has none"
    refusals = (refusal(Not(), [i32(2)], "X must have elements of type bool"),)

    def draw(self, data):
        return Not(), [integers(data, data.draw(st.sampled_from([(), (4,), (2, 0)])), np.bool_)]

    def reference(self, op, x):
        return [x ^ True]


class TestWhere(OperatorSuite):
    operator = Where
    wrt = (1, 2)
    refusals = (
        refusal(Where(), [i32(2), f32(2), f32(2)], "C must have elements of type bool, got int32"),
        refusal(Where(), [bools(2), f32(2), i32(2)], "Z must have the type of X, float32, got int32"),
        refusal(Where(), [bools(2), f32(2, 3), f32(2, 3)], r"C \(2,\) and X \(2, 3\) and Z \(2, 3\) do not broadcast"),
        refusal(
            Where(broadcast_on_rows=True),
            [bools(2, 3), f32(2, 3), f32(2, 3)],
            "C must have one element for each row of X",
        ),
    )

    def draw(self, data):
        rows = data.draw(st.booleans())
        dtype = data.draw(st.sampled_from([np.float32, np.int32]))
        shapes = [(3, 2), (3, 1), (2,), ()]
        c = integers(data, (3,) if rows else data.draw(st.sampled_from(shapes)), np.bool_)
        x, z = (integers(data, (3, 2) if rows else data.draw(st.sampled_from(shapes)), dtype) for _ in range(2))
        return Where(broadcast_on_rows=rows), [c, x, z]

    def draw_gradient(self, data):
        op, (c, x, z) = self.draw(data)
        return op, [c, x.astype(np.float32), z.astype(np.float32)]

    def reference(self, op, c, x, z):
        c = np.repeat(c[:, None], 2, axis=1) if op.broadcast_on_rows else c
        return [c * x + ~c * z]


class TestWhereGradient(OperatorSuite):
    operator = WhereGradient
    no_gradient = "a gradient operator"
    refusals = (refusal(WhereGradient(), [bools(2), f32(2), f32(2), f32(3)], "dY must have"),)

    def draw(self, data):
        c, dy = integers(data, (3, 2), np.bool_), integers(data, (3, 2), np.float32)
        return WhereGradient(), [c, np.ones((2,), np.float32), np.ones((3, 1), np.float32), dy]

    def reference(self, op, c, x, z, dy):
        return [(c * dy).sum(axis=0), (~c * dy).sum(axis=1, keepdims=True)]


class TestConditional(OperatorSuite):
    operator = Conditional
    no_gradient = "it has none"
    refusals = (
        refusal(Conditional(), [i32(2), f32(2), f32(2)], "C must have elements of type bool"),
        refusal(Conditional(), [bools(2), f32(2), i32(2)], "Z must have the type of X, float32"),
        refusal(Conditional(), [bools(1), f32(2, 3), f32(2, 3)], r"X must have shape \(1, 3\) = \(N, \*S\)"),
    )

    def draw(self, data):
        shape = data.draw(st.sampled_from([(3,), (3, 2), (1, 2, 2), (0, 2)]))
        dtype = data.draw(st.sampled_from([np.float32, np.int64, np.bool_]))
        rest = [integers(data, shape, dtype) for _ in range(2)]
        return Conditional(), [integers(data, shape[:1], np.bool_), *rest]

    def reference(self, op, c, x, z):
        return [np.array([x[i] if yes else z[i] for i, yes in enumerate(c)], x.dtype).reshape(x.shape)]
