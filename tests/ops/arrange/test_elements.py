"""GatherElements, GatherND, ScatterElements, ScatterND and their gradients."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.arrange.elements import (
    GatherElements,
    GatherElementsGradient,
    GatherND,
    GatherNDGradient,
    ScatterElements,
    ScatterElementsGradient,
    ScatterND,
    ScatterNDGradient,
)
from netbuilder.proto import ArgumentError
from suite import OperatorSuite, f32, floats, i64, refusal


def draw_elements(data, repeated=True):
    """Return an axis, a tensor, and indices for it."""
    shape = tuple(data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    extent = shape[axis]
    chosen = [data.draw(st.integers(1, n)) for n in shape]
    if repeated:
        chosen[axis] = data.draw(st.integers(1, 4))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    indices = np.argsort(rng.random([*chosen[: axis % len(shape)], extent, *chosen[axis % len(shape) + 1 :]]), axis)
    indices = np.take(indices, range(chosen[axis]), axis, mode="wrap")
    return axis, data.draw(floats(*shape)), np.where(rng.random(indices.shape) < 0.3, indices - extent, indices)


def draw_slices(data, repeated=True):
    """Return the number of batch axes, a tensor, and indices for it."""
    shape = tuple(data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)))
    batch = data.draw(st.integers(0, len(shape) - 1)) if repeated else 0
    count = data.draw(st.integers(1, len(shape) - batch))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    places = list(np.ndindex(shape[batch : batch + count]))
    rows = data.draw(st.integers(1, len(places) + 1 if repeated else len(places)))
    indices = [[places[i % len(places)] for i in rng.permutation(rows)] for _ in np.ndindex(shape[:batch])]
    return batch, data.draw(floats(*shape)), np.int64(indices).reshape(*shape[:batch], rows, count)


def element_places(axis, x, indices):
    """Yield each place in the indices, and the place in X that it chooses."""
    for place in np.ndindex(indices.shape):
        chosen = list(place)
        chosen[axis] = indices[place]
        yield place, tuple(chosen)


def slice_places(batch, x, indices):
    for place in np.ndindex(indices.shape[:-1]):
        yield place, (*place[:batch], *indices[place])


class TestGatherElements(OperatorSuite):
    operator = GatherElements
    refusals = (
        refusal(GatherElements(axis=2), [f32(2, 3), i64(2, 3)], r"axis must lie in \[-2, 2\), got 2"),
        refusal(GatherElements(), [f32(2, 3), i64(2, 4)], "no longer except along axis 0"),
        refusal(GatherElements(), [f32(2, 3), i64(2)], "must have the axes of X"),
    )

    def draw(self, data):
        axis, x, indices = draw_elements(data)
        return GatherElements(axis=axis), [x, indices]

    def reference(self, op, x, indices):
        y = np.zeros(indices.shape)
        for place, chosen in element_places(op.axis, x, indices):
            y[place] = x[chosen]
        return [y]


class TestGatherElementsGradient(OperatorSuite):
    operator = GatherElementsGradient
    no_gradient = "a gradient operator"
    refusals = (refusal(GatherElementsGradient(), [f32(2, 3), i64(2, 3), f32(2, 2)], "dY must have"),)

    def draw(self, data):
        axis, x, indices = draw_elements(data)
        return GatherElementsGradient(axis=axis), [x, indices, data.draw(floats(*indices.shape))]

    def reference(self, op, x, indices, dy):
        dx = np.zeros(x.shape)
        for place, chosen in element_places(op.axis, x, indices):
            dx[chosen] += dy[place]
        return [dx]


class TestGatherND(OperatorSuite):
    operator = GatherND
    refusals = (
        refusal(GatherND(), [f32(2, 3), i64(2, 3)], "at most as many coordinates as X has axes after these"),
        refusal(GatherND(batch_dims=1), [f32(2, 3), i64(3, 1)], "must have the first 1 extents"),
    )

    def draw(self, data):
        batch, x, indices = draw_slices(data)
        return GatherND(batch_dims=batch), [x, indices]

    def reference(self, op, x, indices):
        b = op.batch_dims
        y = np.zeros((*indices.shape[:-1], *x.shape[b + indices.shape[-1] :]))
        for place, chosen in slice_places(b, x, indices):
            y[place] = x[chosen]
        return [y]


class TestGatherNDGradient(OperatorSuite):
    operator = GatherNDGradient
    no_gradient = "a gradient operator"
    refusals = (refusal(GatherNDGradient(), [f32(2, 3), i64(2, 1), f32(2, 2)], "dY must have"),)

    def draw(self, data):
        batch, x, indices = draw_slices(data)
        shape = (*indices.shape[:-1], *x.shape[batch + indices.shape[-1] :])
        return GatherNDGradient(batch_dims=batch), [x, indices, data.draw(floats(*shape))]

    def reference(self, op, x, indices, dy):
        dx = np.zeros(x.shape)
        for place, chosen in slice_places(op.batch_dims, x, indices):
            dx[chosen] += dy[place]
        return [dx]


def combined(op, x, pairs, updates):
    """Return X with updates at places."""
    y = x.copy()
    for place, chosen in pairs:
        old, new = y[chosen], updates[place]
        y[chosen] = {"none": new, "add": old + new, "max": np.maximum(old, new), "min": np.minimum(old, new)}[
            op.reduction
        ]
    return [y]


class TestScatterElements(OperatorSuite):
    operator = ScatterElements
    wrt = (0, 2)
    refusals = (
        refusal(ScatterElements(reduction="mul"), [f32(2), i64(2), f32(2)], "must be none, add, max", ArgumentError),
        refusal(ScatterElements(), [f32(2), i64(2), f32(1)], r"updates must have shape \(2,\), got \(1,\)"),
    )

    def draw(self, data):
        reduction = data.draw(st.sampled_from(["none", "add", "max", "min"]))
        axis, x, indices = draw_elements(data, repeated=reduction != "none")
        op = ScatterElements(axis=axis, reduction=reduction)
        return op, [x, indices, data.draw(floats(*indices.shape))]

    def draw_gradient(self, data):
        reduction = data.draw(st.sampled_from(["none", "add"]))
        axis, x, indices = draw_elements(data, repeated=reduction != "none")
        op = ScatterElements(axis=axis, reduction=reduction)
        return op, [x, indices, data.draw(floats(*indices.shape))]

    def reference(self, op, x, indices, updates):
        return combined(op, x, element_places(op.axis, x, indices), updates)


class TestScatterND(OperatorSuite):
    operator = ScatterND
    wrt = (0, 2)
    refusals = (refusal(ScatterND(), [f32(2, 3), i64(1, 1), f32(3)], r"updates must have shape \(1, 3\)"),)

    def draw(self, data):
        reduction = data.draw(st.sampled_from(["none", "add"]))
        _, x, indices = draw_slices(data, repeated=False)
        shape = (*indices.shape[:-1], *x.shape[indices.shape[-1] :])
        return ScatterND(reduction=reduction), [x, indices, data.draw(floats(*shape))]

    def reference(self, op, x, indices, updates):
        return combined(op, x, slice_places(0, x, indices), updates)


class TestScatterElementsGradient(OperatorSuite):
    operator = ScatterElementsGradient
    no_gradient = "a gradient operator"
    refusals = (refusal(ScatterElementsGradient(), [i64(2), f32(2, 3)], "must have the axes of X"),)

    def draw(self, data):
        axis, x, indices = draw_elements(data)
        return ScatterElementsGradient(axis=axis), [indices, x]

    def reference(self, op, indices, dy):
        dx = dy.copy()
        for _, chosen in element_places(op.axis, dy, indices):
            dx[chosen] = 0
        return [dx]


class TestScatterNDGradient(OperatorSuite):
    operator = ScatterNDGradient
    no_gradient = "a gradient operator"
    refusals = (refusal(ScatterNDGradient(), [i64(2, 3), f32(2, 3)], "at most as many coordinates"),)

    def draw(self, data):
        _, x, indices = draw_slices(data, repeated=False)
        return ScatterNDGradient(), [indices, x]

    def reference(self, op, indices, dy):
        dx = dy.copy()
        for _, chosen in slice_places(0, dy, indices):
            dx[chosen] = 0
        return [dx]


def test_the_last_of_several_updates_counts():
    x = np.zeros(2, np.float32)
    (y,) = run_plain(ScatterElements(), [x, np.int64([1, 1, 1]), np.float32([1, 2, 3])])
    assert y.tolist() == [0, 3]


def test_indices_out_of_range():
    with pytest.raises(IndexError, match=r"GatherElements: indices must lie in \[-2, 2\), got 2"):
        run_plain(GatherElements(), [np.ones(2, np.float32), np.int64([2])])
    with pytest.raises(IndexError, match=r"GatherND: indices must lie in \[-3, 3\), got -4"):
        run_plain(GatherND(), [np.ones((2, 3), np.float32), np.int64([[0, -4]])])
