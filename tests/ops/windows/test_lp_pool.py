"""LpPool and its gradient."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.windows.lp_pool import LpPool, LpPoolGradient
from netbuilder.proto import ArgumentError
from suite import OperatorSuite, f32, floats, i32, refusal


def draw_pool(data, cls):
    args = {"order": data.draw(st.sampled_from(["NCHW", "NHWC"])), "p": data.draw(st.sampled_from([1.0, 2.0, 3.0]))}
    if data.draw(st.booleans()):
        args["global_pooling"] = True
    else:
        args |= {"kernel": 2, "stride": data.draw(st.integers(1, 2)), "pad": data.draw(st.integers(0, 1))}
    return cls(**args), data.draw(floats((1, 2), (2, 4), (2, 4), (2, 4), avoid=0.0))


def windows(op, x):
    """Yield for each result its place (n, c, h, w), and the places of X in its window, all channels-first."""
    n, c, h, w = x.shape
    if op.global_pooling:
        for at in np.ndindex(n, c):
            yield (*at, 0, 0), [(*at, i, j) for i in range(h) for j in range(w)]
        return
    counts = [(extent + 2 * op.pad - 2) // op.stride + 1 for extent in (h, w)]
    for at in np.ndindex(n, c, *counts):
        rows = [at[2] * op.stride - op.pad + i for i in range(2)]
        columns = [at[3] * op.stride - op.pad + j for j in range(2)]
        yield at, [(*at[:2], i, j) for i in rows for j in columns if 0 <= i < h and 0 <= j < w]


def first(op, x):
    return x if op.order == "NCHW" else np.moveaxis(x, -1, 1)


def back(op, x):
    return x if op.order == "NCHW" else np.moveaxis(x, 1, -1)


def pooled(op, x):
    images = first(op, x)
    found = {at: sum(abs(images[i]) ** op.p for i in seen) ** (1 / op.p) for at, seen in windows(op, images)}
    return back(op, np.array(list(found.values())).reshape([m + 1 for m in max(found)]))


class TestLpPool(OperatorSuite):
    operator = LpPool
    refusals = (
        refusal(LpPool(kernel=2, p=0.5), [f32(1, 1, 4, 4)], "p must be at least 1", ArgumentError),
        refusal(LpPool(kernel=2), [i32(1, 1, 4, 4)], "one floating type"),
        refusal(LpPool(kernel=2, dilation=2), [f32(1, 1, 4, 4)], "dilation is not supported"),
    )

    def draw(self, data):
        op, x = draw_pool(data, LpPool)
        return op, [x]

    def reference(self, op, x):
        return [pooled(op, x)]


class TestLpPoolGradient(OperatorSuite):
    operator = LpPoolGradient
    no_gradient = "a gradient operator"
    rtol = 1e-4
    refusals = (
        refusal(
            LpPoolGradient(kernel=2),
            [f32(1, 1, 4, 4), f32(1, 1, 2, 3), f32(1, 1, 3, 3)],
            r"dY must have the shape of Y, \(1, 1, 2, 3\)",
        ),
        refusal(
            LpPoolGradient(kernel=2), [f32(1, 1, 4, 4), f32(1, 1, 3, 3), f32(1, 1, 3, 2)], "dY must have the shape"
        ),
    )

    def draw(self, data):
        op, x = draw_pool(data, LpPoolGradient)
        y = pooled(op, x.astype(np.float64)).astype(np.float32)
        return op, [x, np.ascontiguousarray(y), data.draw(floats(*y.shape))]

    def reference(self, op, x, y, dy):
        images, norms, slopes = (first(op, a) for a in (x, y, dy))
        dx = np.zeros(images.shape)
        for at, seen in windows(op, images):
            for i in seen:
                dx[i] += slopes[at] * np.sign(images[i]) * (abs(images[i]) / norms[at]) ** (op.p - 1)
        return [back(op, dx)]


def test_windows_of_zeros_have_the_gradient_zero():
    x, y = np.zeros((1, 1, 2, 2), np.float32), np.zeros((1, 1, 1, 1), np.float32)
    assert not run_plain(LpPoolGradient(kernel=2), [x, y, y + 1])[0].any()
