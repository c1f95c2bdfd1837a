"""How operators on parts of images are written in ONNX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from netbuilder.exchange.onnx.graph import Graph, rule
from netbuilder.exchange.onnx.rules_images import on_images, windows
from netbuilder.proto import OperatorError

__all__: list[str] = []


@rule("RoIAlign")
def _roi_align(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    """ONNX has the numbers of the images apart from the boxes; the half place of ``aligned`` came with opset 16."""
    if op.aligned and g.opset < 16:
        raise OperatorError(f"RoIAlign: aligned needs opset 16 or later, the model is written for {g.opset}")
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

    on_images(g, op, x[0], y[0], write)


@rule("MaxPoolWithIndex")
def _max_pool_with_index(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    """ONNX counts places through all images, in int64."""
    spec = g.spec(x[0])
    attributes = windows(op.geometry(spec))
    if not y[1]:
        g.add("MaxPool", [x[0]], [y[0]], **attributes)
        return
    places = g.fresh(f"{y[1]}/places")
    g.add("MaxPool", [x[0]], [y[0] or g.fresh(f"{y[1]}/greatest"), places], **attributes)
    plane = g.constant(f"{y[1]}/plane", int(np.prod(spec.shape[2:])), np.int64)
    g.add("Cast", [g.between("Mod", [places, plane], f"{y[1]}/in_plane")], [y[1]], to=6)  # int32


@rule("IntegralImage")
def _integral_image(g: Graph, op: Any, x: Sequence[str], y: Sequence[str]) -> None:
    pads = g.constant(f"{y[0]}/pads", [0, 0, 1, 1, 0, 0, 0, 0], np.int64)
    framed = g.between("Pad", [x[0], pads], f"{y[0]}/framed", mode="constant")
    down, right = (g.constant(f"{y[0]}/{name}", axis, np.int64) for name, axis in (("down", 2), ("right", 3)))
    g.add("CumSum", [g.between("CumSum", [framed, down], f"{y[0]}/columns"), right], [y[0]])
