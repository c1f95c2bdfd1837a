"""Exponentials, logarithms, powers, tanh and erf of float32, within 4 units in the last place.

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

_ROUNDS = 1.5 * 2**23
"""Added to a number below 2 ** 22, it rounds to an integer, which the last bits of the sum are."""

# erf(x) = x + x * polynomial(x * x) for |x| < _ERF_NEAR; erfc(x) = exp(x * polynomial(x) - x) up to 4, where erf is 1
# for float32. Source: Juffa, https://stackoverflow.com/a/35148199.
_ERF_NEAR = 0.927734375
_ERF = (-5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1, -3.76125336e-1, 1.28379166e-1)
_LOG_ERFC = (
    -1.72853470e-5, 3.83197126e-4, -3.88396438e-3, 2.42546219e-2, -1.06777877e-1, -6.34846687e-1, -1.28717512e-1,
)  # fmt: skip
# erfc(x) = exp(-x * x) * t * polynomial(2 * t - 1), where t = 2 / (2 + x), see ``netbuilder.ops.math.error_function``.
_TAIL = (
    4.21611972e-05, -3.660187694e-05, -0.0002993827121, 0.0004306704884, 0.001529157161, -0.003243451918,
    -0.01075162619, 0.01822166943, 0.1397357335, 0.3435803187, 0.5107913569,
)  # fmt: skip

_LOG2_TERMS = 9  # of the series of artanh, whose argument is at most 0.172 here


def _reduced(e: Emitter, x: str) -> tuple[str, str]:
    """Return 2 ** 23 + k as bits, and expm1(r), where x = k * log(2) + r and |r| <= log(2) / 2."""
    moved = e.fma(x, e.constant(1 / math.log(2)), e.constant(_ROUNDS))
    k = e.binary("fsub", moved, e.constant(_ROUNDS))
    r = e.fma(k, e.constant(-_LN2_HIGH), x)
    r = e.fma(k, e.constant(-_LN2_LOW), r)
    return e.convert("bitcast", moved, "float", "i32"), e.fma(e.polynomial(r, _EXP), e.binary("fmul", r, r), r)


def _limited(e: Emitter, x: str, least: float, most: float) -> str:
    """Return x, but at least and at most some numbers; NaN stays."""
    x = e.select(e.compare("ogt", e.constant(least), x), e.constant(least), x)
    return e.select(e.compare("olt", e.constant(most), x), e.constant(most), x)


def _power_of_two(e: Emitter, bits: str, more: str) -> str:
    """Return 2 ** (k + more) for the bits that ``_reduced`` returns; the exponents lie in [-126, 127]."""
    exponent = e.binary("add", e.binary("shl", bits, e.constant(23, "i32"), "i32"), more, "i32")
    return e.convert("bitcast", exponent, "i32", "float")


def _exponent(more: int) -> int:
    """Return the bits of 2 ** more."""
    return (127 + more) << 23


def exp(e: Emitter, x: str) -> str:
    x = _limited(e, x, _LEAST, _MOST)
    bits, p = _reduced(e, x)
    # by two factors, as the result may be denormal or infinite
    low = e.compare("olt", x, e.constant(-86))
    more = e.select(low, e.constant(_exponent(64), "i32"), e.constant(_exponent(-1), "i32"), "i32")
    power = _power_of_two(e, bits, more)
    return e.binary("fmul", e.fma(power, p, power), e.select(low, e.constant(2.0**-64), e.constant(2)))


def expm1(e: Emitter, x: str) -> str:
    bits, p = _reduced(e, _limited(e, x, -20, _MOST))
    power = _power_of_two(e, bits, e.constant(_exponent(-1), "i32"))  # half, as all of it may be infinite
    y = e.binary("fmul", e.fma(power, p, e.binary("fsub", power, e.constant(0.5))), e.constant(2))
    small = e.compare("olt", e.call("fabs", x), e.constant(2.0**-24))  # so that -0 and denormal numbers stay
    return e.select(small, x, y)


def tanh(e: Emitter, x: str) -> str:
    size = e.call("fabs", x)
    square = e.binary("fmul", x, x)
    small = e.fma(e.polynomial(square, _TANH), e.binary("fmul", square, x), x)
    small = e.select(e.compare("oeq", x, e.constant(0)), x, small)  # -0 stays
    limited = _limited(e, size, 0, 10)
    bits, p = _reduced(e, e.binary("fadd", limited, limited))
    power = _power_of_two(e, bits, e.constant(_exponent(0), "i32"))
    part = e.binary("fdiv", e.constant(2), e.binary("fadd", e.fma(power, p, power), e.constant(1)))
    large = e.call("copysign", e.binary("fsub", e.constant(1), part), x)
    return e.select(e.compare("olt", size, e.constant(0.625)), small, large)


def erf(e: Emitter, x: str) -> str:
    square = e.binary("fmul", x, x)
    near = e.fma(e.polynomial(square, _ERF), x, x)
    size = _limited(e, e.call("fabs", x), 0, 4)
    bits, p = _reduced(e, e.fma(e.polynomial(size, _LOG_ERFC), size, e.negate(size)))
    power = _power_of_two(e, bits, e.constant(_exponent(0), "i32"))
    far = e.binary("fsub", e.constant(1), e.fma(power, p, power))
    return e.select(e.compare("olt", size, e.constant(_ERF_NEAR)), near, e.call("copysign", far, x))


def erfc(e: Emitter, x: str) -> str:
    size = _limited(e, e.call("fabs", x), 0, 11)
    t = e.binary("fdiv", e.constant(2), e.binary("fadd", size, e.constant(2)))
    tail = e.polynomial(e.fma(t, e.constant(2), e.constant(-1)), _TAIL)
    square = e.binary("fmul", size, size)
    lost = e.fma(size, size, e.negate(square))
    bits, p = _reduced(e, e.negate(square))
    power = _power_of_two(e, bits, e.constant(_exponent(64), "i32"))  # by two factors, as the result may be denormal
    p = e.fma(e.negate(lost), e.binary("fadd", p, e.constant(1)), p)
    power = e.fma(power, p, power)
    y = e.binary("fmul", e.binary("fmul", e.binary("fmul", tail, t), power), e.constant(2.0**-64))
    return e.select(e.compare("olt", x, e.constant(0)), e.binary("fsub", e.constant(2), y), y)


def _with_nan(e: Emitter, x: str, y: str) -> str:
    """Return y, but x where that is NaN."""
    return e.select(e.compare("uno", x, x), x, y)


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
    "erf": erf,
    "erfc": erfc,
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
