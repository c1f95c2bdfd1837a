"""Dropout and its gradient."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.graph.gradient_context import operator_gradient
from netbuilder.ops.activations.dropout import Dropout, DropoutGrad
from netbuilder.ops.core.registry import plain_kernel
from netbuilder.proto import ArgumentError, GradientError, NetDef
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from netbuilder.runtime.plan.run_context import KernelContext
from suite import OperatorSuite, f32, floats, i32, refusal

RATIOS = st.sampled_from([0.0, 0.25, 0.5, 0.9])


class TestDropout(OperatorSuite):
    operator = Dropout
    refusals = (
        refusal(Dropout(), [i32(3)], "the inputs must have one floating type, got X int32"),
        refusal(Dropout(ratio=1.0), [f32(3)], r"ratio, the fraction dropped, must lie in \[0, 1\)", ArgumentError),
        refusal(Dropout(ratio=-0.1), [f32(3)], "got -0.1", ArgumentError),
        refusal(Dropout(sample_axis=-1), [f32(3)], "sample_axis must be 0 or more, got -1", ArgumentError),
        refusal(Dropout(sample_axis=1), [f32(3)], r"sample_axis must be an axis of X, of shape \(3,\), got 1"),
    )

    def draw(self, data):
        # Random results have no reference, so nothing is dropped here; the masks are tested below.
        op = Dropout(ratio=0.5, is_test=True) if data.draw(st.booleans()) else Dropout(ratio=0.0)
        return op.with_arity(1, data.draw(st.integers(1, 2))), [data.draw(floats((1, 3), (1, 4)))]

    def draw_gradient(self, data):
        op = Dropout(ratio=data.draw(RATIOS), is_test=data.draw(st.booleans())).with_arity(1, 2)
        return op, [data.draw(floats((1, 3), (1, 4)))]

    def reference(self, op, x):
        return [x, np.ones(x.shape, bool)][: op.n_out]


class TestDropoutGrad(OperatorSuite):
    operator = DropoutGrad
    no_gradient = "a gradient operator"
    refusals = (
        refusal(DropoutGrad(), [f32(3)], "needs Dropout's mask as its second input"),
        refusal(DropoutGrad(), [f32(3), f32(4)], r"mask must have the shape of dY, \(3,\)"),
    )

    def draw(self, data):
        dy = data.draw(floats((1, 3), (1, 4)))
        op = DropoutGrad(ratio=data.draw(RATIOS), is_test=data.draw(st.booleans()))
        return op, [dy] if op.is_test else [dy, data.draw(floats(*dy.shape)) > 0]

    def reference(self, op, dy, mask=None):
        return [dy if op.is_test else np.where(mask, dy / (1 - op.ratio), 0)]


def masks(replica, rows, ratio=0.5, iteration=0):
    clock = SimpleNamespace(iteration=iteration)
    context = KernelContext(make_op("Dropout", ["x"], ["y", "mask"]), seed=7, replica=replica, clock=clock)
    y, mask = plain_kernel("Dropout", 0)(Dropout(ratio=ratio), context, np.ones((rows, 50), np.float32))
    np.testing.assert_array_equal(y, np.where(mask, np.float32(1 / (1 - ratio)), 0))
    return mask


@pytest.mark.parametrize("ratio", [0.1, 0.5, 0.8])
def test_the_share_that_is_dropped(ratio):
    mask = masks(0, 200, ratio)
    assert abs((~mask).mean() - ratio) < 6 * np.sqrt(ratio * (1 - ratio) / mask.size)


def test_replicas_drop_what_one_device_would_have_dropped():
    whole = masks(0, 8)
    np.testing.assert_array_equal(np.concatenate([masks(k, 2) for k in range(4)]), whole)
    assert (masks(0, 8, iteration=1) != whole).any()


def test_every_run_of_a_net_draws_new_numbers_and_a_seed_repeats_it():
    def three_runs(seed):
        workspace = Workspace(seed=seed)
        workspace.feed("x", np.ones((4, 50), np.float32))
        net = _net()
        workspace.create_net(net)
        found = []
        for _ in range(3):
            workspace.run_net(net.name)
            found.append(np.array(workspace.fetch("mask")))
        return found

    first, second, third = three_runs(1)
    assert (first != second).any() and (second != third).any()
    for again, before in zip(three_runs(1), (first, second, third)):
        np.testing.assert_array_equal(again, before)
    assert (three_runs(2)[0] != first).any()


def _net():
    net = NetDef(name="net", external_input=["x"])
    net.op.append(make_op("Dropout", ["x"], ["y", "mask"]))
    return net


def test_without_a_mask_there_is_no_gradient():
    with pytest.raises(GradientError, match="reads the mask; give the operator a second output"):
        operator_gradient(make_op("Dropout", ["x"], ["y"]), {0: "y_grad"})


def test_half_precision_stays_half():
    y, mask = run_plain(Dropout(ratio=0.5).with_arity(1, 2), [np.ones((4, 5), np.float16)])
    assert y.dtype == np.float16 and mask.dtype == bool


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("shape, axis", [((3, 7), 0), ((5, 10_001), 0), ((3, 4, 5), 1), ((2, 1, 3, 4, 37), 2)])
@pytest.mark.parametrize("ratio", [0.0, 0.3, 0.9])
def test_machine_code_gives_the_same_bits(kind, shape, axis, ratio):
    x = np.random.default_rng(0).standard_normal(shape).astype(kind)
    x.flat[:3] = np.nan, np.inf, -0.0
    found = []
    for engines in (None, ()):
        workspace = Workspace(seed=3, engines=engines)
        workspace.feed("x", x)
        net = _net()
        net.op[0].CopyFrom(make_op("Dropout", ["x"], ["y", "mask"], ratio=ratio, sample_axis=axis))
        net.op.append(make_op("DropoutGrad", ["x", "mask"], ["dx"], ratio=ratio, sample_axis=axis))
        name = workspace.create_net(net)
        for _ in range(2):
            workspace.run_net(net.name)
        (plan,) = workspace.net(name).plans
        names = {"llvm dropout", "llvm dropout_grad"} if engines is None else {"plain"}
        assert {step.prepared.name for step in plan.steps} == names
        found.append([workspace.fetch(name) for name in ("y", "mask", "dx")])
    for one, other in zip(*found):
        np.testing.assert_array_equal(one, other)
