"""Fills with random numbers."""

import math
import tracemalloc

import numpy as np
import pytest

from checks import DEVICES, interpret, run_plain
from fill_suite import FillOperatorSuite, draw_shape, shared_refusals
from netbuilder.engines.random import filled, normal, uniform
from netbuilder.ops.core.operator import encode
from netbuilder.ops.fills.random_fill import GaussianFill, MSRAFill, UniformFill, UniformIntFill, XavierFill
from netbuilder.proto import ArgumentError
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from suite import f32, refusal


class _Random(FillOperatorSuite):
    arguments = {}

    def draw(self, data):
        args, inputs = draw_shape(data, (3, 4, 2), **self.arguments)
        return self.operator(**args), inputs

    def reference(self, op, *inputs):
        return [None]  # the random numbers are checked below

    def test_inplace(self):
        """The numbers depend on the output's name: drawn again, over the input, in its shape."""
        workspace = Workspace()
        x = np.full((3, 4), 99, self.operator.fixed_dtype)
        workspace.feed("x", x)
        op = encode(self.operator(**self.arguments).with_arity(1, 1), ["x"], ["x"])
        workspace.run_operator_once(op)
        first = workspace.fetch("x")
        assert first.shape == (3, 4)
        assert not (first == x).any()


class TestXavierFill(_Random):
    operator = XavierFill
    refusals = (*shared_refusals(XavierFill), refusal(XavierFill(), [], "at least 1 axis"))


class TestMSRAFill(_Random):
    operator = MSRAFill
    refusals = (*shared_refusals(MSRAFill), refusal(MSRAFill(shape=(5,)), [], "at least 2 axes"))


class TestGaussianFill(_Random):
    operator = GaussianFill
    refusals = (
        *shared_refusals(GaussianFill),
        refusal(GaussianFill(shape=(2,), std=0.0), [], "std must be positive", ArgumentError),
    )


class TestUniformFill(_Random):
    operator, arguments = UniformFill, {"min": -1.0, "max": 3.0}
    refusals = (
        *shared_refusals(UniformFill),
        refusal(UniformFill(min=1.0, max=1.0), [], "min must be below max", ArgumentError),
        refusal(UniformFill(), [f32(2), f32(1)], "min and max must both be inputs", ArgumentError),
    )


class TestUniformIntFill(_Random):
    operator, arguments = UniformIntFill, {"min": -2, "max": 2}
    refusals = (
        *shared_refusals(UniformIntFill),
        refusal(UniformIntFill(min=3, max=2), [], "min must be below max", ArgumentError),
        refusal(UniformIntFill(), [f32(2), f32(1)], "min and max must both be inputs", ArgumentError),
    )


MANY = (40, 30, 3, 3)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("op", "low", "high"),
    [
        (XavierFill(shape=MANY), -math.sqrt(3 / 270), math.sqrt(3 / 270)),
        (UniformFill(shape=MANY, min=-1.0, max=0.5), -1, 0.5),
        (UniformFill(shape=MANY), 0, 1),
    ],
)
def test_uniform(op, low, high, device):
    (y,) = run_plain(op, [], device)
    assert y.dtype == np.float32
    assert low <= y.min() < low + 0.01 * (high - low)
    assert high - 0.01 * (high - low) < y.max() <= high
    assert abs(y.mean() - (low + high) / 2) < 0.01 * (high - low)
    assert abs(y.std() / ((high - low) / math.sqrt(12)) - 1) < 0.03


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("op", "mean", "std"),
    [
        (MSRAFill(shape=MANY), 0, math.sqrt(2 / 360)),
        (GaussianFill(shape=MANY), 0, 1),
        (GaussianFill(shape=MANY, mean=2.0, std=0.5), 2, 0.5),
    ],
)
def test_normal(op, mean, std, device):
    (y,) = run_plain(op, [], device)
    assert y.dtype == np.float32
    assert abs(y.mean() - mean) < 0.05 * std
    assert abs(y.std() / std - 1) < 0.05
    inside = np.mean(np.abs(y - mean) < std)
    assert abs(inside - 0.6827) < 0.03, "not normal: the share within one deviation"


def test_whole_numbers_reach_both_ends_equally():
    (y,) = run_plain(UniformIntFill(shape=MANY, min=-1, max=2), [])
    counts = np.bincount(y.ravel() + 1)
    assert y.dtype == np.int32
    assert counts.shape == (4,)
    assert (np.abs(counts / y.size - 0.25) < 0.03).all()


def test_bounds_from_inputs():
    op = UniformFill(input_as_shape=True)
    (y,) = run_plain(op, [np.int64([50, 20]), np.float32([2]), np.float32([3])])
    assert y.shape == (50, 20)
    assert 2 <= y.min() < 2.1 and 2.9 < y.max() <= 3


@pytest.mark.parametrize(("op_type", "dtype"), [(UniformFill, np.float32), (UniformIntFill, np.int32)])
def test_bounds_from_inputs_that_leave_no_range(op_type, dtype):
    """As in Caffe2: no rows; a scalar has none to leave out."""
    bounds = [np.array([3], dtype), np.array([2], dtype)]
    (y,) = run_plain(op_type(input_as_shape=True), [np.int64([4, 2]), *bounds])
    assert y.shape == (0, 2) and y.dtype == dtype
    with pytest.raises(ArgumentError, match="min must be below max"):
        run_plain(op_type(input_as_shape=True), [np.int64([]), *bounds])


def test_two_outputs_draw_different_numbers():
    found = interpret([make_op("UniformFill", [], [name], shape=[8]) for name in ("a", "b")], {})
    assert not (found["a"] == found["b"]).any()


@pytest.mark.parametrize("draw", [uniform, normal])
def test_a_large_fill_has_the_numbers_of_one_in_whole(draw):
    def finish(x):
        return x * 0.3 + 1.0

    shape = (3, 17_001)
    made = filled(np, draw, 9, shape, finish, np.float32, start=5)
    np.testing.assert_array_equal(made, finish(draw(np, 9, shape, start=5)).astype(np.float32))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("size", [(1 << 18) - 1, 1 << 18, 300_001])
@pytest.mark.parametrize("threads", [2, 3, 50])
def test_a_large_fill_on_several_threads(threads, size):
    want, found = (
        filled(np, normal, 9, (size,), lambda x: x * 0.3, np.float32, start=5, threads=count) for count in (1, threads)
    )
    np.testing.assert_array_equal(found, want)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", ["XavierFill", "MSRAFill", "GaussianFill", "UniformFill", "UniformIntFill"])
def test_a_large_fill_takes_little_more_memory_than_its_result(kind):
    workspace = Workspace()
    tracemalloc.start()
    try:
        workspace.run_operator_once(make_op(kind, [], ["x"], shape=[1000, 2000]))
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 2.5 * workspace.fetch("x").nbytes  # the kernel's array and the blob's
