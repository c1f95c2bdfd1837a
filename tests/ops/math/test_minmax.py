"""Max, Min, ArgMax, ArgMin."""

import functools

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.math.minmax import ArgMax, ArgMin, Max, MaxGradient, Min, MinGradient
from suite import OperatorSuite, f32, floats, i32, refusal


class _Extremum(OperatorSuite):
    wrt = (0, 1, 2)
    function = None

    def draw(self, data):
        shape = data.draw(st.sampled_from([(), (3,), (2, 2)]))
        other = data.draw(st.sampled_from([shape, shape[-1:], (1,) * len(shape)]))  # is broadcast
        count = data.draw(st.integers(1, 3))
        return self.operator(), [data.draw(floats(*(other if i == 1 else shape))) for i in range(count)]

    def draw_gradient(self, data):
        far = data.draw(floats(6, 2, low=-3, apart=0.3))  # no two are so near that a step swaps them
        return self.operator(), [far[:2], far[2:4], far[4:5]]

    def reference(self, op, *xs):
        return [functools.reduce(type(self).function, xs)]


def unlike(cls):
    return (
        refusal(
            cls(),
            [f32(2), f32(3), f32(2)],
            r"X0 \(2,\) and X1 \(3,\) and X2 \(2,\) do not broadcast|Y and dY must have",
        ),
        refusal(cls(), [f32(2), i32(2), f32(2)], "type"),
    )


class TestMax(_Extremum):
    operator, function = Max, staticmethod(lambda a, b: np.where(a > b, a, b))
    refusals = unlike(Max)


class TestMin(_Extremum):
    operator, function = Min, staticmethod(lambda a, b: np.where(a < b, a, b))
    refusals = unlike(Min)


class _ExtremumGradient(OperatorSuite):
    no_gradient = "a gradient operator"
    choose = None

    def draw(self, data):
        count = data.draw(st.integers(1, 3))
        rng = np.random.default_rng(data.draw(st.integers(0, 99)))
        xs = [rng.integers(0, 3, (2, 3)).astype(np.float32) for _ in range(count)]  # ties are common
        y = type(self).choose(np.stack(xs), axis=0)
        return self.operator().with_arity(2 + count, count), [y, data.draw(floats(2, 3)), *xs]

    def reference(self, op, y, dy, *xs):
        return [np.where(x == y, dy, 0) for x in xs]


class TestMaxGradient(_ExtremumGradient):
    operator, choose = MaxGradient, staticmethod(np.max)
    refusals = unlike(MaxGradient)


class TestMinGradient(_ExtremumGradient):
    operator, choose = MinGradient, staticmethod(np.min)
    refusals = unlike(MinGradient)


def test_whole_numbers_and_unknowns():
    (y,) = run_plain(Max(), [np.int64([1, 5]), np.int64([3])])
    assert y.tolist() == [3, 5] and y.dtype == np.int64
    (y,) = run_plain(Min(), [np.float32([np.nan, 1]), np.float32([0, np.inf])])
    assert np.isnan(y[0]) and y[1] == 1


def test_the_gradient_of_what_was_broadcast_is_summed():
    x, z = np.float32([[1, 5], [7, 2]]), np.float32([3, 3])
    y = np.maximum(x, z)
    dx, dz = run_plain(MaxGradient().with_arity(4, 2), [y, np.float32([[1, 2], [3, 4]]), x, z])
    assert dx.tolist() == [[0, 2], [3, 0]] and dz.tolist() == [1, 4]


class _Arg(OperatorSuite):
    no_gradient = "it has none"
    best = None

    def draw(self, data):
        rng = np.random.default_rng(data.draw(st.integers(0, 99)))
        x = rng.integers(0, 3, (2, 3, 2)).astype(data.draw(st.sampled_from([np.float32, np.int32])))
        return self.operator(axis=data.draw(st.integers(-3, 2)), keepdims=data.draw(st.booleans())), [x]

    def reference(self, op, x):
        rows = np.moveaxis(x, op.axis, -1)
        found = np.array([[row.tolist().index(type(self).best(row)) for row in plane] for plane in rows])
        return [np.expand_dims(found, op.axis % 3) if op.keepdims else found]


def arg_refusals(cls):
    return (
        refusal(cls(axis=2), [f32(2, 3)], r"axis must lie in \[-2, 2\)"),
        refusal(cls(), [f32(2, 0)], "no elements to choose from"),
        refusal(cls(), [f32(2).with_dtype(bool)], "X must have elements of type float or int, got bool"),
    )


class TestArgMax(_Arg):
    operator, best = ArgMax, staticmethod(max)
    refusals = arg_refusals(ArgMax)


class TestArgMin(_Arg):
    operator, best = ArgMin, staticmethod(min)
    refusals = arg_refusals(ArgMin)


@pytest.mark.parametrize("op", [Max(), Min()])
def test_the_inputs_stay(op):
    """One input's result is that input; it is not written to."""
    x = np.float32([1, 2])
    (y,) = run_plain(op, [x])
    assert y.tolist() == [1, 2]
