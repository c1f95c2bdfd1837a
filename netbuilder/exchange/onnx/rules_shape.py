"""Export of operators that concatenate, split, slice, transpose and reshape to ONNX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from netbuilder.exchange.onnx.graph import Graph, rule
from netbuilder.exchange.onnx.library import onnx_library
from netbuilder.proto import OperatorError

__all__: list[str] = []


def _axis(g: Graph, op: Any, x: str) -> int:
    if op.axis is not None:
        return int(op.axis)
    return 1 if op.order == "NCHW" else g.spec(x).ndim - 1


@rule("Concat", "DepthConcat")
def _concat(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    if len(y) > 1 and y[1]:
        extents = [g.spec(name).shape[_axis(g, op, name)] for name in x]
        g.add("Identity", [g.constant(f"{y[1]}/extents", extents, np.int32)], [y[1]])
    if not y[0]:
        return
    if op.adds_axis:
        axes = g.constant(f"{y[0]}/axis", [_axis(g, op, x[0])], np.int64)
        x = [g.between("Unsqueeze", [name, axes], f"{y[0]}/part_{i}") for i, name in enumerate(x)]
    g.add("Concat", x, [y[0]], axis=_axis(g, op, x[0]) if not op.adds_axis else int(op.axis))


@rule("Split", "DepthSplit")
def _split(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    if op.adds_axis:
        raise OperatorError(f"{op.type} with add_axis cannot be exported to ONNX")
    axis = _axis(g, op, x[0]) % g.spec(x[0]).ndim
    extents = [g.spec(name).shape[axis] if name else 0 for name in y]
    missing = [i for i, name in enumerate(y) if not name]
    if missing:  # an unused output still needs its extent
        total = g.spec(x[0]).shape[axis]
        given = list(op.split) or [total // len(y)] * len(y)
        extents = [int(n) for n in given]
    names = [name or g.fresh(f"{x[0]}/unused") for name in y]
    g.add("Split", [x[0], g.constant(f"{names[0]}/extents", extents, np.int64)], names, axis=axis)


@rule("Reshape")
def _reshape(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    if len(y) > 1 and y[1]:
        raise OperatorError("Reshape: the old shape, which depends on the batch, is used")
    if len(x) > 1 and not g.is_constant(x[1]):
        g.add("Reshape", [x[0], g.between("Cast", x[1:], f"{y[0]}/shape", to=7)], [y[0]])
        return
    shape = [int(n) for n in g.constant_of(x[1], op, "the shape")] if len(x) > 1 else list(op.shape or ())
    g.add("Reshape", [x[0], g.constant(f"{y[0]}/shape", shape, np.int64)], [y[0]])


@rule("ResizeLike")
def _resize_like(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    g.add("Reshape", [x[0], g.between("Shape", x[1:], f"{y[0]}/shape")], [y[0]])


@rule("Flatten")
def _flatten(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    g.add("Flatten", x[:1], [y[0]], axis=op.axis)


@rule("FlattenToVec")
def _flatten_to_vec(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    g.add("Reshape", [x[0], g.constant(f"{y[0]}/shape", [-1], np.int64)], [y[0]])


@rule("MergeDim")
def _merge_dim(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    g.add("Reshape", [x[0], g.constant(f"{y[0]}/shape", [-1, *g.spec(y[0]).shape[1:]], np.int64)], [y[0]])


@rule("PrependDim")
def _prepend_dim(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    shape = [op.dim_size, -1, *g.spec(y[0]).shape[2:]]
    g.add("Reshape", [x[0], g.constant(f"{y[0]}/shape", shape, np.int64)], [y[0]])


@rule("ExpandDims", "Squeeze")
def _dims(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    kind = "Unsqueeze" if op.type == "ExpandDims" else "Squeeze"
    g.add(kind, [x[0], g.constant(f"{y[0]}/axes", sorted(op.dims), np.int64)], [y[0]])


@rule("Transpose")
def _transpose(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    g.add("Transpose", x[:1], [y[0]], perm=list(op.axes) or list(reversed(range(g.spec(x[0]).ndim))))


@rule("NCHW2NHWC", "NHWC2NCHW")
def _order(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    ndim = g.spec(x[0]).ndim
    order = [0, *range(2, ndim), 1] if op.type == "NCHW2NHWC" else [0, ndim - 1, *range(1, ndim - 1)]
    g.add("Transpose", x[:1], [y[0]], perm=order)


@rule("Slice")
def _slice(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    def bounds(i: int, given: Sequence[int], what: str) -> list[int]:
        return [int(n) for n in g.constant_of(x[i], op, what).ravel()] if len(x) > i else list(given)

    starts, ends = bounds(1, op.starts, "starts"), bounds(2, op.ends, "ends")
    if op.steps:
        every = zip(("starts", "ends", "axes", "steps"), (starts, ends, range(len(starts)), op.steps))
        g.add("Slice", [x[0], *(g.constant(f"{y[0]}/{name}", list(n), np.int64) for name, n in every)], [y[0]])
        return
    # In Caffe2 -1 means the end of the axis, in ONNX any number beyond it does.
    end = np.iinfo(np.int64).max
    starts, stops = ([n if n >= 0 else end if n == -1 else n + 1 for n in bound] for bound in (starts, ends))
    names = [
        g.constant(f"{y[0]}/{name}", value, np.int64)
        for name, value in (("starts", starts), ("ends", stops), ("axes", list(range(len(starts)))))
    ]
    g.add("Slice", [x[0], *names], [y[0]])


@rule("Tile")
def _tile(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    tiles = int(g.constant_of(x[1], op, "tiles").item()) if len(x) > 1 else op.tiles
    axis = int(g.constant_of(x[2], op, "axis").item()) if len(x) > 2 else op.axis
    repeats = [1] * g.spec(x[0]).ndim
    repeats[axis] = tiles
    g.add("Tile", [x[0], g.constant(f"{y[0]}/repeats", repeats, np.int64)], [y[0]])


@rule("Size")
def _size(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    g.add("Size", x[:1], [y[0]])


@rule("Cast", "FloatToHalf", "HalfToFloat")
def _cast(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    number = onnx_library().helper.np_dtype_to_tensor_dtype(g.spec(y[0]).dtype)
    g.add("Cast", x[:1], [y[0]], to=number)


@rule("Shape")
def _shape(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    if not op.axes:
        g.add("Shape", x[:1], [y[0]])
        return
    whole = g.between("Shape", x[:1], f"{y[0]}/whole")
    g.add("Gather", [whole, g.constant(f"{y[0]}/axes", op.axes, np.int64)], [y[0]], axis=0)
