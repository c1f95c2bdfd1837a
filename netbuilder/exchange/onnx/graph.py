"""An ONNX graph under construction: nodes, constants, and the shape and type of each value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from netbuilder.exchange.onnx.library import onnx_library
from netbuilder.exchange.onnx.reference import names_read
from netbuilder.ops.core.operator import Operator, TensorSpec
from netbuilder.proto import NetDef, OperatorDef, OperatorError

__all__ = ["FROM_CONSTANTS", "RUN_NETS", "Graph", "Rule", "rule", "rules"]

Rule = Callable[["Graph", Any, Sequence[str], Sequence[str]], None]
"""``rule(graph, op, inputs, outputs)`` adds the nodes for one operator; an unused output is ""."""

Writer = Callable[
    [NetDef, Mapping[str, TensorSpec], Sequence[str], Mapping[str, np.ndarray[Any, Any]], Mapping[str, str], str],
    "Graph",
]
"""``write(net, inputs, outputs, constants, visible, prefix)`` exports a net inside another one; see ``Graph``."""

_rules: dict[str, Rule] = {}
FROM_CONSTANTS: set[str] = set()
"""Operators whose outputs' shapes follow from the values of constants."""
RUN_NETS: set[str] = set()
"""Operators whose outputs' shapes are known once the nets that they run are written; their rules say them."""


def rule(*types: str, from_constants: bool = False, runs_nets: bool = False) -> Callable[[Rule], Rule]:
    """Decorator: register the function that exports operators of these types.

    ``from_constants``: shapes of the outputs follow from the values of inputs that must be constants.
    ``runs_nets``: the function itself sets the shapes of the outputs, which follow from nets that the operator runs.
    """

    def add(function: Rule) -> Rule:
        for name in types:
            _rules[name] = function
        if from_constants:
            FROM_CONSTANTS.update(types)
        if runs_nets:
            RUN_NETS.update(types)
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
        write: returns the graph of a net inside the net.

    Attributes:
        nodes: the nodes so far.
        specs: shape and type of each value.
        free: values whose first extent is any number, whatever the batch, such as indices for all samples.
        makers: the operator that makes a value, and what it reads.
        message: the operator that is being written.
        visible: the value that each blob has after the operators so far, and in a net inside, blobs around it, too.
    """

    def __init__(
        self, opset: int, constants: Mapping[str, np.ndarray[Any, Any]], write: Writer, visible: Mapping[str, str]
    ) -> None:
        self.opset = opset
        self.message = OperatorDef()
        self.visible = dict(visible)
        self._write = write
        self.nodes: list[Any] = []
        self.specs: dict[str, TensorSpec] = {}
        self.free: set[str] = set()
        self.makers: dict[str, tuple[Any, Sequence[str]]] = {}
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

    def elements(self, value: str) -> np.ndarray[Any, Any]:
        """Return the elements of a constant."""
        return self._constants[value]

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

    def inner(
        self,
        net: NetDef,
        inputs: Mapping[str, TensorSpec],
        outputs: Sequence[str],
        visible: Mapping[str, str] | None = None,
        prefix: str = "",
    ) -> Graph:
        """Return the graph of a net inside the net; it reads the constants of this one by their names.

        Args:
            net: the net.
            inputs: shape and type of each value that it may read.
            outputs: blobs that it writes for others.
            visible: the value of each blob that it may read; None: all have the names of their blobs.
            prefix: of the names of all values that it makes.
        """
        constants = {name: value for name, value in self._constants.items() if name in inputs}
        return self._write(net, inputs, outputs, constants, visible or {}, prefix)

    def absorb(self, graph: Graph) -> None:
        """Append the nodes and constants of a graph inside this one, whose names are none of this one's."""
        self.nodes += graph.nodes
        self._used |= graph._used
        self.specs |= graph.specs
        self.visible |= graph.visible

    def as_body(self, graph: Graph, inputs: Sequence[Any], outputs: Sequence[Any]) -> Any:
        """Return a graph inside this one as an attribute; constants that both read are stored in this one."""
        graph.prune([each.name for each in outputs])
        for name in graph._used.keys() & self._constants.keys():
            self._used[name] = graph._used.pop(name)
        library = onnx_library()
        constants = [library.numpy_helper.from_array(value, name) for name, value in graph._used.items()]
        return library.helper.make_graph(graph.nodes, "body", list(inputs), list(outputs), constants)

    def prune(self, outputs: Sequence[str]) -> None:
        """Remove nodes, and constants, that no output depends on."""
        needed, kept = set(outputs), []
        for node in reversed(self.nodes):
            if not needed.isdisjoint(node.output):
                needed.update(names_read(node))
                kept.append(node)
        self.nodes[:] = reversed(kept)
        self._used = {name: value for name, value in self._used.items() if name in needed}
