"""ONNXNode: a node of an ONNX model without an operator of its own, run by the package onnx."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.given_numbers import check_extents
from netbuilder.ops.core.operator import STRING, Operator, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError, DeviceError, OperatorError
from netbuilder.proto.extras import how_to_install
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["ONNXNode", "may_loop", "reference_node"]

_WEIGHTS = {"Conv": 1, "ConvInteger": 1, "ConvTranspose": 1, "QLinearConv": 3}  # which input the weights are


@register
@dataclass(frozen=True)
class ONNXNode(Operator):
    """Run a node with ONNX's reference implementation, on the host; the shapes of outputs are known only afterwards.

    Args:
        node: the serialized NodeProto. Its outputs, without omitted ones, are the operator's, in order.
        reads: the node's names of the operator's inputs, including those that only graphs inside the node read.
        opsets: versions of the operator sets, as ``"domain:version"``; ONNX's own domain is empty.

    Values are tensors of numbers, bool or strings. There is no gradient.
    Source: the classes of ``onnx.reference``, for what each node computes.
    """

    signature = "X* (...): any -> Y+ (...): any"
    dynamic = True
    outputs_on_host = True
    inputs_on_host = True
    node: bytes = b""
    reads: tuple[str, ...] = ()
    opsets: tuple[str, ...] = ()

    @property
    def shown_as(self) -> str:
        return f"ONNXNode {reference_node(self.node, self.reads, self.opsets).proto_.graph.node[0].op_type}"

    def check(self) -> None:
        if not self.node:
            raise ArgumentError("ONNXNode: the argument node, a serialized NodeProto, must be given")
        if len(self.reads) != self.n_in:
            raise ArgumentError(f"ONNXNode: reads must name its {self.n_in} inputs, got {list(self.reads)}")


@functools.lru_cache(512)
def reference_node(node: bytes, reads: tuple[str, ...], opsets: tuple[str, ...]) -> Any:
    """Return ONNX's reference implementation of a node; the arguments are those of ``ONNXNode``.


    Raises:
        DeviceError: the package onnx is not installed.
        OperatorError: the bytes are not a node, or there is no implementation of it.
    """
    try:
        onnx = importlib.import_module("onnx")
        reference = importlib.import_module("onnx.reference")
    except ImportError as error:
        raise DeviceError(f"ONNXNode needs the package onnx: {how_to_install('onnx')} ({error})") from error
    try:
        parsed = onnx.NodeProto.FromString(node)
        versions = [
            onnx.helper.make_opsetid(domain, int(n)) for domain, _, n in (each.rpartition(":") for each in opsets)
        ]
        inputs = [onnx.helper.make_empty_tensor_value_info(name) for name in reads]
        outputs = [onnx.helper.make_empty_tensor_value_info(name) for name in parsed.output if name]
        graph = onnx.helper.make_graph([parsed], "node", inputs, outputs)
        return reference.ReferenceEvaluator(onnx.helper.make_model(graph, opset_imports=versions))
    except Exception as error:
        raise OperatorError(f"ONNXNode: onnx cannot run the node: {type(error).__name__}: {error}") from error


def may_loop(node: bytes) -> bool:
    """Whether a serialized node, or one in its graphs, may contain a loop whose length depends on data."""
    try:
        onnx = importlib.import_module("onnx")
        pending = [onnx.NodeProto.FromString(node)]
    except Exception:  # no package, or no node: nothing is known of it
        return True
    while pending:
        each = pending.pop()
        if each.op_type in ("Loop", "Scan", "SequenceMap"):
            return True
        for attribute in each.attribute:
            for graph in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
                pending += graph.node
    return False


@kernel(ONNXNode)
def onnx_node(op: ONNXNode, ctx: RunContext, *values: Any) -> tuple[Any, ...]:
    session = reference_node(op.node, op.reads, op.opsets)
    given = {name: _to_onnx(ctx.host(value)) for name, value in zip(op.reads, values)}
    _check_window(op, session.proto_.graph.node[0], {name: value.shape for name, value in given.items()})
    _check_result(session.proto_.graph.node[0], given)
    try:
        with np.errstate(all="ignore"):
            made = session.run(None, given)
    except Exception as error:
        shapes = [value.shape for value in given.values()]
        raise OperatorError(
            f"onnx could not compute the node for inputs of shapes {shapes}: {type(error).__name__}: {error}"
        ) from error
    return tuple(_from_onnx(value) for value in made)


def _check_window(op: ONNXNode, node: Any, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise ShapeError if the window or the padding of a convolution or a pool does not fit its inputs.

    ONNX's implementation believes these attributes, and takes memory for them before it looks at the inputs.
    """
    found = {each.name: tuple(each.ints) for each in node.attribute if each.name in ("kernel_shape", "pads")}
    read = [shapes.get(name, ()) for name in node.input]
    if not found or not read or len(read[0]) < 3:
        return
    x, pads = read[0], found.get("pads", ())
    kernel = found.get("kernel_shape", ())
    weights = read[_WEIGHTS[node.op_type]] if len(read) > _WEIGHTS.get(node.op_type, len(read)) else None
    if weights is not None and kernel:
        text = f"{node.op_type}: kernel_shape must be that of the weights {weights}, {weights[2:]}, got {kernel}"
        require(kernel == weights[2:], op, text)
    check_extents(f"ONNXNode: the window of {node.op_type}", (*kernel, len(kernel)), np.int64)
    padded = [n + sum(pads[axis :: len(x) - 2]) for axis, n in enumerate(x[2:])]
    require(min(padded) >= 0, op, f"{node.op_type}: pads {pads} leave nothing of an input of shape {x}")
    check_extents(f"ONNXNode: the padded input of {node.op_type}", (*x[:2], *padded), np.float32)


def _check_result(node: Any, given: Mapping[str, Any]) -> None:
    """Raise ShapeError if memory cannot hold the result whose shape, or number of copies, the last input states."""
    read = [given[name] for name in node.input if name in given]
    if node.op_type not in ("ConstantOfShape", "Expand", "Tile") or read[-1].dtype.kind not in "iu":
        return
    stated, dtype = tuple(read[-1].reshape(-1).tolist()), np.dtype(np.int64)
    if len(read) == 2:
        axes, dtype = max(read[0].ndim, len(stated)), read[0].dtype
        x, stated = ((1,) * (axes - len(shape)) + shape for shape in (read[0].shape, stated))
        stated = tuple(n * m if node.op_type == "Tile" or n == 1 else n for n, m in zip(x, stated))
    check_extents(f"ONNXNode: the result of {node.op_type}", stated, dtype)


def _to_onnx(value: Any) -> Any:
    if value.dtype != STRING:
        return value
    return np.array([item.decode() for item in value.ravel()], dtype=object).reshape(value.shape)


def _from_onnx(value: Any) -> Any:
    if not isinstance(value, (np.ndarray, np.generic)):
        raise OperatorError(f"the node returned a {type(value).__name__}, but only tensors can be blobs")
    array = np.asarray(value)
    if array.dtype.kind not in "USO":
        return array
    return np.array([str(item).encode() for item in array.ravel()], dtype=STRING).reshape(array.shape)
