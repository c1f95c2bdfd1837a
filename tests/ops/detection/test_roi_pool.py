"""RoIPool and its gradient."""

import math

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.detection import roi_pool
from netbuilder.ops.detection.roi_pool import RoIPool, RoIPoolF, RoIPoolFGradient, RoIPoolGradient
from netbuilder.proto import ArgumentError
from suite import OperatorSuite, f32, floats, refusal

HEIGHT, WIDTH = 5, 4


def draw_boxes(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    corners = rng.integers(-2, 7, (data.draw(st.integers(0, 3)), 4))
    return np.concatenate([rng.integers(0, 2, (len(corners), 1)), corners], axis=1).astype(np.float32)


def bins(first, last, count, extent):
    size = max(last - first + 1, 1) / count
    for k in range(count):
        ends = first + math.floor(k * size + 1e-6), first + math.ceil((k + 1) * size - 1e-6)
        yield range(*(min(max(end, 0), extent) for end in ends))


class TestRoIPool(OperatorSuite):
    operator = RoIPool
    refusals = (
        refusal(RoIPool(order="NHWC"), [f32(1, 2, 5, 4), f32(3, 5)], "order must be NCHW", ArgumentError),
        refusal(RoIPool(pooled_h=0), [f32(1, 2, 5, 4), f32(3, 5)], "must be 1 or more", ArgumentError),
        refusal(RoIPool(is_test=True), [f32(1, 2, 5, 4), f32(3, 5)], "one output with is_test", ArgumentError, n_out=2),
        refusal(RoIPool(), [f32(1, 2, 5), f32(3, 5)], r"X must have shape \(N, C, H, W\)", n_out=2),
        refusal(RoIPool(), [f32(1, 2, 5, 4), f32(3, 4)], r"RoIs must have shape \(R, 5\)", n_out=2),
    )

    def draw(self, data):
        op = self.operator(pooled_h=data.draw(st.integers(1, 3)), pooled_w=2).with_arity(2, 2)
        return op, [data.draw(floats(2, 2, HEIGHT, WIDTH, apart=0.1)), draw_boxes(data)]

    def reference(self, op, x, rois):
        y = np.zeros((len(rois), 2, op.pooled_h, op.pooled_w))
        where = np.full(y.shape, -1)
        for r, (n, left, top, right, bottom) in enumerate(rois.astype(int).tolist()):
            for h, rows in enumerate(bins(top, bottom, op.pooled_h, HEIGHT)):
                for w, columns in enumerate(bins(left, right, op.pooled_w, WIDTH)):
                    for c in range(2):
                        found = [(x[n, c, i, j], i * WIDTH + j) for i in rows for j in columns]
                        if found:
                            y[r, c, h, w], where[r, c, h, w] = max(found)
        return [y, where]


class TestRoIPoolGradient(OperatorSuite):
    operator = RoIPoolGradient
    no_gradient = "a gradient operator"
    refusals = (
        refusal(
            RoIPoolGradient(),
            [f32(1, 2, 5, 4), f32(3, 5), f32(3, 2, 1, 1), f32(3, 2, 2, 1)],
            r"dY must have the shape of argmaxes, \(3, 2, 1, 1\)",
        ),
    )

    def draw(self, data):
        forward, given = TestRoIPool.draw(TestRoIPool(), data)
        _, where = run_plain(forward, given)
        op = self.operator(pooled_h=forward.pooled_h, pooled_w=2)
        return op, [*given, where, data.draw(floats(*where.shape))]

    def reference(self, op, x, rois, where, dy):
        dx = np.zeros(x.shape)
        for (r, c, h, w), place in np.ndenumerate(where):
            if place >= 0:
                dx[int(rois[r, 0]), c, place // WIDTH, place % WIDTH] += dy[r, c, h, w]
        return [dx]


class TestRoIPoolF(TestRoIPool):
    operator = RoIPoolF


class TestRoIPoolFGradient(TestRoIPoolGradient):
    operator = RoIPoolFGradient


def test_the_first_of_equal_elements_and_boxes_in_parts(monkeypatch):
    monkeypatch.setattr(roi_pool, "CHUNK_BYTES", 1)
    x, rois = np.ones((1, 1, 4, 4), np.float32), np.float32([[0, 1, 1, 3, 2], [0, 0, 0, 0, 0], [0, 2, 2, 6, 6]])
    y, where = run_plain(RoIPool().with_arity(2, 2), [x, rois])
    assert y.reshape(-1).tolist() == [1, 1, 1]
    assert where.reshape(-1).tolist() == [5, 0, 10]


def test_images_without_channels():
    x, rois = np.ones((1, 0, 4, 4), np.float32), np.float32([[0, 1, 1, 3, 2]])
    assert [each.shape for each in run_plain(RoIPool().with_arity(2, 2), [x, rois])] == [(1, 0, 1, 1)] * 2


def test_an_image_that_is_not_there():
    with pytest.raises(IndexError, match=r"RoIPool: images of RoIs must lie in \[0, 1\), got 1"):
        run_plain(RoIPool().with_arity(2, 2), [np.ones((1, 1, 4, 4), np.float32), np.float32([[1, 0, 0, 1, 1]])])
