"""What the docstrings of operators state about their inputs and outputs: names, shapes and element types.

A section of a docstring has one line for each name in ``inputs`` or ``outputs``, in their order::

    Inputs:
        X (N, C, H, W) or (N, H, W, C): float, images
        labels (N): int32|int64
    Outputs:
        Y (N, *S, 2 * D): as X

A name is written as in ``inputs``, with its ``?``, ``*`` or ``+``. An extent is a number, a symbol (the same extent
wherever the operator has this symbol; the name of an argument stands for its value) or an expression of these, where
``prod`` and ``len`` take a run of axes; ``*S`` is a run of any number of axes, ``...`` a run without a name. Types are
NumPy's names, ``string``, ``object`` (a blob that is no tensor: such a one has no shape), ``float`` (float16, float32
or float64), ``int`` (any integer type), ``any``, or ``as X``: the type that X has. What comes after a comma is for
readers. An operator without a section has that of its base class. Gradient operators need none: a gradient has the
shape and type of what it is the gradient of, and their other inputs are those of the forward operator.
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
"""What may be written for a type: the names of the element types that it stands for."""

_SHAPE = r"\((?:[^()]|\([^()]*\))*\)"
_LINE = re.compile(rf"(\w+[?*+]?)(?: ({_SHAPE}(?: or {_SHAPE})*))?: (as \w+|[\w|]+)(?:, (.+))?")


@dataclass(frozen=True)
class Blob:
    """What is stated of one input or output.

    Args:
        name: as in ``inputs`` or ``outputs``.
        shapes: the shapes that it may have, each a tuple of extents as they are written; () where it is no tensor.
        types: element types, all of ``TYPE_GROUPS``; () where it has that of ``like``.
        like: the name of the blob whose element type it has, or "".
        text: what is said about it, or "".
    """

    name: str
    shapes: tuple[tuple[str, ...], ...]
    types: tuple[str, ...]
    like: str
    text: str


@dataclass(frozen=True)
class Signature:
    """What is stated of all inputs and outputs of an operator, in order."""

    inputs: tuple[Blob, ...]
    outputs: tuple[Blob, ...]


def is_gradient(cls: type[Operator]) -> bool:
    """Whether this is a gradient operator: it says so in its name, and a blob of it is named as a gradient (dY)."""
    return "Grad" in cls.__name__ and any(name[0] == "d" for name in (*cls.inputs, *cls.outputs))


def signature(cls: type[Operator]) -> Signature | None:
    """Return what an operator's docstring, or that of the nearest base that has one, states; None if none does.

    Raises:
        NetError: a line is not of the form, or the names are not those of ``inputs`` and ``outputs``.
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
    """Return the lines of a section, those that go on joined with the ones before them."""
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
