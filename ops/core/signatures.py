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
from dataclasses import dataclass

from netbuilder.ops.core.operator import Operator
from netbuilder.proto import NetError

__all__ = ["TYPE_GROUPS", "Blob", "Signature", "is_gradient", "signature"]

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


@dataclass(frozen=True)
class Signature:
    """The signature of an operator: all inputs and outputs, in order."""

    inputs: tuple[Blob, ...]
    outputs: tuple[Blob, ...]


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
