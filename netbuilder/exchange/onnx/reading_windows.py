"""Import of ONNX's convolutions and pools: kernels, and padding that may depend on the extents of images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from netbuilder.exchange.onnx.reading import Reader, reads
from netbuilder.exchange.onnx.reading_choices import type_number
from netbuilder.ops.core.conv_geometry import CAFFE_LEGACY_POOLING, SAME
from netbuilder.proto import OperatorError

__all__: list[str] = []


@reads("Conv", "ConvTranspose")
def _conv(r: Reader, node: Any) -> None:
    found = r.attributes(node)
    kernel = found.get("kernel_shape") or r.shape(node.input[1], 2)
    dilations = found.get("dilations", [1] * len(kernel))
    reach = [d * (k - 1) + 1 for d, k in zip(dilations, kernel)]
    arguments = {
        "kernels": list(kernel), "strides": found.get("strides", [1] * len(kernel)), "group": found.get("group", 1),
        "dilations": list(dilations) if set(dilations) != {1} else None,
    }  # fmt: skip
    if node.op_type == "Conv":
        arguments |= _pads(r, node, found, reach)
    else:
        if any(d != 1 for d in dilations):
            raise OperatorError("transposed convolution with dilations is not supported")
        arguments["pads"], arguments["adjs"] = _transposed_pads(r, node, found, kernel)
    r.add(node.op_type, [name for name in node.input if name], node.output, **arguments)


@reads("DeformConv")
def _deform_conv(r: Reader, node: Any) -> None:
    found = r.attributes(node)
    x, filters, offset, bias, mask = [*node.input, "", ""][:5]
    kernel = found.get("kernel_shape") or r.shape(filters, 2)
    ones = [1] * len(kernel)
    more = {"no_bias": 1} if not bias else {}
    r.add("DeformConv", [name for name in (x, offset, filters, bias, mask) if name], node.output,
          kernels=list(kernel), strides=found.get("strides", ones), dilations=list(found.get("dilations", ones)),
          pads=list(found.get("pads", [0] * 2 * len(kernel))), group=found.get("group", 1), padding_mode="zeros",
          deformable_group=found.get("offset_group", 1), masked=int(bool(mask)), **more)  # fmt: skip


def _pads(r: Reader, node: Any, found: dict[str, Any], reach: Sequence[int]) -> dict[str, Any]:
    """Return the arguments for the padding: ``pads``, or ``legacy_pad`` if they depend on dynamic extents."""
    auto = found.get("auto_pad", "NOTSET")
    count = len(reach)
    if auto in ("NOTSET", ""):
        return {"pads": list(found.get("pads", [0] * 2 * count))}
    if auto == "VALID":
        return {"pads": [0] * 2 * count}
    strides = found.get("strides", [1] * count)
    if all(s == 1 for s in strides):
        total = [k - 1 for k in reach]  # for any extent
    elif auto == "SAME_UPPER" and None in _known(r, node, count) and all(k >= s for k, s in zip(reach, strides)):
        return {"legacy_pad": SAME}
    else:
        extents = r.shape(node.input[0], 2)
        total = [max(0, (math.ceil(n / s) - 1) * s + k - n) for n, s, k in zip(extents, strides, reach)]
    less, more = [n // 2 for n in total], [n - n // 2 for n in total]
    return {"pads": [*less, *more] if auto == "SAME_UPPER" else [*more, *less]}


@reads("RoiAlign")
def _roi_align(r: Reader, node: Any) -> None:
    found, hint = r.attributes(node), node.output[0]
    if found.get("mode", "avg") != "avg":
        raise OperatorError(f"the mode {found['mode']} is not supported")
    x, boxes, images = node.input
    dtype = r.dtype(boxes)
    if dtype is None:
        raise OperatorError(f"the type of {boxes!r} is not known")
    column = r.add("Cast", [images], [r.between(hint)], to=type_number(dtype))
    column = r.add("ExpandDims", [column], [r.between(hint)], dims=[1])
    rois = r.add("Concat", [column, boxes], [r.between(hint), r.between(hint)], axis=1)
    places = found.get("coordinate_transformation_mode", "half_pixel" if r.opset >= 16 else "output_half_pixel")
    r.add("RoIAlign", [x, rois], node.output, pooled_h=found.get("output_height", 1),
          pooled_w=found.get("output_width", 1), sampling_ratio=found.get("sampling_ratio", 0),
          spatial_scale=found.get("spatial_scale", 1.0), aligned=int(places == "half_pixel"))  # fmt: skip


@reads("GridSample")
def _grid_sample(r: Reader, node: Any) -> None:
    found, (x, grid) = r.attributes(node), node.input
    dtype, mode = r.dtype(x), found.get("mode", "linear")
    if dtype is not None and r.dtype(grid) != dtype:
        grid = r.add("Cast", [grid], [r.between(node.output[0])], to=type_number(dtype))
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    r.add("GridSample", [x, grid], node.output, mode=mode, padding_mode=found.get("padding_mode", "zeros"),
          align_corners=found.get("align_corners", 0))  # fmt: skip


@reads("NonMaxSuppression")
def _non_max_suppression(r: Reader, node: Any) -> None:
    hint, defaults = node.output[0], (np.int64(0), np.float32(0), np.float32(-np.inf))
    given = [*node.input[2:], "", "", ""][:3]
    limits = [name or r.constant(hint, np.array(value)) for name, value in zip(given, defaults)]
    r.add("NonMaxSuppression", [*node.input[:2], *limits], node.output,
          center_point_box=r.attributes(node).get("center_point_box", 0))  # fmt: skip


@reads("MaxRoiPool")
def _max_roi_pool(r: Reader, node: Any) -> None:
    found = r.attributes(node)
    height, width = found["pooled_shape"]
    r.add("RoIPool", node.input, node.output, pooled_h=height, pooled_w=width, is_test=1,
          spatial_scale=found.get("spatial_scale", 1.0))  # fmt: skip


@reads("LpPool", "GlobalLpPool")
def _lp_pool(r: Reader, node: Any) -> None:
    found = r.attributes(node)
    power = float(found.get("p", 2))
    if node.op_type == "GlobalLpPool":
        r.add("LpPool", node.input, node.output, global_pooling=1, p=power)
        return
    kernel = list(found["kernel_shape"])
    if any(n != 1 for n in found.get("dilations", ())) or found.get("ceil_mode", 0):
        raise OperatorError("LpPool with dilations or ceil_mode is not supported")
    strides = list(found.get("strides", [1] * len(kernel)))
    r.add("LpPool", node.input, node.output, kernels=kernel, strides=strides, p=power, **_pads(r, node, found, kernel))


def _known(r: Reader, node: Any, count: int) -> list[int | None]:
    """Return the extents of a node's images along their ``count`` axes, None where they are dynamic."""
    extents = r.extents(node.input[0])[2:]
    if len(extents) != count:
        raise OperatorError(f"X must have {count} image axes, as its window does, got {len(extents)}")
    return [n if isinstance(n, int) else None for n in extents]


