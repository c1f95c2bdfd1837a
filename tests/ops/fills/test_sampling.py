"""WeightedSample, WeightedMultiSampling, UniqueUniformFill."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import DEVICES, run_plain
from fill_suite import FillOperatorSuite, draw_shape, shared_refusals
from netbuilder.ops.fills.sampling import UniqueUniformFill, WeightedMultiSampling, WeightedSample
from netbuilder.proto import ArgumentError, NetError, ShapeError
from suite import OperatorSuite, f32, i32, refusal


class TestWeightedSample(OperatorSuite):
    operator = WeightedSample
    no_gradient = "it has none"
    refusals = (
        refusal(WeightedSample(), [f32(2)], r"sampling_weights must have shape \(N, D\)"),
        refusal(
            WeightedSample(),
            [f32(2, 3), f32(2, 2)],
            r"sampling_values must have the shape of sampling_weights, \(2, 3\)",
            n_out=2,
        ),
        refusal(
            WeightedSample(),
            [f32(2, 3), f32(2, 3)],
            "one output per input, got 2 inputs and 1 output",
            NetError,
            n_out=1,
        ),
    )

    def draw(self, data):
        """One weight a row, or none, so that the answer is certain."""
        rows, width = data.draw(st.integers(0, 4)), data.draw(st.integers(1, 4))
        chosen = data.draw(st.lists(st.integers(-1, width - 1), min_size=rows, max_size=rows))
        weights = np.zeros((rows, width), np.float32)
        for row, at in enumerate(chosen):
            weights[row, max(at, 0)] = 0.5 * (at >= 0)
        values = np.arange(weights.size, dtype=np.float32).reshape(weights.shape)
        inputs = [weights, values][: data.draw(st.integers(1, 2))]
        return WeightedSample().with_arity(len(inputs), len(inputs)), inputs

    def reference(self, op, weights, values=None):
        index = np.array([[next((i for i, w in enumerate(row) if w), 0)] for row in weights], int)
        if not len(weights):
            return [index] * op.n_out
        return [index] if values is None else [index, np.take_along_axis(values, index, 1)]

    @pytest.mark.parametrize("shape", [(0, 3), (2, 0), (0, 0)])
    def test_nothing_to_draw_from(self, shape):
        """As in Caffe2: vectors without elements."""
        weights = np.zeros(shape, np.float32)
        index, value = run_plain(WeightedSample().with_arity(2, 2), [weights, weights])
        assert index.shape == value.shape == run_plain(WeightedSample(), [weights])[0].shape == (0,)
        assert (index.dtype, value.dtype) == (np.int32, np.float32)

    @pytest.mark.parametrize("device", DEVICES)
    def test_shares(self, device):
        weights = np.tile(np.float32([1, 0, 2, 3, 0]), (6000, 1))
        (index,) = run_plain(WeightedSample(), [weights], device)
        shares = np.bincount(index.ravel(), minlength=5) / 6000
        np.testing.assert_allclose(shares, [1 / 6, 0, 2 / 6, 3 / 6, 0], atol=0.02)
        assert shares[1] == shares[4] == 0

    def test_negative_weights(self):
        with pytest.raises(ShapeError, match="weights must not be negative, got -1"):
            run_plain(WeightedSample(), [np.float32([[2, -1]])])


class TestWeightedMultiSampling(OperatorSuite):
    operator = WeightedMultiSampling
    no_gradient = "it has none"
    refusals = (
        refusal(WeightedMultiSampling(num_samples=-1), [f32(2)], "not be negative", ArgumentError),
        refusal(WeightedMultiSampling(num_samples=2), [f32(2), f32(3)], "got 2 with 2 inputs", ArgumentError),
        refusal(WeightedMultiSampling(num_samples=2), [f32(2, 2)], r"a vector of float32, got shape \(2, 2\)"),
        refusal(WeightedMultiSampling(num_samples=2), [i32(2)], "a vector of float32, got shape .* of int32"),
    )

    def draw(self, data):
        width, at = data.draw(st.integers(0, 4)), data.draw(st.integers(0, 3))
        cdf = (np.arange(width) >= at).astype(np.float32) * 3
        if data.draw(st.booleans()):
            return WeightedMultiSampling(num_samples=data.draw(st.integers(0, 5))), [cdf]
        return WeightedMultiSampling(), [cdf, np.zeros((2, 3), np.float32)]

    def reference(self, op, cdf, like=None):
        shape = (op.num_samples,) if like is None else like.shape
        first = int((cdf == 0).sum()) if cdf.any() else 0
        return [np.full(shape if cdf.size else (0,), first)]

    @pytest.mark.parametrize("device", DEVICES)
    def test_shares(self, device):
        (index,) = run_plain(WeightedMultiSampling(num_samples=9000), [np.float32([0.2, 0.5, 0.5, 0.8, 1.5])], device)
        assert index.dtype == np.int32
        shares = np.bincount(index, minlength=5) / 9000
        np.testing.assert_allclose(shares, np.array([2, 3, 0, 3, 7]) / 15, atol=0.02)

    def test_sums_that_fall(self):
        for cdf in ([0.2, 0.1], [-1, 1]):
            with pytest.raises(ShapeError, match="must not decrease; give the cumulative sums of weights"):
                run_plain(WeightedMultiSampling(num_samples=1), [np.float32(cdf)])


class TestUniqueUniformFill(FillOperatorSuite):
    operator = UniqueUniformFill
    refusals = (
        *shared_refusals(UniqueUniformFill, min=0, max=9),
        refusal(UniqueUniformFill(shape=(2,)), [], "min and max must be given", ArgumentError),
        refusal(UniqueUniformFill(shape=(2,), min=3, max=3), [], "min below max, got min=3, max=3", ArgumentError),
        refusal(
            UniqueUniformFill(shape=(2,), min=0, max=2**40), [], "the range of int32; give dtype INT64", ArgumentError
        ),
        refusal(UniqueUniformFill(shape=(2,), min=3, max=9, dtype=1), [], "or INT64 .10., got 1", ArgumentError),
    )

    def draw(self, data):
        fields, inputs = draw_shape(data, (3, 4, 2), min=-5, max=data.draw(st.sampled_from([18, 200])))
        return UniqueUniformFill(**fields, dtype=data.draw(st.sampled_from([2, 10]))), inputs

    def reference(self, op, *inputs):
        return [None]

    def test_inplace(self):
        """Drawn again, over the input, in its shape."""
        (y,) = run_plain(UniqueUniformFill(min=50, max=99), [np.zeros((3, 4), np.int32)])
        assert y.shape == (3, 4) and y.min() >= 50

    @pytest.mark.parametrize("device", DEVICES)
    @pytest.mark.parametrize("most", [30, 41, 10**12])
    def test_none_comes_twice_and_what_is_avoided_never(self, device, most):
        avoid = np.int64([12, 15, 10**6])
        op = UniqueUniformFill(min=10, max=most, dtype=10)
        like = np.zeros((19 if most == 30 else 7,), np.float32)
        (y,) = run_plain(op, [like, avoid], device)
        assert y.dtype == np.int64 and y.shape == like.shape
        assert len(set(y.tolist()) - set(avoid.tolist())) == y.size
        assert 10 <= y.min() <= y.max() <= most

    def test_each_number_has_the_same_chance(self):
        found = [run_plain(UniqueUniformFill(min=0, max=most, shape=(5000,)), [])[0] for most in (9999, 49999)]
        for y in found:
            assert abs(y.mean() / y.max() - 0.5) < 0.02
            assert abs(np.corrcoef(y, np.arange(5000))[0, 1]) < 0.05

    def test_what_cannot_be_drawn(self):
        with pytest.raises(ShapeError, match="5 numbers are requested, but only 4 may be drawn"):
            run_plain(UniqueUniformFill(min=1, max=4, shape=(5,)), [])
        for avoid in (np.int32([2, 2]), np.int64([2])):
            with pytest.raises(ShapeError, match="must be a vector of int32 without repeats"):
                run_plain(UniqueUniformFill(min=1, max=9), [np.zeros(2), avoid])


def test_infinite_weights_are_refused():
    with pytest.raises(ShapeError, match="weights must be finite"):
        run_plain(WeightedSample(), [np.float32([[1, np.inf]])])
