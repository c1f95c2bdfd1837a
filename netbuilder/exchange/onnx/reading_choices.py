"""Import of ONNX nodes that choose, move or make elements: gathers, scatters, slices, pads, ranges, masks."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.data.tensor_records import NUMPY_TYPES
from netbuilder.exchange.onnx.reading import Reader, reads
from netbuilder.exchange.onnx.values import UnknownExtentError
from netbuilder.proto import OperatorError
from netbuilder.proto.arguments import arguments

__all__ = ["type_number"]

_TO_THE_END = 2**31 - 1  # an end of a slice from here on means the end of the axis
_LARGEST = 1 << 62


def type_number(dtype: Any) -> int:
    """Return the number that arguments of operators have for a NumPy dtype.

    Raises:
        OperatorError: blobs cannot have it.
    """
    number = next((number for number, each in NUMPY_TYPES.items() if each == np.dtype(dtype)), None)
    if number is None:
        raise OperatorError(f"elements of type {np.dtype(dtype)} are not supported")
    return number


@reads("Where", "NonZero")
def _same(r: Reader, node: Any) -> None:
    r.add(node.op_type, node.input, node.output)


@reads("Expand")
def _expand(r: Reader, node: Any) -> None:
    if node.input[1] not in r.constants:
        r.add("Expand", node.input, node.output)
        return
    shape = [int(n) for n in r.constants[node.input[1]].ravel()]
    try:
        extents = r.extents(node.input[0])
    except UnknownExtentError:
        extents = (None,)
    tail = extents[max(len(extents) - len(shape), 0) :]
    if len(shape) <= len(extents) and all(n in (1, extent) for n, extent in zip(shape, tail)):
        r.same(node.input[0], node.output[0])
    elif not shape:
        r.same(node.input[0], node.output[0])
    else:
        r.add("Expand", node.input[:1], node.output, shape=shape)


@reads("GatherElements")
def _gather_elements(r: Reader, node: Any) -> None:
    r.add("GatherElements", node.input, node.output, axis=r.attributes(node).get("axis", 0))


@reads("GatherND")
def _gather_nd(r: Reader, node: Any) -> None:
    batch_dims = r.attributes(node).get("batch_dims", 0)
    if batch_dims or not _gather_rows(r, node):
        r.add("GatherND", node.input, node.output, batch_dims=batch_dims)


def _gather_rows(r: Reader, node: Any) -> bool:
    """Write Reshape and Gather for constant indices into axes of known extents, Reshape alone if they are all rows.

    Exporters write masks of keys in that way.
    """
    x, name = node.input
    indices, extents = r.constants.get(name), r.extents(x)
    if indices is None:
        return False
    shape = [extent for extent in extents if isinstance(extent, int)]
    chosen = shape[: indices.shape[-1]]
    if len(shape) < len(extents) or not chosen or ((indices < -np.array(chosen)) | (indices >= chosen)).any():
        return False
    counted = np.where(indices < 0, indices + np.array(chosen), indices)
    rows = np.ravel_multi_index(tuple(np.moveaxis(counted, -1, 0)), chosen)
    made = [*rows.shape, *shape[len(chosen) :]]
    if np.array_equal(rows.ravel(), np.arange(np.prod(chosen))):
        r.add("Reshape", [x], [*node.output, r.between(node.output[0])], shape=made)
        return True
    hint = node.output[0]
    table = r.add("Reshape", [x], [r.between(hint), r.between(hint)], shape=[-1, *shape[len(chosen) :]])
    dense = 1 if r.training else None
    r.add("Gather", [table, r.constant(hint, rows)], node.output, axis=0, dense_gradient=dense)
    return True


@reads("ScatterElements", "Scatter", "ScatterND")
def _scatter(r: Reader, node: Any) -> None:
    found = r.attributes(node)
    axis = {} if node.op_type == "ScatterND" else {"axis": found.get("axis", 0)}
    op_type = "ScatterND" if node.op_type == "ScatterND" else "ScatterElements"
    if found.get("reduction", "none") == "mul":
        raise OperatorError("the reduction mul is not supported")
    r.add(op_type, node.input, node.output, reduction=found.get("reduction", "none"), **axis)


@reads("Trilu")
def _trilu(r: Reader, node: Any) -> None:
    k = int(r.elements(node.input[1], "k").item()) if len(node.input) > 1 and node.input[1] else 0
    r.add("Trilu", node.input[:1], node.output, upper=r.attributes(node).get("upper", 1), k=k)


@reads("CumSum")
def _cum_sum(r: Reader, node: Any) -> None:
    found = r.attributes(node)
    axis = int(r.elements(node.input[1], "axis").item())
    r.add("CumSum", node.input[:1], node.output, axis=axis, exclusive=found.get("exclusive"),
          reverse=found.get("reverse"))  # fmt: skip


@reads("Mod")
def _mod(r: Reader, node: Any) -> None:
    r.add("Mod", node.input, node.output, sign_follow_divisor=0 if r.attributes(node).get("fmod", 0) else 1)


@reads("OneHot")
def _one_hot(r: Reader, node: Any) -> None:
    """The indices, along a new axis, compared with 0, 1, ...; then one of the two values."""
    indices, values = node.input[0], r.elements(node.input[2], "values")
    depth, rank = int(r.elements(node.input[1], "depth").item()), r.rank(indices)
    axis = r.attributes(node).get("axis", -1) % (rank + 1)
    dtype = r.dtype(indices)
    if dtype is None or dtype.kind not in "iu":
        raise OperatorError(f"indices must be integers, got {dtype}")
    hint = node.output[0]
    column = np.arange(depth, dtype=dtype).reshape(-1, *(1,) * (rank - axis))
    wide = r.add("ExpandDims", [indices], [r.between(hint)], dims=[axis])
    if dtype.kind == "i":
        negative = r.add("LT", [wide, r.constant(hint, np.array(0, dtype))], [r.between(hint)])
        counted = r.add("Add", [wide, r.constant(hint, np.array(depth, dtype))], [r.between(hint)])
        wide = r.add("Where", [negative, counted, wide], [r.between(hint)])
    equal = r.add("EQ", [wide, r.constant(hint, column)], [r.between(hint)])
    r.add("Where", [equal, r.constant(hint, values[1]), r.constant(hint, values[0])], node.output)


@reads("TopK")
def _top_k(r: Reader, node: Any) -> None:
    found = r.attributes(node)
    x, hint = node.input[0], next(filter(None, node.output))
    inputs, k = [], found.get("k")
    if len(node.input) > 1 and node.input[1] in r.constants:
        k = int(r.constants[node.input[1]].item())
    elif len(node.input) > 1:
        inputs = [node.input[1]]
    outputs = [name or r.between(hint) for name in node.output]
    if found.get("largest", 1):
        r.add("TopK", [x, *inputs], outputs, k=k, axis=found.get("axis", -1))
        return
    dtype = r.dtype(x)
    if dtype is None or dtype.kind != "f":
        raise OperatorError(f"the smallest of elements of type {dtype} are not supported")
    opposite = r.add("Negative", [x], [r.between(hint)])
    values = r.add("TopK", [opposite, *inputs], [r.between(hint), *outputs[1:]], k=k, axis=found.get("axis", -1))
    r.add("Negative", [values], outputs[:1])


@reads("Range")
def _range(r: Reader, node: Any) -> None:
    if r.elements(node.input[2], "delta").item() <= 0:
        raise OperatorError("a descending range is not supported")
    r.add("Range", node.input, node.output)


@reads("ConstantOfShape")
def _constant_of_shape(r: Reader, node: Any) -> None:
    given = r.attributes(node).get("value")
    value = np.zeros(1, np.float32) if given is None else r.library.numpy_helper.to_array(given)
    inputs, by_elements = node.input, True
    made = next((op for op in reversed(r.net.op) if r.name(node.input[0]) in op.output), None)
    if made is not None and made.type == "Shape" and "axes" not in arguments(made):
        inputs, by_elements = made.input, False  # of the shape of a value, which the plan knows
    r.add("ConstantFill", inputs, node.output, input_as_shape=int(by_elements) or None, value=value.item(),
          dtype=type_number(value.dtype))  # fmt: skip


@reads("ReverseSequence")
def _reverse_sequence(r: Reader, node: Any) -> None:
    found, (x, lengths) = r.attributes(node), node.input
    if (found.get("time_axis", 0), found.get("batch_axis", 1)) == (0, 1):
        r.add("ReversePackedSegs", [x, lengths], node.output)
        return
    order = [1, 0, *range(2, r.rank(x))]
    swapped = r.add("Transpose", [x], [r.between(node.output[0])], axes=order)
    made = r.add("ReversePackedSegs", [swapped, lengths], [r.between(node.output[0])])
    r.add("Transpose", [made], node.output, axes=order)


@reads("EyeLike")
def _eye_like(r: Reader, node: Any) -> None:
    found = r.attributes(node)
    shape, dtype = r.shape(node.input[0]), r.dtype(node.input[0])
    if "dtype" in found:
        dtype = np.dtype(r.library.helper.tensor_dtype_to_np_dtype(found["dtype"]))
    rows, columns = shape
    value = r.constant(node.output[0], np.eye(rows, columns, k=found.get("k", 0), dtype=dtype))
    r.add("Copy", [value], node.output)


@reads("Size")
def _size(r: Reader, node: Any) -> None:
    shape = r.add("Shape", node.input, [r.between(node.output[0])])
    r.add("ReduceProd", [shape], node.output, keepdims=0)


@reads("CastLike")
def _cast_like(r: Reader, node: Any) -> None:
    dtype = r.dtype(node.input[1])
    if dtype is None:
        raise OperatorError(f"the type of {node.input[1]!r} is not known")
    r.add("Cast", node.input[:1], node.output, to=type_number(dtype))


@reads("IsNaN")
def _is_nan(r: Reader, node: Any) -> None:
    r.add("NE", [node.input[0]] * 2, node.output)


@reads("Pad")
def _pad(r: Reader, node: Any) -> None:
    found = r.attributes(node)
    pads = found.get("pads") or [int(n) for n in r.elements(node.input[1], "pads")]
    value, rank = found.get("value", 0.0), r.rank(node.input[0])
    if len(node.input) > 2 and node.input[2]:
        value = r.elements(node.input[2], "the value").item()
    if len(node.input) > 3 and node.input[3]:
        axes = [int(n) % rank for n in r.elements(node.input[3], "axes")]
        given, pads = dict(zip(axes, zip(pads[: len(axes)], pads[len(axes) :]))), [0] * 2 * rank
        for axis, (before, after) in given.items():
            pads[axis], pads[axis + rank] = before, after
    mode, n = found.get("mode", "constant"), rank
    if not any(pads):
        r.same(node.input[0], node.output[0])
        return
    images = n == 4 and not any(pads[i] for i in (0, 1, 4, 5)) and min(pads) >= 0 and mode != "wrap"
    dtype = r.dtype(node.input[0])
    if images and dtype is not None and dtype.kind == "f":
        r.add("PadImage", node.input[:1], node.output, mode=mode, value=value,
              pad_t=pads[2], pad_l=pads[3], pad_b=pads[6], pad_r=pads[7])  # fmt: skip
        return
    r.add("Pad", node.input[:1], node.output, mode=mode, value=float(value), pads=pads)


@reads("Slice")
def _slice(r: Reader, node: Any) -> None:
    found = r.attributes(node)

    def numbers(i: int, name: str) -> list[int] | None:
        if len(node.input) > i and node.input[i]:
            return [int(n) for n in r.elements(node.input[i], name)]
        return list(found[name]) if name in found else None

    ndim, steps, axes = r.rank(node.input[0]), numbers(4, "steps"), numbers(3, "axes")
    if len(node.input) > 2 and not {node.input[1], node.input[2]} <= r.constants.keys():
        _slice_as_computed(r, node, ndim, axes, steps)
        return
    starts, ends = numbers(1, "starts") or [], numbers(2, "ends") or []
    axes = [n % ndim for n in axes] if axes is not None else list(range(len(starts)))
    steps = steps or [1] * len(starts)
    if any(step != 1 for step in steps):
        low, high, by = [0] * ndim, [_LARGEST] * ndim, [1] * ndim
        for axis, *bounds in zip(axes, starts, ends, steps):
            low[axis], high[axis], by[axis] = bounds
        r.add("Slice", node.input[:1], node.output, starts=low, ends=high, steps=by)
        return
    # An end of -1 excludes the last element in ONNX, and includes it in Caffe2.
    from_, to = [0] * ndim, [-1] * ndim
    for axis, start, end in zip(axes, starts, ends):
        from_[axis] = start if start >= 0 else start - 1
        to[axis] = -1 if end >= _TO_THE_END else end if end >= 0 else end - 1
    extents: Any = r.extents(node.input[0])
    if all(isinstance(extents[i], int) for i in axes):  # bounds may lie outside, and the end before the start
        for axis, start, end in zip(axes, starts, ends):
            first, last, _ = slice(start, end).indices(extents[axis])
            from_[axis], to[axis] = first, max(first, last)
    r.add("Slice", node.input[:1], node.output, starts=from_, ends=to)


def _slice_as_computed(r: Reader, node: Any, ndim: int, axes: list[int] | None, steps: list[int] | None) -> None:
    """Read a Slice with bounds that are computed, along the first axes; other axes are put there and back."""
    count = next((extents[0] for i in (1, 2) if isinstance((extents := r.extents(node.input[i]))[0], int)), None)
    if not isinstance(count, int):
        raise OperatorError("the number of bounds must be known")
    axes = [n % ndim for n in axes] if axes is not None else list(range(count))
    bounds = []
    for name in node.input[1:3]:
        kind = r.dtype(name)
        bounds.append(name if kind == np.int64 else r.add("Cast", [name], [r.between(name)], to=type_number(np.int64)))
    order = [*axes, *(i for i in range(ndim) if i not in axes)]
    moved = order != list(range(ndim))
    x = r.add("Transpose", node.input[:1], [r.between(node.output[0])], axes=order) if moved else node.input[0]
    y = r.between(node.output[0]) if moved else node.output[0]
    r.add("Slice", [x, *bounds], [y], steps=steps or [1] * count)
    if moved:
        r.add("Transpose", [y], node.output, axes=[order.index(i) for i in range(ndim)])


@reads("DepthToSpace", "SpaceToDepth")
def _depth(r: Reader, node: Any) -> None:
    """Blocks of pixels from channels, or channels from them: a reshape, a transposition, a reshape."""
    found, hint = r.attributes(node), node.output[0]
    block = int(found["blocksize"])
    channels, height, width = r.shape(node.input[0], 1)
    if node.op_type == "SpaceToDepth":
        parts = [0, channels, height // block, block, width // block, block]
        order = [0, 3, 5, 1, 2, 4] if found.get("mode", "DCR") == "DCR" else [0, 1, 3, 5, 2, 4]
        result = [0, channels * block * block, height // block, width // block]
    elif found.get("mode", "DCR") == "DCR":
        parts, order = [0, block, block, channels // block**2, height, width], [0, 3, 4, 1, 5, 2]
        result = [0, channels // block**2, height * block, width * block]
    else:
        parts, order = [0, channels // block**2, block, block, height, width], [0, 1, 4, 2, 5, 3]
        result = [0, channels // block**2, height * block, width * block]
    wide = r.add("Reshape", node.input, [r.between(hint), r.between(hint)], shape=parts)
    moved = r.add("Transpose", [wide], [r.between(hint)], axes=order)
    r.add("Reshape", [moved], [hint, r.between(hint)], shape=result)
