"""Terms over operators: what a value of a net is, by a text such as ``Mul(x, Sqrt(y))``, however it is written."""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np

from netbuilder.graph.versions import EXTERNAL, number_versions
from netbuilder.ops.core.renaming import names_in_net, subgraphs
from netbuilder.passes.net_pass import PassContext
from netbuilder.proto import NetDef, OperatorDef
from netbuilder.proto.arguments import arguments
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["LOW", "Array", "Extents", "Match", "TermFinder", "parsed"]

Array = np.ndarray[Any, Any]
Extents = tuple[Any, ...]
"""A number for each axis; any other object but None for an extent that differs from run to run."""

_FORMS = {
    "Square(a)": ("Mul(a, a)", "Pow(a, 2)", "Sqr(a)"),
    "Inverse(a)": ("Reciprocal(a)", "Div(1, a)", "Pow(a, -1)"),
    "InverseRoot(a)": ("Inverse(Sqrt(a))", "Sqrt(Inverse(a))", "Rsqrt(a)", "Pow(a, -0.5)"),
    "OverRoot(a, b)": ("Div(a, Sqrt(b))", "Mul(a, InverseRoot(b))", "Div(a, Pow(b, 0.5))"),
    "Centered(a)": ("Sub(a, Mean(a))",),
}
"""What can be written in several ways."""

_EITHER_ORDER = frozenset({"Add", "Mul"})
LOW = -1e30
"""Scores of this and less have the weight 0 if there is any greater one."""


@dataclass(frozen=True)
class Match:
    """A term that was found.

    Args:
        values: of the variables, by name: numbers of values, or constants.
        ops: indices of the operators.
    """

    values: Mapping[str, Any]
    ops: frozenset[int]

    def bound(self, name: str, value: Any) -> Match | None:
        """Return the match with a variable that has this value; None if it has another one already."""
        if name in self.values:
            return self if self.values[name] == value else None
        return Match({**self.values, name: value}, self.ops)


