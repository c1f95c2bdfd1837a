"""Learning-rate policies: each makes a function from the iteration to a multiple of the base rate.

A policy reads its arguments from any object with attributes of their names; None means the policy's own default.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from netbuilder.proto import ArgumentError

__all__ = ["POLICIES", "Rate", "chain", "rate_of"]

Rate = Callable[[int], float]
_NEVER = 10_000_000  # iterations: Caffe2's default length of a warm-up whose length is not given


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


def _positive(args: Any, policy: str, name: str) -> Any:
    value = getattr(args, name)
    if value is None or value <= 0:
        raise ArgumentError(f"LearningRate: policy {policy!r} needs {name} > 0, got {value}")
    return value


def _given(args: Any, policy: str, name: str) -> Any:
    value = getattr(args, name)
    if value is None:
        raise ArgumentError(f"LearningRate: policy {policy!r} needs the argument {name}")
    return value


def fixed(args: Any) -> Rate:
    """1 in every iteration."""
    return lambda it: 1.0


def alter(args: Any) -> Rate:
    """1 for ``active_period`` and 0 for ``inactive_period`` iterations, alternately; 1 first if ``active_first``."""
    active, inactive = _or(args.active_period, 0), _or(args.inactive_period, 0)
    if active < 0 or inactive < 0 or active + inactive == 0:
        raise ArgumentError(
            "LearningRate: policy 'alter' needs active_period and inactive_period, not negative and not both 0, "
            f"got {args.active_period} and {args.inactive_period}"
        )
    first = _or(args.active_first, True)
    length = active if first else inactive

    def rate(it: int) -> float:
        in_first = it % (active + inactive) < length
        return float(in_first == first)

    return rate


def step(args: Any) -> Rate:
    """gamma ^ (iteration // stepsize)."""
    stepsize, gamma = _positive(args, "step", "stepsize"), _given(args, "step", "gamma")
    return lambda it: gamma ** (it // stepsize)


def exp(args: Any) -> Rate:
    """gamma ^ iteration."""
    gamma = _given(args, "exp", "gamma")
    return lambda it: gamma**it


def gate(args: Any) -> Rate:
    """``multiplier_1`` for ``num_iter`` iterations, then ``multiplier_2``."""
    first, then, length = (
        _or(args.multiplier_1, 1.0),
        _or(args.multiplier_2, 1.0),
        _or(args.num_iter, 0),
    )
    return lambda it: first if it < length else then


def inv(args: Any) -> Rate:
    """(1 + gamma * iteration) ^ -power."""
    gamma, power = _or(args.gamma, 0.0), _or(args.power, 0.0)
    return lambda it: (1 + gamma * it) ** -power


def poly(args: Any) -> Rate:
    """(1 - iteration / max_iter) ^ power, and 0 from ``max_iter`` on."""
    max_iter, power = _positive(args, "poly", "max_iter"), _or(args.power, 0.0)
    # Caffe2 does not clamp: past max_iter its rate changes sign, rises again or becomes NaN.
    return lambda it: (1 - min(it / max_iter, 1.0)) ** power


def linear_warmup(args: Any) -> Rate:
    """From ``start_multiplier`` to 1 in a straight line over ``num_iter`` iterations, then 1."""
    start, length = _or(args.start_multiplier, 0.0), _or(args.num_iter, 0)
    return lambda it: start + (1 - start) * it / length if it < length else 1.0


def constant_warmup(args: Any) -> Rate:
    """``multiplier`` for ``num_iter`` iterations, then 1."""
    multiplier, length = _or(args.multiplier, 0.5), _or(args.num_iter, 0)
    return lambda it: multiplier if it < length else 1.0


def piece_warmup(args: Any) -> Rate:
    """``m1`` before iteration ``n1``, ``m2`` before ``n2``, then ``m3``."""
    m1, m2, m3 = (_or(m, 0.5) for m in (args.m1, args.m2, args.m3))
    n1, n2 = _or(args.n1, 0), _or(args.n2, 0)
    return lambda it: m1 if it < n1 else m2 if it < n2 else m3


def hill(args: Any) -> Rate:
    """A linear warm-up, then ``inv`` counted from its end, not below ``end_multiplier``."""
    up, down, length, end = (
        linear_warmup(args),
        inv(args),
        _or(args.num_iter, 0),
        _or(args.end_multiplier, 0.0),
    )
    return lambda it: up(it) if it < length else max(end, down(it - length))


def slope(args: Any) -> Rate:
    """``multiplier_1`` until ``num_iter_1``, then a straight line to ``multiplier_2`` at ``num_iter_2``."""
    first, then = _or(args.multiplier_1, 0.0), _or(args.multiplier_2, 0.0)
    start, end = _or(args.num_iter_1, 0), _or(args.num_iter_2, 0)

    def rate(it: int) -> float:
        if it < start:
            return first
        if it >= end:
            return then
        return first + (then - first) * (it - start) / (end - start)

    return rate


def _cyclical(base: float, max_lr: float, stepsize: int, decay: float) -> Rate:
    top = max_lr / abs(base) if base else 1.0

    def rate(it: int) -> float:
        cycle = it // (2 * stepsize)
        distance = abs(it / stepsize - 2 * cycle - 1)  # 1 at the ends of a cycle, 0 in its middle
        return 1 + (top - 1) * max(0.0, 1 - distance) * decay**cycle

    return rate


def cyclical(args: Any) -> Rate:
    """Triangles from the base rate to ``max_lr`` and back in 2 * stepsize iterations, each ``decay`` times as high.

    ``max_lr`` is a rate, not a multiple; it takes the sign of the base rate.

    Source: Smith, "Cyclical learning rates for training neural networks", 2015, arXiv:1506.01186.
    """
    stepsize = _positive(args, "cyclical", "stepsize")
    return _cyclical(args.base_lr, _or(args.max_lr, 0.005), stepsize, _or(args.decay, 1.0))


def _cosine(top: float, bottom: float, period: int, t_mult: float, shrink: float) -> Rate:
    def rate(it: int) -> float:
        if t_mult == 1:
            cycle, length, since = it // period, float(period), float(it % period)
        else:
            left = 1 - it / period * (1 - t_mult)
            if left <= 0:  # shrinking periods have a finite sum, which has passed
                return bottom if shrink == 1 else 0.0
            cycle = math.floor(math.log(left) / math.log(t_mult) + 1e-9)
            length = period * t_mult**cycle
            since = it - period * (1 - t_mult**cycle) / (1 - t_mult)
        return (bottom + 0.5 * (top - bottom) * (1 + math.cos(math.pi * since / length))) * shrink**cycle

    return rate


def cosine(args: Any) -> Rate:
    """Half a cosine from ``max_lr`` to ``min_lr`` over ``period`` iterations, repeated.

    Each repetition is ``t_mult`` times as long and ``lr_shrink`` times as high as the one before.

    Source: Loshchilov and Hutter, "SGDR: stochastic gradient descent with warm restarts", 2016, arXiv:1608.03983.
    """
    period = _or(args.period, 50)
    t_mult = _or(args.t_mult, 1.0)
    if period <= 0 or t_mult <= 0:
        raise ArgumentError(f"LearningRate: policy 'cosine' needs period and t_mult > 0, got {period} and {t_mult}")
    return _cosine(_or(args.max_lr, 0.5), _or(args.min_lr, 0.1), period, t_mult, _or(args.lr_shrink, 0.99))


def _warmup(args: Any) -> tuple[Rate, int]:
    start = _or(args.start_warmup_multiplier, 0.1)
    constant, linear = (
        _or(args.constant_warmup_num_iter, _NEVER),
        _or(args.linear_warmup_num_iter, _NEVER),
    )

    def rate(it: int) -> float:
        if it < constant:
            return start
        if it < constant + linear:
            return start + (1 - start) * (it - constant) / linear
        return 1.0

    return rate, constant + linear


def constant_then_linear_warmup(args: Any) -> Rate:
    """``start_warmup_multiplier`` for ``constant_warmup_num_iter`` iterations, then a straight line to 1, then 1."""
    return _warmup(args)[0]


def composite_cyclical(args: Any) -> Rate:
    """A constant and a linear warm-up, then ``cyclical`` with the arguments that begin with ``cyclical_``."""
    warmup, length = _warmup(args)
    stepsize = _or(args.cyclical_step_size, 1_000_000)
    if stepsize <= 0:
        raise ArgumentError(f"LearningRate: cyclical_step_size must be positive, got {stepsize}")
    then = _cyclical(args.base_lr, _or(args.cyclical_max_lr, 0.05), stepsize, _or(args.cyclical_decay, 1.0))
    return lambda it: warmup(it) if it < length else then(it - length)


def composite_cosine(args: Any) -> Rate:
    """A constant and a linear warm-up, then ``cosine`` with the arguments that begin with ``cosine_``."""
    warmup, length = _warmup(args)
    period, t_mult = _or(args.cosine_period, 50), _or(args.cosine_t_mult, 1.0)
    if period <= 0 or t_mult <= 0:
        raise ArgumentError(
            f"LearningRate: cosine_period and cosine_t_mult must be positive, got {period} and {t_mult}"
        )
    shrink = _or(args.cosine_lr_shrink, 0.99)
    then = _cosine(_or(args.cosine_max_lr, 0.5), _or(args.cosine_min_lr, 0.1), period, t_mult, shrink)
    return lambda it: warmup(it) if it < length else then(it - length)


POLICIES: dict[str, Callable[[Any], Rate]] = {
    "fixed": fixed,
    "alter": alter,
    "step": step,
    "exp": exp,
    "gate": gate,
    "inv": inv,
    "poly": poly,
    "linearWarmup": linear_warmup,
    "constantWarmup": constant_warmup,
    "pieceWarmup": piece_warmup,
    "hill": hill,
    "slope": slope,
    "cyclical": cyclical,
    "cosine": cosine,
    "constantThenLinearWarmup": constant_then_linear_warmup,
    "compositeCyclical": composite_cyclical,
    "compositeCosine": composite_cosine,
}
"""All policies by name, except ``composite``, a chain of others."""


def rate_of(policy: str, args: Any) -> Rate:
    """Return the rate of a policy, as a multiple of the base rate.

    Raises:
        ArgumentError: the policy is unknown, or an argument it needs is missing or out of range.
    """
    if policy not in POLICIES:
        raise ArgumentError(
            f"LearningRate: unknown policy {policy!r}; the policies are {sorted([*POLICIES, 'composite'])}"
        )
    return POLICIES[policy](args)


def chain(lengths: Sequence[int], rates: Sequence[Rate], scales: Sequence[float]) -> Rate:
    """Return the rate that is ``rates[i]`` times ``scales[i]`` for ``lengths[i]`` iterations each, counted from 1.

    All rates get the iteration counted from the start of the chain. The last continues without end; iteration 0 belongs
    to the first.
    """
    ends = [sum(lengths[: i + 1]) for i in range(len(lengths))]

    def rate(it: int) -> float:
        for end, part, scale in zip(ends, rates, scales):
            if it <= end:
                return scale * part(it)
        return scales[-1] * rates[-1](it)

    return rate
