"""Exponentials, logarithms and powers of machine code against float64, over all exponents of float32."""

import numpy as np
import pytest

from machine_code import run_traced
from netbuilder.engines.llvm import machine
from netbuilder.engines.programs import numpy_function

pytestmark = pytest.mark.skipif(not machine.available(), reason="needs llvmlite")

MOST = 4.0  # units in the last place


def every_exponent(count, seed=0):
    """Return float32 of both signs: ``count`` of each exponent, and those at the ends of each; denormal and not finite
    ones are among them."""
    rng = np.random.default_rng(seed)
    mantissas = rng.integers(0, 1 << 23, (512, count), np.uint32)
    mantissas[:, :4] = 0, 1, (1 << 23) - 1, 1 << 22
    bits = mantissas | np.arange(512, dtype=np.uint32)[:, None] << np.uint32(23)
    return bits.view(np.float32).ravel()


def check(got, exact, most=MOST):
    """Fail where a result is further from float64's than some units, or NaN or infinite where that is not."""
    with np.errstate(all="ignore"):
        nearest = exact.astype(np.float32)
        unit = np.spacing(np.minimum(np.abs(nearest), np.finfo(np.float32).max)).astype(np.float64)
        unit = np.maximum(unit, 2.0**-149)
        near = np.abs(got.astype(np.float64) - exact) <= most * unit
    same = (got == nearest) | (np.isnan(got) & np.isnan(exact))
    almost_infinite = np.isinf(got) & (np.abs(exact) >= np.finfo(np.float32).max * (1 - 2.0**-22))
    wrong = ~(near | same | (almost_infinite & (np.sign(got) == np.sign(exact))))
    assert not wrong.any(), (got[wrong][:5], exact[wrong][:5], np.flatnonzero(wrong)[:5])
    zero = exact == 0
    np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(exact[zero]))


