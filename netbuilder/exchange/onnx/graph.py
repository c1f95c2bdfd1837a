"""An ONNX graph under construction: nodes, constants, and the shape and type of each value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from netbuilder.exchange.onnx.library import onnx_library
from netbuilder.ops.core.operator import Operator, TensorSpec
from netbuilder.proto import OperatorError

__all__ = ["Graph", "Rule", "rule", "rules"]

Rule = Callable[["Graph", Any, Sequence[str], Sequence[str]], None]
"""``rule(graph, op, inputs, outputs)`` adds the nodes for one operator; an unused output is ""."""

_rules: dict[str, Rule] = {}


def rule(*types: str) -> Callable[[Rule], Rule]:
    """Decorator: register the function that exports operators of these types."""

    def add(function: Rule) -> Rule:
        for name in types:
            _rules[name] = function
        return function

    return add


def rules() -> Mapping[str, Rule]:
    """Return the export functions by operator type."""
    return _rules


class Graph:
    """Nodes and constants.

    Args:
        opset: version of ONNX's operators.
        constants: values of blobs that are parameters.

    Attributes:
        nodes: the nodes so far.
        specs: shape and type of each value.
        free: values whose first extent is any number, whatever the batch, such as indices for all samples.
    """

    def __init__(self, opset: int, constants: Mapping[str, np.ndarray[Any, Any]]) -> None:
        self.opset = opset
        self.nodes: list[Any] = []
        self.specs: dict[str, TensorSpec] = {}
        self.free: set[str] = set()
        self._constants = dict(constants)
        self._used: dict[str, np.ndarray[Any, Any]] = {}
        self._names: set[str] = set()

    @property
    def initializers(self) -> dict[str, np.ndarray[Any, Any]]:
        """The constants that nodes read, by name."""
        return self._used

    def spec(self, value: str) -> TensorSpec:
        """Return shape and type of a value."""
        return self.specs[value]

    def constant_of(self, value: str, op: Operator, what: str) -> np.ndarray[Any, Any]:
        """Return the elements of a value that has to be a parameter.

        Raises:
            OperatorError: the value is computed.
        """
        if value not in self._constants:
            raise OperatorError(f"{op.type}: {what} ({value!r}) is computed, but must be a constant in ONNX")
        return self._constants[value]

    def is_constant(self, value: str) -> bool:
        return value in self._constants

    def constant(self, hint: str, array: Any, dtype: Any = None) -> str:
        """Add a constant; return its name."""
        name = self.fresh(hint)
        self._used[name] = np.asarray(array, dtype)
        self.specs[name] = TensorSpec(self._used[name].shape, self._used[name].dtype)
        return name

    def fresh(self, hint: str) -> str:
        """Return an unused name."""
        name, number = hint, 1
        while name in self._names or name in self.specs or name in self._constants:
            number += 1
            name = f"{hint}_{number}"
        self._names.add(name)
        return name

    def add(self, kind: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> str:
        """Add a node; return its first output. Attributes that are None are left out."""
        for name in inputs:
            if name in self._constants:
                self._used[name] = self._constants[name]
        given = {key: value for key, value in attributes.items() if value is not None}
        self.nodes.append(onnx_library().helper.make_node(kind, list(inputs), list(outputs), **given))
        return outputs[0]

    def difference(self, other: Graph) -> str | None:
        """Describe the first node or constant that differs in another graph; None if none does."""
        for mine, node in zip(self.nodes, other.nodes):
            if mine != node:
                return f"node {mine.name!r} ({mine.op_type})"
        for name, value in self._used.items():
            if name in self._constants:
                continue
            theirs = other._used.get(name)
            if theirs is None or not np.array_equal(value, theirs):
                return f"constant {name!r}"
        return None if len(self.nodes) == len(other.nodes) else "the net"

    def between(self, kind: str, inputs: Sequence[str], hint: str, **attributes: Any) -> str:
        """Add a node with a new intermediate value as its output; return the value's name."""
        return self.add(kind, inputs, [self.fresh(hint)], **attributes)
