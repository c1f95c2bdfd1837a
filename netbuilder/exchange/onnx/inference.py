"""ONNX's shape inference, within bounds; and the nodes and tensors in a model, with those of its subgraphs."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import Any

from netbuilder.proto import ParseError

__all__ = ["check_external_data", "copy_inner_infos", "inferred_graph"]

_MOST_VALUES = 1 << 16
_FREE = "netbuilder/unknown_limit"


def inferred_graph(onnx: Any, model: Any) -> Any:
    """Return a model's graph with the shapes and types that ONNX infers; its own if ONNX cannot infer any."""
    if len(model.functions) or any(each.op_type == "Range" for each in _nodes(model.graph)):
        model = _without_long_ranges(onnx, model)
    try:
        return onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    except Exception:  # ONNX may fail on a model that can be imported without inferred shapes
        return model.graph


def copy_inner_infos(inferred: Any, graph: Any) -> None:
    """Copy what ONNX has inferred for values of graphs inside ``inferred`` to the same graphs inside ``graph``."""
    if inferred is graph:
        return
    for source, target in zip(inferred.node, graph.node):
        for one, other in zip(source.attribute, target.attribute):
            if one.HasField("g"):
                del other.g.value_info[:]
                other.g.value_info.extend(one.g.value_info)
                copy_inner_infos(one.g, other.g)


def _without_long_ranges(onnx: Any, model: Any) -> Any:
    """Return a copy without functions, and with no Range of which ONNX would list a great number of values."""
    copy = type(model)()
    copy.CopyFrom(model)
    del copy.functions[:]
    short = {each.name for each in copy.graph.initializer if _is_short(onnx, each)}
    for node in copy.graph.node:
        if node.op_type == "Constant" and len(node.attribute) == 1 and _is_short(onnx, node.attribute[0].t):
            short.update(node.output)
    for node in _nodes(copy.graph):
        if node.op_type == "Range" and len(node.input) == 3 and not short.issuperset(node.input):
            node.input[1] = _FREE
    copy.graph.input.append(onnx.helper.make_tensor_value_info(_FREE, onnx.TensorProto.INT64, ()))
    return copy


def _is_short(onnx: Any, tensor: Any) -> bool:
    """Whether a tensor is a whole number of at most ``_MOST_VALUES``, so that a Range of three such is short."""
    if list(tensor.dims) not in ([], [1]) or tensor.data_type not in (onnx.TensorProto.INT32, onnx.TensorProto.INT64):
        return False
    try:
        return bool(abs(int(onnx.numpy_helper.to_array(tensor).item())) <= _MOST_VALUES)
    except Exception:  # data that do not match its dims: an error when the tensor is read
        return False


def check_external_data(model: Any, folder: str | None) -> list[str]:
    """Check that the tensors that a model stores in other files are in its folder; return these files, each once.

    Args:
        model: a ModelProto.
        folder: the model's; None: it has none, so no tensor may be in a file.

    Raises:
        ParseError: a tensor is in no regular file in the folder, as far as links are followed.
    """
    found = dict[str, None]()
    for tensor in _tensors(model):
        if tensor.data_location != tensor.EXTERNAL:
            continue
        location = next((each.value for each in tensor.external_data if each.key == "location"), "")
        what = f"tensor {tensor.name!r} is stored in the file {location!r}"
        if folder is None:
            raise ParseError(f"{what}; give the path of the model's file in place of the model, or load the data first")
        root = os.path.realpath(folder)
        path = os.path.realpath(os.path.join(root, location))
        if os.path.isabs(location) or os.path.commonpath([root, path]) != root:
            raise ParseError(f"{what}, which is not in the model's folder")
        if not (os.path.exists(path) and stat.S_ISREG(os.stat(path).st_mode)):
            raise ParseError(f"{what}, which does not exist or is no regular file")
        found[location] = None
    return list(found)


def _nodes(graph: Any) -> Iterator[Any]:
    """Yield the nodes of a graph, and those of the graphs in them."""
    waiting = [graph]
    while waiting:
        for node in waiting.pop().node:
            yield node
            for attribute in node.attribute:
                waiting += [attribute.g] if attribute.HasField("g") else []
                waiting += attribute.graphs


def _tensors(model: Any) -> Iterator[Any]:
    """Yield the tensors in a model."""
    waiting = [model.graph]
    nodes = [node for function in model.functions for node in function.node]
    while waiting or nodes:
        if waiting:
            graph = waiting.pop()
            yield from graph.initializer
            for sparse in graph.sparse_initializer:
                yield from (sparse.values, sparse.indices)
            nodes += graph.node
            continue
        for attribute in nodes.pop().attribute:
            yield from (*([attribute.t] if attribute.HasField("t") else []), *attribute.tensors)
            own = [attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else []
            for sparse in (*own, *attribute.sparse_tensors):
                yield from (sparse.values, sparse.indices)
            waiting += [attribute.g] if attribute.HasField("g") else []
            waiting += attribute.graphs
