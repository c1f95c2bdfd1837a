"""Export of operators on images. ONNX supports only channels first; otherwise the operator gets Transpose nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from netbuilder.exchange.onnx.graph import Graph, rule
from netbuilder.ops.core.operator import Operator
from netbuilder.proto import OperatorError

__all__: list[str] = []


def _first_order(ndim: int) -> list[int]:
    return [0, ndim - 1, *range(1, ndim - 1)]


def _last_order(ndim: int) -> list[int]:
    return [0, *range(2, ndim), 1]


def _on_images(g: Graph, op: Any, x: str, y: str, write: Callable[[str, str], None]) -> None:
    """Call ``write(x, y)`` with values whose channels are first."""
    if op.order == "NCHW":
        write(x, y)
        return
    ndim = g.spec(x).ndim
    first = g.between("Transpose", [x], f"{y}/x", perm=_first_order(ndim))
    made = g.fresh(f"{y}/channels_first")
    write(first, made)
    g.add("Transpose", [made], [y], perm=_last_order(len(g.spec(y).shape)))


def _windows(geometry: Any) -> dict[str, Any]:
    """Return the attributes of a window; negative padding, which skips the edge of the image, becomes 0."""
    return {
        "kernel_shape": list(geometry.kernel),
        "strides": list(geometry.strides),
        "pads": [*(max(0, pad) for pad in geometry.begin), *(max(0, pad) for pad in geometry.end)],
    }


def _weights(g: Graph, op: Any, w: str, y: str) -> str:
    """Return the weights with channels first."""
    if op.order == "NCHW":
        return w
    return g.between("Transpose", [w], f"{y}/w", perm=_first_order(g.spec(w).ndim))


@rule("Conv", "Conv1D", "Conv2D", "Conv3D", "ConvRelu")
def _conv(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    geometry = op.geometry(g.spec(x[0]), g.spec(x[1]))
    weights = _weights(g, op, x[1], y[0])

    def write(image: str, made: str) -> None:
        sums = g.fresh(f"{made}/sums") if op.type == "ConvRelu" else made
        g.add(
            "Conv", [image, weights, *x[2:3]], [sums],
            dilations=list(geometry.dilations), group=op.group, **_windows(geometry),
        )  # fmt: skip
        if sums != made:
            g.add("Relu", [sums], [made])

    _on_images(g, op, x[0], y[0], write)


@rule("DeformConv")
def _deform_conv(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    if g.opset < 19:
        raise OperatorError(f"DeformConv needs opset 19, got {g.opset}; give opset=19")
    if op.padding_mode != "zeros":
        raise OperatorError(
            "in ONNX, DeformConv interpolates samples between the outermost pixels and the border with zeros; "
            "give padding_mode='zeros'"
        )
    geometry, _ = op.geometry(*map(g.spec, x[:3]))
    bias, mask = op.bias_and_mask(x[3:])
    more = [bias or "", mask] if mask else [bias] if bias else []
    g.add(
        "DeformConv", [x[0], x[2], x[1], *more], [y[0]], dilations=list(geometry.dilations), group=op.group,
        offset_group=op.deformable_group, **_windows(geometry),
    )  # fmt: skip


@rule("ConvTranspose")
def _conv_transpose(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    geometry = op.geometry(g.spec(x[0]), g.spec(x[1]))
    weights = _weights(g, op, x[1], y[0])
    out = g.spec(y[0]).shape
    extents = out[2:] if op.order == "NCHW" else out[1:-1]
    shape = g.spec(x[0]).shape
    read = shape[2:] if op.order == "NCHW" else shape[1:-1]
    more = [
        want - (stride * (n - 1) + reach - before - after)
        for want, stride, n, reach, before, after in zip(
            extents, geometry.strides, read, geometry.reach, geometry.begin, geometry.end
        )
    ]

    def write(image: str, made: str) -> None:
        g.add(
            "ConvTranspose", [image, weights, *x[2:3]], [made],
            dilations=list(geometry.dilations), group=op.group, output_padding=more, **_windows(geometry),
        )  # fmt: skip

    _on_images(g, op, x[0], y[0], write)


@rule(*(f"{kind}{axes}" for kind in ("MaxPool", "AveragePool") for axes in ("", "1D", "2D", "3D")))
def _pool(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    geometry = op.geometry(g.spec(x[0]))
    kind = "MaxPool" if op.type.startswith("MaxPool") else "AveragePool"

    def write(image: str, made: str) -> None:
        if op.global_pooling:
            g.add(f"Global{kind}", [image], [made])
            return
        attributes = _windows(geometry)
        if kind == "AveragePool":
            attributes["count_include_pad"] = 1 if op.count_include_pad else 0
        g.add(kind, [image], [made], **attributes)

    _on_images(g, op, x[0], y[0], write)


@rule("SpatialBN")
def _spatial_bn(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    if not op.is_test:
        raise OperatorError("SpatialBN is in training mode; extract a net that was built with is_test=1")

    def write(image: str, made: str) -> None:
        g.add("BatchNormalization", [image, *x[1:5]], [made], epsilon=op.epsilon)

    _on_images(g, op, x[0], y[0], write)


@rule("LRN")
def _lrn(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    if len(y) > 1 and y[1]:
        raise OperatorError("LRN's second output, the scale, is used, but ONNX has only the first")

    def write(image: str, made: str) -> None:
        g.add("LRN", [image], [made], size=op.size, alpha=op.alpha, beta=op.beta, bias=op.bias)

    _on_images(g, op, x[0], y[0], write)


@rule("InstanceNorm")
def _instance_norm(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    _only_first(op, y)

    def write(image: str, made: str) -> None:
        g.add("InstanceNormalization", [image, *x[1:3]], [made], epsilon=op.epsilon)

    _on_images(g, op, x[0], y[0], write)


@rule("GroupNorm")
def _group_norm(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    """Written as InstanceNormalization with a channel per group, since GroupNormalization needs opset 18."""
    _only_first(op, y)
    shape = g.spec(y[0]).shape
    extents = shape[2:] if op.order == "NCHW" else shape[1:-1]
    channels = shape[1] if op.order == "NCHW" else shape[-1]

    def write(image: str, made: str) -> None:
        cut = g.constant(f"{made}/groups", [0, op.group, -1], np.int64)
        parts = g.between("Reshape", [image, cut], f"{made}/cut")
        ones, zeros = (
            g.constant(f"{made}/{name}", [v] * op.group, np.float32) for name, v in (("ones", 1), ("zeros", 0))
        )
        normal = g.between("InstanceNormalization", [parts, ones, zeros], f"{made}/normal", epsilon=op.epsilon)
        whole = g.constant(f"{made}/shape", [0, channels, *extents], np.int64)
        images = g.between("Reshape", [normal, whole], f"{made}/images")
        scaled = g.between("Mul", [images, _along_channels(g, x[1], len(extents), made)], f"{made}/scaled")
        g.add("Add", [scaled, _along_channels(g, x[2], len(extents), made)], [made])

    _on_images(g, op, x[0], y[0], write)


@rule("AffineChannel")
def _affine_channel(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    trailing = g.spec(x[0]).ndim - 2 if op.order == "NCHW" else 0
    scale, bias = (_along_channels(g, name, trailing, y[0]) for name in x[1:3])
    g.add("Add", [g.between("Mul", [x[0], scale], f"{y[0]}/scaled"), bias], [y[0]])


def _along_channels(g: Graph, numbers: str, trailing: int, y: str) -> str:
    """Return a value with one element per channel, reshaped to have this number of axes after the channels."""
    if not trailing:
        return numbers
    shape = g.constant(f"{y}/per_channel", [-1, *[1] * trailing], np.int64)
    return g.between("Reshape", [numbers, shape], f"{y}/{numbers}")


@rule("PRelu")
def _prelu(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    slope = g.spec(x[1])
    ones = g.spec(x[0]).ndim - 2 if op.order == "NCHW" and slope.size > 1 else 0
    g.add("PRelu", [x[0], _along_channels(g, x[1], ones, y[0])], [y[0]])


@rule("UpsampleNearest")
def _upsample(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    scales = g.constant(f"{y[0]}/scales", [1, 1, op.scale, op.scale], np.float32)
    g.add("Resize", [x[0], "", scales], [y[0]], mode="nearest", coordinate_transformation_mode="asymmetric",
          nearest_mode="floor")  # fmt: skip


@rule("ResizeNearest", "ResizeNearest3D", "UpsampleBilinear")
def _resize(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    if len(x) > 1:
        raise OperatorError(f"{op.type}: scales must not be an input; give width_scale and height_scale")
    scales = g.constant(f"{y[0]}/scales", [1, 1, *op.scales], np.float32)
    mode = (
        {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        if op.type != "UpsampleBilinear"
        else {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
    )

    def write(image: str, made: str) -> None:
        g.add("Resize", [image, "", scales], [made], **mode)

    if op.layout == "NCHW":
        write(x[0], y[0])
    else:
        _on_images(g, op, x[0], y[0], write)


@rule("PadImage")
def _pad(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    (top, bottom), (left, right) = op.borders
    pads = g.constant(f"{y[0]}/pads", [0, 0, top, left, 0, 0, bottom, right], np.int64)
    value = g.constant(f"{y[0]}/value", op.value, np.float32)

    def write(image: str, made: str) -> None:
        inputs = [image, pads, value] if op.mode == "constant" else [image, pads]
        g.add("Pad", inputs, [made], mode=op.mode)

    _on_images(g, op, x[0], y[0], write)


@rule("ChannelShuffle")
def _shuffle(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    shape = g.spec(x[0]).shape
    channels = shape[1] if op.order == "NCHW" else shape[-1]
    extents = list(shape[2:] if op.order == "NCHW" else shape[1:-1])
    per_group = channels // op.group

    def write(image: str, made: str) -> None:
        cut = g.constant(f"{made}/groups", [0, op.group, per_group, *extents], np.int64)
        parts = g.between("Reshape", [image, cut], f"{made}/cut")
        order = [0, 2, 1, *range(3, 3 + len(extents))]
        shuffled = g.between("Transpose", [parts], f"{made}/shuffled", perm=order)
        whole = g.constant(f"{made}/channels", [0, channels, *extents], np.int64)
        g.add("Reshape", [shuffled, whole], [made])

    _on_images(g, op, x[0], y[0], write)


@rule("RoIAlign")
def _roi_align(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    """In ONNX the index of the image is a separate input; ``aligned`` needs opset 16."""
    if op.aligned and g.opset < 16:
        raise OperatorError(f"RoIAlign: aligned needs opset 16 or later, got {g.opset}")
    columns = g.spec(x[1]).shape[1]
    taken = g.constant(f"{y[0]}/columns", range(columns - 4, columns), np.int64)
    boxes = g.between("Gather", [x[1], taken], f"{y[0]}/boxes", axis=1)
    numbers = g.between("Gather", [x[1], g.constant(f"{y[0]}/first", 0, np.int64)], f"{y[0]}/numbers", axis=1)
    if columns == 4:
        numbers = g.between("Sub", [numbers, numbers], f"{y[0]}/zeros")
    images = g.between("Cast", [numbers], f"{y[0]}/images", to=7)  # int64
    places = "half_pixel" if op.aligned else "output_half_pixel"

    def write(image: str, made: str) -> None:
        g.add(
            "RoiAlign", [image, boxes, images], [made],
            output_height=op.pooled_h, output_width=op.pooled_w, sampling_ratio=max(0, op.sampling_ratio),
            spatial_scale=op.spatial_scale, coordinate_transformation_mode=places if g.opset >= 16 else None,
        )  # fmt: skip

    _on_images(g, op, x[0], y[0], write)


@rule("GridSample")
def _grid_sample(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    if g.opset < 16 or g.opset < 20 and g.spec(x[0]).ndim > 4:
        raise OperatorError(f"GridSample needs opset 16, in volumes 20, got {g.opset}; give opset=20")
    names = {"linear": "bilinear", "cubic": "bicubic"} if g.opset < 20 else {}
    g.add("GridSample", x, [y[0]], mode=names.get(op.mode, op.mode), padding_mode=op.padding_mode,
          align_corners=int(op.align_corners))  # fmt: skip


@rule("RoIPool", "RoIPoolF")
def _roi_pool(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    _only_first(op, y)
    boxes = g.between("Cast", [x[1]], f"{y[0]}/boxes", to=1) if g.spec(x[1]).dtype.kind != "f" else x[1]
    g.add("MaxRoiPool", [x[0], boxes], [y[0]], pooled_shape=[op.pooled_h, op.pooled_w], spatial_scale=op.spatial_scale)


@rule("MaxPoolWithIndex")
def _max_pool_with_index(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    """ONNX counts indices through all images, in int64; Caffe2 within the plane, in int32."""
    spec = g.spec(x[0])
    attributes = _windows(op.geometry(spec))
    if not y[1]:
        g.add("MaxPool", [x[0]], [y[0]], **attributes)
        return
    places = g.fresh(f"{y[1]}/places")
    g.add("MaxPool", [x[0]], [y[0] or g.fresh(f"{y[1]}/greatest"), places], **attributes)
    plane = g.constant(f"{y[1]}/plane", int(np.prod(spec.shape[2:])), np.int64)
    g.add("Cast", [g.between("Mod", [places, plane], f"{y[1]}/in_plane")], [y[1]], to=6)  # int32


@rule("SpaceToBatch", "BatchToSpace")
def _blocks(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    block, hint = op.block_size, y[0]
    _, channels, height, width = g.spec(x[0]).shape
    (top, bottom), (left, right) = op.borders

    def shaped(value: str, shape: Sequence[int], name: str) -> str:
        return g.between("Reshape", [value, g.constant(f"{hint}/shape", shape, np.int64)], f"{hint}/{name}")

    if op.type == "SpaceToBatch":
        pads = g.constant(f"{hint}/pads", [0, 0, top, left, 0, 0, bottom, right], np.int64)
        framed = g.between("Pad", [x[0], pads], f"{hint}/framed", mode="constant")
        height, width = (height + top + bottom) // block, (width + left + right) // block
        cut = shaped(framed, [-1, channels, height, block, width, block], "cut")
        moved = g.between("Transpose", [cut], f"{hint}/moved", perm=[3, 5, 0, 1, 2, 4])
        g.add("Reshape", [moved, g.constant(f"{hint}/shape", [-1, channels, height, width], np.int64)], [hint])
        return
    cut = shaped(x[0], [block, block, -1, channels, height, width], "cut")
    moved = g.between("Transpose", [cut], f"{hint}/moved", perm=[2, 3, 4, 0, 5, 1])
    whole = shaped(moved, [-1, channels, height * block, width * block], "whole")
    ends = [[top, left], [height * block - bottom, width * block - right], [2, 3]]
    g.add("Slice", [whole, *(g.constant(f"{hint}/bounds", n, np.int64) for n in ends)], [hint])


@rule("LpPool")
def _lp_pool(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    if op.p != int(op.p):
        raise OperatorError(f"LpPool: p must be an integer in ONNX, got {op.p}")

    def write(image: str, made: str) -> None:
        if op.global_pooling:
            g.add("GlobalLpPool", [image], [made], p=int(op.p))
        else:
            g.add("LpPool", [image], [made], p=int(op.p), **_windows(op.geometry(g.spec(x[0]))))

    _on_images(g, op, x[0], y[0], write)


@rule("SpatialNarrowAs")
def _narrow_as(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    ends = [[0, 0], g.spec(x[1]).shape[2:], [2, 3]]
    g.add("Slice", [x[0], *(g.constant(f"{y[0]}/bounds", n, np.int64) for n in ends)], [y[0]])


@rule("NormalizePlanarYUV")
def _normalize_planar(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    first, numbers = g.constant(f"{y[0]}/first", 0, np.int64), []
    for name in x[1:]:
        row = g.between("Gather", [name, first], f"{y[0]}/row", axis=0)
        numbers.append(_along_channels(g, row, 2, y[0]))
    g.add("Div", [g.between("Sub", [x[0], numbers[0]], f"{y[0]}/centered"), numbers[1]], [y[0]])


@rule("GroupSpatialSoftmax")
def _group_softmax(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    _, channels, height, width = g.spec(x[0]).shape
    anchors = channels // op.num_classes
    shapes = [[-1, anchors, op.num_classes, height, width], [-1, channels, height, width]]
    cut, whole = (g.constant(f"{y[0]}/shape", shape, np.int64) for shape in shapes)
    made = g.between("Softmax", [g.between("Reshape", [x[0], cut], f"{y[0]}/anchors")], f"{y[0]}/softmax", axis=2)
    g.add("Reshape", [made, whole], [y[0]])


@rule("IntegralImage")
def _integral_image(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    pads = g.constant(f"{y[0]}/pads", [0, 0, 1, 1, 0, 0, 0, 0], np.int64)
    framed = g.between("Pad", [x[0], pads], f"{y[0]}/framed", mode="constant")
    down, right = (g.constant(f"{y[0]}/{name}", axis, np.int64) for name, axis in (("down", 2), ("right", 3)))
    g.add("CumSum", [g.between("CumSum", [framed, down], f"{y[0]}/columns"), right], [y[0]])


def _only_first(op: Operator, y: Sequence[str]) -> None:
    if any(y[1:]):
        raise OperatorError(f"{op.type}: outputs after the first are used, but ONNX has only the first")
