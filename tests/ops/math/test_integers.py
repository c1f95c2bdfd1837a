"""Mod, BitwiseAnd, BitwiseOr, BitwiseXor."""

import operator as python

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder import Workspace
from netbuilder.ops.math.integers import BitwiseAnd, BitwiseOr, BitwiseXor, Mod
from netbuilder.proto import ArgumentError
from netbuilder.proto.arguments import make_op
from suite import OperatorSuite, f32, i32, i64, refusal

NUMBERS = st.integers(-20, 20)
LARGE = st.integers(-(2**63), 2**63 - 1)


class TestMod(OperatorSuite):
    operator = Mod
    no_gradient = "it has none"
    refusals = (
        refusal(Mod(), [i32(2)], "or a second input, must be given, and must not be 0", ArgumentError),
        refusal(Mod(divisor=2), [f32(2)], "X must hold signed integers, got float32"),
        refusal(Mod(), [i32(2), i32(3)], r"X \(2,\) and D \(3,\) do not broadcast"),
        refusal(Mod(divisor=2**31), [i32(2)], "the divisor of int32 numbers must lie in .*, got 2147483648"),
    )

    def draw(self, data):
        if data.draw(st.booleans()):  # the divisors are an input
            dtype = data.draw(st.sampled_from([np.float32, np.float64, np.int32]))
            pairs = data.draw(st.lists(st.tuples(st.integers(-50, 50), st.integers(-9, 9).filter(bool)), max_size=5))
            x, divisors = np.array(pairs, dtype).reshape(-1, 2).T.copy()
            return Mod(sign_follow_divisor=data.draw(st.booleans())), [x, divisors]
        dtype = data.draw(st.sampled_from([np.int32, np.int64]))
        numbers = data.draw(st.sampled_from([NUMBERS, LARGE])) if dtype is np.int64 else NUMBERS
        divisor = data.draw(numbers.filter(bool))
        x = np.array(data.draw(st.lists(numbers, max_size=5)), dtype)
        return Mod(divisor=divisor, sign_follow_divisor=data.draw(st.booleans())), [x]

    def reference(self, op, x, divisors=None):
        pairs = zip(x.tolist(), [op.divisor] * len(x) if divisors is None else divisors.tolist())
        rest = [v % by if op.sign_follow_divisor else truncated(v, by) for v, by in pairs]
        return [np.array(rest, x.dtype)]


def truncated(value, divisor):
    rest = abs(value) % abs(divisor)
    return rest if value >= 0 else -rest


@pytest.mark.parametrize("follow", [False, True])
def test_remainders_by_an_input(follow):
    op = Mod(sign_follow_divisor=follow)
    x, d = np.int64([[7, -7, 8]]), np.int64([[3], [-3]])
    (y,) = run_plain(op, [x, d])
    assert y.tolist() == ([[1, 2, 2], [-2, -1, -1]] if follow else [[1, -1, 2], [1, -1, 2]])
    (y,) = run_plain(op, [np.float32([5.5, -5.5]), np.float32([2, 2])])
    assert y.tolist() == ([1.5, 0.5] if follow else [1.5, -1.5])
    with pytest.raises(ZeroDivisionError, match="the integers of D must not be 0"):
        run_plain(op, [x, np.int64([0])])


class _Bitwise(OperatorSuite):
    no_gradient = "it has none"

    def draw(self, data):
        dtype = data.draw(st.sampled_from([np.int32, np.int64, np.bool_]))
        rng = np.random.default_rng(data.draw(st.integers(0, 99)))
        a, b = (
            rng.integers(-9, 9, shape).astype(dtype) for shape in ((2, 3), data.draw(st.sampled_from([(2, 3), (3,)])))
        )
        if b.ndim == 1 and data.draw(st.booleans()):
            return self.operator(broadcast=True), [a, b]
        return self.operator(), [a, b]

    def reference(self, op, a, b):
        rows = [[self.combine(int(p), int(q)) for p, q in zip(*row)] for row in zip(a, np.broadcast_to(b, a.shape))]
        return [np.array(rows)]


def refused(cls):
    return (
        refusal(cls(), [f32(2), f32(2)], "integers or bools, got float32"),
        refusal(cls(), [i32(2), i64(2)], "the same type, got int32 and int64"),
        refusal(cls(), [i32(2), i32(3)], "do not broadcast"),
    )


class TestBitwiseAnd(_Bitwise):
    operator, combine = BitwiseAnd, staticmethod(python.and_)
    refusals = refused(BitwiseAnd)


class TestBitwiseOr(_Bitwise):
    operator, combine = BitwiseOr, staticmethod(python.or_)
    refusals = refused(BitwiseOr)


class TestBitwiseXor(_Bitwise):
    operator, combine = BitwiseXor, staticmethod(python.xor)
    refusals = refused(BitwiseXor)


def test_a_remainder_in_place_of_its_input():
    workspace = Workspace()
    workspace.feed("x", np.array([7, -7, 5], np.int32))
    workspace.run_operator_once(make_op("Mod", ["x"], ["x"], divisor=3))
    assert workspace.fetch("x").tolist() == [1, -1, 2]
