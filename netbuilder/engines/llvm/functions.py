"""Exponentials, logarithms, powers, tanh and erf, within 4 units in the last place.

Each function takes the emitter and vectors of float32, or float64, and returns one. NaN, infinities and denormal
numbers are served as by C's functions. Powers of float32, and logarithms to the bases 2 and 10, are computed in
float64, which holds what cancels; float64 has no power and no erf here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

from netbuilder.engines.llvm import trigonometry
from netbuilder.engines.llvm.emitter import Emitter, vector
from netbuilder.ops.core.exponentials import LEAST
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["FUNCTIONS", "FUNCTIONS_OF_DOUBLES", "Fraction", "exp_or_zero", "sigmoid_fraction", "tanh_fraction"]


@dataclass(frozen=True)
class _Format:
    """A type of floating-point numbers, and what exponentials of it need.

    Args:
        real, bits: LLVM's names of the type and of the integers of its size.
        mantissa, bias: bits of the mantissa, and what is added to exponents.
        high, low: their sum is log(2); the first has few bits.
        exp: exp(r) = 1 + r + r * r * polynomial, for |r| <= log(2) / 2.
        least, most: beyond these, exp is 0 or infinite; below ``denormal``, the result may be denormal.
        nothing: above it, exp(-x) is nothing compared with 1.
    """

    real: str
    bits: str
    mantissa: int
    bias: int
    high: float
    low: float
    exp: tuple[float, ...]
    least: float
    most: float
    denormal: float
    nothing: float

    @property
    def rounds(self) -> float:
        """Added to a small number, it rounds to an integer, which the last bits of the sum are."""
        return 1.5 * 2**self.mantissa

    def power(self, exponent: int) -> int:
        """Return the bits of a power of two."""
        return (self.bias + exponent) << self.mantissa


@dataclass(frozen=True)
class Fraction:
    """A function of float32 as a fraction, which cancels nowhere; nor does its derivative.

    Args:
        dividend: of the function.
        divisor: from 2 to 1.1e13 of a sigmoid, 5e8 of a tanh: those of two sigmoids and a tanh can be multiplied.
        derived: the dividend of the derivative, whose divisor is the square of the function's.
    """

    dividend: str
    divisor: str
    derived: str


# Sources of the numbers: Moshier, Cephes, expf; Sun, fdlibm, e_exp.c, and Taylor's series.
_SINGLE = _Format(
    "float", "i32", 23, 127, 0.693359375, -2.12194440e-4,
    (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1),
    -104.0, 89.0, -86.0, 20.0,
)  # fmt: skip
_DOUBLE = _Format(
    "double", "i64", 52, 1023, 6.93147180369123816490e-1, 1.90821492927058770002e-10,
    tuple(1 / math.factorial(i) for i in reversed(range(2, 14))), -746.0, 710.0, -700.0, 40.0,
)  # fmt: skip

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

# log(1 + f) = f - (f * f / 2 - s * (f * f / 2 + z * polynomial(z))), s = f / (2 + f), z = s * s. Source: Sun, fdlibm,
# e_log.c.
_LOG = (
    1.479819860511658591e-1, 1.531383769920937332e-1, 1.818357216161805012e-1, 2.222219843214978396e-1,
    2.857142874366239149e-1, 3.999999999940941908e-1, 6.666666666666735130e-1,
)  # fmt: skip

# log(1 + f) = f - f * f / 2 + f * f * f * polynomial(f), for float32. Source: Moshier, Cephes, logf.
_LOG_SINGLE = (
    7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1,
    2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
)  # fmt: skip

_LOG2_TERMS = 9  # of the series of artanh, whose argument is at most 0.172 here


def _reduced(e: Emitter, x: str, f: _Format = _SINGLE) -> tuple[str, str]:
    """Return bits that end with those of k, and expm1(r), where x = k * log(2) + r and |r| <= log(2) / 2."""
    moved = e.fma(x, e.constant(1 / math.log(2), f.real), e.constant(f.rounds, f.real), f.real)
    k = e.binary("fsub", moved, e.constant(f.rounds, f.real), f.real)
    r = e.fma(k, e.constant(-f.high, f.real), x, f.real)
    r = e.fma(k, e.constant(-f.low, f.real), r, f.real)
    square = e.binary("fmul", r, r, f.real)
    return e.convert("bitcast", moved, f.real, f.bits), e.fma(e.polynomial(r, f.exp, f.real), square, r, f.real)


def _limited(e: Emitter, x: str, least: float, most: float, f: _Format = _SINGLE) -> str:
    """Return x, but at least and at most some numbers; NaN stays."""
    low, high = e.constant(least, f.real), e.constant(most, f.real)
    x = e.select(e.compare("ogt", low, x, f.real), low, x, f.real)
    return e.select(e.compare("olt", high, x, f.real), high, x, f.real)


def _power_of_two(e: Emitter, bits: str, more: str, f: _Format = _SINGLE) -> str:
    """Return 2 ** (k + n) for the bits that ``_reduced`` returns, where ``more`` has the bits of 2 ** n.

    The exponents are those of normal numbers.
    """
    exponent = e.binary("add", e.binary("shl", bits, e.constant(f.mantissa, f.bits), f.bits), more, f.bits)
    return e.convert("bitcast", exponent, f.bits, f.real)


def exp(e: Emitter, x: str, f: _Format = _SINGLE) -> str:
    x = _limited(e, x, f.least, f.most, f)
    bits, p = _reduced(e, x, f)
    # by two factors, as the result may be denormal or infinite
    low = e.compare("olt", x, e.constant(f.denormal, f.real), f.real)
    more = e.select(low, e.constant(f.power(64), f.bits), e.constant(f.power(-1), f.bits), f.bits)
    power = _power_of_two(e, bits, more, f)
    factor = e.select(low, e.constant(2.0**-64, f.real), e.constant(2, f.real), f.real)
    return e.binary("fmul", e.fma(power, p, power, f.real), factor, f.real)


def exp_or_zero(e: Emitter, x: str) -> str:
    """Return the exponentials of float32 of which none is positive; 0 in place of denormal ones."""
    least = e.constant(LEAST["f"])
    low = e.compare("olt", x, least)
    bits, p = _reduced(e, e.select(low, least, x))
    power = _power_of_two(e, bits, e.constant(_SINGLE.power(0), _SINGLE.bits))
    return e.select(low, e.constant(0), e.fma(power, p, power))


def expm1(e: Emitter, x: str, f: _Format = _SINGLE) -> str:
    bits, p = _reduced(e, _limited(e, x, -f.nothing, f.most, f), f)
    power = _power_of_two(e, bits, e.constant(f.power(-1), f.bits), f)  # half, as all of it may be infinite
    y = e.fma(power, p, e.binary("fsub", power, e.constant(0.5, f.real), f.real), f.real)
    y = e.binary("fmul", y, e.constant(2, f.real), f.real)
    size = e.call("fabs", x, element=f.real)  # of small x, so that -0 and denormal numbers stay
    return e.select(e.compare("olt", size, e.constant(0.5 ** (f.mantissa + 1), f.real), f.real), x, y, f.real)


def _tanh_parts(e: Emitter, x: str, f: _Format = _SINGLE) -> tuple[str, str]:
    """Return expm1(2 |x|) and expm1(2 |x|) + 2, at most 5e8 in float32; their quotient is tanh(|x|)."""
    size = _limited(e, e.call("fabs", x, element=f.real), 0, f.nothing / 2, f)
    bits, p = _reduced(e, e.binary("fadd", size, size, f.real), f)
    power = _power_of_two(e, bits, e.constant(f.power(0), f.bits), f)
    grown = e.fma(power, p, e.binary("fsub", power, e.constant(1, f.real), f.real), f.real)
    return grown, e.binary("fadd", grown, e.constant(2, f.real), f.real)


def tanh(e: Emitter, x: str, f: _Format = _SINGLE) -> str:
    return e.call("copysign", e.binary("fdiv", *_tanh_parts(e, x, f), f.real), x, element=f.real)


def tanh_fraction(e: Emitter, x: str) -> Fraction:
    """Return tanh(x) as a fraction."""
    grown, divisor = _tanh_parts(e, x)
    four = e.constant(4)
    return Fraction(e.call("copysign", grown, x), divisor, e.fma(grown, four, four))


def sigmoid_fraction(e: Emitter, x: str) -> Fraction:
    """Return 1 / (1 + exp(-x)), or its values at -30 and 30, as a fraction."""
    bits, p = _reduced(e, _limited(e, e.call("fabs", x), 0, 30))
    power = _power_of_two(e, bits, e.constant(_SINGLE.power(0), _SINGLE.bits))
    grown, one = e.fma(power, p, power), e.constant(1)
    return Fraction(e.select(e.compare("olt", x, e.constant(0)), one, grown), e.binary("fadd", grown, one), grown)


def _erf_near(e: Emitter, x: str) -> str:
    return e.fma(e.polynomial(e.binary("fmul", x, x), _ERF), x, x)


def erf(e: Emitter, x: str) -> str:
    size = _limited(e, e.call("fabs", x), 0, 4)
    bits, p = _reduced(e, e.fma(e.polynomial(size, _LOG_ERFC), size, e.negate(size)))
    power = _power_of_two(e, bits, e.constant(_SINGLE.power(0), "i32"))
    far = e.binary("fsub", e.constant(1), e.fma(power, p, power))
    return e.select(e.compare("olt", size, e.constant(_ERF_NEAR)), _erf_near(e, x), e.call("copysign", far, x))


def erfc(e: Emitter, x: str) -> str:
    size, two = _limited(e, e.call("fabs", x), 0, 11), e.constant(2)
    whole = e.binary("fadd", size, two)
    t = e.binary("fdiv", two, whole)
    tail = e.polynomial(e.fma(t, two, e.constant(-1)), _TAIL)
    square = e.binary("fmul", size, size)
    lost = e.fma(size, size, e.negate(square))
    bits, p = _reduced(e, e.negate(square))
    # by two factors, as the result may be denormal
    power = _power_of_two(e, bits, e.constant(_SINGLE.power(64), "i32"))
    p = e.fma(e.binary("fsub", _lost_by_division(e, size, two, whole, t), lost), e.binary("fadd", p, e.constant(1)), p)
    power = e.fma(power, p, power)
    y = e.binary("fmul", e.binary("fmul", e.binary("fmul", tail, t), power), e.constant(2.0**-64))
    y = e.select(e.compare("olt", x, e.constant(0)), e.binary("fsub", two, y), y)
    return e.select(e.compare("olt", size, e.constant(0.5)), e.binary("fsub", e.constant(1), _erf_near(e, x)), y)


def _lost_by_division(e: Emitter, size: str, two: str, whole: str, t: str) -> str:
    """Return by which part of itself erfc changes for what t = 2 / (2 + size) has lost in rounding."""
    added = e.binary("fsub", whole, size)
    rest = e.binary("fadd", e.binary("fsub", size, e.binary("fsub", whole, added)), e.binary("fsub", two, added))
    rest = e.fma(e.negate(t), rest, e.fma(e.negate(t), whole, two))  # 2 t times the part of t that is lost
    # the logarithm of erfc(x) * exp(x * x) grows by about 1 + 1.26 * t times that of t
    return e.binary("fmul", rest, e.fma(t, e.constant(0.63), e.constant(0.5)))


def _with_nan(e: Emitter, x: str, y: str) -> str:
    """Return y, but x where that is NaN."""
    return e.select(e.compare("uno", x, x), x, y)


_D = "double"


def _split(e: Emitter, x: str) -> tuple[str, str]:
    """Return m and k, both float64, where x = m * 2 ** k and m in [sqrt(1/2), sqrt(2)); x is positive and normal."""
    bits = e.convert("bitcast", x, _D, "i64")
    moved = e.binary("sub", bits, e.constant(0x3FE6A09E667F3BCD, "i64"), "i64")  # sqrt(1/2)
    exponent = e.binary("ashr", moved, e.constant(52, "i64"), "i64")
    rest = e.binary("sub", bits, e.binary("shl", exponent, e.constant(52, "i64"), "i64"), "i64")
    narrow = e.convert("trunc", exponent, "i64", "i32")
    return e.convert("bitcast", rest, "i64", _D), e.convert("sitofp", narrow, "i32", _D)


def _log2(e: Emitter, x: str) -> str:
    """Return the binary logarithm of float64 that is positive and finite, and no denormal number, for float32."""
    m, k = _split(e, x)
    one = e.constant(1, _D)
    s = e.binary("fdiv", e.binary("fsub", m, one, _D), e.binary("fadd", m, one, _D), _D)
    square = e.binary("fmul", s, s, _D)
    terms = [2 / math.log(2) / (2 * i + 1) for i in reversed(range(_LOG2_TERMS))]
    series = e.binary("fmul", e.polynomial(square, terms, _D), s, _D)
    return e.binary("fadd", series, k, _D)


def _log_of_double(e: Emitter, x: str) -> str:
    """Return the natural logarithm of float64 that is positive and finite."""
    denormal = e.compare("olt", x, e.constant(2.0**-1022, _D), _D)
    x = e.select(denormal, e.binary("fmul", x, e.constant(2.0**54, _D), _D), x, _D)
    m, k = _split(e, x)
    k = e.select(denormal, e.binary("fsub", k, e.constant(54, _D), _D), k, _D)
    part = e.binary("fsub", m, e.constant(1, _D), _D)
    s = e.binary("fdiv", part, e.binary("fadd", part, e.constant(2, _D), _D), _D)
    z = e.binary("fmul", s, s, _D)
    half = e.binary("fmul", e.binary("fmul", part, part, _D), e.constant(0.5, _D), _D)
    inner = e.binary("fadd", half, e.binary("fmul", e.polynomial(z, _LOG, _D), z, _D), _D)
    small = e.fma(s, inner, e.binary("fmul", k, e.constant(_DOUBLE.low, _D), _D), _D)
    rest = e.binary("fsub", e.binary("fsub", half, small, _D), part, _D)
    return e.fma(k, e.constant(_DOUBLE.high, _D), e.negate(rest, _D), _D)


def _log_of_single(e: Emitter, x: str) -> str:
    """Return the natural logarithm of float32 that is positive and finite."""
    denormal = e.compare("olt", x, e.constant(2.0**-126))
    x = e.select(denormal, e.binary("fmul", x, e.constant(2.0**25)), x)
    bits = e.convert("bitcast", x, "float", "i32")
    exponent = e.binary(
        "ashr", e.binary("sub", bits, e.constant(0x3F3504F3, "i32"), "i32"), e.constant(23, "i32"), "i32"
    )
    rest = e.binary("sub", bits, e.binary("shl", exponent, e.constant(23, "i32"), "i32"), "i32")
    k = e.convert("sitofp", exponent, "i32", "float")
    k = e.select(denormal, e.binary("fsub", k, e.constant(25)), k)
    f = e.binary("fsub", e.convert("bitcast", rest, "i32", "float"), e.constant(1))
    square = e.binary("fmul", f, f)
    y = e.binary("fmul", e.binary("fmul", e.polynomial(f, _LOG_SINGLE), square), f)
    y = e.fma(square, e.constant(-0.5), e.fma(k, e.constant(_SINGLE.low), y))
    return e.fma(k, e.constant(_SINGLE.high), e.binary("fadd", f, y))


def log(e: Emitter, x: str) -> str:
    return _with_limits(e, x, _log_of_single(e, x))


def _logarithm(factor: float) -> Callable[[Emitter, str], str]:
    """Return the logarithm that is ``factor`` times the binary one."""

    def log(e: Emitter, x: str) -> str:
        y = _log2(e, e.convert("fpext", x, "float", _D))
        if factor != 1:
            y = e.binary("fmul", y, e.constant(factor, _D), _D)
        return _with_limits(e, x, e.convert("fptrunc", y, _D, "float"))

    return log


def _logarithm_of_double(factor: float) -> Callable[[Emitter, str], str]:
    """Return the logarithm that is ``factor`` times the natural one."""

    def log(e: Emitter, x: str) -> str:
        y = _log_of_double(e, x)
        return _with_limits(e, x, y if factor == 1 else e.binary("fmul", y, e.constant(factor, _D), _D), _D)

    return log


def _with_limits(e: Emitter, x: str, y: str, kind: str = "float", zero: float = 0) -> str:
    """Return y, a logarithm of x, or of x - ``zero``, with C's results where that is no positive finite number."""
    infinite, least = e.constant(math.inf, kind), e.constant(zero, kind)
    y = e.select(e.compare("olt", x, infinite, kind), y, x, kind)  # infinity and NaN
    y = e.select(e.compare("oeq", x, least, kind), e.constant(-math.inf, kind), y, kind)
    return e.select(e.compare("olt", x, least, kind), e.constant(math.nan, kind), y, kind)


