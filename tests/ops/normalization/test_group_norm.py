"""GroupNorm and InstanceNorm, and their gradients."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.graph.gradient_context import operator_gradient
from netbuilder.ops.normalization.group_norm import GroupNorm, GroupNormGradient, InstanceNorm, InstanceNormGradient
from netbuilder.proto import ArgumentError, GradientError
from netbuilder.proto.arguments import make_op
from suite import OperatorSuite, f32, floats, refusal


def draw_images(data, cls):
    args = {"order": data.draw(st.sampled_from(["NCHW", "NHWC"])), "epsilon": data.draw(st.sampled_from([1e-5, 0.1]))}
    channels = data.draw(st.sampled_from([2, 4, 6]))
    if "Group" in cls.__name__:
        args["group"] = data.draw(st.sampled_from([1, 2]))
    places = data.draw(st.lists(st.integers(2, 3), min_size=1, max_size=3))
    n = data.draw(st.integers(1, 2))
    shape = (n, channels, *places) if args["order"] == "NCHW" else (n, *places, channels)
    return cls(**args), data.draw(floats(*shape)), channels


def grouped(op, x):
    """Return X channels-first, as (images, groups, elements), and statistics of the groups."""
    first = x if op.order == "NCHW" else np.moveaxis(x, -1, 1)
    groups = getattr(op, "group", first.shape[1])
    rows = first.reshape(len(x), groups, -1)
    return first, rows, rows.mean(axis=2), 1 / np.sqrt(rows.var(axis=2) + op.epsilon)


def back(op, y):
    return y if op.order == "NCHW" else np.moveaxis(y, 1, -1)


def per_channel(values, ndim):
    return values.reshape(1, -1, *[1] * (ndim - 2))


class _Forward(OperatorSuite):
    wrt = (0, 1, 2)
    rtol, atol, gradient_atol = 1e-4, 1e-5, 1e-5

    def draw(self, data):
        op, x, channels = draw_images(data, self.operator)
        return op.with_arity(3, 3), [x, data.draw(floats(channels)), data.draw(floats(channels))]

    def reference(self, op, x, scale, bias):
        first, rows, mean, inverse = grouped(op, x)
        normal = ((rows - mean[..., None]) * inverse[..., None]).reshape(first.shape)
        y = normal * per_channel(scale, x.ndim) + per_channel(bias, x.ndim)
        return [back(op, y), mean, inverse]


class TestGroupNorm(_Forward):
    operator = GroupNorm
    refusals = (
        refusal(GroupNorm(group=0), [f32(2, 4, 3), f32(4), f32(4)], "group must be at least 1", ArgumentError),
        refusal(GroupNorm(group=3), [f32(2, 4, 3), f32(4), f32(4)], "the 4 channels of X must be divisible by group"),
        refusal(GroupNorm(group=2), [f32(2, 4, 3), f32(3), f32(4)], r"gamma must have shape \(4,\)"),
        refusal(GroupNorm(group=2, order="X"), [f32(2, 4, 3), f32(4), f32(4)], "NCHW or NHWC", ArgumentError),
        refusal(GroupNorm(epsilon=-1.0), [f32(2, 4, 3), f32(4), f32(4)], "epsilon must not be", ArgumentError),
        refusal(GroupNorm(), [f32(4), f32(4), f32(4)], r"X must have shape \(N, C, \*S\)"),
    )


class TestInstanceNorm(_Forward):
    operator = InstanceNorm
    refusals = (
        refusal(InstanceNorm(), [f32(2, 4, 3), f32(4), f32(3)], r"bias must have the shape of scale, \(4,\)"),
        refusal(InstanceNorm(), [f32(2, 4, 0), f32(4), f32(4)], "must have elements"),
    )


class _Backward(OperatorSuite):
    no_gradient = "a gradient operator"
    rtol, atol = 1e-3, 1e-4

    def draw(self, data):
        op, x, channels = draw_images(data, self.operator)
        scale, bias, dy = (data.draw(floats(n)) for n in (channels, channels, x.size))
        saved = [a.astype(np.float32) for a in grouped(op, x.astype(np.float64))[2:]]
        return op, self.ordered(x, scale, bias, dy.reshape(x.shape), saved, data)

    def slopes(self, op, x, scale, dy):
        first, rows, mean, inverse = grouped(op, x)
        d_first = dy if op.order == "NCHW" else np.moveaxis(dy, -1, 1)
        inner = (d_first * per_channel(scale, x.ndim)).reshape(rows.shape)
        dx = np.empty(rows.shape)
        for at in np.ndindex(mean.shape):
            n, apart, r = rows.shape[2], rows[at] - mean[at], inverse[at]
            dx[at] = inner[at] @ ((np.eye(n) - 1 / n - np.outer(apart, apart) * r**2 / n) * r)
        normal = ((rows - mean[..., None]) * inverse[..., None]).reshape(first.shape)
        over = (0, *range(2, x.ndim))
        return [back(op, dx.reshape(first.shape)), (d_first * normal).sum(over), d_first.sum(over)]


class TestGroupNormGradient(_Backward):
    operator = GroupNormGradient
    refusals = (
        refusal(
            GroupNormGradient(group=2),
            [f32(2, 4, 2), f32(2, 4, 3), f32(4), f32(4), f32(2, 2), f32(2, 2)],
            r"X must have the shape of dY, \(2, 4, 2\)",
        ),
        refusal(
            GroupNormGradient(group=3),
            [f32(2, 4, 3), f32(2, 4, 3), f32(4), f32(4), f32(2, 3), f32(2, 3)],
            "the 4 channels of X must be divisible by group",
        ),
    )

    def ordered(self, x, scale, bias, dy, saved, data):
        return [dy, x, scale, bias, *saved]

    def reference(self, op, dy, x, gamma, beta, mean, rsig):
        return self.slopes(op, x, gamma, dy)


class TestInstanceNormGradient(_Backward):
    operator = InstanceNormGradient
    refusals = (
        refusal(
            InstanceNormGradient(),
            [f32(2, 4, 3), f32(4), f32(4), f32(2, 4, 3), f32(2, 3), f32(2, 4)],
            r"mean must have shape \(2, 4\) = \(N, C\)",
        ),
    )

    def ordered(self, x, scale, bias, dy, saved, data):
        return [x, scale, bias, dy, *saved[: data.draw(st.integers(0, 2))]]

    def reference(self, op, x, scale, bias, dy, *saved):
        return self.slopes(op, x, scale, dy)


def test_without_statistics_a_group_norm_has_no_gradient():
    with pytest.raises(GradientError, match="give the operator three outputs"):
        operator_gradient(make_op("GroupNorm", ["x", "g", "b"], ["y"]), {0: "dy"})


def test_statistics_of_half_precision_stay_single():
    x, ones = np.random.default_rng(0).normal(size=(2, 4, 3)).astype(np.float16), np.ones(4, np.float32)
    for op in (GroupNorm(group=2), InstanceNorm()):
        y, mean, inverse = run_plain(op.with_arity(3, 3), [x, ones, 0 * ones])
        assert (y.dtype, mean.dtype, inverse.dtype) == (np.float16, np.float32, np.float32)
