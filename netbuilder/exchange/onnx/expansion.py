"""Nodes in place of one: those of the function that ONNX defines an operator by, or the same with other names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from netbuilder.ops.core.operator import TensorSpec

__all__ = ["Nodes", "expanded", "renamed"]

_AS_THEY_ARE = frozenset({"ReduceLogSumExp", "SequenceMap"})


class Nodes:
    """Nodes that are read in place of one; ``nodes(kind, *inputs)`` adds one and returns its output.

    Args:
        onnx: the package.
        node: the node that they stand for.
    """

    def __init__(self, onnx: Any, node: Any) -> None:
        self._onnx, self._hint = onnx, next(filter(None, node.output))
        self.made: list[Any] = []

    def __call__(self, kind: str, *inputs: str, to: str = "", copied: Any = None, **attributes: Any) -> str:
        """Add a node with the attributes of the node ``copied``, and these; ``to`` is the name of its output."""
        output = to or f"{self._hint}/part_{len(self.made)}"
        self.made.append(self._onnx.helper.make_node(kind, inputs, [output], **attributes))
        if copied is not None:
            self.made[-1].attribute.extend(copied.attribute)
        return output

    def constant(self, value: Any) -> str:
        return self("Constant", value=self._onnx.numpy_helper.from_array(np.asarray(value)))

    def integers(self, value: Any) -> str:
        """Return a constant of type int64."""
        return self.constant(np.asarray(value, np.int64))

    def cast(self, value: str, dtype: Any, to: str = "") -> str:
        output = to or f"{self._hint}/part_{len(self.made)}"
        number = self._onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        self.made.append(self._onnx.helper.make_node("Cast", [value], [output], to=number))
        return output


def renamed(node: Any, names: Mapping[str, str]) -> Any:
    """Return a copy of a node that reads and writes values by other names, in graphs inside it, too."""
    copy = type(node)()
    copy.CopyFrom(node)
    for listed in (copy.input, copy.output):
        listed[:] = [names.get(name, name) for name in listed]
    for attribute in copy.attribute:
        for graph in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
            own = {each.name for each in (*graph.input, *graph.initializer)}
            own.update(name for each in graph.node for name in each.output)
            outer = {name: other for name, other in names.items() if name not in own}
            nodes = [renamed(each, outer) for each in graph.node]
            del graph.node[:]
            graph.node.extend(nodes)
            for each in graph.output:
                each.name = outer.get(each.name, each.name)
    return copy


def expanded(onnx: Any, node: Any, opsets: Iterable[Any], spec: Callable[[str], TensorSpec | None]) -> Any:
    """Return the graph that ONNX defines a node by; None if there is none, or types of inputs are unknown.

    Inner values have names that no other value has, if the node's outputs have.
    """
    versions = {each.domain: each.version for each in opsets}
    try:
        schema = onnx.defs.get_schema(node.op_type, versions.get("", 1), "")
    except Exception:  # unknown to this version of onnx
        return None
    if not (schema.has_function or schema.has_context_dependent_function) or node.op_type in _AS_THEY_ARE:
        return None
    node = _with_defaults(onnx, node, schema)
    infos = []
    for name in dict.fromkeys(name for name in node.input if name):
        found = spec(name)
        if found is None or found.dtype.kind not in "fiub":
            return None
        kind = onnx.helper.np_dtype_to_tensor_dtype(found.dtype)
        infos.append(onnx.helper.make_tensor_value_info(name, kind, found.shape))
    outputs = [onnx.helper.make_empty_tensor_value_info(name) for name in node.output if name]
    one = onnx.helper.make_graph([node], "one", infos, outputs)
    model = onnx.helper.make_model(one, opset_imports=list(opsets))
    try:
        from onnx import inliner

        made = inliner.inline_selected_functions(model, [("", node.op_type)], inline_schema_functions=True)
    except Exception:  # a version of onnx without this
        return None
    return None if any(each.op_type == node.op_type for each in made.graph.node) else _prefixed(made.graph, node)


def _with_defaults(onnx: Any, node: Any, schema: Any) -> Any:
    """Return a node with all attributes that have a default, which the inliner does not add."""
    copy = type(node)()
    copy.CopyFrom(node)
    given = {each.name for each in node.attribute}
    for name, attribute in schema.attributes.items():
        if name not in given and attribute.default_value.type != onnx.AttributeProto.UNDEFINED:
            copy.attribute.append(attribute.default_value)
    return copy


def _prefixed(graph: Any, node: Any) -> Any:
    """Give the values inside a graph names that begin with that of the node's first output."""
    first = next(filter(None, node.output))
    kept = {"", *node.input, *node.output}
    for each in graph.node:
        for names in (each.input, each.output):
            for i, name in enumerate(names):
                names[i] = name if name in kept else f"{first}/{name}"
    return graph
