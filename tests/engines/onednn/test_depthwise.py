"""Gradients of filters of depthwise convolutions: in parts, where the library has no kernel of its own."""

import numpy as np
import pytest

from netbuilder import Workspace
from netbuilder.engines.onednn.depthwise import _ranges
from netbuilder.proto import NetDef
from netbuilder.proto.arguments import make_op


def expected(x, dy, kernel, stride, pads):
    """The gradient of the filters in float64: of each position in the window, the products' sum."""
    top, left, bottom, right = pads
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (top, bottom), (left, right)))
    rows, columns = dy.shape[2:]
    found = np.empty((x.shape[1], 1, *kernel))
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            seen = padded[:, :, i : i + stride * rows : stride, j : j + stride * columns : stride][
                :, :, :rows, :columns
            ]
            found[:, 0, i, j] = (seen * dy).sum((0, 2, 3))
    return found


CASES = {
    "5x5": ((2, 16, 9, 8), (5, 5), 1, (2, 2, 2, 2)),
    "5x5, strides": ((2, 24, 9, 8), (5, 5), 2, (2, 2, 2, 2)),
    "5x5, strides, odd": ((2, 24, 8, 9), (5, 5), 2, (2, 2, 2, 2)),
    "5x5, small": ((3, 16, 4, 4), (5, 5), 1, (2, 2, 2, 2)),
    "7x7": ((2, 16, 8, 9), (7, 7), 1, (3, 3, 3, 3)),
    "7x7, strides": ((1, 16, 14, 14), (7, 7), 2, (3, 3, 3, 3)),
    "5x5, one more at the end": ((2, 16, 8, 8), (5, 5), 2, (1, 1, 2, 2)),
    "5x5, no padding": ((2, 16, 8, 8), (5, 5), 1, (0, 0, 0, 0)),
    "3x5": ((2, 16, 8, 8), (3, 5), 1, (1, 2, 1, 2)),
    "channels without blocks": ((2, 6, 8, 8), (5, 5), 1, (2, 2, 2, 2)),
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_gradient_of_depthwise_filters(name, threads):
    shape, kernel, stride, pads = CASES[name]
    rng = np.random.default_rng(1)
    window = dict(zip(("pad_t", "pad_l", "pad_b", "pad_r"), pads))
    window |= {"kernel_h": kernel[0], "kernel_w": kernel[1], "stride": stride, "group": shape[1]}
    rows, columns = ((n + a + b - k) // stride + 1 for n, a, b, k in zip(shape[2:], pads, pads[2:], kernel))
    values = {
        "x": rng.standard_normal(shape), "w": rng.standard_normal((shape[1], 1, *kernel)),
        "dy": rng.standard_normal((*shape[:2], rows, columns)),
    }  # fmt: skip
    net = NetDef(name="depthwise", op=[make_op("ConvGradient", ["x", "w", "dy"], ["dw", "db", "dx"], **window)])
    workspace, plain = Workspace(threads=threads), Workspace(engines=())
    for each in (workspace, plain):
        for blob, value in values.items():
            each.feed(blob, value.astype(np.float32))
        each.run_net_once(net)
    want = expected(*(values[blob].astype(np.float32) for blob in ("x", "dy")), kernel, stride, pads)
    scale = np.abs(want).max()
    np.testing.assert_allclose(workspace.fetch("dw"), want, rtol=1e-4, atol=1e-6 * scale)
    for blob in ("db", "dx"):
        np.testing.assert_allclose(workspace.fetch(blob), plain.fetch(blob), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("width", [4, 5, 6, 7, 9])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_parts_of_a_filter_cover_each_column_once(width, stride):
    padding, size = width // 2, 24
    out = (size + 2 * padding - width) // stride + 1
    parts = _ranges(width, stride, padding, size, out)
    if parts is None:
        assert stride == 3  # shifts go by whole strides
        return
    covered = [column for part in parts for column in range(part.to, part.to + part.count)]
    assert sorted(covered) == list(range(width))
    assert parts[0].shift == 0 and all(part.extent <= 3 and max(part.before, part.after) <= 1 for part in parts)
