"""MeanDivisor and WholeBatchMean; and the walk over the registry: every mean over samples says what divides it."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.core.registry import find, operator_types
from netbuilder.ops.losses.batch_means import MeanDivisor, WholeBatchMean
from netbuilder.proto import ArgumentError
from suite import OperatorSuite, f32, floats, i32, refusal


class TestMeanDivisor(OperatorSuite):
    operator = MeanDivisor
    no_gradient = "a divisor is constant"
    refusals = (
        refusal(MeanDivisor(of="mean"), [f32(3)], "of must be one of sum, labels, rows, elements", ArgumentError),
        refusal(MeanDivisor(of="sum"), [f32(3), f32(3)], "of='sum' takes one input and the weight of a share"),
        refusal(MeanDivisor(of="labels"), [i32(3), f32(2)], "input 1 must have a weight for each label"),
        refusal(MeanDivisor(weighted=True), [f32(3)], "needs the weight of the share as its last input"),
        refusal(MeanDivisor(weighted=True), [f32(3), f32(2)], "the weight of a share must be one number"),
        refusal(MeanDivisor(of="rows", axis=3), [f32(3, 2)], "axis must be one of X"),
        refusal(MeanDivisor(axes=(2,)), [f32(3, 2)], "axes must be those of X"),
    )

    def draw(self, data):
        of = data.draw(st.sampled_from(["sum", "labels", "rows", "elements"]))
        weighted = data.draw(st.booleans())
        x = data.draw(floats((0, 3), (1, 3)))
        others = []
        if of == "labels":
            x = np.round(x).astype(np.int32)
            others = [data.draw(floats(*x.shape, low=0))] if data.draw(st.booleans()) else []
        if weighted:
            others.append(np.array([data.draw(st.sampled_from([0.0, 0.5]))], np.float32))
        axes = data.draw(st.sampled_from([(), (0,), (1, 0)])) if of == "elements" else ()
        axis = data.draw(st.sampled_from([1, -1, 2])) if of == "rows" else 1
        return MeanDivisor(of=of, weighted=weighted, axes=axes, axis=axis), [x, *others]

    def reference(self, op, x, *others):
        if op.weighted and others[-1][0] == 0:
            return [np.zeros(1)]
        if op.of == "sum":
            found = x.sum()
        elif op.of == "labels":
            weights = others[0] if len(others) > op.weighted else np.ones(x.shape)
            found = weights[x >= 0].sum()
        elif op.of == "rows":
            found = x.shape[0] * (x.shape[1] if op.axis == 2 else 1)
        else:
            found = np.prod([x.shape[axis] for axis in op.axes]) if op.axes else x.size
        return [np.array([found], float)]


class TestWholeBatchMean(OperatorSuite):
    operator = WholeBatchMean
    refusals = (
        refusal(WholeBatchMean(), [i32(3), f32(1), f32(1)], "the inputs must have one floating type, got X int32"),
        refusal(
            WholeBatchMean(),
            [f32(3), f32(2), f32(1)],
            r"divisor \(that of this share\) must have one element, got shape \(2,\)",
        ),
        refusal(
            WholeBatchMean(),
            [f32(3), f32(1), f32(1), i32(1)],
            "the inputs must have one floating type, got weight int32",
        ),
        refusal(WholeBatchMean(parts=0.0), [f32(3), f32(1), f32(1)], "parts must be positive", ArgumentError),
        refusal(WholeBatchMean(part=-1.0), [f32(3), f32(1), f32(1)], "part must be positive", ArgumentError),
        refusal(WholeBatchMean(least=-1.0), [f32(3), f32(1), f32(1)], "least must not be negative", ArgumentError),
        refusal(WholeBatchMean(offset=np.inf), [f32(3), f32(1), f32(1)], "offset must not be negative", ArgumentError),
    )

    def draw(self, data):
        numbers = st.sampled_from([0.0, 0.5, 2.0, 3.0])
        one = numbers.map(lambda number: np.array([number], np.float32))
        inputs = [data.draw(floats((1, 3))), data.draw(one), data.draw(one)]
        if data.draw(st.booleans()):
            inputs.append(data.draw(one))
        least, offset = data.draw(st.sampled_from([(0.0, 0.0), (1.0, 0.0), (0.0, 1e-3)]))
        return WholeBatchMean(
            parts=3.0, part=data.draw(st.sampled_from([1.0, 2.0])), least=least, offset=offset
        ), inputs

    def reference(self, op, x, divisor, total, weight=None):
        own, whole = max(divisor[0], op.least) + op.offset, max(total[0], op.least) + op.offset
        whole *= 1 if weight is None else weight[0]
        return [x * own * op.parts / (op.part * whole) if own > 0 and whole > 0 else 0 * x]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_share_without_samples_hides_what_its_padding_gives(value):
    x, one, zero = np.float32([value]), np.ones(1, np.float32), np.zeros(1, np.float32)
    assert run_plain(WholeBatchMean(), [x, zero, one])[0] == 0
    assert run_plain(WholeBatchMean(), [x, one, one, zero])[0] == 0
    assert not np.isfinite(run_plain(WholeBatchMean(), [x, one, one])[0])
    assert np.isnan(run_plain(WholeBatchMean(), [one, np.full(1, np.nan, np.float32), one])[0])


# Operators that are losses, or form means, and have no ``batch_mean``: why shares of a batch need none.
WITHOUT: dict[str, str] = {
    "a number, or numbers, for each sample": (
        "BernoulliJSD CosineEmbeddingCriterion CrossEntropy HSoftmax LabelCrossEntropy MarginRankingCriterion "
        "SigmoidCrossEntropyWithLogits WeightedSigmoidCrossEntropyWithLogits MakeTwoClass ReduceBackMean"
    ),
    "a number for each session": "LambdaRankNdcg PairWiseLoss",
    "a mean for each segment, and segments belong to samples": (
        "LengthsMean SortedSegmentMean SortedSegmentRangeLogMeanExp SortedSegmentRangeMean SparseLengthsMean "
        "SparseSortedSegmentMean SparseUnsortedSegmentMean UnsortedSegmentMean"
    ),
    "within each sample": (
        "AveragePool AveragePool1D AveragePool2D AveragePool3D GroupNorm InstanceNorm LayerNorm PSRoIPool RMSNorm "
        "RoIAlign RoIAlignRotated"
    ),
    "statistics of the batch, see combine_spatial_bn": (
        "BatchMoments ChannelBackpropStats ChannelStats Moments SpatialBN"
    ),
    "each element on its own": "GaussianFill Mean NormalizeImages Reshape Scale Slice",
    "it is WholeBatchMean itself": "WholeBatchMean",
    "it runs its net on devices that combine the means in it": "ParallelDo",
}


def has_gradient(cls):
    return any("gradient" in vars(base) for base in cls.__mro__ if base.__module__ != "netbuilder.ops.core.operator")


def test_every_loss_and_mean_says_how_shares_of_a_batch_combine_it():
    """One that is new fails here: give it ``batch_mean``, and a case in tests/parallel/test_batch_means.py."""
    candidates = set()
    for op_type in operator_types():
        cls = find(op_type)
        if op_type.endswith("Gradient") or not has_gradient(cls):
            continue
        text = (inspect.getdoc(cls) or "").split("\n\n")[0].lower()
        family = cls.__module__.rsplit(".", 2)[-2:]
        if family[0] == "losses" or "loss" in family[1] or "mean" in text or "average" in text:
            candidates.add(op_type)
    declared = {op_type for op_type in operator_types() if "batch_mean" in vars(find(op_type))}
    without = {op_type for op_types in WITHOUT.values() for op_type in op_types.split()}
    assert sorted(candidates - declared - without) == []
    assert sorted(without & declared) == [] and without <= set(operator_types())
