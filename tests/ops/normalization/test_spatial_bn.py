"""Batch normalization over images, and its gradient."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import check_gradient, run_plain
from netbuilder.graph.gradient_context import operator_gradient
from netbuilder.ops.normalization.channel_stats import ChannelBackpropStats, ChannelStats
from netbuilder.ops.normalization.spatial_bn import SpatialBN, SpatialBNGradient
from netbuilder.proto import ArgumentError, GradientError
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from suite import OperatorSuite, f32, floats, refusal


def draw_images(data, least_axes=1):
    """Draw images in some order, their channels, and arguments."""
    draw = data.draw
    order = draw(st.sampled_from(["NCHW", "NHWC"]))
    extents = [draw(st.integers(2, 3)) for _ in range(draw(st.integers(least_axes, 2)))]
    channels = draw(st.integers(1, 3))
    shape = (2, channels, *extents) if order == "NCHW" else (2, *extents, channels)
    args = {"order": order, "epsilon": draw(st.sampled_from([1e-5, 1e-2])), "momentum": draw(st.floats(0, 1, width=16))}
    return draw(floats(*shape)), channels, args


def laid(op, x, v):
    channel = 1 if op.order == "NCHW" else x.ndim - 1
    return np.expand_dims(v, tuple(i for i in range(x.ndim) if i != channel))


def over(op, x):
    channel = 1 if op.order == "NCHW" else x.ndim - 1
    return tuple(i for i in range(x.ndim) if i != channel)


X, C = f32(2, 3, 4, 4), f32(3)


class TestSpatialBN(OperatorSuite):
    """Train mode; the others have suites of their own below."""

    operator = SpatialBN
    wrt = (0, 1, 2)
    rtol, atol = 1e-4, 1e-4
    gradient_atol = 1e-5
    refusals = (
        refusal(SpatialBN(), [f32(3), C, C, C, C], r"X must have shape \(N, C, \*S\)"),
        refusal(SpatialBN(), [X, C, f32(4), C, C], r"bias must have the shape of scale, \(3,\)"),
        refusal(SpatialBN(order="NHWC"), [X, C, C, C, C], r"scale must have shape \(4,\)"),
        refusal(SpatialBN(num_batches=2), [X, C, C, C, C], "also needs the inputs sums and sumsq"),
        refusal(SpatialBN(), [X, *[C] * 6, f32(1)], "count is the size of several parts: it needs num_batches > 1"),
        refusal(SpatialBN(num_batches=2), [X, *[C] * 6, f32(2)], r"count must have one element, got shape \(2,\)"),
        refusal(SpatialBN(order="CHW"), [X, C, C, C, C], "NCHW or NHWC", ArgumentError),
        refusal(SpatialBN(momentum=1.5), [X, C, C, C, C], r"momentum must lie in \[0, 1\]", ArgumentError),
        refusal(SpatialBN(epsilon=-1.0), [X, C, C, C, C], "epsilon must not be negative", ArgumentError),
        refusal(SpatialBN(num_batches=0), [X, C, C, C, C], "num_batches must be at least 1", ArgumentError),
    )
    is_test = False

    def draw(self, data):
        x, channels, args = draw_images(data)
        vectors = [data.draw(floats(channels)) for _ in range(3)]
        op = SpatialBN(is_test=self.is_test, **args)
        op.with_arity(5, 1 if self.is_test else 5)
        return op, [x, *vectors, data.draw(floats(channels, low=0.5))]

    def reference(self, op, x, scale, bias, mean, var):
        axes, n = over(op, x), x.size // len(scale)
        found_mean, found_var = (mean, var) if op.is_test else (x.mean(axis=axes), x.var(axis=axes))
        inv_std = 1 / np.sqrt(found_var + op.epsilon)
        y = laid(op, x, scale) * (x - laid(op, x, found_mean)) * laid(op, x, inv_std) + laid(op, x, bias)
        keep = op.momentum
        running = [keep * mean + (1 - keep) * found_mean, keep * var + (1 - keep) * found_var * n / (n - 1)]
        return [y] if op.is_test else [y, *running, found_mean, inv_std]


class TestSpatialBNInTestMode(TestSpatialBN):
    is_test = True
    refusals = TestSpatialBN.refusals[:1]


class TestSpatialBNGradient(OperatorSuite):
    operator = SpatialBNGradient
    no_gradient = "a gradient operator"
    rtol, atol = 1e-3, 1e-4
    refusals = (
        refusal(SpatialBNGradient(), [X, C, f32(2, 3, 4, 5), C, C], "dY must have the shape of X"),
        refusal(SpatialBNGradient(), [X, C, X, C, f32(2)], r"inv_std must have the shape of scale, \(3,\)"),
        refusal(SpatialBNGradient(num_batches=2), [X, C, X, C, C], "also needs the summed gradients"),
        refusal(SpatialBNGradient(), [X, C, X, C, C, C, C, f32(1)], "it needs num_batches > 1"),
        refusal(SpatialBNGradient(num_batches=2), [X, C, X, C, C, C, C, f32(1), C], "weight must have one element"),
    )

    def draw(self, data):
        x, channels, args = draw_images(data)
        op = SpatialBNGradient(is_test=data.draw(st.booleans()), **args)
        mean, var = x.mean(axis=over(op, x)), x.var(axis=over(op, x)) + 0.1
        spread = var if op.is_test else 1 / np.sqrt(var + op.epsilon)
        arrays = [x, data.draw(floats(channels)), data.draw(floats(*x.shape)), mean, spread]
        return op, [a.astype(np.float32) for a in arrays]

    def reference(self, op, x, scale, dy, mean, spread):
        axes, n = over(op, x), x.size // len(scale)
        inv_std = 1 / np.sqrt(spread + op.epsilon) if op.is_test else spread
        normal = (x - laid(op, x, mean)) * laid(op, x, inv_std)
        ds, db = (dy * normal).sum(axis=axes), dy.sum(axis=axes)
        # In training the mean and the variance depend on X as well.
        through = 0 if op.is_test else (laid(op, x, db) + normal * laid(op, x, ds)) / n
        return [laid(op, x, scale * inv_std) * (dy - through), ds, db]


@pytest.mark.parametrize("order", ["NCHW", "NHWC"])
def test_shares_of_a_batch_give_what_the_whole_gives(order):
    rng = np.random.default_rng(3)
    x, dy = rng.standard_normal((2, 6, 3, 4, 3))
    op = SpatialBN(order=order, momentum=0.8)
    channels = x.shape[1 if order == "NCHW" else 3]
    scale, bias, mean = rng.standard_normal((3, channels))
    var = rng.uniform(0.5, 1, channels)
    whole = run_plain(op.with_arity(5, 5), [x, scale, bias, mean, var])
    gradient = SpatialBNGradient(order=order)
    d_whole = run_plain(gradient, [x, scale, dy, whole[3], whole[4]])
    sums = [part.sum(axis=over(op, x)) for part in (x, x * x)]
    for share in (slice(0, 2), slice(2, 4), slice(4, 6)):
        found = run_plain(replace(op, num_batches=3).with_arity(7, 5), [x[share], scale, bias, mean, var, *sums])
        np.testing.assert_allclose(found[0], whole[0][share], 1e-9, 1e-12)
        for got, want in zip(found[1:], whole[1:]):
            np.testing.assert_allclose(got, want, 1e-9, 1e-12)
        d_found = run_plain(
            replace(gradient, num_batches=3), [x[share], scale, dy[share], whole[3], whole[4], *d_whole[1:]]
        )
        np.testing.assert_allclose(d_found[0], d_whole[0][share], 1e-9, 1e-12)
        for got, want in zip(d_found[1:], d_whole[1:]):
            np.testing.assert_allclose(got, want / 3, 1e-9, 1e-12)


def test_without_the_statistics_there_is_no_gradient():
    with pytest.raises(GradientError, match="give the operator five outputs, or is_test=1"):
        operator_gradient(make_op("SpatialBN", ["x", "s", "b", "m", "v"], ["y"]), {0: "y_grad"})


def test_matrices_are_images_without_extents():
    rng = np.random.default_rng(4)
    x, vectors = rng.standard_normal((5, 3)), [rng.uniform(0.5, 1, 3) for _ in range(4)]
    check_gradient(SpatialBN().with_arity(5, 5), [x, *vectors], wrt=(0, 1, 2), atol=1e-5)


def test_an_empty_batch_leaves_the_running_averages_alone():
    x, vectors = np.empty((0, 3, 4, 5), np.float32), np.float32([[1, 2, 3], [4, 5, 6], [7, 8, 9], [1, 1, 2]])
    for engines in ((), None):
        workspace = Workspace(engines=engines)
        for name, value in zip(("x", "s", "b", "m", "v", "dy"), (x, *vectors, x)):
            workspace.feed(name, value)
        workspace.run_operator_once(make_op("SpatialBN", list("xsbmv"), ["y", "m", "v", "sm", "si"]))
        workspace.run_operator_once(make_op("SpatialBNGradient", ["x", "s", "dy", "sm", "si"], ["dx", "ds", "db"]))
        np.testing.assert_array_equal([workspace.fetch("m"), workspace.fetch("v")], vectors[2:])
        for name in ("sm", "si", "ds", "db"):
            np.testing.assert_array_equal(workspace.fetch(name), np.zeros(3))
        assert workspace.fetch("y").shape == workspace.fetch("dx").shape == x.shape


def test_an_empty_share_of_a_batch():
    """As in Caffe2: the running averages are unchanged, the statistics and gradients of the share are 0."""
    x, vectors = np.empty((0, 3, 2), np.float32), np.float32(np.arange(1, 19)).reshape(6, 3)
    found = run_plain(SpatialBN(num_batches=2).with_arity(7, 5), [x, *vectors])
    np.testing.assert_array_equal(found[1:], [*vectors[2:4], *np.zeros((2, 3))])
    found = run_plain(SpatialBNGradient(num_batches=2), [x, vectors[0], x, *vectors[1:5]])
    np.testing.assert_array_equal(found[1:], np.zeros((2, 3)))


WEIGHTS = (0.5, 0.2, 0.0, 0.3)
"""Of the parts of a batch; the third one is a placeholder."""


def chain(order, parts, weights=WEIGHTS):
    """Run the operators of an exchange, forward and backward, over parts of a batch; return each part's results."""
    rng = np.random.default_rng(1)
    channels = parts[0].shape[1 if order == "NCHW" else -1]
    scale, bias, mean = rng.standard_normal((3, channels))
    vectors = [scale, bias, mean, rng.uniform(0.5, 1, channels)]
    slopes = [rng.standard_normal(x.shape) * (w > 0) for x, w in zip(parts, weights)]
    weights = [np.float64([w]) for w in weights]
    stats = [run_plain(ChannelStats(order=order).with_arity(2, 3), [x, w]) for x, w in zip(parts, weights)]
    sums = [sum(each) for each in zip(*stats)]
    op = SpatialBN(order=order, momentum=0.8, num_batches=len(parts)).with_arity(8, 5)
    done = [run_plain(op, [x, *vectors, *sums]) for x in parts]
    backward = ChannelBackpropStats(order=order)
    shares = [run_plain(backward, [x, y[3], y[4], dy]) for x, y, dy in zip(parts, done, slopes)]
    totals = [sum(each) for each in zip(*shares)]
    gradient = SpatialBNGradient(order=order, num_batches=len(parts)).with_arity(9, 3)
    slopes_of = [
        run_plain(gradient, [x, scale, dy, y[3], y[4], *totals, sums[2], w])
        for x, y, dy, w in zip(parts, done, slopes, weights)
    ]
    return vectors, slopes, done, slopes_of


