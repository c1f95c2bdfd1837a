"""Exponentials, logarithms, powers and the hyperbolic tangent of float32, within 4 units in the last place.

Each function takes the emitter and vectors of float32 and returns one. NaN, infinities and denormal numbers are served
as by C's functions. Logarithms and powers are computed in float64, which holds what cancels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from netbuilder.engines.llvm.emitter import Emitter, vector

__all__ = ["FUNCTIONS"]

# exp(r) = 1 + r + r * r * polynomial, for |r| <= log(2) / 2. Source: Moshier, Cephes, expf.
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4  # their sum is log(2); the first has few bits
_MOST, _LEAST = 89.0, -104.0  # beyond these, exp is infinite or 0

# tanh(x) = x + x * x * x * polynomial(x * x), for |x| < 0.625. Source: Moshier, Cephes, tanhf.
_TANH = (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)

_LOG2_TERMS = 9  # of the series of artanh, whose argument is at most 0.172 here


def _reduced(e: Emitter, x: str) -> tuple[str, str]:
    """Return k and expm1(r), where x = k * log(2) + r and |r| <= log(2) / 2; x must lie in [_LEAST, _MOST]."""
    k = e.call("rint", e.binary("fmul", x, e.constant(1 / math.log(2))))
    r = e.fma(k, e.constant(-_LN2_HIGH), x)
    r = e.fma(k, e.constant(-_LN2_LOW), r)
    return k, e.fma(e.polynomial(r, _EXP), e.binary("fmul", r, r), r)


def _limited(e: Emitter, x: str, least: float, most: float) -> str:
    """Return x, but at least and at most some numbers; 0 for NaN."""
    x = e.select(e.compare("ogt", x, e.constant(least)), x, e.constant(least))
    x = e.select(e.compare("olt", x, e.constant(most)), x, e.constant(most))
    return x


def _power_of_two(e: Emitter, k: str) -> str:
    """Return 2 to the power of integers in [-126, 127]."""
    biased = e.binary("add", k, e.constant(127, "i32"), "i32")
    return e.convert("bitcast", e.binary("shl", biased, e.constant(23, "i32"), "i32"), "i32", "float")


def _scaled(e: Emitter, y: str, k: str) -> str:
    """Return y times 2 to the power of k, by two factors, as the result may be denormal or infinite."""
    whole = e.convert("fptosi", k, "float", "i32")
    half = e.binary("ashr", whole, e.constant(1, "i32"), "i32")
    rest = e.binary("sub", whole, half, "i32")
    return e.binary("fmul", e.binary("fmul", y, _power_of_two(e, half)), _power_of_two(e, rest))


def _with_nan(e: Emitter, x: str, y: str) -> str:
    """Return y, but x where that is NaN."""
    return e.select(e.compare("uno", x, x), x, y)


def exp(e: Emitter, x: str) -> str:
    k, p = _reduced(e, _limited(e, x, _LEAST, _MOST))
    return _with_nan(e, x, _scaled(e, e.binary("fadd", p, e.constant(1)), k))


def expm1(e: Emitter, x: str) -> str:
    limited = _limited(e, x, _LEAST, _MOST)
    k, p = _reduced(e, limited)
    whole = _scaled(e, e.binary("fadd", p, e.constant(1)), k)
    near = e.call("rint", e.binary("fmul", _limited(e, x, -8, 8), e.constant(1 / math.log(2))))
    power = _power_of_two(e, e.convert("fptosi", near, "float", "i32"))
    small = e.fma(power, p, e.binary("fsub", power, e.constant(1)))
    large = e.compare("ogt", e.call("fabs", limited), e.constant(7))
    y = e.select(large, e.binary("fsub", whole, e.constant(1)), small)
    y = e.select(e.compare("oeq", x, e.constant(0)), x, y)  # -0 stays
    return _with_nan(e, x, y)


def tanh(e: Emitter, x: str) -> str:
    size = e.call("fabs", x)
    square = e.binary("fmul", x, x)
    small = e.fma(e.polynomial(square, _TANH), e.binary("fmul", square, x), x)
    small = e.select(e.compare("oeq", x, e.constant(0)), x, small)  # -0 stays
    limited = _limited(e, size, 0, 10)
    k, p = _reduced(e, e.binary("fadd", limited, limited))
    power = _scaled(e, e.binary("fadd", p, e.constant(1)), k)
    part = e.binary("fdiv", e.constant(2), e.binary("fadd", power, e.constant(1)))
    large = e.call("copysign", e.binary("fsub", e.constant(1), part), x)
    return _with_nan(e, x, e.select(e.compare("olt", size, e.constant(0.625)), small, large))


_D = "double"


def _log2(e: Emitter, x: str) -> str:
    """Return the binary logarithm of float64 that is positive and finite, and no denormal number."""
    bits = e.convert("bitcast", x, _D, "i64")
    # the exponent for which the rest lies in [sqrt(1/2), sqrt(2))
    root = 0x3FE6A09E667F3BCD
    moved = e.binary("sub", bits, e.constant(root, "i64"), "i64")
    exponent = e.binary("ashr", moved, e.constant(52, "i64"), "i64")
    rest = e.binary("sub", bits, e.binary("shl", exponent, e.constant(52, "i64"), "i64"), "i64")
    m = e.convert("bitcast", rest, "i64", _D)
    one = e.constant(1, _D)
    s = e.binary("fdiv", e.binary("fsub", m, one, _D), e.binary("fadd", m, one, _D), _D)
    square = e.binary("fmul", s, s, _D)
    terms = [2 / math.log(2) / (2 * i + 1) for i in reversed(range(_LOG2_TERMS))]
    series = e.binary("fmul", e.polynomial(square, terms, _D), s, _D)
    narrow = e.convert("trunc", exponent, "i64", "i32")
    return e.binary("fadd", series, e.convert("sitofp", narrow, "i32", _D), _D)


def _logarithm(factor: float) -> Callable[[Emitter, str], str]:
    """Return the logarithm that is ``factor`` times the binary one."""

    def log(e: Emitter, x: str) -> str:
        y = _log2(e, e.convert("fpext", x, "float", _D))
        if factor != 1:
            y = e.binary("fmul", y, e.constant(factor, _D), _D)
        return _with_limits(e, x, e.convert("fptrunc", y, _D, "float"))

    return log


def _with_limits(e: Emitter, x: str, y: str) -> str:
    """Return y, a logarithm of x, with C's results where x is no positive finite number."""
    infinite, zero = e.constant(math.inf), e.constant(0)
    y = e.select(e.compare("olt", x, infinite), y, x)  # infinity and NaN
    y = e.select(e.compare("oeq", x, zero), e.constant(-math.inf), y)
    return e.select(e.compare("olt", x, zero), e.constant(math.nan), y)


