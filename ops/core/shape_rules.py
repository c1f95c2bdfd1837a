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
_NODES = (ast.Expression, ast.Name, ast.Load, ast.Constant, ast.Call, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop)


@functools.cache
def shape_rules(text: str, forward: str | None = None) -> ShapeRules | None:
    """Return the rules of a signature, for a gradient operator with that of the forward one.

    None if it does not determine the outputs.
    """
    rules = ShapeRules(parsed(text) if forward is None else of_gradient(text, forward))
    return rules if rules.determines_outputs else None


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
        for rule in self._inputs:
            rule.others = self._inputs
        self._any_number = bool(signature.inputs) and signature.inputs[-1].name[-1] in "*+"
        known = {rule.name: rule for rule in self._inputs}
        for rule in self._outputs:
            rule.copies = _same(rule, known.get(rule.blob.like))
        self._is_elementwise = bool(self._inputs) and all(
            rule.blob.shapes == (("*S",),) and (rule.blob.types == FLOATS or rule.blob.like) for rule in self._inputs
        ) and all(rule.copies for rule in self._outputs)  # fmt: skip
        self.determines_outputs = signature.is_stated and all(
            rule.copies or (rule.has_one_type(known) and len(rule.shapes) == 1 and rule.shapes[0].is_known)
            for rule in self._outputs
        )

    def infer(self, op: Any, given: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Return the specs of an operator's outputs.

        Raises:
            ShapeError: the inputs are not as the signature states.
            NotImplementedError: an extent of an output is none of the inputs' or arguments.
        """
        self._check_count(op, given)
        first = given[0] if given else None
        if self._is_elementwise and first is not None and first.dtype.kind == "f":
            if all(spec.shape == first.shape and spec.dtype == first.dtype for spec in given):
                return (first.plain,) * op.n_out  # all rules hold: no need to look at them one by one
        bound, specs = self._match(op, given)
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
            shape = rule.shapes[0].extents(op, bound) if rule.shapes else None
            if dtype is None or shape is None:
                raise NotImplementedError(f"{op.type}: the shape of {rule.name} cannot be inferred")
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

    def _match(self, op: Any, given: Sequence[TensorSpec]) -> tuple[Bound, dict[str, TensorSpec]]:
        """Return the extents by symbol, and the inputs by name."""
        rules = self._inputs
        last = len(rules) - 1
        specs: dict[str, TensorSpec] = {}
        for index, spec in enumerate(given):
            specs.setdefault(rules[min(index, last)].name, spec)
        bound: Bound = {}
        late = []
        for index, spec in enumerate(given):
            rule = rules[min(index, last)]
            if rule.shapes and not rule.bind(op, spec.shape, bound):
                raise ShapeError(f"{op.type}: {rule.mismatch(op, index, spec.shape, bound, specs)}")
            if not rule.is_simple:
                late.append((index, rule, spec))
        for index, rule, spec in late:
            if not rule.shapes and rule.blob.like in specs and spec.shape != specs[rule.blob.like].shape:
                raise ShapeError(f"{op.type}: {rule.mismatch(op, index, spec.shape, bound, specs)}")
            if rule.shapes and not rule.holds(op, spec.shape, bound):
                raise ShapeError(f"{op.type}: {rule.mismatch(op, index, spec.shape, bound, specs)}")
        self._check_types(op, given, specs)
        return bound, specs

    def _check_types(self, op: Any, given: Sequence[TensorSpec], specs: Mapping[str, TensorSpec]) -> None:
        last = len(self._inputs) - 1
        for index, spec in enumerate(given):
            rule = self._inputs[min(index, last)]
            like = rule.blob.like or (rule.name if rule.blob.one_type and index >= last else "")
            if (not rule.types or spec.dtype in rule.types) and (
                not like or like not in specs or spec.dtype == specs[like].dtype
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
                text = f"input {index} must be a {rule.name}, got a tensor of type {spec.dtype}"
            else:
                types = _either(type_names(rule.blob.types))
                text = f"{rule.title(index)} must have elements of type {types}, got {spec.dtype}"
            raise ShapeError(f"{op.type}: {text}")


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
        self.is_simple = bool(self.shapes) and all(shape.is_simple for shape in self.shapes)

    def title(self, index: int) -> str:
        """Return the name of an input in messages."""
        return f"input {index}, {self.name}," if self.any_number else self.name

    def has_one_type(self, known: Mapping[str, _Rule]) -> bool:
        return self.blob.like in known if self.blob.like else len(self.types) == 1

    def bind(self, op: Any, shape: tuple[int, ...], bound: Bound) -> bool:
        """Read a shape as the first of those stated that it can be; say whether there is one."""
        return any(stated.bind(op, shape, bound) for stated in self.shapes)

    def holds(self, op: Any, shape: tuple[int, ...], bound: Bound) -> bool:
        """Whether the expressions among the extents of a shape have its values, as far as they are known."""
        return any(stated.holds(op, shape, dict(bound)) for stated in self.shapes)

    def mismatch(
        self, op: Any, index: int, shape: tuple[int, ...], bound: Bound, specs: Mapping[str, TensorSpec]
    ) -> str:
        """Return what to say of an input whose shape is not as stated."""
        name = self.title(index)
        if not self.shapes:
            return f"{name} must have the shape of {self.blob.like}, {specs[self.blob.like].shape}, got {shape}"
        if alike := self._alike(index, specs):
            return f"{name} must have the shape of {alike}, {specs[alike].shape}, got {shape}"
        texts = {str(stated): stated.in_numbers(op, bound) for stated in self.shapes}
        numbers, symbols = " or ".join(texts.values()), " or ".join(texts)
        stated = numbers if numbers == symbols else f"{numbers} = {symbols}"
        if self.shapes[0].counts_elements:
            return f"{name} must have {numbers}, got shape {shape}"
        return f"{name} must have shape {stated}, got {shape}"

    def _alike(self, index: int, specs: Mapping[str, TensorSpec]) -> str:
        """Return the name of an earlier input for which the signature states the same one shape, or ""."""
        if len(self.shapes) > 1 or not self.shapes[0].is_known:
            return ""
        if self.any_number and index > self.others.index(self):
            return self.name
        before = itertools.takewhile(lambda rule: rule is not self, self.others)
        return next((r.name for r in before if r.blob.shapes == self.blob.shapes and r.name in specs), "")


class _Shape:
    """A stated shape: extents before a run of axes, the run, and extents after it."""

    def __init__(self, extents: Sequence[str]) -> None:
        self._elements = _extent(extents[0][1:-1]) if len(extents) == 1 and extents[0][0] == "{" else None
        runs = (
            [0]
            if self._elements is not None
            else [i for i, text in enumerate(extents) if text == "..." or text[0] == "*"]
        )
        self._texts = tuple(extents)
        self._run = runs[0] if runs else None
        self._several_runs = len(runs) > 1
        self._values = [None if i in runs else _extent(text) for i, text in enumerate(extents)]
        self.counts_elements = self._elements is not None
        self.is_known = self._elements is None and "..." not in extents
        self.is_simple = (
            self._elements is None
            and not self._several_runs
            and all(v is None or isinstance(v, (int, str)) for v in self._values)
        )

    def __str__(self) -> str:
        if self._elements is not None:
            return _counted(self._texts[0][1:-1])
        return f"({', '.join(self._texts)}{',' if len(self._texts) == 1 and self._run is None else ''})"

    def bind(self, op: Any, shape: tuple[int, ...], bound: Bound) -> bool:
        """Bind the symbols among the extents; say whether the shape has the stated form."""
        values, run = self._values, self._run
        if self._several_runs or self._elements is not None:
            return True
        if run is None:
            if len(shape) != len(values):
                return False
        else:
            more = len(shape) - len(values) + 1
            if more < 0:
                return False
            text = self._texts[run]
            if text != "..." and bound.setdefault(text[1:], shape[run : run + more]) != shape[run : run + more]:
                return False
            shape = (*shape[:run], 0, *shape[run + more :])
        fresh: Bound = {}
        for value, extent in zip(values, shape):
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
        """Whether a shape has the stated form, and the values of expressions that are known."""
        if not self.bind(op, shape, bound):
            return False
        values = self._values
        if self._elements is not None:
            return _value(self._elements, op, bound) in (None, math.prod(shape))
        if self._several_runs:
            return True
        if self._run is not None:
            more = len(shape) - len(values) + 1
            shape = (*shape[: self._run], 0, *shape[self._run + more :])
        return all(_value(v, op, bound) in (None, n) for v, n in zip(values, shape) if callable(v))

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
        if self._elements is not None:
            found = _value(self._elements, op, bound)
            return str(self) if found is None else _counted(str(found))
        parts = []
        for text, value in zip(self._texts, self._values):
            found = (
                None if text == "..." else _bound(text[1:], op, bound) if value is None else _value(value, op, bound)
            )
            parts += [text] if found is None else list(map(str, found)) if value is None else [str(found)]
        return f"({', '.join(parts)}{',' if len(parts) == 1 and parts[0][0] not in '*.' else ''})"


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
    return not rule.blob.shapes or (len(rule.blob.shapes) == 1 and rule.blob.shapes == like.blob.shapes)


def _dtypes(types: Sequence[str]) -> tuple[np.dtype[Any], ...]:
    made = [dtype_of(name) for name in types]
    return (*made, *map(np.dtype, ("uint32", "uint64"))) if "uint16" in types else tuple(made)


def _counted(number: str) -> str:
    return "one element" if number == "1" else f"{number} elements"


def _either(names: Sequence[str]) -> str:
    return " or ".join([", ".join(names[:-1])] * (len(names) > 1) + [names[-1]])
