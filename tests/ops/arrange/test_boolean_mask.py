"""BooleanMask and its gradient, BooleanUnmask, BooleanMaskLengths."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.arrange.boolean_mask import BooleanMask, BooleanMaskGradient, BooleanMaskLengths, BooleanUnmask
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto import NetError, ShapeError
from suite import OperatorSuite, f32, floats, i32, refusal


def bools(*shape):
    return TensorSpec(shape, np.dtype(bool))


def draw_mask(data, length):
    return np.array(data.draw(st.lists(st.booleans(), min_size=length, max_size=length)), bool)


ROWS = st.sampled_from([(), (2,), (2, 1)])


class TestBooleanMask(OperatorSuite):
    operator = BooleanMask
    refuses_nothing = "shapes are seen when it runs; see test_masks_that_do_not_fit"

    def draw(self, data):
        x = data.draw(floats((0, 5), *data.draw(ROWS)))
        return BooleanMask().with_arity(2, data.draw(st.integers(1, 2))), [x, draw_mask(data, len(x))]

    def reference(self, op, x, mask):
        places = [i for i, chosen in enumerate(mask) if chosen]
        return [np.array([x[i] for i in places]).reshape(-1, *x.shape[1:]), np.array(places, int)][: op.n_out]


@pytest.mark.parametrize("mask", [np.array([True]), np.ones((2, 1), bool), np.ones(2, np.int32)])
def test_masks_that_do_not_fit(mask):
    with pytest.raises(ShapeError, match="mask must be a vector of bools of length 2, got"):
        run_plain(BooleanMask(), [np.ones((2, 3), np.float32), mask])


class TestBooleanMaskGradient(OperatorSuite):
    operator = BooleanMaskGradient
    no_gradient = "a gradient operator"
    refusals = (
        refusal(BooleanMaskGradient(), [bools(2, 2), f32(2)], r"mask must have shape \(N,\)"),
        refusal(BooleanMaskGradient(), [bools(2), f32()], r"dmasked_data must have shape \(M, \*S\)"),
    )

    def draw(self, data):
        mask = draw_mask(data, data.draw(st.integers(0, 5)))
        return BooleanMaskGradient(), [mask, data.draw(floats(int(mask.sum()), *data.draw(ROWS)))]

    def reference(self, op, mask, dy):
        dx, rows = np.zeros((len(mask), *dy.shape[1:])), iter(dy)
        for i, chosen in enumerate(mask):
            if chosen:
                dx[i] = next(rows)
        return [dx]


def test_a_gradient_of_another_number_of_rows():
    with pytest.raises(ShapeError, match="one row for each of the 1 rows where mask is true"):
        run_plain(BooleanMaskGradient(), [np.array([True, False]), np.ones(2, np.float32)])


class TestBooleanUnmask(OperatorSuite):
    operator = BooleanUnmask
    no_gradient = "it has none"
    refusals = (
        refusal(BooleanUnmask(), [bools(2), f32(2), bools(2)], "pairs of a mask and its rows, got 3 inputs"),
        refusal(BooleanUnmask(), [bools(2), f32(2), bools(3), f32(1)], "vector of bools of length 2"),
        refusal(BooleanUnmask(), [bools(2), f32(2), bools(2), i32(1)], "the same shape and type"),
    )

    def draw(self, data):
        length, row = data.draw(st.integers(1, 5)), data.draw(ROWS)
        masks = [draw_mask(data, length), draw_mask(data, length)]
        masks.append(~(masks[0] | masks[1]))
        inputs = [x for mask in masks for x in (mask, data.draw(floats(int(mask.sum()), *row)))]
        return BooleanUnmask(), inputs

    def reference(self, op, *inputs):
        masks, rows, result = inputs[::2], [list(r) for r in inputs[1::2]], []
        for i in range(len(masks[0])):
            taken = [rows[k].pop(0) for k, mask in enumerate(masks) if mask[i]]
            result.append(taken[0])
        return [np.array(result)]


def test_masks_that_leave_a_place_out_or_have_too_many_rows():
    some, x = np.array([True, False]), np.ones(1, np.float32)
    with pytest.raises(NetError, match="no mask is true at position 1"):
        run_plain(BooleanUnmask(), [some, x])
    with pytest.raises(NetError, match="mask 0 is true at 1 position and has 2 rows"):
        run_plain(BooleanUnmask(), [some, np.ones(2, np.float32)])


class TestBooleanMaskLengths(OperatorSuite):
    operator = BooleanMaskLengths
    no_gradient = "it has none"
    refusals = (
        refusal(BooleanMaskLengths(), [f32(2), bools(3)], "lengths must have elements of type int32 or int64"),
        refusal(BooleanMaskLengths(), [i32(2), i32(3)], "mask must have elements of type bool"),
    )

    def draw(self, data):
        lengths = np.array(data.draw(st.lists(st.integers(0, 3), max_size=4)), np.int32)
        return BooleanMaskLengths(), [lengths, draw_mask(data, int(lengths.sum()))]

    def reference(self, op, lengths, mask):
        parts = np.split(mask, np.cumsum(lengths)[:-1]) if len(lengths) else []
        return [np.array([part.sum() for part in parts], int)]


def test_lengths_that_do_not_add_up():
    with pytest.raises(ShapeError, match="add up to the length of mask, 3; they add up to 2"):
        run_plain(BooleanMaskLengths(), [np.int32([1, 1]), np.ones(3, bool)])
