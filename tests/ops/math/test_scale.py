"""Scale and WeightedSum."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.graph.gradient_context import operator_gradient
from netbuilder.ops.math.scale import Scale, WeightedSum, WeightedSumGradient
from netbuilder.proto import NetError
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from suite import OperatorSuite, f32, floats, i32, refusal


class TestScale(OperatorSuite):
    operator = Scale
    refusals = (refusal(Scale(scale=2.0), [i32(2)], "the inputs must have one floating type"),)

    def draw(self, data):
        shape = data.draw(st.sampled_from([(), ((0, 4),), (2, (1, 3))]))
        return Scale(scale=data.draw(st.sampled_from([1.0, -0.5, 2.5]))), [data.draw(floats(*shape))]

    def reference(self, op, x):
        return [op.scale * x]


def draw_pairs(data):
    shape = data.draw(st.sampled_from([(), (3,), (2, 2)]))
    pairs = []
    for _ in range(data.draw(st.integers(1, 3))):
        pairs += [data.draw(floats(*shape)), data.draw(floats(*data.draw(st.sampled_from([(), (1,)]))))]
    return pairs


class TestWeightedSum(OperatorSuite):
    operator = WeightedSum
    wrt = (0, 1, 2, 3)
    refusals = (
        refusal(WeightedSum(), [f32(2), f32(1), f32(2)], "pairs of a tensor and its weight"),
        refusal(WeightedSum(), [f32(2), f32(1), f32(3), f32(1)], "X1 must have the shape and type of X0"),
        refusal(WeightedSum(), [f32(2), f32(2)], r"w0 must have one element, got shape \(2,\)"),
        refusal(WeightedSum(), [i32(2), f32(1)], "the inputs must have one floating type, got X0 int32"),
    )

    def draw(self, data):
        return WeightedSum(), draw_pairs(data)

    def draw_gradient(self, data):
        return WeightedSum(grad_on_w=True), [data.draw(floats(*s)) for s in ((2, 2), (1,), (2, 2), ())]

    def reference(self, op, *pairs):
        return [sum(x * w.item() for x, w in zip(pairs[::2], pairs[1::2]))]


class TestWeightedSumGradient(OperatorSuite):
    operator = WeightedSumGradient
    no_gradient = "a gradient operator"
    refusals = (
        refusal(WeightedSumGradient(), [f32(2), f32(2), f32(1), f32(2)], "takes dY and pairs"),
        refusal(WeightedSumGradient(), [f32(2), f32(2), f32(1)], "makes 1 outputs of 3 inputs", n_out=2),
        refusal(WeightedSumGradient(grad_on_w=True), [f32(2), f32(2), f32(1)], "makes 2 outputs", n_out=1),
        refusal(WeightedSumGradient(), [f32(3), f32(2), f32(1)], r"dY \(3,\) must have the shape of X0"),
    )

    def draw(self, data):
        pairs = draw_pairs(data)
        op = WeightedSumGradient(grad_on_w=data.draw(st.booleans()))
        dy = data.draw(floats(*pairs[0].shape))
        return op.with_arity(1 + len(pairs), len(pairs) if op.grad_on_w else len(pairs) // 2), [dy, *pairs]

    def reference(self, op, dy, *pairs):
        tensors = [dy * w.item() for w in pairs[1::2]]
        weights = [np.vdot(x, dy).reshape(w.shape) for x, w in zip(pairs[::2], pairs[1::2])]
        return tensors + weights if op.grad_on_w else tensors


def test_weights_have_gradients_on_request_only():
    op = make_op("WeightedSum", ["a", "wa", "b", "wb"], ["y"])
    assert operator_gradient(op, {0: "dy"})[1].keys() == {0, 2}
    op = make_op("WeightedSum", ["a", "wa", "b", "wb"], ["y"], grad_on_w=1)
    assert operator_gradient(op, {0: "dy"})[1].keys() == {0, 1, 2, 3}


def test_sgd_step_in_place():
    workspace = Workspace()
    for name, value in (("p", [1, 2]), ("one", [1]), ("g", [10, 20]), ("rate", [-0.1])):
        workspace.feed(name, np.float32(value))
    for _ in range(2):
        workspace.run_operator_once(make_op("WeightedSum", ["p", "one", "g", "rate"], ["p"]))
    np.testing.assert_allclose(workspace.fetch("p"), [-1, -2], atol=1e-6)


def test_weighted_sum_over_an_input_that_comes_twice():
    workspace = Workspace()
    for name, value in (("p", [1, 2]), ("w", [3]), ("v", [5])):
        workspace.feed(name, np.float32(value))
    workspace.run_operator_once(make_op("WeightedSum", ["p", "w", "p", "v"], ["p"]))
    assert workspace.fetch("p").tolist() == [8, 16]


def test_weighted_sum_in_half_precision():
    xs = [np.float16([2048]), np.float32([1]), np.float16([1]), np.float32([1]), np.float16([1]), np.float32([1])]
    (y,) = run_plain(WeightedSum(), xs)
    assert y.dtype == np.float16
    assert y.tolist() == [2050]


def test_odd_number_of_inputs_is_refused_by_the_workspace():
    workspace = Workspace()
    workspace.feed("p", np.float32([1]))
    with pytest.raises(NetError, match="pairs of a tensor and its weight"):
        workspace.run_operator_once(make_op("WeightedSum", ["p", "p", "p"], ["y"]))


@pytest.mark.parametrize("engines", [(), None])
def test_a_share_is_exact_in_float64(engines):
    workspace = Workspace(engines=engines)
    workspace.feed("x", np.float64([1, 3]))
    for scale, want in ((1 / 3, 1 / 3), (-1 / 7, -1 / 7), (0.7, float(np.float32(0.7))), (2.0, 2.0), (0.0, 0.0)):
        workspace.run_operator_once(make_op("Scale", ["x"], ["y"], scale=scale))
        assert workspace.fetch("y").tolist() == [want, 3 * want]