@pytest.mark.parametrize("count", [300, pytest.param(20_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["cos", "exp", "expm1", "log", "log10", "log1p", "log2", "sin", "tan", "tanh"])
def test_of_one_number(name, count):
    x = every_exponent(count)
    x = np.concatenate([x, np.linspace(-110, 95, 100 * count, dtype=np.float32)])
    x = np.concatenate([x, np.linspace(0.4, 2.1, 100 * count, dtype=np.float32)])
    (got,) = run_traced(lambda xp, x: [getattr(xp, name)(x)], x)
    with np.errstate(all="ignore"):
        check(got, getattr(np, name)(x.astype(np.float64)))


@pytest.mark.parametrize("name", ["cos", "sin", "tan"])
def test_arguments_next_to_multiples_of_a_quarter(name):
    """The closest ones, over all exponents, cancel nearly all digits."""
    x = (np.arange(1, 200_000) * (np.pi / 2)).astype(np.float32)
    x = np.concatenate(
        [x, np.nextafter(x, np.float32(0)), np.float32([16367173 * 2.0**72, 2.0**20, 1048575.94, -(2.0**20)])]
    )
    (got,) = run_traced(lambda xp, x: [getattr(xp, name)(x)], x)
    check(got, getattr(np, name)(x.astype(np.float64)))


@pytest.mark.parametrize("name", ["exp", "expm1", "log", "log10", "log1p", "log2", "tanh"])
def test_of_one_float64(name):
    mantissas = np.random.default_rng(4).integers(0, 1 << 52, (4096, 12), np.uint64)
    mantissas[:, :4] = 0, 1, (1 << 52) - 1, 1 << 51
    x = (mantissas | np.arange(4096, dtype=np.uint64)[:, None] << np.uint64(52)).view(np.float64).ravel()
    x = np.concatenate([x, *(np.linspace(-end, end, 20_000) for end in (0.5, 2, 45, 750))])
    (got,) = run_traced(lambda xp, x: [getattr(xp, name)(x)], x)
    with np.errstate(all="ignore"):
        exact = getattr(np, name)(x.astype(np.longdouble))
        nearest = exact.astype(np.float64)
        unit = np.maximum(np.spacing(np.minimum(np.abs(nearest), np.finfo(np.float64).max)), 5e-324)
        near = np.abs(got - exact) <= MOST * unit.astype(np.longdouble)
    wrong = ~(near | (got == nearest) | (np.isnan(got) & np.isnan(nearest)))
    assert not wrong.any(), (x[wrong][:5], got[wrong][:5], nearest[wrong][:5])
    np.testing.assert_array_equal(np.signbit(got[nearest == 0]), np.signbit(nearest[nearest == 0]))


@pytest.mark.parametrize("count", [300, pytest.param(20_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["erf", "erfc"])
def test_error_functions(name, count):
    x = np.concatenate([every_exponent(count), np.linspace(-11, 11, 100 * count, dtype=np.float32)])
    (got,) = run_traced(lambda xp, x: [getattr(xp, name)(x)], x)
    with np.errstate(all="ignore"):
        check(got, numpy_function(name)(x.astype(np.float64)))


@pytest.mark.parametrize("exponent", [-3, -2, -1, -0.5, 0, 0.5, 1, 2, 3, 4, 5, 6, 7, -4, 1.5])
def test_powers_with_a_fixed_exponent(exponent):
    x = every_exponent(100)
    (got,) = run_traced(lambda xp, x: [xp.power(x, np.float32(exponent))], x)
    with np.errstate(all="ignore"):
        check(got, np.power(x.astype(np.float64), exponent))


@pytest.mark.parametrize("count", [30, pytest.param(2000, marks=pytest.mark.slow)])
def test_power(count):
    x = every_exponent(count, 1)
    rng = np.random.default_rng(2)
    y = [every_exponent(count, 3)]
    rng.shuffle(y[0])
    y.append(rng.uniform(-40, 40, x.size).astype(np.float32))
    y.append(rng.integers(-20, 20, x.size).astype(np.float32))
    with np.errstate(all="ignore"):
        y.append((rng.uniform(-130, 130, x.size) / np.log2(np.abs(x.astype(np.float64)))).astype(np.float32))
    for exponents in y:
        (got,) = run_traced(lambda xp, x, y: [xp.power(x, y)], x, exponents)
        with np.errstate(all="ignore"):
            check(got, np.power(x.astype(np.float64), exponents.astype(np.float64)))


def test_power_of_special_numbers():
    values = np.float32([0, -0.0, 1, -1, 2, -2, 0.5, -0.5, 3, -3, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 2.0**31])
    x, y = map(np.ascontiguousarray, np.broadcast_arrays(values[:, None], values))
    (got,) = run_traced(lambda xp, x, y: [xp.power(x, y)], x, y)
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(np.float64), y.astype(np.float64))
        check(got.ravel(), exact.ravel())


def test_exact_functions_are_those_of_numpy():
    x = every_exponent(40)
    y = np.random.default_rng(5).permutation(x)
    for name in ("add", "subtract", "multiply", "divide", "copysign", "maximum", "minimum"):
        (got,) = run_traced(lambda xp, x, y, name=name: [getattr(xp, name)(x, y)], x, y)
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(got, getattr(np, name)(x, y), err_msg=name)
    for name in ("sqrt", "floor", "ceil", "rint", "trunc", "abs", "negative", "reciprocal", "square", "sign"):
        (got,) = run_traced(lambda xp, x, name=name: [getattr(xp, name)(x)], x)
        with np.errstate(all="ignore"):
            want = getattr(np, name)(x)
        np.testing.assert_array_equal(got, want, err_msg=name)
        number = ~np.isnan(want)
        np.testing.assert_array_equal(np.signbit(got[number]), np.signbit(want[number]), err_msg=name)
    for name in ("isnan", "isinf", "isfinite", "signbit", "logical_not"):
        (got,) = run_traced(lambda xp, x, name=name: [getattr(xp, name)(x)], x)
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(got, getattr(np, name)(x), err_msg=name)


def test_sums_of_products_are_rounded_twice():
    x, y, z = np.random.default_rng(7).standard_normal((3, 10_000), dtype=np.float32)
    (got,) = run_traced(lambda xp, x, y, z: [x * y + z], x, y, z)
    np.testing.assert_array_equal(got, x * y + z)