def _transposed_pads(
    r: Reader, node: Any, found: dict[str, Any], kernel: Sequence[int]
) -> tuple[list[int], list[int] | None]:
    """Return the pads of a transposed convolution, and its output padding (None if 0).

    Source: the formulas of ONNX's operator ConvTranspose for ``output_shape`` and ``auto_pad``.
    """
    count = len(kernel)
    strides, more = found.get("strides", [1] * count), list(found.get("output_padding", [0] * count))
    auto, wanted = found.get("auto_pad", "NOTSET"), found.get("output_shape")
    if wanted is not None:
        extents = r.shape(node.input[0], 2)
        totals = [s * (n - 1) + m + k - out for n, s, m, k, out in zip(extents, strides, more, kernel, wanted[-count:])]
    elif auto in ("SAME_UPPER", "SAME_LOWER"):
        totals = [m + k - s for s, m, k in zip(strides, more, kernel)]  # the output has stride times the extent
    else:
        pads = [0] * 2 * count if auto == "VALID" else list(found.get("pads", [0] * 2 * count))
        return pads, more if any(more) else None
    pads = [0] * 2 * count
    for i, total in enumerate(totals):
        if total < 0:  # larger than without padding: the rest becomes output padding
            more[i] -= total
            total = 0
        half = total // 2
        pads[i], pads[count + i] = (half, total - half) if auto == "SAME_UPPER" else (total - half, half)
    return pads, more if any(more) else None


