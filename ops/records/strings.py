"""Tensors of strings: StringPrefix, StringSuffix, StringStartsWith, StringEndsWith, StringEquals, StringJoin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.operator import STRING, Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["StringEndsWith", "StringEquals", "StringJoin", "StringPrefix", "StringStartsWith", "StringSuffix"]

Strings = np.ndarray[Any, Any]


@dataclass(frozen=True)
class _OnStrings(Operator):
    """Base: strings are stored on the host, whatever the device."""

    signature = "strings ->"
    outputs_on_host = True
    inputs_on_host = True
    flops_per_element = 0
    result_type: ClassVar[np.dtype[Any]] = STRING


def _each(op: _OnStrings, strings: Strings, function: Callable[[bytes], Any]) -> tuple[Strings]:
    """Return ``function`` of each string."""
    require(strings.dtype == STRING, op, f"the input must be a tensor of strings, got one of {strings.dtype}")
    made = np.empty(strings.shape, op.result_type)
    made[...] = np.frompyfunc(function, 1, 1)(strings)
    return (made,)


@dataclass(frozen=True)
class _Part(_OnStrings):
    length: int = 3

    def check(self) -> None:
        if self.length < 0:
            raise ArgumentError(f"{self.type}: length, in bytes, must not be negative, got {self.length}")


@register
@dataclass(frozen=True)
class StringPrefix(_Part):
    """prefixes = the first ``length`` bytes of each string; shorter strings do not change."""

    signature = "strings (*S): string -> prefixes (*S): string"


@kernel(StringPrefix)
def string_prefix(op: StringPrefix, ctx: RunContext, strings: Any) -> tuple[Any, ...]:
    return _each(op, strings, lambda text: text[: op.length])


@register
@dataclass(frozen=True)
class StringSuffix(_Part):
    """suffixes = the last ``length`` bytes of each string; shorter strings do not change."""

    signature = "strings (*S): string -> suffixes (*S): string"


@kernel(StringSuffix)
def string_suffix(op: StringSuffix, ctx: RunContext, strings: Any) -> tuple[Any, ...]:
    return _each(op, strings, lambda text: text[max(len(text) - op.length, 0) :])


@dataclass(frozen=True)
class _Test(_OnStrings):
    """Base: a comparison of each string with an argument."""

    signature = "strings (*S): string -> bools (*S): bool"
    result_type = np.dtype(np.bool_)


@register
@dataclass(frozen=True)
class StringStartsWith(_Test):
    """bools = whether each string begins with ``prefix``."""

    prefix: bytes = b""


@kernel(StringStartsWith)
def string_starts_with(op: StringStartsWith, ctx: RunContext, strings: Any) -> tuple[Any, ...]:
    return _each(op, strings, lambda text: text.startswith(op.prefix))


@register
@dataclass(frozen=True)
class StringEndsWith(_Test):
    """bools = whether each string ends with ``suffix``."""

    suffix: bytes = b""


@kernel(StringEndsWith)
def string_ends_with(op: StringEndsWith, ctx: RunContext, strings: Any) -> tuple[Any, ...]:
    return _each(op, strings, lambda text: text.endswith(op.suffix))


@register
@dataclass(frozen=True)
class StringEquals(_Test):
    """bools = whether each string is ``text``."""

    text: bytes = b""


@kernel(StringEquals)
def string_equals(op: StringEquals, ctx: RunContext, strings: Any) -> tuple[Any, ...]:
    return _each(op, strings, lambda text: text == op.text)


@register
@dataclass(frozen=True)
class StringJoin(_OnStrings):
    """strings = the elements of each row (``axis`` 0) or column (1) of X in one string, each followed by ``delimiter``.

    Numbers are written with six digits, bools as 0 and 1; a vector is a matrix with one column.
    """

    signature = "X (N) or (N, D): any -> strings (M): string"
    delimiter: bytes = b","
    axis: int = 0

    def check(self) -> None:
        if self.axis not in (0, 1):
            raise ArgumentError(f"StringJoin: axis must be 0 or 1, got {self.axis}")

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        require(
            len(x.shape) in (1, 2) and x.size > 0,
            self,
            f"X must be a vector or a matrix with elements, got shape {x.shape}",
        )
        require(self.axis < len(x.shape), self, f"axis 1 needs a matrix, got shape {x.shape}")
        return (TensorSpec((x.shape[self.axis],), STRING),)


def _text(element: Any) -> bytes:
    if isinstance(element, bytes):
        return element
    return (f"{element:g}" if isinstance(element, float) else str(int(element))).encode()


@kernel(StringJoin)
def string_join(op: StringJoin, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    op.infer(TensorSpec(tuple(x.shape), x.dtype))
    rows = x.reshape(x.shape[0], -1) if op.axis == 0 else x.T
    made = np.empty(len(rows), STRING)
    made[:] = [b"".join([_text(element) + op.delimiter for element in row]) for row in rows.tolist()]
    return (made,)
