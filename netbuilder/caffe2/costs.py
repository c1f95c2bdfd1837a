"""Inferred shapes and types of blobs, and costs of operators, in the current workspace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from netbuilder.data.tensor_records import DATA_TYPES, NUMPY_TYPES
from netbuilder.graph import infer_shapes
from netbuilder.graph.blob import blob_name
from netbuilder.ops.core.operator import TensorSpec, decode
from netbuilder.ops.core.registry import find
from netbuilder.proto import BlobError, NetError, OperatorDef, TensorProto, files
from netbuilder.runtime.execute import default

__all__ = ["Cost", "GetOperatorCost", "InferShapesAndTypes"]

_LONGEST_SHAPE = 1024


def InferShapesAndTypes(
    nets: Iterable[Any],
    blob_dimensions: Mapping[Any, Sequence[int]] | None = None,
    nets_proto: bool = False,
    blob_types: Mapping[Any, int] | None = None,
) -> tuple[dict[str, list[int]], dict[str, int]]:
    """Infer the shapes and types of the blobs of nets that run in this order.

    Args:
        nets: Nets or NetDefs.
        blob_dimensions: shapes of existing blobs; None: those of the current workspace.
        nets_proto: ignored; Nets and NetDefs are told apart by their type.
        blob_types: types of these blobs, of ``DataType``; None: float32, or a type that their readers accept.

    Returns:
        Shape and type of each blob for which they could be inferred.

    Raises:
        NetError: types are given without shapes.
        ShapeError: shapes contradict each other.
    """
    if blob_dimensions is None:
        if blob_types:
            raise NetError("InferShapesAndTypes: blob_types needs the shapes of the blobs in blob_dimensions")
        workspace = default.workspace()
        given: dict[str, Any] = {name: spec for name in workspace.blobs() if (spec := workspace.spec(name))}
    else:
        types = {blob_name(name): NUMPY_TYPES[number] for name, number in (blob_types or {}).items()}
        given = {}
        for name, shape in blob_dimensions.items():
            dtype = types.get(blob_name(name))
            given[blob_name(name)] = shape if dtype is None else TensorSpec(tuple(shape), dtype)
    found = infer_shapes(nets, given)
    shapes = {name: list(shape) for name, shape in found.shapes.items()}
    return shapes, {name: DATA_TYPES.get(dtype, TensorProto.UNDEFINED) for name, dtype in found.dtypes.items()}


class Cost(NamedTuple):
    """Cost of one run of an operator."""

    flops: int
    bytes_written: int
    bytes_read: int


def GetOperatorCost(operator: OperatorDef | bytes, blobs: Sequence[Any]) -> Cost:
    """Return the cost of one run of an operator: floating-point operations, bytes written, bytes read.

    Args:
        operator: the operator, or its bytes.
        blobs: its inputs, in the current workspace.

    Raises:
        BlobError: an input does not exist, or is not a tensor.
        ShapeError: the operator does not accept these shapes.
    """
    if isinstance(operator, bytes):
        operator = files.parse(operator, OperatorDef, allow_unknown=True)
    inputs = [spec for name in blobs if (spec := _with_elements(blob_name(name))) is not None]
    if len(inputs) != len(blobs):
        raise BlobError(f"GetOperatorCost: some of the blobs {list(map(blob_name, blobs))} hold no tensor")
    decoded = decode(find(operator.type), operator)
    written = sum(spec.nbytes for spec in decoded.infer(*inputs))
    return Cost(decoded.flops(*inputs), written, sum(spec.nbytes for spec in inputs))


def _with_elements(name: str) -> TensorSpec | None:
    """Return the spec of a blob, with the elements of a short vector of integers, which may be a shape."""
    workspace = default.workspace()
    spec = workspace.spec(name)
    if spec is None or spec.dtype.kind != "i" or spec.ndim != 1 or spec.size > _LONGEST_SHAPE:
        return spec
    return replace(spec, known=tuple(int(n) for n in workspace.fetch(name)))
