"""The CUDA C++ of traced programs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from netbuilder.engines.programs import Constant, HostNumber, Load, NotTraced, Program, Stacked, Step, Uniform

__all__ = [
    "BFLOAT16",
    "Places",
    "body",
    "c_type",
    "index_of",
    "numbers_read",
    "register_type",
    "stored",
    "value_of",
    "with_prelude",
]

BFLOAT16 = "bfloat16"
"""The name of the upper half of a float32 as an element's type in memory."""

_INTEGERS = """
typedef long long i64;
typedef unsigned long long u64;
"""
_HALF = """
#include <cuda_fp16.h>
__device__ __forceinline__ float half_value(unsigned short bits) { return __half2float(__ushort_as_half(bits)); }
__device__ __forceinline__ unsigned short half_bits(float x) { return __half_as_ushort(__float2half_rn(x)); }
__device__ __forceinline__ float round_half(float x) { return half_value(half_bits(x)); }
"""
_BFLOAT16 = """
__device__ __forceinline__ float bfloat16_value(unsigned short bits) { return __uint_as_float((unsigned)bits << 16); }
__device__ __forceinline__ unsigned short bfloat16_bits(float x) {  // to nearest, ties to even
    const unsigned bits = __float_as_uint(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (unsigned short)(bits >> 16 | 0x40u);
    return (unsigned short)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
"""
_UNIFORM = """
__device__ __forceinline__ double uniform(u64 counter, i64 i) {  // see netbuilder.engines.random
    u64 z = counter + (u64)i * 0x9E3779B97F4A7C15ULL;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ z >> 27) * 0x94D049BB133111EBULL;
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}
"""


def with_prelude(text: str) -> str:
    """Return a kernel's source: what it uses of 64-bit integers, 16-bit floats and random numbers, then its text."""
    parts = {"half": _HALF, "bfloat16": _BFLOAT16, "uniform(": _UNIFORM}
    used = "".join(part for name, part in parts.items() if name in text)
    return f"{_INTEGERS}{used}\n{text}"


_TYPES = {
    "?": "bool",
    "b": "signed char",
    "B": "unsigned char",
    "h": "short",
    "H": "unsigned short",
    "i": "int",
    "I": "unsigned int",
    "l": "i64",
    "q": "i64",
    "L": "u64",
    "Q": "u64",
    "e": "unsigned short",
    "f": "float",
    "d": "double",
}


def c_type(storage: Any) -> str:
    """Return the type of an element in memory; ``storage`` is a dtype or ``BFLOAT16``."""
    return "unsigned short" if storage == BFLOAT16 else _TYPES[np.dtype(storage).char]


def register_type(dtype: Any) -> str:
    """Return the type in which an element is computed with."""
    return "float" if np.dtype(dtype).char == "e" else _TYPES[np.dtype(dtype).char]


def value_of(text: str, storage: Any) -> str:
    """Return the value of an element as it is in memory."""
    if storage == BFLOAT16:
        return f"bfloat16_value({text})"
    return f"half_value({text})" if np.dtype(storage).char == "e" else text


def stored(text: str, storage: Any) -> str:
    """Return a value as it is stored in memory."""
    if storage == BFLOAT16:
        return f"bfloat16_bits({text})"
    return f"half_bits({text})" if np.dtype(storage).char == "e" else text