class TermFinder:
    """Finds terms in a net, and replaces what they consist of.

    Args:
        net: any; unchanged.
        context: has the constants, and the blobs to keep.
        extents: returns those of a value, by its number and name.
    """

    def __init__(self, net: NetDef, context: PassContext, extents: Callable[[int, str], Extents | None]) -> None:
        self._ops = list(net.op)
        self._versions = number_versions(self._ops)
        self._value_of = {key: v for v, key in enumerate(zip(self._versions.names, self._versions.versions))}
        self._device = net.device_option
        self._extents_of = extents
        written = {self._versions.names[v] for v, w in enumerate(self._versions.writers) if w != EXTERNAL}
        self._constants = {name: value for name, value in context.parameters.items() if name not in written}
        self._kept = {*net.external_output, *context.keep}
        self._inside = {blob for op in net.op for subgraph in subgraphs(op) for blob in names_in_net(subgraph)}
        self._taken = {*self._versions.names, *self._inside, *context.parameters}
        self._gone: set[int] = set()
        self._replaced: dict[int, list[OperatorDef]] = {}
        self.added: dict[str, Array] = {}

    def _made_by(self, index: int) -> set[str]:
        """Return the types of the operators that write what an operator reads."""
        writers = (self._versions.writers[value] for value in self._versions.inputs[index])
        return {self._ops[writer].type for writer in writers if writer != EXTERNAL}

    # Terms

    def _constant(self, operand: Any) -> float | None:
        """Return the number that an operand is; None if it is no constant of one element."""
        if isinstance(operand, float):
            return operand
        if self._versions.writers[operand] != EXTERNAL:
            return None
        value = self._constants.get(self._versions.names[operand])
        if not isinstance(value, np.ndarray) or value.size != 1 or value.ndim > 1 or value.dtype.kind != "f":
            return None
        return float(value.reshape(()))

    def _operation(self, index: int) -> tuple[str, list[Any]] | None:
        """Return what an operator does and to what: numbers of values, or constants; None for what no rule knows."""
        op, operands = self._ops[index], list[Any](self._versions.inputs[index])
        given = arguments(op)
        if op.type == "ReduceMean":
            axes, known = given.get("axes"), self._extents(operands[0])
            last = axes == [-1] or known is not None and axes == [len(known) - 1]
            return ("Mean", operands) if last and given.get("keepdims", 1) else None
        if op.type == "Softmax":
            axis, known = given.get("axis", 1), self._extents(operands[0])
            return ("Softmax", operands) if axis == -1 or known is not None and axis == len(known) - 1 else None
        if op.type == "Pow" and "exponent" in given:
            return "Pow", [*operands, float(given["exponent"])]
        if op.type == "Scale":
            return "Mul", [*operands, float(given.get("scale", 1.0))]
        return (op.type, operands) if given.keys() <= {"broadcast"} and "axis" not in given else None

    def _find(self, term: ast.expr, operand: Any, before: Match) -> Iterator[Match]:
        """Yield the ways in which an operand is a term."""
        if isinstance(term, ast.Name):
            found = before.bound(term.id, operand)
            if found is not None:
                yield found
            return
        if not isinstance(term, ast.Call):
            if self._constant(operand) == ast.literal_eval(term):
                yield before
            return
        name = _name_of(term)
        if name in _ALTERNATIVES:
            for body in _written_out(term):
                yield from self._find(body, operand, before)
            return
        if isinstance(operand, float) or self._versions.writers[operand] == EXTERNAL:
            return
        index = self._versions.writers[operand]
        operation = None if index in self._gone or index in self._replaced else self._operation(index)
        if name in ("Hidden", "Filled"):
            yield from self._hidden(term, operation, Match(before.values, before.ops | {index}))
        if operation is None or operation[0] != name or len(operation[1]) != len(term.args):
            return
        start = Match(before.values, before.ops | {index})
        for operands in [operation[1], operation[1][::-1]] if name in _EITHER_ORDER else [operation[1]]:
            yield from self._find_all(term.args, operands, start)

    def _hidden(self, term: ast.Call, operation: Any, before: Match) -> Iterator[Match]:
        if operation is None or operation[0] != "Where":
            return
        mask, scores, low = operation[1]
        filled = _name_of(term) == "Filled"
        if filled:
            scores, low = low, scores
        value, given = self._constant(low), self._constants.get(self._versions.names[mask])
        some = False  # whether each query is known to see a key
        if isinstance(given, np.ndarray) and given.ndim > 0:
            seen = np.asarray(given != filled)
            some = bool(seen.any(axis=-1).all())
        if value is not None and (value == -math.inf or value <= LOW and some):
            yield from self._find_all(term.args, [mask, scores], before)

    def _find_all(self, terms: Sequence[ast.expr], operands: Sequence[Any], before: Match) -> Iterator[Match]:
        if not terms:
            yield before
            return
        for found in self._find(terms[0], operands[0], before):
            yield from self._find_all(terms[1:], operands[1:], found)

    # What is true of values

    def _extents(self, value: int) -> Extents | None:
        return self._extents_of(value, self._versions.names[value])

    def _is_own(self, ops: Collection[int], root: int) -> bool:
        """Whether nobody else reads what operators write, but for the last one, and all are on one device."""
        for index in ops:
            if self._place(index) != self._place(root):
                return False
            for value in self._versions.outputs[index] if index != root else ():
                if self._is_observed(value) or not set(self._versions.readers[value]) <= set(ops):
                    return False
        return True

    def _is_observed(self, value: int) -> bool:
        name = self._versions.names[value]
        return name in self._inside or name in self._kept and self._versions.last[name] == value

    def _place(self, index: int) -> tuple[int, int]:
        op = self._ops[index]
        option = op.device_option if op.HasField("device_option") else self._device
        return option.device_type, option.device_id

    def _lives(self, value: int, root: int) -> bool:
        """Whether a value is still there when an operator runs."""
        name, version = self._versions.names[value], self._versions.versions[value]
        if name in self._inside:
            return False
        after = self._value_of.get((name, version + 1))
        return after is None or self._versions.writers[after] >= root

    def _reader(self, value: int) -> int | None:
        """Return the only reader of a value that nobody observes."""
        readers = self._versions.readers[value]
        return readers[0] if len(readers) == 1 and not self._is_observed(value) else None

    def _fresh(self, base: str) -> str:
        names = itertools.chain([base], (f"{base}_{i}" for i in itertools.count(1)))
        name = next(name for name in names if name not in self._taken)
        self._taken.add(name)
        return name

    def _parameter(self, base: str, value: Array) -> str:
        for name, before in self.added.items():
            if before.dtype == value.dtype and np.array_equal(before, value):
                return name
        name = self._fresh(base)
        self.added[name] = value
        return name

    def _replace(self, ops: Collection[int], root: int, made: list[OperatorDef]) -> None:
        for op in made:
            if self._ops[root].HasField("device_option"):
                op.device_option.CopyFrom(self._ops[root].device_option)
        self._gone.update(set(ops) - {root})
        self._replaced[root] = made


class _Filled(ast.NodeTransformer):
    """Replaces the parameters of a form by terms."""

    def __init__(self, given: Mapping[str, ast.expr]) -> None:
        self._given = given

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._given.get(node.id, node)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        return ast.Call(node.func, [self.visit(each) for each in node.args], [])


def _written_out(term: ast.Call) -> list[ast.expr]:
    """Return the ways to write a term whose name is among ``_FORMS``; the same objects each time."""
    found = _known.get(id(term))
    if found is None:
        parameters, bodies = _ALTERNATIVES[_name_of(term)]
        filled = _Filled(dict(zip(parameters, term.args)))
        found = _known[id(term)] = term, [filled.visit(body) for body in bodies]
    return found[1]


def _name_of(term: ast.Call) -> str:
    return cast(ast.Name, term.func).id


def parsed(text: str) -> Any:
    """Return a term."""
    return ast.parse(text, mode="eval").body


_known: dict[int, tuple[ast.Call, list[ast.expr]]] = {}  # by the term, which lives as long
_ALTERNATIVES = {
    form.func.id: ([each.id for each in form.args], [parsed(body) for body in bodies])
    for form, bodies in ((parsed(text), bodies) for text, bodies in _FORMS.items())
}
