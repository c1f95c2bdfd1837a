"""GridSample as machine code against the plain kernel in float64: modes, paddings, far positions, NaN, threads."""

import itertools

import numpy as np
import pytest

from checks import run_plain
from netbuilder.engines.llvm import machine, sampling
from netbuilder.ops.images.grid_sample import GridSample
from prepared import Value, bind

pytestmark = pytest.mark.skipif(not machine.available(), reason="needs llvmlite")
PADDINGS = ("zeros", "border", "reflection")
ARGUMENTS = [*itertools.product(("linear", "nearest", "cubic"), PADDINGS, (False, True))]
SHAPES = [((7,), (5,)), ((6, 5), (3, 7)), ((1, 4), (4, 4)), ((3, 4, 5), (2, 3, 3))]
CASES = [(shapes, *each) for shapes in SHAPES for each in ARGUMENTS if each[0] != "cubic" or len(shapes[0]) < 3]


def served(op, x, grid, threads=1):
    found = bind(sampling.grid_sample, op.with_arity(2, 1), [Value.of(x), Value.of(grid)], threads=threads)
    found.call()
    return found.outputs[0].plain()


def check(op, x, grid, threads=1):
    (expected,) = run_plain(op, [x.astype(np.float64), grid.astype(np.float64)])
    np.testing.assert_allclose(served(op, x, grid, threads), expected, rtol=1e-4, atol=1e-4)


@pytest.fixture(params=[1, 3])
def threads(request, monkeypatch):
    monkeypatch.setattr(sampling, "OF_A_THREAD", 0)
    return request.param


@pytest.mark.parametrize(("shapes", "mode", "padding", "corners"), CASES, ids=str)
def test_against_the_plain_kernel(shapes, mode, padding, corners, threads):
    extents, places = shapes
    rng = np.random.default_rng(0)
    op = GridSample(mode=mode, padding_mode=padding, align_corners=corners)
    for samples, channels in ((2, 3), (1, 1), (0, 2), (2, 0)):
        x = rng.standard_normal((samples, channels, *extents)).astype(np.float32)
        grid = rng.uniform(-2.5, 2.5, (samples, *places, len(extents)))  # no position is close to where pixels change
        grid = (np.floor(grid * 50) + 0.37).astype(np.float32) / 50
        check(op, x, grid, threads)


@pytest.mark.parametrize(("mode", "padding", "corners"), ARGUMENTS)
def test_far_positions_and_nan(mode, padding, corners):
    op = GridSample(mode=mode, padding_mode=padding, align_corners=corners)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 2, 4, 8)).astype(np.float32)
    numbers = np.float32([np.nan, np.inf, -np.inf, 1e30, -1e30, 1e6, -1e6, 0.2, -0.3])
    grid = rng.choice(numbers, (1, 5, 9, 2))
    np.testing.assert_allclose(served(op, x, grid), run_plain(op, [x, grid])[0], rtol=1e-6, atol=1e-6)
    x[0, 0, 0, 0] = np.nan
    np.testing.assert_array_equal(np.isnan(served(op, x, grid)), np.isnan(run_plain(op, [x, grid])[0]))


def test_what_is_left_to_numpy():
    x, grid = np.zeros((1, 1, 2, 2, 2), np.float32), np.zeros((1, 2, 2, 2, 3), np.float32)
    values = [Value.of(x), Value.of(grid)]
    assert bind(sampling.grid_sample, GridSample(mode="cubic").with_arity(2, 1), values) is None
    doubles = [Value.of(each.astype(np.float64)) for each in (x, grid)]
    assert bind(sampling.grid_sample, GridSample().with_arity(2, 1), doubles) is None