_FUNCTIONS = {  # of C, in the type of the operands
    "absolute": "fabs",
    "arccos": "acos",
    "arccosh": "acosh",
    "arcsin": "asin",
    "arcsinh": "asinh",
    "arctan": "atan",
    "arctanh": "atanh",
    "copysign": "copysign",
    "power": "pow",
    **{
        name: name
        for name in (
            "cbrt ceil cos cosh erf erfc exp expm1 floor log log10 log1p log2 rint sin sinh sqrt tan tanh trunc"
        ).split()
    },
}
_FORMULAS = {
    "add": "{0} + {1}",
    "bitwise_and": "{0} & {1}",
    "bitwise_or": "{0} | {1}",
    "bitwise_xor": "{0} ^ {1}",
    "divide": "{0} / {1}",
    "equal": "{0} == {1}",
    "greater": "{0} > {1}",
    "greater_equal": "{0} >= {1}",
    "invert": "~{0}",
    "isfinite": "{0} - {0} == {0} - {0}",
    "isinf": "{0} == {0} && {0} - {0} != {0} - {0}",
    "isnan": "{0} != {0}",
    "less": "{0} < {1}",
    "less_equal": "{0} <= {1}",
    "logical_and": "{0} && {1}",
    "logical_not": "!{0}",
    "logical_or": "{0} || {1}",
    "logical_xor": "!{0} != !{1}",
    "maximum": "({0} > {1} || {0} != {0}) ? {0} : {1}",  # NaN if one of them is
    "minimum": "({0} < {1} || {0} != {0}) ? {0} : {1}",
    "multiply": "{0} * {1}",
    "negative": "-{0}",
    "not_equal": "{0} != {1}",
    "positive": "{0}",
    "reciprocal": "1 / {0}",
    "sign": "({0} != {0}) ? {0} : ({0} > 0) - ({0} < 0)",
    "square": "{0} * {0}",
    "subtract": "{0} - {1}",
}
_EXACT = {"absolute", "maximum", "minimum", "negative", "positive"}  # of float16: nothing is rounded
_OF_BOOL = {"add": "{0} || {1}", "multiply": "{0} && {1}", "invert": "!{0}"}
_OF_INTEGERS = {
    "absolute": "({0} < 0) ? -{0} : {0}",
    "isfinite": "true",
    "isinf": "false",
    "isnan": "false",
    "signbit": "{0} < 0",
}


def numbers_read(numbers: Sequence[HostNumber | Uniform]) -> list[str]:
    """Return the statements by which a kernel reads the numbers of the run from its parameter ``numbers``."""
    lines = []
    for k, number in enumerate(numbers):
        kind = "u64" if isinstance(number, Uniform) else c_type(number.stored)
        bits = f"({'i64' if kind == 'double' else kind})numbers[{k}]"
        lines.append(f"const {kind} n{k} = {f'__longlong_as_double({bits})' if kind == 'double' else bits};")
    return lines


def _formula(name: str, compute: np.dtype[Any]) -> str:
    if compute.kind == "b" and name in _OF_BOOL:
        return _OF_BOOL[name]
    if compute.kind in "iu" and name in _OF_INTEGERS:
        return _OF_INTEGERS[name]
    if name in _FUNCTIONS or name == "signbit":
        if compute.kind != "f":
            raise NotTraced(f"{name} of {compute}")
        suffix = "" if compute.char == "d" else "f"
        if name == "signbit":
            return f"copysign{suffix}(1, {{0}}) < 0"
        places = "{0}, {1}" if name in ("copysign", "power") else "{0}"
        return f"{_FUNCTIONS[name]}{suffix}({places})"
    return _FORMULAS[name]


def _number(value: Any, dtype: np.dtype[Any]) -> str:
    """Return a constant of a type."""
    with np.errstate(all="ignore"):
        exact = np.asarray(value).astype(dtype).item()
    if dtype.kind == "b":
        return "true" if exact else "false"
    if dtype.kind in "iu":
        if exact == -(2**63):
            return "(-9223372036854775807LL - 1)"
        text = f"{exact}{'U' if dtype.kind == 'u' else ''}{'LL' if dtype.itemsize == 8 else ''}"
        return f"(({_TYPES[dtype.char]}){text})"
    if math.isfinite(exact):
        return f"({float(exact).hex()}{'' if dtype.char == 'd' else 'f'})"
    if dtype.char == "d":
        bits = "0x7ff8000000000000LL" if exact != exact else "0x7ff0000000000000LL"
        text = f"__longlong_as_double({bits})"
    else:
        text = f"__int_as_float({'0x7fc00000' if exact != exact else '0x7f800000'})"
    return f"(-{text})" if exact < 0 else text


def _converted(text: str, source: np.dtype[Any], target: np.dtype[Any]) -> str:
    """Return a value in a register of another type."""
    if source == target:
        return text
    if target.kind == "b":
        return f"({text} != 0)"
    if target.char == "e":
        return f"round_half((float){text})"
    return f"({register_type(target)}){text}"


