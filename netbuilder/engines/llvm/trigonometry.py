"""Sine, cosine and tangent of float32, within 4 units in the last place for all arguments.

x = k * pi / 2 + r with |r| <= pi / 4. Arguments below 2 ** 20 are reduced in float64, by pi / 2 in two parts. Larger
ones are multiplied by the bits of 2 / pi that matter, as integers: what is a multiple of four quarters is left out.
Sources: Payne and Hanek, "Radian reduction for trigonometric functions", 1983; the polynomials: Moshier, Cephes, sinf.
"""

from __future__ import annotations

import functools
import math

from netbuilder.engines.llvm.emitter import LANES, Emitter, vector

__all__ = ["cos", "sin", "tan"]

_D = "double"
_LARGE = 20  # the exponent from which arguments are reduced as integers
_MANTISSA, _BIAS = 23, 127
_HALF_PI, _HALF_PI_LOW = 1.5707963267948966, 6.123233995736766e-17
_SIN = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
_COS = (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)


def _pi(bits: int) -> int:
    """Return pi, times 2 to the power of ``bits``, by Machin's formula."""

    def inverse_tangent(n: int) -> int:
        power = total = (1 << bits + 16) // n
        for k in range(3, 2 * bits, 2):
            power //= -n * n
            total += power // k
        return total

    return 4 * (4 * inverse_tangent(5) - inverse_tangent(239)) >> 16


@functools.cache
def _tables() -> tuple[str, ...]:
    """Return the definitions of two tables: for each exponent of the lowest bit of an argument, bits of 2 / pi.

    Of its product with 2 / pi, 62 bits after the point are in the first one, and 32 more in the second one.
    """
    exponents = range(_LARGE - _MANTISSA, 128 - _MANTISSA)
    two_over_pi = (2 << 800) // _pi(400)  # times 2 ** 400
    found = []
    for name, places, width in (("quarters", 62, 64), ("rest", 94, 32)):
        words = [(two_over_pi >> 400 - e - places) % (1 << width) for e in exponents]
        text = ", ".join(f"i64 {word - (1 << 64) if word >> 63 else word}" for word in words)
        found.append(f"@{name} = private constant [{len(words)} x i64] [{text}]")
    return tuple(found)


def _reduced(e: Emitter, x: str) -> tuple[str, str]:
    """Return k, of which the last two bits count, as i32, and r."""
    n = e.let(f"add i64 0, {LANES}")[1:]  # a name of its own
    e.add(f"br label %small_{n}")
    e.add(f"small_{n}:")
    wide = e.convert("fpext", x, "float", _D)
    moved = e.fma(wide, e.constant(2 / math.pi, _D), e.constant(1.5 * 2**52, _D), _D)
    quarters = e.binary("fsub", moved, e.constant(1.5 * 2**52, _D), _D)
    r = e.fma(quarters, e.constant(-_HALF_PI, _D), wide, _D)
    r = e.fma(quarters, e.constant(-_HALF_PI_LOW, _D), r, _D)
    k = e.convert("trunc", e.convert("bitcast", moved, _D, "i64"), "i64", "i32")
    size = e.call("fabs", x)
    large = e.binary("and", e.compare("oge", size, e.constant(2.0**_LARGE)),
                     e.compare("olt", size, e.constant(math.inf)), "i1")  # fmt: skip
    lanes = e.let(f"bitcast {vector('i1')} {large} to i{LANES}")
    some = e.let(f"icmp ne i{LANES} {lanes}, 0")
    e.add(f"br i1 {some}, label %large_{n}, label %reduced_{n}")
    e.add(f"large_{n}:")
    k_large, r_large = _reduced_as_integers(e, x, large)
    k_large, r_large = e.select(large, k_large, k, "i32"), e.select(large, r_large, r, _D)
    e.add(f"br label %reduced_{n}")
    e.add(f"reduced_{n}:")
    k = e.let(f"phi {vector('i32')} [{k}, %small_{n}], [{k_large}, %large_{n}]")
    r = e.let(f"phi {vector(_D)} [{r}, %small_{n}], [{r_large}, %large_{n}]")
    return k, e.convert("fptrunc", r, _D, "float")


