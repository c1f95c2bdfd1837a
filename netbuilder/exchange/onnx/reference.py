"""Unsupported ONNX nodes, which ONNX's reference implementation runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from netbuilder.ops.control.onnx_node import ONNXNode, onnx_node, reference_node
from netbuilder.ops.core.operator import STRING
from netbuilder.proto import OperatorError

__all__ = ["ReferenceNodeWarning", "holds_graphs", "names_read", "reference_arguments", "supported_dtype", "try_node"]

_RANDOM = frozenset({
    "Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"
})  # fmt: skip
_DTYPES = frozenset(map(np.dtype, "? i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8 O".split()))


_MOST_TRIED = 1 << 20  # elements of the inputs of a node that is run once when it is read


class ReferenceNodeWarning(UserWarning):
    """Some nodes of a model run in ONNX's reference implementation: many times slower, on the CPU, no gradients."""


def supported_dtype(dtype: Any) -> bool:
    """Whether a blob can hold elements of a NumPy dtype (not bfloat16, float8 or smaller, or complex)."""
    return np.dtype(dtype) in _DTYPES


def reference_arguments(node: Any, opsets: Any) -> dict[str, Any]:
    """Return the arguments of the operator ``ONNXNode`` for a node.

    Args:
        node: a NodeProto.
        opsets: the model's ``opset_import``.

    Raises:
        OperatorError: the node draws random numbers, or onnx has no implementation of it.
    """
    if node.op_type in _RANDOM or node.op_type == "Dropout" or _trains(node):
        raise OperatorError(f"{node.op_type} in training mode, or with random numbers of its own, is not supported")
    if node.op_type == "Loop" and _collects_scalars(node):
        raise OperatorError("a Loop that collects scalars, or values of unknown shape, is not supported")
    if node.op_type == "Scan" and all(each.version < 9 for each in opsets if each.domain in ("", "ai.onnx")):
        raise OperatorError("Scan is supported from opset 9 on")
    arguments = {
        "node": node.SerializeToString(),
        "reads": names_read(node),
        "opsets": tuple(f"{each.domain}:{each.version}" for each in opsets),
    }
    reference_node(**arguments)  # raises an error if onnx does not implement it
    return arguments


def try_node(arguments: Mapping[str, Any], inputs: Sequence[Any]) -> None:
    """Run a node once on an example, so that one that onnx cannot run is refused when a model is read.

    Args:
        arguments: those of the operator ``ONNXNode``.
        inputs: the constants, and the specs of values that are computed, whose elements are made up.

    Raises:
        OperatorError: onnx cannot run it.
    """
    sizes = [math.prod(each.shape) for each in inputs]
    if sum(sizes) > _MOST_TRIED:
        return
    given = [each if isinstance(each, np.ndarray) else _example(each) for each in inputs]
    free = any(not isinstance(each, np.ndarray) and each.dtype.kind not in "fb" for each in inputs)
    op = ONNXNode(**arguments).with_arity(len(inputs), 1)
    try:
        onnx_node(op, _Host(), *given)
    except Exception as error:
        cause = error.__cause__ or error
        if not free or isinstance(cause, (NotImplementedError, TypeError, AttributeError)):
            raise OperatorError(f"onnx cannot run the node: {error}") from error


class _Host:
    """What ``onnx_node`` needs of a context."""

    def host(self, value: Any) -> Any:
        return value


def _example(spec: Any) -> Any:
    """Return elements for a value that is computed: whole numbers are 1, which is a valid index and extent."""
    if spec.dtype == STRING:
        return np.full(spec.shape, b"", STRING)
    if spec.dtype.kind != "f":
        return np.ones(spec.shape, spec.dtype)
    return (
        np.linspace(0.1, 0.9, max(math.prod(spec.shape), 1))
        .astype(spec.dtype)[: math.prod(spec.shape)]
        .reshape(spec.shape)
    )


def _trains(node: Any) -> bool:
    return any(each.name == "training_mode" and each.i for each in node.attribute)


def _collects_scalars(node: Any) -> bool:
    """Whether a Loop may collect scalars, for which ONNX's reference implementation returns the wrong shape (N, 1)."""
    (body,) = (each.g for each in node.attribute if each.name == "body")
    collected = body.output[1 + len(node.input) - 2 :]
    return any(not each.type.tensor_type.shape.dim for each in collected)


def holds_graphs(node: Any) -> bool:
    """Whether a node holds subgraphs, like If and Loop."""
    return any(each.HasField("g") or each.graphs for each in node.attribute)


def names_read(node: Any) -> tuple[str, ...]:
    """Return the values that a node reads, including those that its subgraphs capture."""
    return tuple(dict.fromkeys(_reads(node) if holds_graphs(node) else filter(None, node.input)))


def _reads(node: Any) -> Iterator[str]:
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        for graph in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
            own = {each.name for each in (*graph.input, *graph.initializer)}
            for inner in graph.node:
                yield from (name for name in _reads(inner) if name not in own)
                own.update(inner.output)
            yield from (each.name for each in graph.output if each.name not in own)
