"""The text of LLVM's instructions on vectors: each value is one for ``LANES`` elements.

Sums, products, quotients and roots round as NumPy's: no instruction has a fast-math flag, and products are fused with
sums only where ``fma`` says so.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

__all__ = ["LANES", "Emitter", "memory_type", "register_type", "vector"]

LANES = 16
"""Elements of a vector. LLVM splits vectors where the CPU's registers are smaller."""

_IN_REGISTERS = {
    "?": "i1", "b": "i8", "B": "i8", "h": "i16", "H": "i16", "i": "i32", "I": "i32", "l": "i64", "L": "i64",
    "q": "i64", "Q": "i64", "e": "float", "f": "float", "d": "double",
}  # fmt: skip


def register_type(dtype: np.dtype[Any]) -> str:
    """Return the type in which an element is computed with: float for float16."""
    if dtype.char in "lL":  # of 32 bits on Windows
        return f"i{8 * dtype.itemsize}"
    return _IN_REGISTERS[dtype.char]


def memory_type(dtype: np.dtype[Any]) -> str:
    """Return the type of an element in memory."""
    return {"?": "i8", "e": "half"}.get(dtype.char) or register_type(dtype)


def vector(element: str) -> str:
    """Return the type of a vector."""
    return f"<{LANES} x {element}>"


_SUFFIXES = {"float": "f32", "double": "f64"}


class Emitter:
    """Collects instructions, each of which makes a value with a new name.

    Args:
        prefix: of the names.
        declared: where the declarations of LLVM's functions are collected; None: in a new set.
    """

    def __init__(self, prefix: str = "v", declared: set[str] | None = None) -> None:
        self.lines: list[str] = []
        self.declared: set[str] = set() if declared is None else declared
        self._prefix, self._count = prefix, 0

    def let(self, text: str) -> str:
        """Add an instruction and return the name of what it makes."""
        self._count += 1
        name = f"%{self._prefix}{self._count}"
        self.lines.append(f"  {name} = {text}")
        return name

    def add(self, line: str) -> None:
        """Add an instruction that makes no value, or a label."""
        self.lines.append(line if line.endswith(":") else f"  {line}")

    def constant(self, value: Any, element: str = "float") -> str:
        """Return a vector of one number."""
        if element == "i1":
            text = "true" if value else "false"
        elif element.startswith("i"):
            text = str(int(value))
        else:
            exact = float(np.float32(value)) if element == "float" else float(value)
            text = "0x" + struct.pack(">d", exact).hex().upper()
        return f"<{', '.join([f'{element} {text}'] * LANES)}>"

    def splat(self, scalar: str, element: str) -> str:
        """Return a vector of one scalar."""
        kind = vector(element)
        first = self.let(f"insertelement {kind} poison, {element} {scalar}, i64 0")
        return self.let(f"shufflevector {kind} {first}, {kind} poison, <{LANES} x i32> zeroinitializer")

    def repeat(self, part: str, count: int, element: str) -> str:
        """Return a vector that repeats a shorter one of ``count`` elements."""
        order = ", ".join(f"i32 {lane % count}" for lane in range(LANES))
        kind = f"<{count} x {element}>"
        return self.let(f"shufflevector {kind} {part}, {kind} poison, <{LANES} x i32> <{order}>")

    def binary(self, operation: str, a: str, b: str, element: str = "float") -> str:
        return self.let(f"{operation} {vector(element)} {a}, {b}")

    def compare(self, condition: str, a: str, b: str, element: str = "float") -> str:
        kind = "icmp" if element.startswith("i") else "fcmp"
        return self.let(f"{kind} {condition} {vector(element)} {a}, {b}")

    def select(self, condition: str, a: str, b: str, element: str = "float") -> str:
        kind = vector(element)
        return self.let(f"select {vector('i1')} {condition}, {kind} {a}, {kind} {b}")

    def convert(self, operation: str, value: str, source: str, target: str) -> str:
        return self.let(f"{operation} {vector(source)} {value} to {vector(target)}")

    def negate(self, value: str, element: str = "float") -> str:
        return self.let(f"fneg {vector(element)} {value}")

    def call(self, name: str, *values: str, element: str = "float") -> str:
        """Call one of LLVM's functions of vectors of floats, such as sqrt."""
        kind = vector(element)
        full = f"llvm.{name}.v{LANES}{_SUFFIXES[element]}"
        self.declared.add(f"declare {kind} @{full}({', '.join([kind] * len(values))})")
        return self.let(f"call {kind} @{full}({', '.join(f'{kind} {value}' for value in values)})")

    def fma(self, a: str, b: str, c: str, element: str = "float") -> str:
        """Return a * b + c, rounded once."""
        return self.call("fma", a, b, c, element=element)

    def polynomial(self, x: str, coefficients: Any, element: str = "float") -> str:
        """Return a polynomial in ``x``; the coefficient of the highest power comes first."""
        first, *others = coefficients
        y = self.constant(first, element)
        for coefficient in others:
            y = self.fma(y, x, self.constant(coefficient, element), element)
        return y
