"""What a signature says of shapes and types, as functions: checks of the inputs, and the specs of the outputs."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from netbuilder.ops.core.signatures import FLOATS, Blob, Signature, dtype_of, of_gradient, parsed, type_names
from netbuilder.ops.core.specs import TensorSpec
from netbuilder.ops.core.stated_shapes import Bound, StatedShape
from netbuilder.proto import ShapeError
from netbuilder.proto.errors import counted

__all__ = ["ShapeRules", "float_types_error", "shape_rules"]


@functools.cache
def shape_rules(text: str, forward: str | None = None) -> ShapeRules:
    """Return the rules of a signature, for a gradient operator with that of the forward one."""
    return ShapeRules(parsed(text) if forward is None else of_gradient(text, forward))


def float_types_error(given: Mapping[str, np.dtype[Any]]) -> str:
    """Return what to say of inputs, by name, that do not have one floating type."""
    types = ", ".join(f"{name} {dtype}" for name, dtype in given.items())
    wide = any(dtype.kind in "iub" or dtype == np.float64 for dtype in given.values())
    fed = ", or arrays by .astype(np.float32) before they are fed" if wide else ""
    return f"the inputs must have one floating type, got {types}; convert them, for example with Cast{fed}"


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
            raise ShapeError(f"{op.type} makes {one_each}, here {most}; got {counted(op.n_out, 'output')}")

    def check(self, op: Any, given: Sequence[TensorSpec]) -> tuple[Bound, dict[str, TensorSpec]]:
        """Return the extents by symbol, and the inputs by name.

        Raises:
            ShapeError: the inputs are not as the signature states, or the operator's ``check_inputs`` refuses them.
        """
        rules = self._inputs
        if len(given) > len(rules):
            rules = [*rules, *[rules[-1]] * (len(given) - len(rules))]
        pairs = list(zip(rules, given))
        specs = {rule.name: spec for rule, spec in reversed(pairs)}
        bound: Bound = {}
        for index, (rule, spec) in enumerate(pairs):
            if rule.shapes and not rule.bind(op, spec.shape, bound, specs):
                raise self._shape_error(op, index, spec, bound, specs)
        for index, (rule, spec) in enumerate(pairs):
            if not rule.is_simple and not rule.holds(op, spec.shape, bound, specs):
                raise self._shape_error(op, index, spec, bound, specs)
        for index, (rule, spec) in enumerate(pairs):
            if not rule.has_type(spec, specs, index >= len(self._inputs)):
                raise self._type_error(op, index, spec, specs)
        op.check_inputs(*given)
        return bound, specs

    def _shape_error(
        self, op: Any, index: int, spec: TensorSpec, bound: Bound, specs: Mapping[str, TensorSpec]
    ) -> ShapeError:
        rule = self._inputs[min(index, len(self._inputs) - 1)]
        return ShapeError(f"{op.type}: {rule.mismatch(op, index, spec.shape, bound, specs)}{rule.advice(op)}")

    def _type_error(self, op: Any, index: int, spec: TensorSpec, specs: Mapping[str, TensorSpec]) -> ShapeError:
        last = len(self._inputs) - 1
        rule = self._inputs[min(index, last)]
        like = rule.blob.like or (rule.name if rule.blob.one_type and index >= last else "")
        root = rule.blob.like or rule.name
        rooted = self._inputs[min(next(i for i, r in enumerate(self._inputs) if r.name == root), last)]
        if rooted.blob.types == FLOATS:
            alike = {r.name: specs[r.name] for r in self._inputs if root in (r.name, r.blob.like) and r.name in specs}
            if rule.any_number:
                alike[f"input {index}"] = spec
            text = float_types_error({name: spec.dtype for name, spec in alike.items()})
        elif like and like in specs and spec.dtype != specs[like].dtype:
            text = f"{rule.title(index)} must have the type of {like}, {specs[like].dtype}, got {spec.dtype}"
        elif rule.is_object:
            article = "an" if rule.name[0] in "aeiou" else "a"
            text = f"input {index} must be {article} {rule.name}, got a tensor of type {spec.dtype}"
        else:
            types = _either(type_names(rule.blob.types))
            text = f"{rule.title(index)} must have elements of type {types}, got {spec.dtype}"
            if not rule.advice(op) and rule.blob.types and all("int" in of for of in rule.blob.types):
                text += "; convert them with Cast, or arrays by .astype(np.int32) before they are fed"
        return ShapeError(f"{op.type}: {text}{rule.advice(op)}")


class _Rule:
    """What a signature says of one blob."""

    def __init__(self, blob: Blob) -> None:
        self.blob = blob
        self.name = blob.plain_name
        self.any_number = blob.name[-1] in "*+"
        self.copies = False
        self.others: Sequence[_Rule] = ()  # the inputs, in order
        self.types = _dtypes(blob.types)
        self.shapes = [StatedShape(extents) for extents in blob.shapes]
        self.is_object = blob.types == ("object",)
        self.is_known = (len(self.shapes) == 1 or bool(blob.condition)) and all(s.is_known for s in self.shapes)
        self.is_simple = bool(self.shapes) and all(shape.is_simple for shape in self.shapes)
        self.condition = blob.condition
        self._either_shape = (self.shapes[:1], self.shapes[1:])

    def title(self, index: int, comment: str = "") -> str:
        """Return the name of an input in messages."""
        name = f"{self.name} ({comment})" if comment else self.name
        return f"input {index}, {name}," if self.any_number else name

    def advice(self, op: Any) -> str:
        """Return what the operator advises where the input is wrong."""
        return f"; {op.remedies[self.name]}" if self.name in op.remedies else ""

    def has_type(self, spec: TensorSpec, specs: Mapping[str, TensorSpec], further: bool) -> bool:
        """Whether an input has a type as stated; ``further``: it is not the first of its name."""
        dtype, blob = spec.dtype, self.blob
        if self.types and dtype not in self.types:
            return False
        like = specs.get(blob.like or (self.name if further and blob.one_type else ""))
        if like is None or dtype is like.dtype or dtype == like.dtype:
            return True
        return blob.wide and dtype == np.float32 and like.dtype == np.float16

    def has_one_type(self, known: Mapping[str, _Rule]) -> bool:
        return self.blob.like in known if self.blob.like else len(self.types) == 1

    def shapes_for(self, op: Any, specs: Mapping[str, TensorSpec]) -> Sequence[StatedShape]:
        """Return the shapes that it may have with these arguments and inputs."""
        condition = self.condition
        if not condition:
            return self.shapes
        if any(rule.name == condition for rule in self.others):
            holds = condition in specs
        else:
            holds = condition == getattr(op, "order", "") or getattr(op, condition, False)
        return self._either_shape[0 if holds else 1]

    def bind(self, op: Any, shape: tuple[int, ...], bound: Bound, specs: Mapping[str, TensorSpec]) -> bool:
        """Read a shape as the first of those stated that it can be; say whether there is one."""
        stated = self.shapes_for(op, specs) if self.condition else self.shapes
        if len(stated) == 1:
            return stated[0].bind(op, shape, bound)
        for each in stated:
            tried = dict(bound)
            if each.bind(op, shape, tried):
                bound.update(tried)
                return True
        return False

    def holds(self, op: Any, shape: tuple[int, ...], bound: Bound, specs: Mapping[str, TensorSpec]) -> bool:
        """Whether expressions among the extents of a shape have its values, as far as they are known.

        Without a shape of its own, the input has that of the one it is like.
        """
        if not self.shapes:
            like = specs.get(self.blob.like)
            return like is None or shape == like.shape
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
        for each in self.shapes_for(op, specs):
            if text := each.axis_error(op, len(shape)):
                if not shape:
                    return f"{name} must have an axis, got a scalar; reshape it to (1,)"
                return f"{text} for {name} of shape {shape}, got {getattr(op, each.axis)}"
        if alike := self._alike(index, specs):
            return f"{name} must have the shape of {alike}, {specs[alike].shape}, got {shape}"
        texts = {str(each): each.in_numbers(op, bound) for each in self.shapes_for(op, specs)}
        numbers, symbols = " or ".join(texts.values()), " or ".join(texts)
        wanted = numbers if numbers == symbols else f"{numbers} = {symbols}"
        if self.shapes[0].elements is not None:
            return f"{name} must have {numbers}, got shape {shape}"
        return f"{name} must have shape {wanted}, got {shape}"

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


def _either(names: Sequence[str]) -> str:
    return " or ".join([", ".join(names[:-1])] * (len(names) > 1) + [names[-1]])
