"""Sum and Mean."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import interpret, run_plain
from netbuilder.graph.gradient_context import operator_gradient
from netbuilder.ops.math.sum import Mean, MeanGradient, Sum
from netbuilder.proto import ShapeError
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from suite import OperatorSuite, f32, floats, i32, refusal


class _Joining(OperatorSuite):
    wrt = (0, 1, 2)

    def draw(self, data):
        shape = data.draw(st.sampled_from([(), (3,), (2, 0), (2, 1, 2)]))
        return self.operator(), [data.draw(floats(*shape)) for _ in range(data.draw(st.integers(1, 4)))]

    def draw_gradient(self, data):
        return self.operator(), [data.draw(floats(2, 3)) for _ in range(3)]


class TestSum(_Joining):
    operator = Sum
    refusals = (
        refusal(Sum(), [f32(2), f32(2), f32(3)], "input 2, X, must have the shape of X"),
        refusal(Sum(), [f32(2), i32(2)], "input 1, X, must have the type of X, float32"),
        refusal(Sum(), [f32(2).with_dtype(bool)], "input 0, X, must have elements of type float or int"),
    )

    def reference(self, op, *xs):
        return [np.sum(np.stack(xs), axis=0)]


class TestMean(_Joining):
    operator = Mean
    refusals = (
        refusal(Mean(), [f32(2), f32(3)], "input 1, X, must have the shape of X"),
        refusal(Mean(), [i32(2), i32(2)], "the inputs must have one floating type"),
    )

    def reference(self, op, *xs):
        return [np.mean(np.stack(xs), axis=0)]


class TestMeanGradient(OperatorSuite):
    operator = MeanGradient
    no_gradient = "a gradient operator"
    refuses_nothing = "any tensor is some output's gradient"

    def draw(self, data):
        return MeanGradient().with_arity(1, data.draw(st.integers(1, 3))), [data.draw(floats(2, (1, 3)))]

    def reference(self, op, dy):
        return [dy / op.n_out] * op.n_out


def test_sum_of_whole_numbers():
    (y,) = run_plain(Sum(), [np.int32([1, 2]), np.int32([3, 4]), np.int32([5, 6])])
    assert y.dtype == np.int32
    assert y.tolist() == [9, 12]


def test_sum_in_half_precision_keeps_its_bits():
    """2048 + 1 is 2048 in float16: the sum is computed in float32 and rounded once."""
    (y,) = run_plain(Sum(), [np.float16([2048]), np.float16([1]), np.float16([1])])
    assert y.dtype == np.float16
    assert y.tolist() == [2050]


def test_sum_hands_its_gradient_through():
    ops, where = operator_gradient(make_op("Sum", ["a", "b", "c"], ["y"]), {0: "dy"})
    assert ops == []
    assert where == {0: "dy", 1: "dy", 2: "dy"}


def test_sum_over_an_input_that_comes_twice():
    workspace = Workspace()
    workspace.feed("a", np.float32([1, 2]))
    workspace.feed("b", np.float32([10, 20]))
    workspace.run_operator_once(make_op("Sum", ["a", "b", "a"], ["a"]))
    assert workspace.fetch("a").tolist() == [12, 24]


def test_mean_gradient_operator():
    ops, where = operator_gradient(make_op("Mean", ["a", "b"], ["y"]), {0: "dy"})
    found = interpret(ops, {"dy": np.float32([4])})
    assert [found[where[i]].tolist() for i in (0, 1)] == [[2], [2]]


@pytest.mark.parametrize("cls", [Sum, Mean])
class TestSideways:
    """One known shape is the shape of all; two that differ are refused."""

    @pytest.mark.parametrize("place", [0, 1, 2])
    def test_from_anywhere(self, cls, place):
        specs = [f32(2, 3) if i == place else None for i in range(3)]
        inputs, outputs = cls().with_arity(2, 1).infer_partial(specs[:2], specs[2:])
        assert [s.shape for s in (*inputs, *outputs)] == [(2, 3)] * 3

    def test_nothing_known(self, cls):
        inputs, outputs = cls().with_arity(2, 1).infer_partial([None, None], [None])
        assert [*inputs, *outputs] == [None, None, None]

    def test_two_that_differ(self, cls):
        with pytest.raises(ShapeError, match=r"input 1 has \(2, 3\), output 0 has \(3, 2\)"):
            cls().with_arity(3, 1).infer_partial([None, f32(2, 3), None], [f32(3, 2)])