def _reduced_as_integers(e: Emitter, x: str, large: str) -> tuple[str, str]:
    """Return k and r, in float64, for the lanes that are large."""
    e.declared.update(_tables())
    bits = e.convert("bitcast", x, "float", "i32")
    size = e.binary("and", bits, e.constant(0x7FFFFFFF, "i32"), "i32")
    place = e.binary("lshr", size, e.constant(_MANTISSA, "i32"), "i32")
    place = e.binary("sub", place, e.constant(_BIAS + _LARGE, "i32"), "i32")
    place = e.select(large, place, e.constant(0, "i32"), "i32")
    mantissa = e.binary("and", size, e.constant((1 << _MANTISSA) - 1, "i32"), "i32")
    mantissa = e.binary("or", mantissa, e.constant(1 << _MANTISSA, "i32"), "i32")
    m = e.convert("zext", mantissa, "i32", "i64")
    quarters = e.binary("mul", m, _looked_up(e, "quarters", place), "i64")
    rest = e.binary("lshr", e.binary("mul", m, _looked_up(e, "rest", place), "i64"), e.constant(32, "i64"), "i64")
    quarters = e.binary("add", quarters, rest, "i64")  # modulo 4 quarters, with 62 bits after the point
    k = e.binary("lshr", e.binary("add", quarters, e.constant(1 << 61, "i64"), "i64"), e.constant(62, "i64"), "i64")
    left = e.binary("sub", quarters, e.binary("shl", k, e.constant(62, "i64"), "i64"), "i64")
    r = e.binary("fmul", e.convert("sitofp", left, "i64", _D), e.constant(_HALF_PI * 2.0**-62, _D), _D)
    negative = e.compare("slt", bits, e.constant(0, "i32"), "i32")
    k = e.convert("trunc", k, "i64", "i32")
    k = e.select(negative, e.binary("sub", e.constant(0, "i32"), k, "i32"), k, "i32")
    return k, e.select(negative, e.negate(r, _D), r, _D)


def _looked_up(e: Emitter, table: str, places: str) -> str:
    found = "poison"
    for lane in range(LANES):
        place = e.let(f"extractelement {vector('i32')} {places}, i32 {lane}")
        word = e.let(f"load i64, ptr {e.let(f'getelementptr i64, ptr @{table}, i32 {place}')}, align 8")
        found = e.let(f"insertelement {vector('i64')} {found}, i64 {word}, i32 {lane}")
    return found


def _of_quarter(e: Emitter, r: str) -> tuple[str, str]:
    """Return sine and cosine of |r| <= pi / 4."""
    z = e.binary("fmul", r, r)
    sine = e.fma(e.binary("fmul", e.polynomial(z, _SIN), z), r, r)
    near_one = e.fma(z, e.constant(-0.5), e.constant(1))
    return sine, e.fma(e.polynomial(z, _COS), e.binary("fmul", z, z), near_one)


def _has_bit(e: Emitter, k: str, bit: int) -> str:
    return e.compare("ne", e.binary("and", k, e.constant(bit, "i32"), "i32"), e.constant(0, "i32"), "i32")


def _turned(e: Emitter, k: str, r: str) -> str:
    """Return the sine of k quarters and r."""
    sine, cosine = _of_quarter(e, r)
    found = e.select(_has_bit(e, k, 1), cosine, sine)
    return e.select(_has_bit(e, k, 2), e.negate(found), found)


def _with_zero(e: Emitter, x: str, y: str) -> str:
    """Return y, but x where that is 0, so that -0 stays."""
    return e.select(e.compare("oeq", x, e.constant(0)), x, y)


def sin(e: Emitter, x: str) -> str:
    """Return the sines of x, in radians."""
    return _with_zero(e, x, _turned(e, *_reduced(e, x)))


def cos(e: Emitter, x: str) -> str:
    """Return the cosines of x, in radians."""
    k, r = _reduced(e, x)
    return _turned(e, e.binary("add", k, e.constant(1, "i32"), "i32"), r)


def tan(e: Emitter, x: str) -> str:
    """Return the tangents of x, in radians."""
    k, r = _reduced(e, x)
    sine, cosine = _of_quarter(e, r)
    odd = _has_bit(e, k, 1)
    above, below = e.select(odd, e.negate(cosine), sine), e.select(odd, sine, cosine)
    return _with_zero(e, x, e.binary("fdiv", above, below))
