"""YellowFin."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.updates.yellowfin import YellowFin
from netbuilder.proto import ArgumentError, NetError
from suite import OperatorSuite, f32, floats, i64, refusal

WIDTH = 3
GOOD = [f32(2), f32(2), f32(1), f32(1), f32(WIDTH), f32(2), f32(2), f32(5), f32(2), i64(1)]


def _with(index, spec):
    return [*GOOD[:index], spec, *GOOD[index + 1 :]]


class TestYellowFin(OperatorSuite):
    operator = YellowFin
    no_gradient = "an update"
    rtol = 1e-4
    atol = 1e-5
    refusals = (
        refusal(YellowFin(curv_win_width=WIDTH), _with(1, f32(3)), r"moment must have the shape of param, \(2,\)"),
        refusal(YellowFin(curv_win_width=WIDTH), _with(2, f32(2)), r"lr must have one element, got shape \(2,\)"),
        refusal(YellowFin(), GOOD, r"curv_win must have shape \(20,\) = \(curv_win_width,\)"),
        refusal(YellowFin(curv_win_width=WIDTH), _with(7, f32(4)), r"scalars_memory must have shape \(5,\)"),
        refusal(YellowFin(curv_win_width=WIDTH), _with(9, f32(1)), "iter must have elements of type int, got float32"),
        refusal(YellowFin(beta=1.0, curv_win_width=WIDTH), GOOD, r"beta must lie in \[0, 1\)", ArgumentError),
        refusal(YellowFin(curv_win_width=0), GOOD, "curv_win_width must be at least 1, got 0", ArgumentError),
        refusal(YellowFin(epsilon=0.0, curv_win_width=WIDTH), GOOD, "epsilon must be positive", ArgumentError),
    )

    def draw(self, data):
        p = data.draw(floats((1, 4), (1, 4)))
        like = [data.draw(floats(*p.shape)) for _ in range(4)]
        moment, mean, square, g = like[0], 0.1 * like[1], abs(like[2]), like[3]
        window = data.draw(floats(WIDTH))
        scalars = np.float32([1, 2, -0.3, 0.8, 0.5])
        count = np.int64([data.draw(st.integers(1, 7))])
        op = YellowFin(0.9, WIDTH, 1e-6, nesterov=data.draw(st.booleans()), zero_debias=data.draw(st.booleans()))
        rates = np.float32([0.3]), np.float32([0.4])
        return op, [p, moment, *rates, window, mean, square, scalars, g, count]

    def reference(self, op, p, moment, lr, mu, window, mean, square, scalars, g, count):
        """The running means one by one; the root of the cubic by NumPy's polynomials."""
        count = int(count[0])
        step = new = mu * moment + lr * g
        if op.nesterov:
            step = (1 + mu) * new - mu * moment
        norm = max(np.sum(g**2), op.epsilon)
        window = window.copy()
        window[(count - 1) % WIDTH] = np.log(norm)
        seen = window[:count]
        mean, square = 0.9 * mean + 0.1 * g, 0.9 * square + 0.1 * g**2
        s = 0.9 * scalars + 0.1 * np.array([norm**0.5, norm, seen.min(), seen.max(), 0])
        s[4] += 0.1 * s[0] / s[1]
        if count > 1:
            lr, mu = self.tuned(op, lr, mu, mean, s, 1 - 0.9**count if op.zero_debias else 1)
        return [p - step, new, lr, mu, window, mean, square, s]

    def tuned(self, op, lr, mu, mean, s, bias):
        low, high, distance = np.exp(s[2] / bias), np.exp(s[3] / bias), s[4] / bias
        variance = max(s[1] / bias - np.sum((mean / bias) ** 2), op.epsilon)
        roots = np.roots([variance, -3 * variance, 3 * variance + (distance * low) ** 2 / 2, -variance])
        (root,) = (r.real for r in roots if abs(r.imag) < 1e-9)
        root = max(root, (np.sqrt(high / low) - 1) / (np.sqrt(high / low) + 1))
        return 0.9 * lr + 0.1 * (1 - root) ** 2 / low, 0.9 * mu + 0.1 * root**2


def test_iterations_count_from_one():
    inputs = [np.zeros(spec.shape, spec.dtype) for spec in GOOD]
    with pytest.raises(NetError, match=r"iter must be at least 1, got 0; put AtomicIter or Iter before"):
        run_plain(YellowFin(curv_win_width=WIDTH).with_arity(10, 8), inputs)


@pytest.mark.parametrize("count", [1, 2])
def test_no_gradient_gives_numbers(count):
    inputs = [np.zeros(spec.shape, spec.dtype) for spec in GOOD]
    inputs[9][0] = count
    assert all(np.isfinite(y).all() for y in run_plain(YellowFin(curv_win_width=WIDTH).with_arity(10, 8), inputs))