def body(
    program: Program,
    load: Callable[[Load], str],
    store: Callable[[int, str, str], str],
    numbers: Sequence[int] | None = None,
) -> list[str]:
    """Return the statements that compute the outputs for one element, with the index ``i``.

    Args:
        program: the program.
        load: returns the value of a load, in a register.
        store: returns the statement that stores a value as an output, at an index.
        numbers: the positions of the program's numbers among the kernel's; None: they are the same.
    """
    names: dict[int, str] = {}
    own = range(len(program.numbers)) if numbers is None else numbers
    number = {id(value): f"n{k}" for k, value in zip(own, program.numbers)}

    def value(expression: Any, dtype: np.dtype[Any]) -> str:
        if isinstance(expression, Constant):
            return _number(expression.value, dtype)
        if isinstance(expression, HostNumber):
            return f"(({register_type(dtype)}){number[id(expression)]})"
        if isinstance(expression, Uniform):
            text = f"uniform({number[id(expression)]}, {_drawn(expression)})"
        else:
            text = load(expression) if isinstance(expression, Load) else names[id(expression)]
        return _converted(text, expression.dtype, dtype)

    lines = []
    for k, step in enumerate(program.steps()):
        names[id(step)] = f"v{k}"
        lines.append(f"const {register_type(step.dtype)} v{k} = {_statement(step, value)};")
    for j, (expression, dtype) in enumerate(zip(program.outputs, program.dtypes)):
        if isinstance(expression, Stacked):
            count = len(expression.values)
            lines += [store(j, value(part, dtype), f"i * {count} + {k}") for k, part in enumerate(expression.values)]
        else:
            lines.append(store(j, value(expression, dtype), "i"))
    return lines


def _drawn(numbers: Uniform) -> str:
    """Return which number of its stream element ``i`` gets."""
    if numbers.moved is None:
        return "i"
    outer, middle, inner = numbers.moved
    return f"(i64)(i / {inner} % {middle}) * {outer * inner}LL + i / {inner * middle}LL * {inner}LL + i % {inner}"


def _statement(step: Step, value: Callable[[Any, np.dtype[Any]], str]) -> str:
    if step.function == "where":
        condition, x, y = step.operands
        return f"{value(condition, np.dtype(bool))} ? {value(x, step.compute)} : {value(y, step.compute)}"
    operands = [value(operand, step.compute) for operand in step.operands]
    text = _formula(step.function, step.compute).format(*operands)
    if step.compute != step.dtype:
        text = f"({text})"
        return _converted(text, step.compute, step.dtype) if step.dtype.kind != "b" else text
    if step.dtype.char == "e":
        return text if step.function in _EXACT else f"round_half({text})"
    return f"({register_type(step.dtype)})({text})" if step.dtype.itemsize < 4 else text


def _repeated(load: Load, shape: tuple[int, ...]) -> list[tuple[int, bool]]:
    """Return the axes of a shape, neighbors joined: the extent of each, and whether the load has it."""
    full = (1,) * (len(shape) - len(load.shape)) + load.shape
    joined: list[tuple[int, bool]] = []
    for extent, own in zip(shape, full):
        if extent == 1:
            continue
        if joined and joined[-1][1] == (own != 1):
            joined[-1] = (joined[-1][0] * extent, own != 1)
        else:
            joined.append((extent, own != 1))
    return joined


def index_of(load: Load, shape: tuple[int, ...], number: Callable[[int], str]) -> str:
    """Return where a load finds its element for element ``i`` of a shape; ``number`` returns the text of an extent."""
    axes = _repeated(load, shape)
    if all(own for _, own in axes) and axes:
        return "i"
    if not any(own for _, own in axes):
        return "0"
    terms, inner, stride = [], 1, 1
    for k, (extent, own) in reversed([*enumerate(axes)]):
        if own:
            text = "i" if inner == 1 else f"(i / {number(inner)})"
            if k:
                text = f"{text} % {number(extent)}"
            terms.append(text if stride == 1 else f"({text}) * {number(stride)}")
            stride *= extent
        inner *= extent
    return " + ".join(terms)


class Places:
    """Where loads find their elements: indices of inputs, for the index ``i`` of an element of the outputs.

    Attributes:
        extents: the numbers that the indices are computed from, arguments ``d0``, ``d1``, ... of the kernel.
    """

    def __init__(self, program: Program) -> None:
        self._shape = program.shape
        self._texts: dict[Load, str] = {}
        self.extents: list[int] = []
        for load in program.loads():
            self._texts[load] = self._index(load)

    def identity(self, load: Load) -> bool:
        """Whether a load reads a value of the element with the index of the one that is written."""
        return self._texts[load] == "i" or math.prod(self._shape) == 1

    def __getitem__(self, load: Load) -> str:
        text = self._texts[load]
        return text if load.stride == 1 else f"({text}) * {load.stride} + {load.offset}"

    def _index(self, load: Load) -> str:
        return index_of(load, self._shape, self._argument)

    def _argument(self, value: int) -> str:
        self.extents.append(value)
        return f"d{len(self.extents) - 1}"
