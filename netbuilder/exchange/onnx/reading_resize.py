"""Import of ONNX's Resize and Upsample: products with interpolation matrices, or repeated pixels."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.exchange.onnx.reading import Reader, reads
from netbuilder.ops.control.onnx_node import reference_node
from netbuilder.proto import OperatorError

__all__: list[str] = []


@reads("Upsample", "Resize")
def _resize(r: Reader, node: Any) -> None:
    """Resize height and width of images; repeated pixels also if the model leaves these dynamic."""
    found = r.attributes(node)
    scales = _scales(r, node, found)
    if len(scales) != 4 or scales[:2] != [1.0, 1.0]:
        raise OperatorError(f"only height and width of images (N, C, H, W) can be resized, got scales {scales}")
    old = node.op_type == "Upsample" or r.opset < 11
    places = found.get("coordinate_transformation_mode", "asymmetric" if old else "half_pixel")
    nearest = found.get("mode", "nearest") == "nearest"
    whole = all(float(n).is_integer() for n in scales)
    rounding = found.get("nearest_mode", "floor" if old else "round_prefer_floor")
    if nearest and whole and (places == "half_pixel" or (places == "asymmetric" and rounding == "floor")):
        r.add("ResizeNearest", node.input[:1], node.output, height_scale=scales[2], width_scale=scales[3], order="NCHW")
        return
    across = _matrix(r, node, found, scales, 3)
    down = _matrix(r, node, found, scales, 2)
    wide = r.add("BatchMatMul", [node.input[0], across], [r.between(node.output[0])], trans_b=1, broadcast=1)
    r.add("BatchMatMul", [down, wide], node.output, broadcast=1)


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
