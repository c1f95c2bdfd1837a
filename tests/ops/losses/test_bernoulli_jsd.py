"""BernoulliJSD and its gradient."""

import numpy as np

from checks import run_plain
from netbuilder.ops.losses.bernoulli_jsd import BernoulliJSD, BernoulliJSDGradient
from suite import OperatorSuite, f32, floats, i32, refusal


class TestBernoulliJSD(OperatorSuite):
    operator = BernoulliJSD
    rtol, atol = 1e-4, 1e-6
    refusals = (
        refusal(BernoulliJSD(), [f32(3), f32(2)], "T must have 3 elements"),
        refusal(BernoulliJSD(), [f32(3), i32(3)], "one floating type"),
    )

    def draw(self, data):
        x = data.draw(floats((0, 3), (1, 3), low=0.05, high=0.95))
        return BernoulliJSD(), [x, data.draw(floats(*x.shape, low=0.05, high=0.95))]

    def reference(self, op, x, t):
        mean = (x + t) / 2
        both = [p * np.log(p / m) for q in (x, t) for p, m in ((q, mean), (1 - q, 1 - mean))]
        return [sum(both) / 2]


class TestBernoulliJSDGradient(OperatorSuite):
    operator = BernoulliJSDGradient
    no_gradient = "a gradient operator"
    rtol, atol = 1e-4, 1e-6
    refusals = (refusal(BernoulliJSDGradient(), [f32(3), f32(3), f32(2)], r"T must have 3 elements, got shape \(2,\)"),)

    def draw(self, data):
        x = data.draw(floats((0, 3), (1, 3), low=0.05, high=0.95))
        return BernoulliJSDGradient(), [
            data.draw(floats(*x.shape)),
            x,
            data.draw(floats(*x.shape, low=0.05, high=0.95)),
        ]

    def reference(self, op, dl, x, t):
        mean = (x + t) / 2
        return [dl * (np.log(x / (1 - x)) - np.log(mean / (1 - mean))) / 2]


def test_certain_events():
    """The divergence is at most ln 2, and the slopes are finite."""
    x, t = np.float32([0, 1, 0, 1]), np.float32([0, 1, 1, 0])
    np.testing.assert_allclose(run_plain(BernoulliJSD(), [x, t])[0], [0, 0, np.log(2), np.log(2)], rtol=1e-6)
    assert np.isfinite(run_plain(BernoulliJSDGradient(), [np.ones(4, np.float32), x, t])[0]).all()
