"""Shapes as signatures state them: read off an input, checked, and made for an output."""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Mapping, Sequence
from types import CodeType
from typing import Any, TypeAlias

from netbuilder.proto import NetError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Bound", "StatedShape"]

Bound = dict[str, Any]
"""Extents by symbol, tuples of them for runs of axes; arguments of the operator are added when they are first read."""

_FUNCTIONS: dict[str, Any] = {"prod": math.prod, "len": len, "min": min, "max": max, "sum": sum}
_NODES = (
    *(ast.Expression, ast.Name, ast.Load, ast.Constant, ast.Call, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop),
    *(ast.Subscript, ast.Slice),
)


class StatedShape:
    """A stated shape: in one part or, where an argument says which axis an extent or a run has, before and from it."""

    def __init__(self, extents: Sequence[str]) -> None:
        self.elements = _extent(extents[0][1:-1]) if len(extents) == 1 and extents[0][0] == "{" else None
        marked = next((i for i, text in enumerate(extents) if " @ " in text), 0)
        self.axis = extents[marked].partition(" @ ")[2] if extents else ""
        self._texts = [text.partition(" @ ")[0] for text in extents]
        self._values = [None if _is_run(t) else _extent(t) for t in self._texts if self.elements is None]
        self._may_be_last = bool(self.axis) and _is_run(self._texts[marked])
        cuts = [(0, marked), (marked, len(extents))] if self.axis else [(0, len(extents))]
        several = any(sum(map(_is_run, self._texts[a:b])) > 1 for a, b in cuts)
        self._parts = [] if several else [_Part(self._texts[a:b], self._values[a:b]) for a, b in cuts]
        self._whole = self._parts[0] if len(self._parts) == 1 and self.elements is None else None
        self.is_known = self.elements is None and "..." not in extents
        self.is_simple = (
            self.elements is None
            and len(self._parts) == 1
            and all(v is None or isinstance(v, (int, str)) for v in self._values)
        )

    def __str__(self) -> str:
        if self.elements is not None:
            return _counted(self._texts[0][1:-1])
        return _written(self._texts)

    def axis_error(self, op: Any, ndim: int) -> str:
        """Return what the argument that gives an axis must be, if it is not an axis of such a shape; else ""."""
        if not self._is_cut(op) or self._start(op, ndim) is not None:
            return ""
        return f"{self.axis} must lie in [{-ndim}, {ndim}{']' if self._may_be_last else ')'}"

    def _is_cut(self, op: Any) -> bool:
        """Whether the operator has the argument that says where the second part begins."""
        return bool(self.axis) and getattr(op, self.axis, None) is not None

    def _start(self, op: Any, ndim: int) -> int | None:
        """Return the axis at which the second part begins; None if the argument is no axis."""
        axis = int(getattr(op, self.axis))
        if not -ndim <= axis < ndim + self._may_be_last:
            return None
        return axis if axis >= 0 else axis + ndim

    def _pieces(self, op: Any, shape: tuple[int, ...]) -> list[tuple[_Part, tuple[int, ...]]] | None:
        """Return each part with its extents; none if they cannot be told apart, None if the shape has no such axis."""
        if not self._is_cut(op):
            return [] if self.axis else [(part, shape) for part in self._parts]
        start = self._start(op, len(shape))
        return None if start is None else list(zip(self._parts, (shape[:start], shape[start:])))

    def bind(self, op: Any, shape: tuple[int, ...], bound: Bound) -> bool:
        """Bind the symbols among the extents; say whether the shape has the stated form."""
        if self._whole is not None:
            return self._whole.bind(op, shape, bound)
        if self.elements is not None:
            return True
        pieces = self._pieces(op, shape)
        return pieces is not None and all(part.bind(op, extents, bound) for part, extents in pieces)

    def holds(self, op: Any, shape: tuple[int, ...], bound: Bound) -> bool:
        """Whether a shape has the stated form, and the values of expressions that are known."""
        if self.elements is not None:
            return _value(self.elements, op, bound) in (None, math.prod(shape))
        if not self._parts or (self.axis and not self._is_cut(op)):
            return self._spread(op, shape, bound)
        return self.bind(op, shape, bound) and all(
            part.holds(op, extents, bound) for part, extents in self._pieces(op, shape) or ()
        )

    def _spread(self, op: Any, shape: tuple[int, ...], bound: Bound) -> bool:
        """Read a shape of several runs, of which all but one are known; with fewer, it may be any."""
        extents = list(zip(self._texts, self._values))
        lengths = [1 if value is not None else len(bound.get(text[1:], ())) for text, value in extents]
        unknown = [i for i, (text, value) in enumerate(extents) if value is None and text[1:] not in bound]
        if len(unknown) > 1:
            return True
        for index in unknown:
            lengths[index] = len(shape) - sum(lengths)
        if min(lengths) < 0 or sum(lengths) != len(shape):
            return False
        for (text, value), start, length in zip(extents, itertools.accumulate(lengths, initial=0), lengths):
            if value is None:
                run = shape[start : start + length]
                if text != "..." and bound.setdefault(text[1:], run) != run:
                    return False
            elif _value(value, op, bound) not in (None, shape[start]):
                return False
            elif isinstance(value, str):
                bound[value] = shape[start]
        return True

    def extents(self, op: Any, bound: Bound) -> tuple[int, ...] | None:
        """Return the shape that the symbols' extents make; None if one is not known."""
        made: list[int] = []
        for text, value in zip(self._texts, self._values):
            found = _bound(text[1:], op, bound) if value is None else _value(value, op, bound)
            if found is None:
                return None
            if value is None:
                made.extend(found)
            else:
                made.append(found)
        return tuple(made)

    def in_numbers(self, op: Any, bound: Bound) -> str:
        """Return the shape with the extents that are known in place of their symbols."""
        if self.elements is not None:
            found = _value(self.elements, op, bound)
            return str(self) if found is None else _counted(str(found))
        parts = []
        for text, value in zip(self._texts, self._values):
            found = (
                None if text == "..." else _bound(text[1:], op, bound) if value is None else _value(value, op, bound)
            )
            parts += [text] if found is None else list(map(str, found)) if value is None else [str(found)]
        return _written(parts)


