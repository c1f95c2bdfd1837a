"""What a signature says of shapes and types, as functions: checks of the inputs, and the specs of the outputs."""

from __future__ import annotations

import ast
import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any, TypeAlias

import numpy as np

from netbuilder.ops.core.signatures import FLOATS, Blob, Signature, dtype_of, of_gradient, parsed, type_names
from netbuilder.ops.core.specs import TensorSpec
from netbuilder.proto import NetError, ShapeError
from netbuilder.proto.errors import counted

__all__ = ["ShapeRules", "float_types_error", "shape_rules"]

Bound = dict[str, Any]
"""Extents by symbol, tuples of them for runs of axes; arguments of the operator are added when they are first read."""

_FUNCTIONS: dict[str, Any] = {"prod": math.prod, "len": len, "min": min, "max": max, "sum": sum}
_NODES = (
    *(ast.Expression, ast.Name, ast.Load, ast.Constant, ast.Call, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop),
    *(ast.Subscript, ast.Slice),
)


@functools.cache
def shape_rules(text: str, forward: str | None = None) -> ShapeRules:
    """Return the rules of a signature, for a gradient operator with that of the forward one."""
    return ShapeRules(parsed(text) if forward is None else of_gradient(text, forward))


def float_types_error(given: Mapping[str, np.dtype[Any]]) -> str:
    """Return what to say of inputs, by name, that do not have one floating type."""
    types = ", ".join(f"{name} {dtype}" for name, dtype in given.items())
    wide = any(dtype.kind in "iub" or dtype == np.float64 for dtype in given.values())
    fed = ", or arrays by .astype(np.float32) before they are fed" if wide else ""
    return f"must have inputs of one floating type, got {types}; convert them, for example with Cast{fed}"


