"""Signatures in the docstrings of operators: names, shapes and element types of inputs and outputs.

A section of a docstring has one line for each name in ``inputs`` or ``outputs``, in their order::

    Inputs:
        X (N, C, H, W) or (N, H, W, C): float, images
        labels (N): int32|int64
    Outputs:
        Y (N, *S, 2 * D): as X

A name is written as in ``inputs``, with its ``?``, ``*`` or ``+``. An extent is a number, a symbol (the same extent
wherever the operator has this symbol; the name of an argument stands for its value) or an expression of these, where
``prod`` and ``len`` take several axes; ``*S`` stands for any number of axes, ``...`` for axes without a name. Types are
NumPy's names, ``string``, ``object`` (a blob that is not a tensor, and so has no shape), ``float`` (float16, float32
or float64), ``int`` (any integer type), ``any``, or ``as X``: the type of X. Text after a comma is a comment. An
operator without a section has that of its base class. Gradient operators need none: a gradient has the shape and type
of the blob whose gradient it is, and their other inputs are those of the forward operator.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from netbuilder.ops.core.operator import STRING, Operator
from netbuilder.proto import NetError

__all__ = ["TYPE_GROUPS", "Blob", "Form", "Signature", "is_gradient", "signature"]

_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16")
_FLOATS = ("float16", "float32", "float64")

TYPE_GROUPS: dict[str, tuple[str, ...]] = {
    "float": _FLOATS,
    "int": _INTEGERS,
    "any": (*_FLOATS, *_INTEGERS, "bool", "string"),
    **{name: (name,) for name in (*_FLOATS, *_INTEGERS, "bool", "string", "object")},
}
"""The names of types in signatures, and the element types that each stands for."""

_SHAPE = r"\((?:[^()]|\([^()]*\))*\)"
_LINE = re.compile(rf"(\w+[?*+]?)(?: ({_SHAPE}(?: or {_SHAPE})*))?: (as \w+|[\w|]+)(?:, (.+))?")


@dataclass(frozen=True)
class Form:
    """What is known of a value whose extents are not: the type of its elements and its number of axes, or None."""

    dtype: np.dtype[Any] | None = None
    rank: int | None = None


@dataclass(frozen=True)
class Blob:
    """The signature of one input or output.

    Args:
        name: as in ``inputs`` or ``outputs``.
        shapes: the shapes that it may have, each a tuple of extents as written; () if it is not a tensor.
        types: the element types that it may have; () if ``like`` is given.
        like: the name of the blob that has the same element type, or "".
        text: the comment, or "".
    """

    name: str
    shapes: tuple[tuple[str, ...], ...]
    types: tuple[str, ...]
    like: str
    text: str

    def has_type(self, dtype: np.dtype[Any]) -> bool:
        """Whether the value may have this type; what takes uint16 takes longer ones, which have no name."""
        return ("uint16" if dtype.name in ("uint32", "uint64") else _type_name(dtype)) in self.types

    def has_rank(self, rank: int) -> bool:
        """Whether the value may have this number of axes."""
        if not self.shapes:
            return False
        open_ended = [any(n == "..." or n.startswith("*") for n in shape) for shape in self.shapes]
        fixed = [sum(n != "..." and not n.startswith("*") for n in shape) for shape in self.shapes]
        return any(rank >= n if more else rank == n for n, more in zip(fixed, open_ended))


@dataclass(frozen=True)
class Signature:
    """The signature of an operator: all inputs and outputs, in order."""

    inputs: tuple[Blob, ...]
    outputs: tuple[Blob, ...]

    def mismatch(self, given: Sequence[Form]) -> str:
        """Return what the operator does not take of inputs; "" if they are as stated, as far as is known."""
        dtypes: dict[str, np.dtype[Any] | None] = {}
        for index, form in enumerate(given):
            blob = self.inputs[min(index, len(self.inputs) - 1)]
            name = blob.name.rstrip("?*+")
            expected = dtypes.setdefault(name, form.dtype) if not blob.like else dtypes.get(blob.like)
            dtypes.setdefault(name, form.dtype)
            if form.dtype is not None and not blob.like and not blob.has_type(form.dtype):
                return f"{name} has elements of type {form.dtype}, must have one of {', '.join(blob.types)}"
            if None not in (form.dtype, expected) and blob.like and form.dtype != expected:
                return f"{name} has elements of type {form.dtype}, must have those of {blob.like}, {expected}"
            if form.rank is not None and not blob.has_rank(form.rank):
                shapes = " or ".join(f"({', '.join(shape)})" for shape in blob.shapes)
                return f"{name} has {form.rank} axes, must have the shape {shapes}"
        return ""

    def made(self, given: Sequence[Form], count: int) -> list[Form]:
        """Return what is stated of ``count`` outputs."""
        names = [blob.name.rstrip("?*+") for blob in self.inputs]
        dtypes = {name: form.dtype for name, form in reversed([*zip(names, given)])}
        made = []
        for index in range(count):
            blob = self.outputs[min(index, len(self.outputs) - 1)]
            only = blob.types[0] if len(blob.types) == 1 and blob.types[0] != "object" else None
            dtype = dtypes.get(blob.like) if blob.like else None if only is None else _dtype_of(only)
            dtypes.setdefault(blob.name.rstrip("?*+"), dtype)
            made.append(Form(dtype))
        return made


def _type_name(dtype: np.dtype[Any]) -> str:
    return "string" if dtype == STRING else dtype.name


def _dtype_of(name: str) -> np.dtype[Any]:
    return STRING if name == "string" else np.dtype(name)


def is_gradient(cls: type[Operator]) -> bool:
    """Whether this is a gradient operator: its name says so, and one of its blobs is named as a gradient (dY)."""
    return "Grad" in cls.__name__ and any(name[0] == "d" for name in (*cls.inputs, *cls.outputs))


def signature(cls: type[Operator]) -> Signature | None:
    """Return the signature in an operator's docstring, or in that of its nearest base; None if there is none.

    Raises:
        NetError: a line has another form, or the names are not those of ``inputs`` and ``outputs``.
    """
    if not (cls.inputs or cls.outputs):
        return Signature((), ())
    for base in cls.__mro__:
        document = base.__dict__.get("__doc__") or ""
        if re.search(r"^ *(Inputs|Outputs):$", document, re.M):
            found = Signature(_section(cls, document, "Inputs"), _section(cls, document, "Outputs"))
            for blobs, names in ((found.inputs, cls.inputs), (found.outputs, cls.outputs)):
                if tuple(blob.name for blob in blobs) != names:
                    raise NetError(
                        f"{cls.__name__}: its docstring must state {names}, got {tuple(blob.name for blob in blobs)}"
                    )
            return found
    return None


def _section(cls: type[Operator], document: str, title: str) -> tuple[Blob, ...]:
    match = re.search(rf"^( *){title}:\n((?:\1 +\S.*(?:\n|\Z))*)", document, re.M)
    return tuple(_blob(cls, line) for line in _lines(match[2])) if match else ()


def _lines(text: str) -> list[str]:
    """Return the lines of a section, continuation lines joined to the lines before them."""
    lines: list[str] = []
    first = len(text) - len(text.lstrip())
    for line in text.splitlines():
        if len(line) - len(line.lstrip()) > first:
            lines[-1] += " " + line.strip()
        else:
            lines.append(line.strip())
    return lines


def _blob(cls: type[Operator], line: str) -> Blob:
    match = _LINE.fullmatch(line)
    types = match[3] if match else ""
    unknown = [] if types.startswith("as ") else [name for name in types.split("|") if name not in TYPE_GROUPS]
    if match is None or unknown or (match[2] is None) != (types == "object"):
        raise NetError(
            f"{cls.__name__}: the docstring states {line!r}; write 'X (N, D): float32|float64, what it is', with the "
            f"types {', '.join(TYPE_GROUPS)} or 'as X', and no shape for an object"
        )
    like = types[3:] if types.startswith("as ") else ""
    shapes = tuple(_extents(shape) for shape in re.findall(_SHAPE, match[2] or ""))
    expanded = () if like else tuple(dict.fromkeys(t for name in types.split("|") for t in TYPE_GROUPS[name]))
    return Blob(match[1], shapes, expanded, like, match[4] or "")


def _extents(shape: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in re.split(r",(?![^(]*\))", shape[1:-1]) if part.strip())