class _Part:
    """Extents, with at most one run of axes among them."""

    def __init__(self, texts: Sequence[str], values: Sequence[Extent | None]) -> None:
        self._values = values
        self._run = next((i for i, text in enumerate(texts) if _is_run(text)), None)
        self._name = "" if self._run is None else texts[self._run].strip("*.")

    def bind(self, op: Any, shape: tuple[int, ...], bound: Bound) -> bool:
        """Bind the symbols among the extents; say whether the shape has the stated form."""
        values, run = self._values, self._run
        if run is None:
            if len(shape) != len(values):
                return False
        else:
            more = len(shape) - len(values) + 1
            if more < 0:
                return False
            if self._name and bound.setdefault(self._name, shape[run : run + more]) != shape[run : run + more]:
                return False
        fresh: Bound = {}
        for value, extent in zip(values, self._without_run(shape)):
            if isinstance(value, str):
                expected = bound.get(value)
                if expected is None:
                    expected = fresh.get(value)
                if expected is None:
                    argument = getattr(op, value, None)
                    expected = fresh[value] = int(argument) if isinstance(argument, int) else extent
                if expected != extent:
                    return False
            elif value.__class__ is int and value != extent:
                return False
        bound.update(fresh)
        return True

    def holds(self, op: Any, shape: tuple[int, ...], bound: Bound) -> bool:
        """Whether the expressions that are known have the values of a shape of the stated form."""
        return all(
            _value(value, op, bound) in (None, extent)
            for value, extent in zip(self._values, self._without_run(shape))
            if callable(value)
        )

    def _without_run(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the extents with 0 in the place of the run."""
        if self._run is None:
            return shape
        return (*shape[: self._run], 0, *shape[self._run + len(shape) - len(self._values) + 1 :])


@dataclass(frozen=True)
class _Expression:
    """An extent that is computed: compiled code, and the names that it reads."""

    code: CodeType
    names: tuple[str, ...]

    def __call__(self, values: Mapping[str, Any]) -> int:
        own = {name: values[name] for name in self.names}
        return int(eval(self.code, {"__builtins__": {}, **_FUNCTIONS}, own))


Extent: TypeAlias = int | str | _Expression


def _extent(text: str) -> Extent:
    """Return a number, a symbol, or an expression.

    Raises:
        NetError: it is none of these.
    """
    if text.isdigit():
        return int(text)
    if text.isidentifier():
        return text
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError:
        raise NetError(f"a signature has an extent {text!r}; write a number, a symbol or an expression") from None
    if not all(isinstance(node, _NODES) for node in ast.walk(tree)):
        raise NetError(f"a signature has an extent {text!r}; it may have numbers, symbols and {sorted(_FUNCTIONS)}")
    code = compile(tree, "<signature>", "eval")
    return _Expression(code, tuple(name for name in code.co_names if name not in _FUNCTIONS))


def _bound(name: str, op: Any, bound: Bound) -> Any:
    """Return what a name stands for: extents of inputs, else an attribute of the operator; None: nothing."""
    found = bound.get(name)
    if found is None:
        found = getattr(op, name, None)
        if found is None or callable(found):
            return None
        bound[name] = found
    return found


def _value(extent: Extent | None, op: Any, bound: Bound) -> Any:
    """Return the value of an extent; None if a name in it stands for nothing yet."""
    if extent is None or isinstance(extent, int):
        return extent
    if isinstance(extent, str):
        found = _bound(extent, op, bound)
        return None if found is None else int(found)
    if any(_bound(name, op, bound) is None for name in extent.names):
        return None
    return extent(bound)


def _is_run(text: str) -> bool:
    return text == "..." or text[0] == "*"


def _written(extents: Sequence[str]) -> str:
    """Return a shape as Python writes it."""
    return f"({', '.join(extents)}{',' if len(extents) == 1 and extents[0][0] not in '*.' else ''})"


def _counted(number: str) -> str:
    return "one element" if number == "1" else f"{number} elements"