class ShapeRules:
    """The rules of one signature, compiled once.

    Attributes:
        determines_outputs: whether type and extents of each output follow from those of the inputs and the arguments.
    """

    def __init__(self, signature: Signature) -> None:
        self._inputs = [_Rule(blob) for blob in signature.inputs]
        self._outputs = [_Rule(blob) for blob in signature.outputs]
        for rule in (*self._inputs, *self._outputs):
            rule.others = self._inputs
        self._any_number = bool(signature.inputs) and signature.inputs[-1].name[-1] in "*+"
        known = {rule.name: rule for rule in self._inputs}
        for rule in self._outputs:
            rule.copies = _same(rule, known.get(rule.blob.like))
        self._is_elementwise = bool(self._inputs) and all(
            rule.blob.shapes == (("*S",),) and (rule.blob.types == FLOATS or rule.blob.like) for rule in self._inputs
        ) and all(rule.copies for rule in self._outputs)  # fmt: skip
        self.determines_outputs = signature.is_stated and all(
            rule.copies or rule.is_object or (rule.has_one_type(known) and rule.is_known) for rule in self._outputs
        )

    def infer(self, op: Any, given: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Return the specs of an operator's outputs.

        Raises:
            ShapeError: the inputs are not as the signature states, or the operator's ``check_inputs`` refuses them.
            NotImplementedError: an extent of an output is none of the inputs' or arguments, or it depends on data.
        """
        self._check_count(op, given)
        first = given[0] if given else None
        if self._is_elementwise and first is not None and first.dtype.kind == "f":
            if all(spec.shape == first.shape and spec.dtype == first.dtype for spec in given):
                op.check_inputs(*given)
                return (first.plain,) * op.n_out  # all rules hold: no need to look at them one by one
        bound, specs = self.check(op, given)
        if not op.n_out:
            return ()
        if not op.static_for(*given):
            name = self._outputs[0].name
            raise NotImplementedError(f"{op.type}: the shape of {name} is known only when the net runs")
        if not self.determines_outputs:
            raise NotImplementedError(f"{op.type}: shapes cannot be inferred")
        made = []
        for index in range(op.n_out):
            rule = self._outputs[min(index, len(self._outputs) - 1)]
            like = specs.get(rule.blob.like)
            if rule.copies and like is not None:
                several = rule.any_number and self._any_number and self._inputs[-1].name == rule.blob.like
                source = given[index + len(self._inputs) - len(self._outputs)] if several else like
                made.append(source.plain)
                continue
            dtype = rule.types[0] if like is None and rule.types else like.dtype if like is not None else None
            stated = rule.shapes_for(op, specs)
            shape = () if rule.is_object else stated[0].extents(op, bound) if stated else None
            if dtype is None or shape is None:
                raise NotImplementedError(f"{op.type}: the shape of {rule.name} cannot be inferred")
            if rule.blob.wide and dtype == np.float16:
                dtype = np.dtype(np.float32)
            spec = TensorSpec(shape, dtype)
            specs.setdefault(rule.name, spec)
            made.append(spec)
        return tuple(made)

    def _check_count(self, op: Any, given: Sequence[TensorSpec]) -> None:
        """Raise ShapeError if there are more outputs than inputs that they are like, or whose gradients they are."""
        if not (self._any_number and self._outputs and self._outputs[-1].any_number and self._outputs[-1].copies):
            return
        last = self._inputs[-1].name
        if last not in (self._outputs[-1].blob.like, self._outputs[-1].name[1:], self._outputs[-1].name[2:]):
            return
        most = len(given) - len(self._inputs) + len(self._outputs)
        if op.n_out > most:
            one_each = f"one {self._outputs[-1].name} for each {last}"
            raise ShapeError(f"{op.type}: makes {one_each}, here {most}; got {counted(op.n_out, 'output')}")

    def check(self, op: Any, given: Sequence[TensorSpec]) -> tuple[Bound, dict[str, TensorSpec]]:
        """Return the extents by symbol, and the inputs by name.

        Raises:
            ShapeError: the inputs are not as the signature states, or the operator's ``check_inputs`` refuses them.
        """
        rules = self._inputs
        last = len(rules) - 1
        specs: dict[str, TensorSpec] = {}
        for index, spec in enumerate(given):
            specs.setdefault(rules[min(index, last)].name, spec)
        bound: Bound = {}
        late = []
        for index, spec in enumerate(given):
            rule = rules[min(index, last)]
            if rule.shapes and not rule.bind(op, spec.shape, bound, specs):
                raise ShapeError(f"{op.type}: {rule.mismatch(op, index, spec.shape, bound, specs)}")
            if not rule.is_simple:
                late.append((index, rule, spec))
        for index, rule, spec in late:
            if not rule.shapes and rule.blob.like in specs and spec.shape != specs[rule.blob.like].shape:
                raise ShapeError(f"{op.type}: {rule.mismatch(op, index, spec.shape, bound, specs)}")
            if rule.shapes and not rule.holds(op, spec.shape, bound, specs):
                raise ShapeError(f"{op.type}: {rule.mismatch(op, index, spec.shape, bound, specs)}")
        self._check_types(op, given, specs)
        op.check_inputs(*given)
        return bound, specs

    def _check_types(self, op: Any, given: Sequence[TensorSpec], specs: Mapping[str, TensorSpec]) -> None:
        last = len(self._inputs) - 1
        for index, spec in enumerate(given):
            rule = self._inputs[min(index, last)]
            like = rule.blob.like or (rule.name if rule.blob.one_type and index >= last else "")
            if (not rule.types or spec.dtype in rule.types) and (
                not like or like not in specs or spec.dtype == specs[like].dtype or rule.is_wide(spec, specs[like])
            ):
                continue
            root = rule.blob.like or rule.name
            rooted = self._inputs[min(next(i for i, r in enumerate(self._inputs) if r.name == root), last)]
            if rooted.blob.types == FLOATS:
                alike = {
                    r.name: specs[r.name] for r in self._inputs if root in (r.name, r.blob.like) and r.name in specs
                }
                if rule.any_number:
                    alike[f"input {index}"] = spec
                text = float_types_error({name: spec.dtype for name, spec in alike.items()})
            elif like and like in specs and spec.dtype != specs[like].dtype:
                name = rule.title(index)
                text = f"{name} must have the type of {like}, {specs[like].dtype}, got {spec.dtype}"
            elif rule.blob.types == ("object",):
                article = "an" if rule.name[0] in "aeiou" else "a"
                text = f"input {index} must be {article} {rule.name}, got a tensor of type {spec.dtype}"
            else:
                types = _either(type_names(rule.blob.types))
                text = f"{rule.title(index)} must have elements of type {types}, got {spec.dtype}"
            raise ShapeError(f"{op.type}: {text}{op.remedy and f'; {op.remedy}'}")


class _Rule:
    """What a signature says of one blob."""

    def __init__(self, blob: Blob) -> None:
        self.blob = blob
        self.name = blob.plain_name
        self.any_number = blob.name[-1] in "*+"
        self.copies = False
        self.others: Sequence[_Rule] = ()  # the inputs, in order
        self.types = _dtypes(blob.types)
        self.shapes = [_Shape(extents) for extents in blob.shapes]
        self.is_object = blob.types == ("object",)
        self.is_known = (len(self.shapes) == 1 or bool(blob.condition)) and all(s.is_known for s in self.shapes)
        self.is_simple = bool(self.shapes) and all(shape.is_simple for shape in self.shapes)

    def title(self, index: int, comment: str = "") -> str:
        """Return the name of an input in messages."""
        name = f"{self.name} ({comment})" if comment else self.name
        return f"input {index}, {name}," if self.any_number else name

    def is_wide(self, spec: TensorSpec, like: TensorSpec) -> bool:
        """Whether a value is of float32 where a float16 one would do as well."""
        return self.blob.wide and spec.dtype == np.float32 and like.dtype == np.float16

    def has_one_type(self, known: Mapping[str, _Rule]) -> bool:
        return self.blob.like in known if self.blob.like else len(self.types) == 1

    def shapes_for(self, op: Any, specs: Mapping[str, TensorSpec]) -> Sequence[_Shape]:
        """Return the shapes that it may have with these arguments and inputs."""
        condition = self.blob.condition
        if not condition:
            return self.shapes
        known = any(rule.name == condition for rule in self.others)
        holds = condition in specs if known else condition == getattr(op, "order", "") or getattr(op, condition, False)
        return self.shapes[:1] if holds else self.shapes[1:]

    def bind(self, op: Any, shape: tuple[int, ...], bound: Bound, specs: Mapping[str, TensorSpec]) -> bool:
        """Read a shape as the first of those stated that it can be; say whether there is one."""
        stated = self.shapes_for(op, specs)
        if len(stated) == 1:
            return stated[0].bind(op, shape, bound)
        for each in stated:
            tried = dict(bound)
            if each.bind(op, shape, tried):
                bound.update(tried)
                return True
        return False

    def holds(self, op: Any, shape: tuple[int, ...], bound: Bound, specs: Mapping[str, TensorSpec]) -> bool:
        """Whether the expressions among the extents of a shape have its values, as far as they are known."""
        stated = self.shapes_for(op, specs)
        if len(stated) == 1:
            return stated[0].holds(op, shape, bound)
        return any(each.holds(op, shape, dict(bound)) for each in stated)

    def mismatch(
        self, op: Any, index: int, shape: tuple[int, ...], bound: Bound, specs: Mapping[str, TensorSpec]
    ) -> str:
        """Return what to say of an input whose shape is not as stated."""
        name = self.title(index, self.blob.text)
        if not self.shapes:
            return f"{name} must have the shape of {self.blob.like}, {specs[self.blob.like].shape}, got {shape}"
        for stated in self.shapes_for(op, specs):
            if text := stated.axis_error(op, len(shape)):
                if not shape:
                    return f"{name} must have an axis, got a scalar; reshape it to (1,)"
                return f"{text} for {name} of shape {shape}, got {getattr(op, stated.axis)}"
        if alike := self._alike(index, specs):
            return f"{name} must have the shape of {alike}, {specs[alike].shape}, got {shape}"
        texts = {str(stated): stated.in_numbers(op, bound) for stated in self.shapes_for(op, specs)}
        numbers, symbols = " or ".join(texts.values()), " or ".join(texts)
        stated = numbers if numbers == symbols else f"{numbers} = {symbols}"
        if self.shapes[0].elements is not None:
            return f"{name} must have {numbers}, got shape {shape}"
        return f"{name} must have shape {stated}, got {shape}"

    def _alike(self, index: int, specs: Mapping[str, TensorSpec]) -> str:
        """Return the name of an earlier input for which the signature states the same one shape, or ""."""
        if not self.is_known:
            return ""
        if self.any_number and index > self.others.index(self):
            return self.name
        before = itertools.takewhile(lambda rule: rule is not self, self.others)
        return next(
            (
                r.name
                for r in before
                if (r.blob.shapes, r.blob.condition) == (self.blob.shapes, self.blob.condition) and r.name in specs
            ),
            "",
        )


class _Shape:
    """A stated shape: in one part or, where an argument says which axis an extent or a run has, before and from it."""

    def __init__(self, extents: Sequence[str]) -> None:
        self.elements = _extent(extents[0][1:-1]) if len(extents) == 1 and extents[0][0] == "{" else None
        marked = next((i for i, text in enumerate(extents) if " @ " in text), 0)
        self.axis = extents[marked].partition(" @ ")[2] if extents else ""
        self._texts = [text.partition(" @ ")[0] for text in extents]
        self._values = [None if _is_run(t) else _extent(t) for t in self._texts if self.elements is None]
        self._may_be_last = bool(self.axis) and _is_run(self._texts[marked])
        cuts = [(0, marked), (marked, len(extents))] if self.axis else [(0, len(extents))]
        several = sum(map(_is_run, self._texts)) > len(cuts)
        self._parts = [] if several else [_Part(self._texts[a:b], self._values[a:b]) for a, b in cuts]
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
        if not self.axis or self._start(op, ndim) is not None:
            return ""
        return f"{self.axis} must lie in [{-ndim}, {ndim}{']' if self._may_be_last else ')'}"

    def _start(self, op: Any, ndim: int) -> int | None:
        """Return the axis at which the second part begins; None if the argument is no axis."""
        axis = int(getattr(op, self.axis))
        if not -ndim <= axis < ndim + self._may_be_last:
            return None
        return axis if axis >= 0 else axis + ndim

    def _pieces(self, op: Any, shape: tuple[int, ...]) -> list[tuple[_Part, tuple[int, ...]]] | None:
        """Return each part with its extents; none if they cannot be told apart, None if the shape has no such axis."""
        if not self.axis or getattr(op, self.axis, None) is None:
            return [(part, shape) for part in self._parts[:1]] if not self.axis else []
        start = self._start(op, len(shape))
        return None if start is None else list(zip(self._parts, (shape[:start], shape[start:])))

    def bind(self, op: Any, shape: tuple[int, ...], bound: Bound) -> bool:
        """Bind the symbols among the extents; say whether the shape has the stated form."""
        if self.elements is not None:
            return True
        pieces = self._pieces(op, shape)
        return pieces is not None and all(part.bind(op, extents, bound) for part, extents in pieces)

    def holds(self, op: Any, shape: tuple[int, ...], bound: Bound) -> bool:
        """Whether a shape has the stated form, and the values of expressions that are known."""
        if self.elements is not None:
            return _value(self.elements, op, bound) in (None, math.prod(shape))
        if not self._parts:
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
                if (
                    text != "..."
                    and bound.setdefault(text[1:], shape[start : start + length]) != shape[start : start + length]
                ):
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


def _same(rule: _Rule, like: _Rule | None) -> bool:
    """Whether an output has shape and type of an input."""
    if like is None:
        return False
    if not rule.blob.shapes:
        return True
    return rule.blob.shapes == like.blob.shapes and (
        rule.blob.condition == like.blob.condition if rule.blob.condition else len(rule.shapes) == 1
    )


def _dtypes(types: Sequence[str]) -> tuple[np.dtype[Any], ...]:
    made = [dtype_of(name) for name in types]
    return (*made, *map(np.dtype, ("uint32", "uint64"))) if "uint16" in types else tuple(made)


def _is_run(text: str) -> bool:
    return text == "..." or text[0] == "*"


def _written(extents: Sequence[str]) -> str:
    """Return a shape as Python writes it."""
    return f"({', '.join(extents)}{',' if len(extents) == 1 and extents[0][0] not in '*.' else ''})"


def _counted(number: str) -> str:
    return "one element" if number == "1" else f"{number} elements"


def _either(names: Sequence[str]) -> str:
    return " or ".join([", ".join(names[:-1])] * (len(names) > 1) + [names[-1]])