def log1p(e: Emitter, x: str, f: _Format = _SINGLE) -> str:
    one = e.constant(1, f.real)
    whole = e.binary("fadd", x, one, f.real)
    lost = e.binary("fsub", x, e.binary("fsub", whole, one, f.real), f.real)
    y = _log_of_single(e, whole) if f is _SINGLE else _log_of_double(e, whole)
    y = e.binary("fadd", y, e.binary("fdiv", lost, whole, f.real), f.real)
    y = e.select(e.compare("oeq", x, e.constant(0, f.real), f.real), x, y, f.real)  # -0 stays
    return _with_limits(e, x, y, f.real, -1)


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
    "cos": trigonometry.cos,
    "erf": erf,
    "erfc": erfc,
    "exp": exp,
    "expm1": expm1,
    "log": log,
    "log10": _logarithm(math.log10(2)),
    "log1p": log1p,
    "log2": _logarithm(1.0),
    "power": power,
    "sin": trigonometry.sin,
    "tan": trigonometry.tan,
    "tanh": tanh,
}
"""Of float32, by the names of NumPy's functions."""

FUNCTIONS_OF_DOUBLES: Mapping[str, Callable[..., str]] = {
    "exp": partial(exp, f=_DOUBLE),
    "expm1": partial(expm1, f=_DOUBLE),
    "log": _logarithm_of_double(1.0),
    "log10": _logarithm_of_double(1 / math.log(10)),
    "log1p": partial(log1p, f=_DOUBLE),
    "log2": _logarithm_of_double(1 / math.log(2)),
    "tanh": partial(tanh, f=_DOUBLE),
}
"""Of float64, likewise."""