def log1p(e: Emitter, x: str) -> str:
    wide, one = e.convert("fpext", x, "float", _D), e.constant(1, _D)
    whole = e.binary("fadd", wide, one, _D)
    lost = e.binary("fsub", wide, e.binary("fsub", whole, one, _D), _D)
    y = e.binary("fmul", _log2(e, whole), e.constant(math.log(2), _D), _D)
    y = e.binary("fadd", y, e.binary("fdiv", lost, whole, _D), _D)
    y = e.convert("fptrunc", y, _D, "float")
    infinite, zero, least = e.constant(math.inf), e.constant(0), e.constant(-1)
    y = e.select(e.compare("olt", x, infinite), y, x)
    y = e.select(e.compare("oeq", x, zero), x, y)  # -0 stays
    y = e.select(e.compare("oeq", x, least), e.constant(-math.inf), y)
    return e.select(e.compare("olt", x, least), e.constant(math.nan), y)


# 2 ** r = the sum of (r * log(2)) ** i / i!, for |r| <= 1/2: to 1e-10.
_EXP2 = tuple(math.log(2) ** i / math.factorial(i) for i in reversed(range(11)))


def power(e: Emitter, x: str, y: str) -> str:
    size, infinite, zero, one = e.call("fabs", x), e.constant(math.inf), e.constant(0), e.constant(1)
    logarithm = _log2(e, e.convert("fpext", size, "float", _D))
    # infinities of the right sign where x is 0 or infinite; 0 * infinity is seen to below
    at_zero = e.compare("oeq", size, zero)
    at_end = e.compare("oeq", size, infinite)
    logarithm = e.select(at_zero, e.constant(-math.inf, _D), logarithm, _D)
    logarithm = e.select(at_end, e.constant(math.inf, _D), logarithm, _D)
    t = e.binary("fmul", logarithm, e.convert("fpext", y, "float", _D), _D)
    t = e.select(e.compare("ogt", t, e.constant(-1000, _D), _D), t, e.constant(-1000, _D), _D)
    t = e.select(e.compare("olt", t, e.constant(1000, _D), _D), t, e.constant(1000, _D), _D)
    k = e.call("rint", t, element=_D)
    p = e.polynomial(e.binary("fsub", t, k, _D), _EXP2, _D)
    whole = e.let(f"sext {vector('i32')} {e.convert('fptosi', k, _D, 'i32')} to {vector('i64')}")
    bits = e.binary("shl", e.binary("add", whole, e.constant(1023, "i64"), "i64"), e.constant(52, "i64"), "i64")
    found = e.binary("fmul", p, e.convert("bitcast", bits, "i64", _D), _D)
    result = e.convert("fptrunc", found, _D, "float")
    # the sign of negative bases: only integers have a power, and odd ones a negative one
    is_integer = e.compare("oeq", e.call("floor", y), y)
    half = e.binary("fmul", y, e.constant(0.5))
    is_odd = e.binary("and", is_integer, e.compare("une", e.call("floor", half), half), "i1")
    negative = e.compare("slt", e.convert("bitcast", x, "float", "i32"), e.constant(0, "i32"), "i32")
    flipped = e.select(e.binary("and", negative, is_odd, "i1"), e.negate(result), result)
    below = e.binary("and", e.compare("olt", x, zero), e.compare("une", x, e.constant(-math.inf)), "i1")
    no_power = e.binary("and", below, e.binary("xor", is_integer, e.constant(1, "i1"), "i1"), "i1")
    found_ = e.select(no_power, e.constant(math.nan), flipped)
    found_ = _with_nan(e, x, _with_nan(e, y, found_))
    far = e.binary("and", e.compare("oeq", size, one), e.compare("oeq", e.call("fabs", y), infinite), "i1")
    certain = e.binary("or", e.compare("oeq", y, zero), e.compare("oeq", x, one), "i1")
    return e.select(e.binary("or", certain, far, "i1"), one, found_)


FUNCTIONS: Mapping[str, Callable[..., str]] = {
    "exp": exp,
    "expm1": expm1,
    "log": _logarithm(math.log(2)),
    "log10": _logarithm(math.log10(2)),
    "log1p": log1p,
    "log2": _logarithm(1.0),
    "power": power,
    "tanh": tanh,
}
"""By the names of NumPy's functions."""