@reads("MaxPool", "AveragePool")
def _pool(r: Reader, node: Any) -> None:
    found = r.attributes(node)
    if any(d != 1 for d in found.get("dilations", ())):
        raise OperatorError("pooling with dilations is not supported")
    kernel = list(found["kernel_shape"])
    strides = list(found.get("strides", [1] * len(kernel)))
    padding = _pads(r, node, found, kernel)
    count = found.get("count_include_pad", 0) if node.op_type == "AveragePool" else 0
    if found.get("ceil_mode", 0) and padding.get("legacy_pad") != SAME:
        padding = _ceil_padding(r, node, kernel, strides, padding["pads"], count)
    if len(node.output) > 1 and node.output[1]:
        _places(r, node, {"kernels": kernel, "strides": strides, **padding})
        return
    r.add(node.op_type, node.input, node.output[:1], kernels=kernel, strides=strides, **padding,
          count_include_pad=1 if count else None)  # fmt: skip


def _places(r: Reader, node: Any, arguments: dict[str, Any]) -> None:
    """Read a MaxPool with the places of the maxima, which ONNX counts through all image planes."""
    if r.attributes(node).get("storage_order", 0):
        raise OperatorError("storage_order is not supported")
    hint, (channels, *extents) = node.output[1], r.shape(node.input[0], 1)
    if len(extents) != 2:
        raise OperatorError(f"indices are supported for images with two axes, got {len(extents)}")
    y = node.output[0] or r.between(hint)
    r.add("MaxPoolWithIndex", node.input, [y, r.between(hint)], **arguments)
    places = r.add("Cast", [r.net.op[-1].output[1]], [r.between(hint)], to=type_number(np.int64))
    samples = r.add("Shape", node.input, [r.between(hint)], axes=[0])
    planes = r.add("Mul", [samples, r.constant(hint, np.array([channels], np.int64))], [r.between(hint)])
    numbers = r.add("Range", [planes], [r.between(hint)])
    starts = r.add("Mul", [numbers, r.constant(hint, np.array([math.prod(extents)], np.int64))], [r.between(hint)])
    starts = r.add("Reshape", [starts], [r.between(hint), r.between(hint)], shape=[-1, channels, 1, 1])
    r.add("Add", [places, starts], [hint])


def _ceil_padding(
    r: Reader, node: Any, kernel: Sequence[int], strides: Sequence[int], pads: list[int], count: int
) -> dict[str, Any]:
    """Return the arguments for the padding where the number of windows is rounded up."""
    if None in _known(r, node, len(kernel)) and not count and all(s <= k for s, k in zip(strides, kernel)):
        return {"pads": pads, "legacy_pad": CAFFE_LEGACY_POOLING}
    longer = _rounded_up(r.shape(node.input[0], 2), kernel, strides, pads)
    if count and longer != pads:
        raise OperatorError(
            "ceil_mode with count_include_pad is not supported if the last window extends beyond the padding"
        )
    return {"pads": longer}


def _rounded_up(extents: Sequence[int], kernel: Sequence[int], strides: Sequence[int], pads: list[int]) -> list[int]:
    """Return pads for which rounding down the number of windows gives the same as rounding up with ``pads``."""
    n = len(kernel)
    at_end = []
    for extent, k, s, before, after in zip(extents, kernel, strides, pads[:n], pads[n:]):
        windows = math.ceil((extent + before + after - k) / s) + 1
        if (windows - 1) * s >= extent + before:
            windows -= 1  # the last window would begin beyond the image
        at_end.append(max(after, (windows - 1) * s + k - extent - before))
    return [*pads[:n], *at_end]
