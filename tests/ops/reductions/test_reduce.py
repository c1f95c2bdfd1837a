"""Sums and means: over all elements, over axes, down to another shape."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.reductions.reduce import (
    ReduceMean,
    ReduceMeanGradient,
    ReduceProd,
    ReduceProdGradient,
    ReduceSum,
    ReduceSumGradient,
    SumElements,
    SumElementsGradient,
    SumReduceLike,
    SumSqrElements,
)
from suite import OperatorSuite, f32, floats, i32, refusal


class _Whole(OperatorSuite):
    def draw(self, data):
        shape = data.draw(st.sampled_from([(), ((0, 5),), (2, (1, 3))]))
        return self.operator(average=data.draw(st.booleans())), [data.draw(floats(*shape))]


class TestSumElements(_Whole):
    operator = SumElements
    refusals = (refusal(SumElements(), [f32(2).with_dtype(bool)], "X must have elements of type float or int"),)

    def reference(self, op, x):
        return [np.array(sum(x.ravel().tolist()) / (max(x.size, 1) if op.average else 1))]


class TestSumSqrElements(_Whole):
    operator = SumSqrElements
    no_gradient = "it has none"
    refusals = (refusal(SumSqrElements(), [i32(2)], "the inputs must have one floating type"),)

    def reference(self, op, x):
        return [np.array(sum(v * v for v in x.ravel().tolist()) / (max(x.size, 1) if op.average else 1))]


class TestSumElementsGradient(_Whole):
    operator = SumElementsGradient
    no_gradient = "a gradient operator"
    refusals = (refusal(SumElementsGradient(), [f32(2), f32(2)], "dY must have one element"),)

    def draw(self, data):
        op, inputs = super().draw(data)
        return op, [*inputs, data.draw(floats(*data.draw(st.sampled_from([(), (1,)]))))]

    def reference(self, op, x, dy):
        return [np.full(x.shape, dy.item() / (max(x.size, 1) if op.average else 1))]


class TestSumReduceLike(OperatorSuite):
    operator = SumReduceLike
    no_gradient = "it has none"
    refusals = (
        refusal(SumReduceLike(), [f32(2, 3), f32(2)], "consecutive axes of A"),
        refusal(SumReduceLike(), [i32(2), i32(2)], "one floating type, got A int32"),
    )

    def draw(self, data):
        args, shape = data.draw(
            st.sampled_from(
                [
                    ({}, (3, 4)),
                    ({}, (2, 3, 4)),
                    ({}, ()),
                    ({}, (1, 1)),
                    ({"broadcast": True, "axis": 0}, (2, 3)),
                    ({"axis": 1}, (3,)),
                    ({"axis_str": "C"}, (3,)),
                ]
            )
        )
        return SumReduceLike(**args), [data.draw(floats(2, 3, 4)), data.draw(floats(*shape))]

    def reference(self, op, a, b):
        if b.size == 1:
            return [a.sum().reshape(b.shape)]
        start = {"": op.axis, "C": 1}[op.axis_str]
        start = 3 - b.ndim if start == -1 else start
        return [a.sum(axis=tuple(i for i in range(3) if not start <= i < start + b.ndim))]


def draw_axes(data):
    return data.draw(st.sampled_from([(), (0,), (1,), (-1,), (0, 2), (2, 0, 1)]))


class _Reduction(OperatorSuite):
    def draw(self, data):
        op = self.operator(axes=draw_axes(data), keepdims=data.draw(st.booleans()))
        return op, [data.draw(floats((1, 3), (1, 3), (0, 3)))]

    def reduced(self, op, x):
        axes = {axis % 3 for axis in op.axes} or {0, 1, 2}
        y = x
        for axis in sorted(axes, reverse=True):
            y = np.add.reduce(y, axis=axis)
        count = np.prod([x.shape[i] for i in axes])
        kept = [1 if i in axes else n for i, n in enumerate(x.shape)]
        return (y.reshape(kept) if op.keepdims else y), max(count, 1), kept


class TestReduceSum(_Reduction):
    operator = ReduceSum
    refusals = (
        refusal(ReduceSum(axes=(2,)), [f32(2, 3)], r"axes must lie in \[-2, 2\)"),
        refusal(ReduceSum(), [f32(2).with_dtype(bool)], "signed numbers"),
    )

    def reference(self, op, x):
        return [self.reduced(op, x)[0]]


class TestReduceProd(_Reduction):
    operator = ReduceProd
    refusals = (refusal(ReduceProd(axes=(2,)), [f32(2, 3)], r"axes must lie in \[-2, 2\)"),)

    def reference(self, op, x):
        y = x
        for axis in sorted({axis % 3 for axis in op.axes} or {0, 1, 2}, reverse=True):
            y = np.multiply.reduce(y, axis=axis)
        return [y.reshape(self.reduced(op, x)[2]) if op.keepdims else y]


class TestReduceMean(_Reduction):
    operator = ReduceMean
    refusals = (
        refusal(ReduceMean(axes=(-3,)), [f32(2, 3)], "axes must lie in"),
        refusal(ReduceMean(), [i32(2)], "floating-point numbers"),
    )

    def reference(self, op, x):
        y, count, _ = self.reduced(op, x)
        return [y / count]


class _ReductionGradient(_Reduction):
    no_gradient = "a gradient operator"

    def draw(self, data):
        op, (x,) = super().draw(data)
        y = self.reduced(op, x)[0].astype(np.float32)
        return op, [data.draw(floats(*y.shape)), x, y]


class TestReduceSumGradient(_ReductionGradient):
    operator = ReduceSumGradient
    refusals = (
        refusal(ReduceSumGradient(), [f32(2), f32(2, 3), f32(1, 1)], "the same number of elements"),
        refusal(ReduceSumGradient(), [f32(2), f32(2, 3), f32(2)], "is not the reduced shape of X"),
    )

    def reference(self, op, dy, x, y):
        return [np.zeros(x.shape) + dy.reshape(self.reduced(op, x)[2])]


class TestReduceProdGradient(_ReductionGradient):
    operator = ReduceProdGradient
    refusals = (refusal(ReduceProdGradient(), [f32(2), f32(2, 3), f32(1, 1)], "the same number of elements"),)

    def draw(self, data):
        op, (dy, x, y) = super().draw(data)
        return op, [dy, np.where(x < data.draw(st.sampled_from([-3, -1.5])), np.float32(0), x), y]

    def reference(self, op, dy, x, y):
        axes = tuple({axis % 3 for axis in op.axes} or {0, 1, 2})
        dx = np.zeros(x.shape) + dy.reshape(self.reduced(op, x)[2])
        for place in np.ndindex(x.shape):
            others = x.copy()
            others[place] = 1
            dx[place] *= others[tuple(slice(None) if i in axes else n for i, n in enumerate(place))].prod()
        return [dx]


class TestReduceMeanGradient(_ReductionGradient):
    operator = ReduceMeanGradient
    refusals = (refusal(ReduceMeanGradient(), [f32(2), f32(2, 3), f32(1, 1)], "the same number of elements"),)

    def reference(self, op, dy, x, y):
        _, count, kept = self.reduced(op, x)
        return [np.zeros(x.shape) + dy.reshape(kept) / count]


@pytest.mark.parametrize("op", [SumElements(), ReduceSum(), SumSqrElements()])
def test_half_precision_is_summed_in_single(op):
    """In float16, 2048 ones and one more would still be 2048."""
    (y,) = run_plain(op, [np.ones(2050, np.float16)])
    assert y.dtype == np.float16
    assert y.ravel().tolist() == [2050]


def test_whole_numbers():
    (y,) = run_plain(ReduceSum(axes=(1,), keepdims=False), [np.int32([[1, 2], [3, 4]])])
    assert y.dtype == np.int32
    assert y.tolist() == [3, 7]
