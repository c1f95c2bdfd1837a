"""LearningRate and its policies."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import golden_data
from checks import run_plain
from netbuilder.ops.core.operator import decode
from netbuilder.ops.updates.learning_rate import LearningRate
from netbuilder.proto import ArgumentError, NetDef
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from suite import OperatorSuite, f32, i64, refusal

ONE = [i64(1)]


def rate(iteration, **args):
    op = make_op("LearningRate", ["it"], ["lr"], **{"base_lr": 1.0, **args})
    return decode(LearningRate, op, strict=True).rate(op)(iteration)


def rates(iterations, **args):
    return [rate(it, **args) for it in iterations]


class TestLearningRate(OperatorSuite):
    operator = LearningRate
    no_gradient = "the iteration is an integer"
    refusals = (
        refusal(LearningRate(base_lr=0.1, policy="fixed"), [i64(2)], "iteration must have one element, got shape"),
        refusal(LearningRate(policy="fixed"), ONE, "base_lr must be given"),
        refusal(LearningRate(base_lr=0.1), ONE, "policy must be given"),
        refusal(LearningRate(base_lr=0.1, policy="stepp"), ONE, "unknown policy 'stepp'; the policies are .*'step'"),
        refusal(LearningRate(base_lr=0.1, policy="step", gamma=0.5), ONE, "'step' needs stepsize > 0, got None"),
        refusal(LearningRate(base_lr=0.1, policy="step", stepsize=3), ONE, "'step' needs the argument gamma"),
        refusal(LearningRate(base_lr=0.1, policy="exp"), ONE, "'exp' needs the argument gamma"),
        refusal(LearningRate(base_lr=0.1, policy="alter"), ONE, "not both 0"),
        refusal(LearningRate(base_lr=0.1, policy="poly"), ONE, "max_iter > 0"),
        refusal(LearningRate(base_lr=0.1, policy="cyclical", stepsize=0), ONE, "stepsize > 0, got 0"),
        refusal(LearningRate(base_lr=0.1, policy="cosine", t_mult=0.0), ONE, "needs period and t_mult > 0"),
        refusal(LearningRate(base_lr=0.1, policy="compositeCosine", cosine_period=0), ONE, "cosine_period"),
        refusal(LearningRate(base_lr=0.1, policy="compositeCyclical", cyclical_step_size=0), ONE, "cyclical_step_size"),
        refusal(LearningRate(base_lr=0.1, policy="composite"), ONE, "needs sub_policy_num_iters"),
        refusal(LearningRate(base_lr=0.1, policy="fixed"), [f32(0)], "iteration must have one element, got shape"),
    )

    def draw(self, data):
        it = data.draw(st.integers(0, 50))
        op = data.draw(
            st.sampled_from(
                [
                    LearningRate(base_lr=-0.1, policy="fixed"),
                    LearningRate(base_lr=-0.1, policy="step", stepsize=4, gamma=0.5),
                    LearningRate(base_lr=0.2, policy="inv", gamma=0.1, power=2.0),
                    LearningRate(base_lr=0.2, policy="linearWarmup", start_multiplier=0.5, num_iter=20),
                ]
            )
        )
        return op, [np.int64([it])]

    def reference(self, op, counter):
        it = int(counter[0])
        factor = 1.0
        if op.policy == "step":
            for k in range(1, it + 1):
                factor *= op.gamma if k % op.stepsize == 0 else 1.0
        elif op.policy == "inv":
            factor = 1 / (1 + op.gamma * it) ** op.power
        elif op.policy == "linearWarmup":
            factor = float(np.interp(it, [0, op.num_iter], [op.start_multiplier, 1.0]))
        return [np.array(op.base_lr * factor)]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("policy", golden_data.net("lr_policies").meta["policies"], ids=lambda p: p["tag"])
def test_policies_of_the_golden_net(policy):
    """Thirty runs of a net that Caffe2 built with ``build_sgd``: rate, counter and parameter after each."""
    folder = golden_data.GOLDEN / "nets" / "lr_policies"
    expected = golden_data.load_arrays(folder / "expected.npz")
    workspace = Workspace()
    workspace.run_net_once(golden_data.parse(NetDef, (folder / f"{policy['tag']}.init.pb").read_bytes()))
    net = golden_data.parse(NetDef, (folder / f"{policy['tag']}.net.pb").read_bytes())
    workspace.create_net(net)
    for k in range(30):
        workspace.run_net(net.name)
        got = {"lr": policy["lr_blob"], "w": "w", "iteration": "optimizer_iteration"}
        for key, blob in got.items():
            want = expected[f"{policy['tag']}/{key}"][k]
            np.testing.assert_allclose(workspace.fetch(blob).reshape(want.shape), want, 1e-5, 1e-7)


def test_the_rate_is_a_float32_scalar_and_keeps_its_sign():
    (lr,) = run_plain(LearningRate(base_lr=-0.1, policy="alter", active_period=3, inactive_period=2), [np.int64([3])])
    assert lr.dtype == np.float32
    assert lr.shape == ()
    assert lr == 0
    assert np.signbit(lr)


def test_alter_begins_as_asked():
    periods = {"policy": "alter", "active_period": 2, "inactive_period": 1}
    assert rates(range(5), **periods) == [1, 1, 0, 1, 1]
    assert rates(range(5), **periods, active_first=False) == [0, 1, 1, 0, 1]


def test_poly_stays_at_zero_when_it_has_come_there():
    assert rates((0, 2, 4, 5, 9), policy="poly", max_iter=4, power=2.0) == [1, 0.25, 0, 0, 0]


def test_hill_goes_up_then_down_to_its_end():
    hill = {"policy": "hill", "num_iter": 2, "start_multiplier": 0.5, "gamma": 1.0, "power": 1.0, "end_multiplier": 0.3}
    assert rates((0, 1, 2, 3, 9), **hill) == pytest.approx([0.5, 0.75, 1.0, 0.5, 0.3])


def test_slope_joins_its_ends_by_a_line():
    slope = {"policy": "slope", "num_iter_1": 2, "num_iter_2": 4, "multiplier_1": 1.0, "multiplier_2": 0.5}
    assert rates(range(6), **slope) == [1, 1, 1, 0.75, 0.5, 0.5]


def test_the_peak_of_cyclical_is_a_rate_not_a_multiple():
    triangle = {"policy": "cyclical", "base_lr": -0.5, "stepsize": 2, "max_lr": 2.0, "decay": 0.5}
    assert rates((0, 1, 2, 3, 4, 6), **triangle) == pytest.approx([-0.5, -1.25, -2.0, -1.25, -0.5, -1.25])


def test_cosine_with_growing_and_shrinking_periods():
    cosine = {"policy": "cosine", "max_lr": 1.0, "min_lr": 0.0, "period": 2, "lr_shrink": 0.5}
    assert rates(range(6), **cosine, t_mult=2.0) == pytest.approx(
        [1, 0.5, 0.5, 0.25 * (1 + 0.5**0.5), 0.25, 0.25 * (1 - 0.5**0.5)]
    )
    shrinking = rates(range(20), **cosine, t_mult=0.5)
    assert np.isfinite(shrinking).all()
    assert shrinking[-1] == 0


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 200), st.integers(1, 20), st.sampled_from([1.0, 2.0, 1.5]))
def test_cosine_stays_between_its_bounds(it, period, t_mult):
    value = rate(it, policy="cosine", max_lr=0.5, min_lr=0.1, period=period, t_mult=t_mult, lr_shrink=1.0)
    assert 0.1 - 1e-9 <= value <= 0.5 + 1e-9


COMPOSITE = {
    "policy": "composite",
    "sub_policy_num_iters": [2, 3],
    "sub_policy_0_policy": "fixed",
    "sub_policy_0_lr_scale": 2.0,
    "sub_policy_1_policy": "exp",
    "sub_policy_1_gamma": 0.5,
}


@pytest.mark.parametrize(
    ("arguments", "it"),
    [
        ({"policy": "exp", "gamma": 10.0}, 1000),
        ({"policy": "step", "gamma": 0.0, "stepsize": 1}, -3),
        ({"policy": "inv", "gamma": -1.0, "power": 0.5}, 5),
        ({"policy": "cosine", "period": 1, "lr_shrink": 0.5}, -5000),
    ],
)
def test_a_rate_that_is_no_real_number_names_policy_and_iteration(arguments, it):
    with pytest.raises(ArgumentError, match=rf"policy '{arguments['policy']}' gives no real number at iteration {it} "):
        rate(it, **arguments)


def test_composite_follows_its_parts_and_stays_with_the_last():
    assert rates((0, 1, 2, 3, 5, 6), **COMPOSITE) == [2, 2, 2, 0.5**3, 0.5**5, 0.5**6]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sub_policy_1_policy": "composite"}, "sub_policy_1_policy must not be 'composite'"),
        ({"sub_policy_1_policy": None}, "policy 1 of 'composite'.*unknown policy ''"),
        ({"sub_policy_1_gamma": None}, "policy 1 of 'composite'.*'exp' needs the argument gamma"),
        ({"sub_policy_1_gamma": "half"}, "policy 1 of 'composite'"),
    ],
)
def test_composite_refuses_bad_parts(change, message):
    with pytest.raises(ArgumentError, match=message):
        rate(1, **{**COMPOSITE, **change})
