"""Signatures of operators: names, shapes and element types of inputs and outputs, said once, in ``Operator.signature``.

It is one line::

    X (N, D): float, W (M, D): as X -> Y (N, M): as X

or a line for each input, and after an arrow for each output::

    X (N, C, H, W) or (N, H, W, C): float, images
    labels (N): int32|int64
    -> Y (N, *S, 2 * D): as X

A name with ``?`` is optional (if it is missing, so are those after it); as the last name, ``X*`` stands for any number
of tensors, ``X+`` for at least one. An extent is a number, a symbol (the same extent wherever the operator has this
symbol; the name of an argument or of a property stands for its value) or an expression of these, where ``prod`` and
``len`` take several axes, all of a run S or, as ``S[1:]``, some; ``*S`` stands for any number of axes, ``...`` for axes
without a name, ``{1}`` for any shape of one element. With ``(*A, N @ axis, *B)`` the argument ``axis`` is the axis of
N, counted from the end if negative; with ``(*A, *B @ axis)`` it is the first axis of B, or the number of axes. ``(N, C,
*S) if NCHW else (N, *S, C)``: the first shape holds if the argument or property of this name is true, or the argument
``order`` is this text, or the optional input of this name is given.

Types are NumPy's names, ``string``, ``object`` (a blob that is not a tensor, and so has no shape), ``float`` (float16,
float32 or float64), ``int`` (any integer type), ``any``, or ``as X``: the type of X and, without a shape, its shape,
too; ``wide X``: of an input, this or, if X is float16, float32; of an output, float32 if X is float16. ``one float`` is
for several tensors of one type. Text after a comma is a comment, which a signature of several
lines may have.

A gradient operator, ``<type>Gradient`` or ``<type>Grad``, gives names alone, ``X, dY -> dX``: a blob of the forward
operator is as that says, and a gradient has the shape and type of the blob whose gradient it is; that of one number may
be any one element.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from netbuilder.ops.core.specs import STRING
from netbuilder.proto import NetError
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "FLOATS",
    "TYPE_GROUPS",
    "Blob",
    "Form",
    "Signature",
    "dtype_of",
    "is_gradient",
    "of_gradient",
    "parsed",
    "type_names",
]

_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16")
FLOATS = ("float16", "float32", "float64")

TYPE_GROUPS: dict[str, tuple[str, ...]] = {
    "float": FLOATS,
    "int": _INTEGERS,
    "any": (*FLOATS, *_INTEGERS, "bool", "string"),
    **{name: (name,) for name in (*FLOATS, *_INTEGERS, "bool", "string", "object")},
}
"""The names of types in signatures, and the element types that each stands for."""

_SHAPE = r"(?:\((?:[^()]|\([^()]*\))*\)|\{[^{}]*\})"
_SHAPES = rf"{_SHAPE}(?: if \w+ else {_SHAPE}|(?: or {_SHAPE})*)"
_LINE = re.compile(rf"(\w+[?*+]?)(?: ({_SHAPES}))?: ((?:as|wide) \w+|(?:one )?[\w|]+)(?:, (.+))?")


@dataclass(frozen=True)
class Form:
    """What is known of a value whose extents are not: the type of its elements and its number of axes, or None."""

    dtype: np.dtype[Any] | None = None
    rank: int | None = None


@dataclass(frozen=True)
class Blob:
    """The signature of one input or output.

    Args:
        name: with its ``?``, ``*`` or ``+``.
        shapes: the shapes that it may have, each a tuple of extents as written; () if it is not a tensor, or if its
            shape is that of ``like``.
        types: the element types that it may have; () if ``like`` is given, or if nothing but the name is.
        like: the name of the blob that has the same element type, or "".
        text: the comment, or "".
        one_type: whether all tensors of this name have one type.
        condition: what decides between two shapes, true for the first; "": it may have each.
        wide: whether the type is that of ``like``, but float32 in place of float16, at least as an output.
    """

    name: str
    shapes: tuple[tuple[str, ...], ...]
    types: tuple[str, ...]
    like: str
    text: str
    one_type: bool = False
    condition: str = ""
    wide: bool = False

    @property
    def plain_name(self) -> str:
        return self.name.rstrip("?*+")

    @property
    def shapes_text(self) -> str:
        """The shapes, as written."""
        texts = (shape[0] if shape and shape[0][0] == "{" else f"({', '.join(shape)})" for shape in self.shapes)
        return (f" if {self.condition} else " if self.condition else " or ").join(texts)

    def has_type(self, dtype: np.dtype[Any]) -> bool:
        """Whether the value may have this type; what takes uint16 takes longer ones, which have no name."""
        return ("uint16" if dtype.name in ("uint32", "uint64") else _type_name(dtype)) in self.types

    def has_rank(self, rank: int) -> bool:
        """Whether the value may have this number of axes."""
        if not self.shapes:
            return "object" not in self.types
        open_ended = [any(n == "..." or n[0] in "*{" for n in shape) for shape in self.shapes]
        fixed = [sum(n != "..." and n[0] not in "*{" for n in shape) for shape in self.shapes]
        return any(rank >= n if more else rank == n for n, more in zip(fixed, open_ended))


@dataclass(frozen=True)
class Signature:
    """The signature of an operator: all inputs and outputs, in order."""

    inputs: tuple[Blob, ...]
    outputs: tuple[Blob, ...]

    @property
    def is_stated(self) -> bool:
        """Whether it has more than names."""
        return all(blob.types or blob.like for blob in (*self.inputs, *self.outputs))

    def mismatch(self, given: Sequence[Form]) -> str:
        """Return what the operator does not take of inputs; "" if they are as stated, as far as is known."""
        dtypes: dict[str, np.dtype[Any] | None] = {}
        for index, form in enumerate(given):
            blob = self.inputs[min(index, len(self.inputs) - 1)]
            name = blob.plain_name
            expected = dtypes.setdefault(name, form.dtype) if not blob.like else dtypes.get(blob.like)
            dtypes.setdefault(name, form.dtype)
            if form.dtype is not None and not blob.like and not blob.has_type(form.dtype):
                return f"{name} has elements of type {form.dtype}, must have one of {', '.join(blob.types)}"
            if None not in (form.dtype, expected) and blob.like and form.dtype != expected and not blob.wide:
                return f"{name} has elements of type {form.dtype}, must have those of {blob.like}, {expected}"
            if form.rank is not None and not blob.has_rank(form.rank):
                return f"{name} has {form.rank} axes, must have the shape {blob.shapes_text}"
        return ""

    def made(self, given: Sequence[Form], count: int) -> list[Form]:
        """Return what is stated of ``count`` outputs."""
        names = [blob.plain_name for blob in self.inputs]
        dtypes = {name: form.dtype for name, form in reversed([*zip(names, given)])}
        made = []
        for index in range(count):
            blob = self.outputs[min(index, len(self.outputs) - 1)]
            only = blob.types[0] if len(blob.types) == 1 and blob.types[0] != "object" else None
            dtype = dtypes.get(blob.like) if blob.like else None if only is None else dtype_of(only)
            if blob.wide and dtype == np.float16:
                dtype = np.dtype(np.float32)
            dtypes.setdefault(blob.plain_name, dtype)
            made.append(Form(dtype))
        return made


@functools.cache
def _type_name(dtype: np.dtype[Any]) -> str:
    return "string" if dtype == STRING else dtype.name


def dtype_of(name: str) -> np.dtype[Any]:
    """Return the element type of a name in a signature that stands for one."""
    return STRING if name in ("string", "object") else np.dtype(name)


def type_names(types: Sequence[str]) -> list[str]:
    """Return names for these types, those of groups where all of a group are among them."""
    groups = [name for name in ("float", "int") if set(TYPE_GROUPS[name]) <= set(types)]
    return groups + [name for name in types if not any(name in TYPE_GROUPS[group] for group in groups)]


def is_gradient(cls: type[Any]) -> bool:
    """Whether this is a gradient operator: its name says so, and one of its blobs is named as a gradient (dY)."""
    return "Grad" in cls.__name__ and any(name[0] == "d" for name in (*cls.inputs, *cls.outputs))


@functools.cache
def of_gradient(text: str, forward: str) -> Signature:
    """Return the signature of a gradient operator that states names alone, from that of the forward operator.

    Blobs that are alike there are alike here: the first of them has the type, the others are as it is.
    """
    names, known = parsed(text), parsed(forward)
    blobs = {blob.plain_name: blob for blob in (*known.outputs, *known.inputs)}
    roots: dict[str, str] = {}

    def completed(blob: Blob) -> Blob:
        if blob.types or blob.like:
            return blob
        name = blob.plain_name
        stated = blobs.get(name) or blobs.get(name.removeprefix("d_")) or blobs.get(name[1:] if name[0] == "d" else "")
        if stated is None:
            return blob
        base = shaped = stated
        while base.like and base.like in blobs:
            base = blobs[base.like]
        while not shaped.shapes and shaped.like in blobs:
            shaped = blobs[shaped.like]
        is_number = shaped.shapes in (((),), (("1",),)) and stated.plain_name != name
        shapes = (("{1}",),) if is_number else shaped.shapes
        root = roots.setdefault(base.plain_name, name)
        if root != name:
            return Blob(blob.name, shapes, (), root, "", False, shaped.condition, stated.wide)
        return Blob(blob.name, shapes, base.types, "", "", base.one_type, shaped.condition)

    def made(blob: Blob) -> Blob:
        if blob.types or blob.like:
            return blob
        like = next((name for name in given if name in (blob.plain_name[1:], blob.plain_name[2:])), "")
        return Blob(blob.name, (), (), like, "") if like else completed(blob)

    given = [blob.plain_name for blob in names.inputs]
    return Signature(tuple(map(completed, names.inputs)), tuple(map(made, names.outputs)))


@functools.cache
def parsed(text: str) -> Signature:
    """Return the signature that a text states.

    Raises:
        NetError: a line has another form.
    """
    inputs: list[Blob] = []
    outputs: list[Blob] = []
    side = inputs
    several = "\n" not in text
    for line in _lines(text):
        before, arrow, after = line.partition("->")
        side += map(_blob, _entries(before, several=several))
        if arrow:
            side = outputs
            side += map(_blob, _entries(after, several=several))
    names = [blob.plain_name for blob in (*inputs, *outputs)]
    for blob in (*inputs, *outputs):
        if blob.like and blob.like not in names:
            raise NetError(
                f"a signature states {blob.name!r} as {blob.like!r}, which is none of its blobs {names}; write one of "
                "them"
            )
    return Signature(tuple(inputs), tuple(outputs))


def _lines(text: str) -> list[str]:
    """Return the lines of a signature, continuation lines joined to the lines before them."""
    lines: list[str] = []
    given = [line for line in text.splitlines() if line.strip()]
    for line in given:
        if len(line) - len(line.lstrip()) > len(given[0]) - len(given[0].lstrip()):
            lines[-1] += " " + line.strip()
        else:
            lines.append(line.strip())
    return lines


def _entries(line: str, *, several: bool) -> list[str]:
    """Return what a line states of each blob; a line of several has no comments."""
    parts = re.findall(rf"(?:[^,(){{}}]|{_SHAPE})+", line) if several else [line]
    return [part.strip() for part in parts if part.strip()]


def _blob(text: str) -> Blob:
    if re.fullmatch(r"\w+[?*+]?", text):
        return Blob(text, (), (), "", "")
    match = _LINE.fullmatch(text)
    types = match[3].removeprefix("one ") if match else ""
    like = types.rpartition(" ")[2] if types.startswith(("as ", "wide ")) else ""
    unknown = [] if like else [name for name in types.split("|") if name not in TYPE_GROUPS]
    if match is None or unknown or (match[2] is None) != (types == "object" or (bool(like) and match[2] is None)):
        raise NetError(
            f"a signature states {text!r}; write 'X (N, D): float32|float64, what it is', with the types "
            f"{', '.join(TYPE_GROUPS)} or 'as X', and no shape for an object"
        )
    shapes = tuple(_extents(shape) for shape in re.findall(_SHAPE, match[2] or ""))
    expanded = () if like else tuple(dict.fromkeys(t for name in types.split("|") for t in TYPE_GROUPS[name]))
    condition = re.search(r" if (\w+) else ", match[2] or "")
    return Blob(
        match[1],
        shapes,
        expanded,
        like,
        match[4] or "",
        match[3].startswith("one "),
        condition[1] if condition else "",
        match[3].startswith("wide "),
    )


def _extents(shape: str) -> tuple[str, ...]:
    if shape[0] == "{":
        return (shape,)
    return tuple(part.strip() for part in re.split(r",(?![^(]*\))", shape[1:-1]) if part.strip())
