"""Products of small FCs and of their gradients: numbers, NaN, the memory around the results, where others serve."""

import numpy as np
import pytest

from machine_code import alone
from netbuilder.engines.llvm import machine
from netbuilder.engines.llvm.small_products import small_fc, small_fc_dx, small_fc_gradient
from netbuilder.ops.core.operator import TensorSpec, decode
from netbuilder.ops.core.registry import find
from netbuilder.proto.arguments import make_op
from prepared import FakePlan

pytestmark = pytest.mark.skipif(not machine.available(), reason="needs llvmlite")

SIZES = [(1, 1, 1), (4, 1, 1), (5, 7, 19), (32, 64, 64), (13, 33, 63), (23, 5, 40), (4, 2048, 13), (250, 30, 1)]
EDGE = 40  # elements around each result


@pytest.fixture(autouse=True, params=[False, True], ids=["AVX2", "AVX-512"])
def wide(request, monkeypatch):
    """Whether the code is that for vectors of 512 bits, which the compiler splits where there are none."""
    monkeypatch.setattr(machine, "has_wide_registers", lambda: request.param)
    return request.param


def operator(kind, outputs):
    names = ["x", "w", "b"] if outputs == 1 else ["x", "w", "dy"]
    return decode(find(kind), make_op(kind, names, [f"y{i}" for i in range(outputs)]))


def drawn(m, k, n, transposed, seed=0):
    rng = np.random.default_rng(seed)
    w = (k, n) if transposed else (n, k)
    return [rng.standard_normal(shape).astype(np.float32) for shape in ((m, k), w, (n,), (m, n))]


def specs(*arrays):
    return [TensorSpec(array.shape, array.dtype) for array in arrays]


def run(prepared, *inputs):
    """Return the outputs, after a look at the memory around them."""
    outs, around = [], []
    for spec in prepared.outputs:
        memory = np.full(spec.size + 2 * EDGE, 7, np.float32)
        outs.append(memory[EDGE : EDGE + spec.size].reshape(spec.shape))
        around.append((memory[:EDGE], memory[EDGE + spec.size :]))
    given = [array if spec is not None else None for array, spec in zip(inputs, prepared.inputs)]
    scratch = np.full(prepared.scratch, 255, np.uint8) if prepared.scratch else None
    prepared.bind(given, outs, scratch)()
    assert all((edge == 7).all() for pair in around for edge in pair)
    return outs


def close(got, want, k):
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-6 * np.sqrt(k) * max(1, np.abs(want).max()))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["FC", "FCTransposed"])
@pytest.mark.parametrize("relu", [False, True])
def test_numbers(kind, size, relu):
    m, k, n = size
    x, w, b, _ = drawn(m, k, n, kind == "FCTransposed")
    prepared = small_fc(operator(kind, 1), alone(), *specs(x, w, b), relu=relu)
    if kind == "FC" and m == 1:
        assert prepared is None  # libraries read few rows without a copy of the weights
        return
    want = x.astype(np.float64) @ (w if kind == "FCTransposed" else w.T) + b
    close(run(prepared, x, w, b)[0], np.maximum(want, 0) if relu else want, k)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["FC", "FCTransposed"])
@pytest.mark.parametrize("outputs", [2, 3])
def test_gradients(kind, size, outputs):
    m, k, n = size
    transposed = kind == "FCTransposed"
    x, w, _, dy = drawn(m, k, n, transposed)
    op = operator(f"{kind}Gradient", outputs)
    found = run(small_fc_gradient(op, alone(), *specs(x, w, dy)), x, w, dy)
    slope = dy.astype(np.float64)
    dw = slope.T @ x
    close(found[0], dw.T if transposed else dw, m)
    close(found[1], slope.sum(0), m)
    if outputs == 3:
        dx = slope @ (w.T if transposed else w)
        close(found[2], dx, n)
        alone_dx = run(small_fc_dx(op, alone(), *specs(x, w, dy)), None, w, dy)
        assert np.array_equal(alone_dx[0], found[2])


@pytest.mark.parametrize("kind", ["FC", "FCTransposed"])
def test_zero_times_what_is_not_finite_is_nan(kind):
    m, k, n = 16, 65, 63
    transposed = kind == "FCTransposed"
    x, w, b, dy = drawn(m, k, n, transposed)
    x[-1, 3], w[5, 6], dy[-1, 5:8], b[2] = np.nan, np.inf, 0, np.nan
    plain = (w if transposed else w.T).astype(np.float64)
    with np.errstate(all="ignore"):
        want = [x @ plain + b, dy.T.astype(np.float64) @ x, dy.astype(np.float64) @ plain.T]
    (y,) = run(small_fc(operator(kind, 1), alone(), *specs(x, w, b), relu=False), x, w, b)
    dw, _, dx = run(small_fc_gradient(operator(f"{kind}Gradient", 3), alone(), *specs(x, w, dy)), x, w, dy)
    for got, exact in zip((y, dw.T if transposed else dw, dx), want):
        assert np.isnan(exact).any() and np.array_equal(np.isnan(got), np.isnan(exact))
        np.testing.assert_allclose(got, exact, 1e-4, 1e-4)


@pytest.mark.parametrize("size, serves", [((32, 64, 64), True), ((32, 64, 65), False), ((4, 2049, 4), False)])
def test_large_products_are_left_to_others(size, serves):
    x, w, b, _ = drawn(*size, False)
    assert (small_fc(operator("FC", 1), alone(), *specs(x, w, b), relu=False) is not None) == serves


@pytest.mark.parametrize("size, serves", [((64, 64, 64), True), ((64, 64, 65), False), ((2049, 4, 4), False)])
def test_large_gradients_are_left_to_others(size, serves):
    x, w, _, dy = drawn(*size, False)
    assert (small_fc_gradient(operator("FCGradient", 3), alone(), *specs(x, w, dy)) is not None) == serves


def test_other_types_and_plans_without_machine_code_are_left_to_others():
    x, w, b, _ = drawn(8, 8, 8, False)
    op = operator("FC", 1)
    doubles = [TensorSpec(spec.shape, np.dtype(np.float64)) for spec in specs(x, w, b)]
    assert small_fc(op, alone(), *doubles, relu=False) is None
    assert small_fc(op, FakePlan(engines=()), *specs(x, w, b), relu=False) is None