@pytest.mark.parametrize("order", ["NCHW", "NHWC"])
def test_parts_of_different_sizes_give_what_the_whole_gives(order):
    x = np.random.default_rng(2).standard_normal((6, 3, 2, 4))
    parts = [x[:3], x[3:4], x[:2] * 1e30, x[4:]]
    vectors, slopes, done, found = chain(order, parts)
    present = [k for k, weight in enumerate(WEIGHTS) if weight]
    op = SpatialBN(order=order, momentum=0.8)
    whole = run_plain(op.with_arity(5, 5), [x, *vectors])
    dy = np.concatenate([slopes[k] for k in present])
    d_whole = run_plain(SpatialBNGradient(order=order), [x, vectors[0], dy, whole[3], whole[4]])
    np.testing.assert_allclose(np.concatenate([done[k][0] for k in present]), whole[0], 1e-9, 1e-9)
    for each in done:  # that of the placeholder as well
        for got, want in zip(each[1:], whole[1:]):
            np.testing.assert_allclose(got, want, 1e-9, 1e-12)
    np.testing.assert_allclose(np.concatenate([found[k][0] for k in present]), d_whole[0], 1e-9, 1e-9)
    np.testing.assert_array_equal(found[2][0], np.zeros_like(parts[2]))
    for output in (1, 2):
        np.testing.assert_allclose(sum(each[output] for each in found), d_whole[output], 1e-9, 1e-9)


