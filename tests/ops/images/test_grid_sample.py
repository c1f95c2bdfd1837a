"""GridSample and its gradient."""

import itertools

import numpy as np
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.images.grid_sample import GridSample, GridSampleGradient
from netbuilder.proto import ArgumentError
from suite import OperatorSuite, f32, floats, refusal

MODES, PADDINGS = ("linear", "nearest", "cubic"), ("zeros", "border", "reflection")


def fold(i, extent, op):
    """The pixel that is read at i; None if there is none."""
    if op.padding_mode == "zeros":
        return i if 0 <= i < extent else None
    if op.padding_mode == "border":
        return min(max(i, 0), extent - 1)
    while not 0 <= i < extent:
        if op.align_corners:
            i = 0 if extent == 1 else -i if i < 0 else 2 * (extent - 1) - i
        else:
            i = -1 - i if i < 0 else 2 * extent - 1 - i
    return i


def weight(distance, mode):
    d = abs(distance)
    if mode == "linear":
        return max(0, 1 - d)
    a = -0.75
    if d <= 1:
        return (a + 2) * d**3 - (a + 3) * d**2 + 1
    return a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a if d < 2 else 0


def sampled(op, x, grid):
    """Every sample as the sum of all pixels that have a weight."""
    y, extents = np.zeros((*x.shape[:2], *grid.shape[1:-1])), x.shape[2:]
    for place in np.ndindex(grid.shape[:-1]):
        per_axis = []
        for extent, g in zip(extents, reversed(grid[place].astype(np.float64))):
            at = (g + 1) / 2 * (extent - 1) if op.align_corners else ((g + 1) * extent - 1) / 2
            if op.mode == "nearest":
                near = [(int(np.rint(at)), 1)]
            else:
                near = [(i, weight(at - i, op.mode)) for i in range(int(np.floor(at)) - 1, int(np.floor(at)) + 3)]
            per_axis.append([(fold(i, extent, op), w) for i, w in near])
        for taps in itertools.product(*per_axis):
            if all(i is not None for i, _ in taps):
                y[(place[0], slice(None), *place[1:])] += (
                    np.prod([w for _, w in taps]) * x[(place[0], slice(None), *(i for i, _ in taps))]
                )
    return y


def draw_op(data, cls):
    return cls(
        data.draw(st.sampled_from(MODES)), data.draw(st.sampled_from(PADDINGS)), align_corners=data.draw(st.booleans())
    )


def draw_inputs(data, op):
    volumes = data.draw(st.booleans())
    x = data.draw(floats((1, 2), (1, 2), (1, 4), (2, 4), *[(1, 3)] * volumes))
    axes = x.ndim - 2
    shape = (x.shape[0], *[data.draw(st.integers(1, 3)) for _ in range(axes)])
    # Fractions of a pixel at which no mode has a kink, from well outside of the image.
    at = data.draw(st.integers(0, 2**32 - 1).map(np.random.default_rng))
    grid = np.empty((*shape, axes), x.dtype)
    for axis, extent in enumerate(reversed(x.shape[2:])):
        pixel = at.integers(-2, extent + 2, shape) + at.uniform(0.1, 0.4, shape) + at.integers(0, 2, shape) * 0.5
        scale = max(extent - 1, 1) if op.align_corners else extent
        grid[..., axis] = 2 * (pixel + (0 if op.align_corners else 0.5)) / scale - 1
    return x, grid


class TestGridSample(OperatorSuite):
    operator = GridSample
    wrt = (0, 1)
    rtol, atol = 1e-4, 1e-5  # positions are float32
    refusals = (
        refusal(GridSample(), [f32(2, 3, 4, 4), f32(2, 3, 4, 3)], r"grid must be \(N, ..., 2\) with 4 axes"),
        refusal(GridSample(mode="other"), [f32(1, 1, 2, 2), f32(1, 1, 1, 2)], "mode must be one of", ArgumentError),
        refusal(GridSample(), [f32(1, 1, 0, 2), f32(1, 1, 1, 2)], "images must have pixels"),
    )

    def draw(self, data):
        op = draw_op(data, GridSample)
        return op, list(draw_inputs(data, op))

    def reference(self, op, x, grid):
        return [sampled(op, x, grid)]


class TestGridSampleGradient(OperatorSuite):
    operator = GridSampleGradient
    no_gradient = "a gradient operator"
    rtol, atol = 1e-4, 1e-4
    refusals = (
        refusal(GridSampleGradient(), [f32(1, 1, 2, 2), f32(1, 1, 1, 2), f32(1, 1, 1, 2)], r"shape \(1, 1, 1, 1\)"),
    )

    def draw(self, data):
        op = draw_op(data, GridSampleGradient)
        x, grid = draw_inputs(data, op)
        return op, [x, grid, data.draw(floats(*x.shape[:2], *grid.shape[1:-1]))]

    def reference(self, op, x, grid, dy):
        """By differences: it is linear in X, and smooth around these positions."""
        x, grid = x.astype(np.float64), grid.astype(np.float64)

        def slope(array, i, step):
            found = []
            for sign in (-1, 1):
                moved = array.copy()
                moved[i] += sign * step
                found.append((sampled(op, *((moved, grid) if array is x else (x, moved))) * dy).sum())
            return (found[1] - found[0]) / (2 * step)

        return [
            np.array([slope(x, i, 1.0) for i in np.ndindex(x.shape)]).reshape(x.shape),
            np.array([slope(grid, i, 1e-5) for i in np.ndindex(grid.shape)]).reshape(grid.shape),
        ]


def test_positions_that_are_not_numbers_are_outside():
    from netbuilder.ops.core.registry import CPU, plain_kernel

    class Context:
        xp = np

    grid = np.float32([np.nan, 0]).reshape(1, 1, 1, 2)
    (y,) = plain_kernel("GridSample", CPU)(GridSample(), Context(), np.ones((1, 1, 2, 2), np.float32), grid)
    assert y.item() == 0


def test_no_samples_and_no_channels():
    for samples, channels in ((0, 3), (2, 0)):
        x, grid = np.zeros((samples, channels, 4, 5), np.float32), np.zeros((samples, 2, 3, 2), np.float32)
        (y,) = run_plain(GridSample(), [x, grid])
        assert y.shape == (samples, channels, 2, 3)
        dx, d_grid = run_plain(GridSampleGradient(), [x, grid, y])
        assert dx.shape == x.shape and not dx.any() and d_grid.shape == grid.shape and not d_grid.any()
