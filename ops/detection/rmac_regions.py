"""RMACRegions: fixed grids of square regions at several scales."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["RMACRegions"]

_MAX_STEPS = 6


@register
@dataclass(frozen=True)
class RMACRegions(Operator):
    """Regions of the images X, rows (image, x1, y1, x2, y2) as RoIPool takes them. No gradient.

    At scale l = 1 ... ``scales``, squares with sides of 2 min(H, W) / (l + 1) are arranged in l rows and columns, and
    in more along the longer axis, so that neighbors at the first scale overlap by about ``overlap``.

    Source: Tolias, Sicre and Jegou, "Particular object retrieval with integral max-pooling of CNN activations", 2016,
    arXiv:1511.05879, section 3.
    """

    signature = """
        X (N, C, H, W): any, only its shape is used
        -> RMAC_REGIONS (R, 5): float32
    """
    flops_per_element = 0
    scales: int = 3
    overlap: float = 0.4

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "any"  # only the shape is used

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        require(x.ndim == 4, self, f"X must be (N, C, H, W), got shape {x.shape}")
        count = len(_squares(self, *x.shape[2:])) * x.shape[0] if x.size else 0
        return (TensorSpec((count, 5), np.dtype(np.float32)),)


def _more_steps(shorter: int, longer: int, overlap: float) -> int:
    """Return the number of additional regions along the longer axis, with the overlap nearest to the requested one."""
    if shorter == longer:
        return 0
    steps = np.arange(1, _MAX_STEPS + 1)
    overlaps = 1 - ((longer - shorter) / steps) / shorter
    return int(steps[abs(overlaps - overlap).argmin()])


def _squares(op: RMACRegions, height: int, width: int) -> list[tuple[int, int, int, int]]:
    """Return (x1, y1, x2, y2) of the regions of an image."""
    shorter = min(height, width)
    more = _more_steps(shorter, max(height, width), op.overlap)
    found = []
    for scale in range(1, op.scales + 1):
        side = 2 * shorter // (scale + 1)
        if side == 0:
            break
        columns = _starts(width, side, scale + (more if width > height else 0))
        rows = _starts(height, side, scale + (more if height > width else 0))
        found += [(x, y, x + side - 1, y + side - 1) for x in columns for y in rows]
    return found


def _starts(extent: int, side: int, count: int) -> list[int]:
    gap = np.float32((extent - side) / (count - 1)) if count > 1 else np.float32(0)
    return [min(int(gap * np.float32(k)), extent - side) for k in range(count)]


@kernel(RMACRegions)
def rmac_regions(op: RMACRegions, ctx: RunContext, x: Any) -> tuple[Any, ...]:
    squares = np.array(_squares(op, *x.shape[2:]) if x.size else [], np.float32).reshape(-1, 4)
    count = x.shape[0] if x.size else 0
    images = np.repeat(np.arange(count, dtype=np.float32), len(squares))[:, None]
    return (ctx.xp.asarray(np.concatenate([images, np.tile(squares, (count, 1))], axis=1)),)