def test_the_gradient_over_parts_is_that_of_the_numbers():
    """Central differences of sum(dY * Y) over all parts: an element of one part changes the outputs of the others."""
    x = np.random.default_rng(3).standard_normal((4, 2, 3))
    cut = [slice(0, 3), slice(3, 4)]

    def loss(x):
        _, slopes, done, _ = chain("NCHW", [x[part] for part in cut], (1.0, 1.0))
        return sum((dy * y[0]).sum() for dy, y in zip(slopes, done))

    found = np.concatenate([each[0] for each in chain("NCHW", [x[part] for part in cut], (1.0, 1.0))[3]])
    for place in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[place] = 1e-5
        assert abs((loss(x + step) - loss(x - step)) / 2e-5 - found[place]) < 1e-6


def test_no_part_with_samples_changes_nothing():
    vectors, _, done, found = chain("NCHW", [np.ones((2, 3, 4)), np.ones((1, 3, 4))], (0.0, 0.0))
    for each in done:
        np.testing.assert_array_equal(each[1:3], vectors[2:])
        assert np.isfinite(each[0]).all()
    for each in found:
        assert not any(part.any() for part in each)


def test_an_empty_part_learns_from_the_others():
    vectors, _, done, found = chain("NCHW", [np.empty((0, 3, 4)), np.arange(24.0).reshape(2, 3, 4)], (0.0, 1.0))
    for of_empty, of_other in zip(done[0][1:], done[1][1:]):
        np.testing.assert_array_equal(of_empty, of_other)
    assert (done[0][1] != vectors[2]).all() and found[0][0].shape == (0, 3, 4)
    np.testing.assert_array_equal(found[0][1:], found[1][1:])


def test_a_variance_of_rounding_errors_is_not_negative():
    """All elements are equal: the difference of the sums has only rounding errors."""
    x = np.full((1, 3, 5, 5), 1234.567, np.float32)
    sums = run_plain(ChannelStats().with_arity(1, 2), [x])
    vectors = np.ones((4, 3), np.float32)
    found = run_plain(SpatialBN(num_batches=2).with_arity(7, 5), [x, *vectors, *(2 * s for s in sums)])
    assert not np.isnan(found[4]).any() and (found[2] >= 0).all()


def test_the_gradient_hands_the_count_on():
    op_def = make_op("SpatialBN", [*"xsbmvpqn"], ["y", "m", "v", "sm", "si"], num_batches=2)
    (made,), _ = operator_gradient(op_def, {0: "dy"})
    assert list(made.input) == ["x", "s", "dy", "sm", "si", "s_grad", "b_grad", "n"]
