"""Exponentials of scores: no weight is a denormal number, with which CPUs are slow."""

import numpy as np
import pytest

from netbuilder.graph import Net
from netbuilder.ops.core.exponentials import LEAST, exp_or_zero
from netbuilder.runtime import Workspace


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_values(dtype):
    least = LEAST[np.dtype(dtype).char]
    x = np.array([0, -1, -50, least * 0.999, least * 1.001, -1e30, -np.inf, np.nan], dtype)
    got = exp_or_zero(np, x)
    assert got.dtype == dtype
    np.testing.assert_allclose(got[:4], np.exp(x[:4].astype(np.longdouble)).astype(dtype), rtol=4 * np.finfo(dtype).eps)
    assert got[3] >= np.finfo(dtype).tiny
    assert np.array_equal(got[4:], [0, 0, 0, np.nan], equal_nan=True)


def test_half_precision_keeps_what_it_can_hold():
    x = np.float16([0, -10, -16, -np.inf])
    np.testing.assert_array_equal(exp_or_zero(np, x), np.exp(x))


def outputs_of(op_type, mask, numpy_only):
    """Return the results for scores of which every second one has ``mask`` added."""
    rng = np.random.default_rng(0)
    net, workspace = Net("masked"), Workspace(engines=() if numpy_only else None)
    hidden = np.where(np.arange(32) % 2, mask, 0).astype(np.float32)
    feeds = {"x": rng.normal(size=(6, 32)).astype(np.float32) + hidden}
    if op_type == "Attention":
        feeds = {name: rng.normal(size=(1, 2, 32, 8)).astype(np.float32) for name in "qkv"}
        feeds["mask"] = np.broadcast_to(hidden, (32, 32)).copy()
        feeds["v"] = np.broadcast_to(np.eye(32, dtype=np.float32), (1, 2, 32, 32)).copy()  # so the weights are seen
        net.Attention(["q", "k", "v", "mask"], "y")
    elif op_type == "SoftmaxWithLoss":
        feeds["label"] = np.zeros(6, np.int32)
        net.SoftmaxWithLoss(["x", "label"], ["y", "loss"])
    elif op_type == "SpatialSoftmaxWithLoss":
        feeds |= {"x": feeds["x"].reshape(6, 32, 1, 1), "label": np.zeros((6, 1, 1), np.int32)}
        net.SpatialSoftmaxWithLoss(["x", "label"], ["y", "loss"])
    else:
        net.Softmax("x", "y")
    for name, value in feeds.items():
        workspace.feed(name, value)
    workspace.create_net(net)
    workspace.run_net(net)
    return workspace.fetch("y")


@pytest.mark.parametrize("numpy_only", [False, True], ids=["compiled", "NumPy"])
@pytest.mark.parametrize("mask", [-100, -95, -np.inf])
@pytest.mark.parametrize("op_type", ["Softmax", "SoftmaxWithLoss", "SpatialSoftmaxWithLoss", "Attention"])
def test_weights_are_zero_or_normal(op_type, mask, numpy_only):
    y = np.moveaxis(outputs_of(op_type, mask, numpy_only), 1 if op_type.startswith("Spatial") else -1, -1)
    y = y.reshape(-1, 32)
    assert np.all((y == 0) | (y >= np.finfo(np.float32).tiny))
    np.testing.assert_allclose(y.sum(axis=1), 1, rtol=1e-6)
    assert np.all(y[:, ::2] > 0) and np.all(y[:, 1::2] == 0)
