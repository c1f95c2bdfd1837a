"""PSRoIPool and its gradient."""

import math

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.detection.ps_roi_pool import PSRoIPool, PSRoIPoolGradient
from netbuilder.proto import ArgumentError
from suite import OperatorSuite, f32, floats, i32, refusal

FITS = [f32(2, 8, 4, 4), f32(1, 5)]


def draw_case(data, cls):
    op = cls(
        spatial_scale=data.draw(st.sampled_from([1.0, 0.5])), group_size=2, output_dim=data.draw(st.integers(1, 2))
    )
    x = data.draw(floats(2, 4 * op.output_dim, (2, 4), (2, 5)))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    starts = rng.uniform(-2, 5, (3, 2))
    parts = [rng.integers(0, 2, (3, 1)), starts, starts + rng.uniform(0, 6, (3, 2))]
    return op, x, np.float32(np.concatenate(parts, axis=1))


def bins(op, rois, shape):
    """Yield (place in Y, place of the channel's plane, rows, columns) of each bin."""
    for r, roi in enumerate(rois):
        start = [math.floor(v + 0.5) * op.spatial_scale for v in (roi[2], roi[1])]
        end = [(math.floor(v + 0.5) + 1) * op.spatial_scale for v in (roi[4], roi[3])]
        size = [max(e - s, 0.1) / op.group_size for s, e in zip(start, end)]
        for c, i, j in np.ndindex(op.output_dim, op.group_size, op.group_size):
            spans = [
                range(max(math.floor(s + k * z), 0), min(math.ceil(s + (k + 1) * z), n))
                for s, z, k, n in zip(start, size, (i, j), shape[2:])
            ]
            yield (r, c, i, j), (int(roi[0]), (c * op.group_size + i) * op.group_size + j), *spans


class TestPSRoIPool(OperatorSuite):
    operator = PSRoIPool
    rtol, atol = 1e-4, 1e-5
    refusals = (
        refusal(
            PSRoIPool(group_size=3),
            FITS,
            r"X must have shape \(2, 9, 4, 4\) = \(N, output_dim \* group_size \* group_size, H, W\)",
        ),
        refusal(PSRoIPool(group_size=2, output_dim=2), [FITS[0], f32(1, 4)], r"RoIs must have shape \(R, 5\)"),
        refusal(PSRoIPool(group_size=0), FITS, "must be 1 or more", ArgumentError),
    )

    def draw(self, data):
        op, x, rois = draw_case(data, PSRoIPool)
        return op, [x, rois]

    def reference(self, op, x, rois):
        y, channels = (np.zeros((len(rois), op.output_dim, 2, 2)) for _ in range(2))
        for at, plane, rows, columns in bins(op, rois, x.shape):
            if len(rows) and len(columns):
                y[at] = x[plane][rows.start : rows.stop, columns.start : columns.stop].mean()
            channels[at] = plane[1]
        return [y, channels]


class TestPSRoIPoolGradient(OperatorSuite):
    operator = PSRoIPoolGradient
    no_gradient = "a gradient operator"
    rtol, atol = 1e-4, 1e-5
    refusals = (
        refusal(
            PSRoIPoolGradient(group_size=2, output_dim=2),
            [*FITS, i32(1, 2, 2, 2), f32(1, 2, 2, 1)],
            r"dY must have the shape of mapping_channel, \(1, 2, 2, 2\)",
        ),
    )

    def draw(self, data):
        op, x, rois = draw_case(data, PSRoIPoolGradient)
        dy = data.draw(floats(3, op.output_dim, 2, 2))
        channels = np.broadcast_to(np.arange(x.shape[1], dtype=np.int32).reshape(1, *dy.shape[1:]), dy.shape)
        return op, [x, rois, channels.copy(), dy]

    def reference(self, op, x, rois, channels, dy):
        dx = np.zeros(x.shape)
        for at, plane, rows, columns in bins(op, rois, x.shape):
            for i in rows:
                for j in columns:
                    dx[plane][i, j] += dy[at] / (len(rows) * len(columns))
        return [dx]


def test_boxes_of_no_image():
    with pytest.raises(IndexError, match=r"images of RoIs must lie in \[0, 1\), got 1"):
        run_plain(PSRoIPool().with_arity(2, 2), [np.ones((1, 1, 2, 2), np.float32), np.float32([[1, 0, 0, 1, 1]])])
