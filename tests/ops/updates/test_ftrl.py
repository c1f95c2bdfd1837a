"""Ftrl and GFtrl."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.updates.ftrl import Ftrl, GFtrl
from netbuilder.proto import ArgumentError
from suite import OperatorSuite, f32, floats, refusal


class _Ftrl(OperatorSuite):
    no_gradient = "an update"
    rtol = 1e-4
    atol = 1e-5

    def draw(self, data):
        p = data.draw(floats((1, 4), (1, 4)))
        n_z = data.draw(floats(*p.shape, 2))
        n_z[..., 0] = abs(n_z[..., 0]) + 0.1
        fields = data.draw(st.sampled_from([{}, {"beta": 0.5, "lambda1": 0.7, "lambda2": 0.1}]))
        alpha = [np.float32([0.25])] if data.draw(st.booleans()) else []
        return self.operator(alpha=0.5, **fields), [p, n_z, data.draw(floats(*p.shape)), *alpha]

    def reference(self, op, p, n_z, g, alpha=None):
        alpha = op.alpha if alpha is None else alpha.item()
        n, z = n_z[..., 0] + g**2, np.empty_like(p)
        new = np.zeros_like(p)
        for i in np.ndindex(p.shape):
            z[i] = n_z[i][1] + g[i] - (np.sqrt(n[i]) - np.sqrt(n_z[i][0])) / alpha * p[i]
        for i in np.ndindex(p.shape):
            kept = self.kept(op, z, i)
            new[i] = -z[i] * kept / ((op.beta + np.sqrt(n[i])) / alpha + op.lambda2)
        return [new, np.stack([n, z], -1)]


def refused(cls):
    return (
        refusal(
            cls(), [f32(3), f32(3), f32(3)], r"n_z \(a pair for each weight\) must have shape \(3, 2\) = \(\*S, 2\)"
        ),
        refusal(cls(), [f32(3), f32(3, 2), f32(2)], r"grad must have the shape of param, \(3,\)"),
        refusal(cls(), [f32(3), f32(3, 2), f32(3), f32(3)], r"alpha must have one element, got shape \(3,\)"),
        refusal(cls(alpha=0.0), [f32(3), f32(3, 2), f32(3)], "alpha must be positive, got 0", ArgumentError),
        refusal(cls(lambda1=-1.0), [f32(3), f32(3, 2), f32(3)], "lambda1 must lie in", ArgumentError),
    )


class TestFtrl(_Ftrl):
    operator = Ftrl
    refusals = refused(Ftrl)

    def kept(self, op, z, i):
        """The factor by which each weight shrinks, for single weights."""
        return max(0, 1 - op.lambda1 / abs(z[i]))


class TestGFtrl(_Ftrl):
    operator = GFtrl
    refusals = refused(GFtrl)

    def kept(self, op, z, i):
        """The factor by which the weights of a column shrink together."""
        return max(0, 1 - op.lambda1 * np.sqrt(len(z)) / np.linalg.norm(z[:, i[1]]))


@pytest.mark.parametrize("operator", [Ftrl, GFtrl])
def test_weights_that_gain_little_are_zero(operator):
    p, n_z, g = np.ones((2, 2), np.float32), np.zeros((2, 2, 2), np.float32), np.float32([[0, 0.01], [0, 5]])
    after, _ = run_plain(operator(lambda1=0.1, alpha=100.0), [p * 0, n_z, g])
    assert after[0, 0] == after[1, 0] == 0 and after[1, 1] < 0
    assert (after[0, 1] == 0) == (operator is Ftrl)
