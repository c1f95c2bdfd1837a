"""Import of ONNX's Resize and Upsample: products with interpolation matrices, or repeated pixels."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.exchange.onnx.expansion import Nodes
from netbuilder.exchange.onnx.reading import Reader, reads
from netbuilder.exchange.onnx.values import UnknownExtentError
from netbuilder.ops.control.onnx_node import reference_node
from netbuilder.proto import OperatorError

__all__: list[str] = []

_POSITIONS = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")


@reads("Upsample", "Resize")
def _resize(r: Reader, node: Any) -> None:
    """Resize height and width of images; repeated pixels also if the model leaves these dynamic."""
    found = r.attributes(node)
    if any(name and name not in r.constants for name in node.input[2:4]) and r.opset >= 11:
        _as_samples(r, node, found)
        return
    scales = _scales(r, node, found)
    if len(scales) == 5 and _repeats(r, node, found, scales):
        r.add("ResizeNearest3D", node.input[:1], node.output, temporal_scale=scales[2], height_scale=scales[3],
              width_scale=scales[4], order="NCHW")  # fmt: skip
        return
    if len(scales) != 4 or scales[:2] != [1.0, 1.0]:
        raise OperatorError(f"only height and width of images (N, C, H, W) can be resized, got scales {scales}")
    if _repeats(r, node, found, scales):
        r.add("ResizeNearest", node.input[:1], node.output, height_scale=scales[2], width_scale=scales[3], order="NCHW")
        return
    before = len(r.net.op)
    try:
        across, down = (_matrix(r, node, found, scales, axis) for axis in (3, 2))
    except UnknownExtentError:
        try:
            _as_samples(r, node, found)
        except OperatorError:  # which says less
            del r.net.op[before:]
        else:
            return
        raise
    wide = r.add("BatchMatMul", [node.input[0], across], [r.between(node.output[0])], trans_b=1, broadcast=1)
    r.add("BatchMatMul", [down, wide], node.output, broadcast=1)


def _repeats(r: Reader, node: Any, found: dict[str, Any], scales: list[float]) -> bool:
    """Whether a Resize repeats each pixel."""
    old = node.op_type == "Upsample" or r.opset < 11
    places = found.get("coordinate_transformation_mode", "asymmetric" if old else "half_pixel")
    rounding = found.get("nearest_mode", "floor" if old else "round_prefer_floor")
    if found.get("mode", "nearest") != "nearest" or not all(float(n).is_integer() for n in scales):
        return False
    return scales[:2] == [1.0, 1.0] and (places == "half_pixel" or places == "asymmetric" and rounding == "floor")


def _as_samples(r: Reader, node: Any, found: dict[str, Any]) -> None:
    """Read a Resize of images to computed extents as samples at a grid of positions."""
    mode, places = found.get("mode", "nearest"), found.get("coordinate_transformation_mode", "half_pixel")
    if mode not in ("linear", "cubic") or places not in _POSITIONS or r.opset < 11:
        raise OperatorError(f"a computed extent with mode {mode} and {places} is not supported")
    if node.input[2] and places in ("align_corners", "pytorch_half_pixel"):
        raise OperatorError(f"computed scales with {places} are not supported; sizes are")
    if found.get("axes") or found.get("exclude_outside") or found.get("antialias") or r.rank(node.input[0]) != 4:
        raise OperatorError("a computed extent is supported for images (N, C, H, W), without axes and antialias")
    if found.get("cubic_coeff_a", -0.75) != -0.75 or found.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise OperatorError("a computed extent with cubic_coeff_a or keep_aspect_ratio_policy is not supported")
    n, x = Nodes(r.library, node), node.input[0]
    extents = n("Shape", x)
    zero, one, two, half = (n.constant(np.float32(value)) for value in (0, 1, 2, 0.5))
    positions, sizes = [], []
    for axis in (2, 3):
        index = n.integers([axis])
        old = n.cast(n("Gather", extents, index), np.float32)
        if node.input[2]:
            scale = n("Gather", node.input[2], index)
            size = n.cast(n("Floor", n("Mul", old, scale)), np.int64)
        else:
            size = n("Gather", node.input[3], index)
            scale = n("Div", n.cast(size, np.float32), old)
        ends = [n.integers(0), n("Squeeze", size), n.integers(1)]
        at = n.cast(n("Range", *ends), np.float32)
        new = n.cast(size, np.float32)
        centers = n("Sub", n("Div", n("Add", at, half), scale), half)
        if places == "asymmetric":
            centers = n("Div", at, scale)
        elif places == "align_corners":
            steps = n("Max", n("Sub", new, one), one)
            centers = n("Div", n("Mul", at, n("Sub", old, one)), steps)
        elif places == "pytorch_half_pixel":
            centers = n("Where", n("Greater", new, one), centers, zero)
        positions.append(n("Sub", n("Div", n("Add", n("Mul", centers, two), one), old), one))
        sizes.append(size)
    last = n.integers([1])
    plane = n("Concat", n("Gather", extents, n.integers([0])), *sizes, last, axis=0)
    shapes = (n.integers(shape) for shape in ([1, 1, -1, 1], [1, -1, 1, 1]))
    across, down = (n("Expand", n("Reshape", at, shape), plane) for at, shape in zip(positions[::-1], shapes))
    grid = n("Concat", across, down, axis=3)
    n("GridSample", x, grid, mode=mode, padding_mode="border", to=node.output[0])
    r.read_nodes(n.made, node)


def _scales(r: Reader, node: Any, found: dict[str, Any]) -> list[float]:
    """Return the scale of each axis, 1 for axes that the node does not name."""
    at = 1 if node.op_type == "Upsample" or r.opset < 11 else 2
    ndim = r.rank(node.input[0])
    if found.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise OperatorError("only keep_aspect_ratio_policy 'stretch' is supported")
    axes = [int(n) % ndim for n in found.get("axes", range(ndim))]
    given = found.get("scales")
    if given is None and len(node.input) > at and node.input[at]:
        given = r.elements(node.input[at], "scales").tolist()
    if not given:
        if len(node.input) < 4 or not node.input[3]:
            raise OperatorError("scales or sizes must be given")
        sizes = r.elements(node.input[3], "sizes").tolist()
        given = [size / r.extent(node.input[0], axis) for axis, size in zip(axes, sizes)]
    scales = [1.0] * ndim
    for axis, scale in zip(axes, given):
        scales[axis] = float(scale)
    return scales


def _matrix(r: Reader, node: Any, found: dict[str, Any], scales: list[float], axis: int) -> str:
    """Return the parameter (new extent, extent) that interpolates an axis: ONNX's result for the identity matrix."""
    extent = r.extent(node.input[0], axis)
    sized = len(node.input) > 3 and bool(node.input[3])
    kept = {name: value for name, value in found.items() if name not in ("axes", "scales")}
    values = {"X": np.eye(extent, dtype=np.float32)}
    if sized:
        sizes = dict(zip(found.get("axes", range(4)), r.elements(node.input[3], "sizes").tolist()))
        values["sizes"] = np.array([extent, sizes.get(axis, sizes.get(axis - 4, extent))], np.int64)
    else:
        values["scales"] = np.array([1, scales[axis]], np.float32)
    if found.get("coordinate_transformation_mode") == "tf_crop_and_resize":
        raise OperatorError("tf_crop_and_resize is not supported")
    single = r.library.helper.make_node(
        "Resize", ["X", "", "" if sized else "scales", "sizes" if sized else ""], ["Y"], **kept
    )
    opset = max(r.opset, 13)
    evaluator = reference_node(single.SerializeToString(), tuple(values), (f":{opset}",))
    rows = evaluator.run(None, values)[0]
    return r.constant(node.output[0], np.ascontiguousarray(rows.T, dtype=r.dtype(node.input[0]) or np.float32))
