"""Erf, the error function, and the normal distribution and density that Gelu computes from it.

Neither NumPy nor CuPy's core has them; here they are polynomials, with one list of coefficients for float64 and a
shorter one for float32, found by expanding the exact functions (40 digits) in Chebyshev polynomials.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.half import narrow, widen
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.math.unary import Unary, UnaryGradient
from netbuilder.proto import OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Erf", "ErfGradient", "erf", "normal_cdf", "normal_density"]

Array = Any

# exp(x * x) * erfc(x) / t in powers of s = 2 * t - 1, where t = 2 / (2 + x) and x >= 0; accurate to 1e-15 and 4e-7.
_TAIL_64 = (
    0.5107913526210117,
    0.3435803422069067,
    0.13973604627794914,
    0.01822111575329492,
    -0.010755330940908886,
    -0.0032395925295271534,
    0.0015453059557186107,
    0.0004186479710660508,
    -0.00033153601371393716,
    -1.71852541704069e-05,
    7.223098558594817e-05,
    -1.7076638145079572e-05,
    -1.0831436166846611e-05,
    8.06710621122023e-06,
    -6.050557593208622e-07,
    -1.835078540898153e-06,
    1.0739744686311663e-06,
    1.5720540066794157e-08,
    -3.7163646958410467e-07,
    1.497143526022312e-07,
    6.610183151765426e-08,
    -5.145629434357736e-08,
    -4.946607757245824e-09,
    6.597367302900275e-09,
)
_TAIL_32 = (
    0.5107913569,
    0.3435803187,
    0.1397357335,
    0.01822166943,
    -0.01075162619,
    -0.003243451918,
    0.001529157161,
    0.0004306704884,
    -0.0002993827121,
    -3.660187694e-05,
    4.21611972e-05,
)
# erf(x) / x in powers of x * x, where |x| <= 1.
_NEAR_64 = (
    1.1283791670955126,
    -0.3761263890318375,
    0.11283791670954882,
    -0.026866170645077334,
    0.005223977624823223,
    -0.0008548326981129666,
    0.00012055331122299266,
    -1.4925595519506043e-05,
    1.6461004480962034e-06,
    -1.6350354461959655e-07,
    1.4660051998394848e-08,
    -1.1373902296430911e-09,
    5.958930743134941e-11,
)
_NEAR_32 = (
    1.128379167,
    -0.3761263848,
    0.1128378262,
    -0.02686543831,
    0.005221053413,
    -0.0008484396551,
    0.0001126825389,
    -9.673590812e-06,
)


def _polynomial(xp: Any, x: Array, coefficients: Sequence[float]) -> Array:
    """Return the sum of ``coefficients[i] * x ** i``."""
    y = xp.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        y *= x
        y += coefficient
    return y


def _upper_tail(xp: Any, x: Array) -> Array:
    """Return 1 - erf(x) for x >= 0, float32 or float64, with a small relative error."""
    x = xp.minimum(x, 30)  # beyond 30 the tail is 0, and the square of x may overflow
    t = 2 / (x + 2)
    y = _polynomial(xp, 2 * t - 1, _TAIL_64 if x.dtype == "float64" else _TAIL_32)
    y *= t
    y *= xp.exp(-x * x)
    return y


def erf(xp: Any, x: Array) -> Array:
    """Return the error function, 2 / sqrt(pi) times the integral of exp(-t * t) from 0 to x.

    Args:
        xp: numpy or cupy; where kernels are traced, it has the function for float32.
        x: float32 or float64.
    """
    if x.dtype == "float32" and hasattr(xp, "erf"):
        return xp.erf(x)
    size = xp.abs(x)
    inner = xp.clip(x, -1, 1)
    near = inner * _polynomial(xp, inner * inner, _NEAR_64 if x.dtype == "float64" else _NEAR_32)
    return xp.where(size <= 1, near, xp.copysign(1 - _upper_tail(xp, size), x))


def normal_cdf(xp: Any, x: Array) -> Array:
    """Return the distribution function of the standard normal at x, float32 or float64; accurate far below 0 too."""
    if x.dtype == "float32" and hasattr(xp, "erfc"):
        return 0.5 * xp.erfc(x * -math.sqrt(0.5))
    tail = _upper_tail(xp, xp.abs(x) * math.sqrt(0.5))
    tail *= 0.5
    return xp.where(x < 0, tail, 1 - tail)


def normal_density(xp: Any, x: Array) -> Array:
    """Return the density of the standard normal distribution."""
    return xp.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))


@register
@dataclass(frozen=True)
class Erf(Unary):
    """Y = 2 / sqrt(pi) times the integral of exp(-t * t) from 0 to X."""

    inplace = ()

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return [make_op("ErfGradient", [g.input("X"), g.d_output("Y")], [g.d_input("X")])]

    def flops(self, *inputs: TensorSpec) -> int:
        return 2 * (len(_NEAR_32) + len(_TAIL_32)) * inputs[0].size


@register
@dataclass(frozen=True)
class ErfGradient(UnaryGradient):
    """dX = dY * 2 / sqrt(pi) * exp(-X * X)."""

    signature = "X, dY -> dX"


@kernel(Erf)
def erf_kernel(op: Erf, ctx: RunContext, x: Array) -> tuple[Array, ...]:
    return (narrow(erf(ctx.xp, widen(x)), x),)


@kernel(ErfGradient)
def erf_gradient(op: ErfGradient, ctx: RunContext, x: Array, dy: Array) -> tuple[Array, ...]:
    with np.errstate(over="ignore"):
        return (dy * ctx.xp.exp(-x * x) * dy.dtype.type(2 / math.sqrt(math.pi)),)
