"""Floating types: float16 in gives float16 out, calculated in float32; types are not mixed, integers no input."""

from __future__ import annotations

import numpy as np
import pytest

from checks import run_plain
from netbuilder.ops.activations.activations import Elu, LeakyRelu, Relu, Sigmoid, Tanh, TanhGradient
from netbuilder.ops.activations.prelu import PRelu
from netbuilder.ops.activations.softmax import Softmax
from netbuilder.ops.core.half import narrow, widen
from netbuilder.ops.core.operator import TensorSpec, encode
from netbuilder.ops.dense.fc import FC, FCGradient
from netbuilder.ops.dense.matmul import BatchMatMul, MatMul
from netbuilder.ops.losses.losses import AveragedLoss, LabelCrossEntropy
from netbuilder.ops.losses.softmax_with_loss import SoftmaxWithLoss
from netbuilder.ops.normalization.channel_stats import ChannelStats
from netbuilder.ops.normalization.lrn import LRN
from netbuilder.ops.normalization.spatial_bn import SpatialBN
from netbuilder.ops.windows.conv import Conv, ConvGradient
from netbuilder.ops.windows.conv_transpose import ConvTranspose, ConvTransposeGradient
from netbuilder.ops.windows.pool import AveragePool, AveragePoolGradient, MaxPool, MaxPoolGradient
from netbuilder.proto import ShapeError
from netbuilder.runtime import Workspace

CASES = [
    (Conv(pad=1), [(2, 3, 5, 5), (4, 3, 3, 3), (4,)], 1),
    (ConvGradient(), [(2, 3, 5, 5), (4, 3, 3, 3), (2, 4, 3, 3)], 3),
    (ConvTranspose(stride=2), [(2, 3, 3, 3), (3, 4, 2, 2), (4,)], 1),
    (ConvTransposeGradient(stride=2), [(2, 3, 3, 3), (3, 4, 2, 2), (2, 4, 6, 6)], 3),
    (FC(), [(4, 6), (5, 6), (5,)], 1),
    (FCGradient(), [(4, 6), (5, 6), (4, 5)], 3),
    (MatMul(trans_b=True), [(4, 6), (5, 6)], 1),
    (BatchMatMul(), [(2, 4, 6), (2, 6, 5)], 1),
    (MaxPool(kernel=2), [(2, 3, 4, 4)], 1),
    (AveragePool(kernel=2, pad=1), [(2, 3, 4, 4)], 1),
    (AveragePoolGradient(kernel=2), [(2, 3, 4, 4), (2, 3, 3, 3), (2, 3, 3, 3)], 1),
    (MaxPoolGradient(kernel=2), [(2, 3, 4, 4), (2, 3, 3, 3), (2, 3, 3, 3)], 1),
    (LRN(size=3, alpha=0.5, beta=0.75), [(2, 3, 4)], 2),
    (Softmax(), [(3, 5)], 1),
    *((op, [(3, 5)], 1) for op in (Relu(), LeakyRelu(), Elu(), Sigmoid(), Tanh())),
    (TanhGradient(), [(3, 5), (3, 5)], 1),
]


@pytest.mark.parametrize("op, shapes, n_out", CASES, ids=lambda v: getattr(v, "type", None))
def test_half_precision(op, shapes, n_out):
    rng = np.random.default_rng(1)
    halves = [rng.uniform(-1, 1, shape).astype(np.float16) for shape in shapes]
    op.with_arity(len(shapes), n_out)
    exact = run_plain(op, [x.astype(np.float64) for x in halves])
    for y, want in zip(run_plain(op, halves), exact):
        assert y.dtype == np.float16
        np.testing.assert_allclose(y.astype(np.float64), want, 2e-3, 2e-3)


@pytest.mark.parametrize("op, shapes, n_out", CASES, ids=lambda v: getattr(v, "type", None))
def test_half_precision_in_a_plan(op, shapes, n_out):
    """With engines, which have no float16 kernels, a plan gives what the plain kernels give."""
    rng = np.random.default_rng(1)
    halves = [rng.uniform(-1, 1, shape).astype(np.float16) for shape in shapes]
    op.with_arity(len(shapes), n_out)
    inputs, outputs = [f"x{i}" for i in range(len(shapes))], [f"y{i}" for i in range(n_out)]
    workspace = Workspace()
    for name, value in zip(inputs, halves):
        workspace.feed(name, value)
    workspace.run_operator_once(encode(op, inputs, outputs))
    for name, want in zip(outputs, run_plain(op, halves)):
        np.testing.assert_array_equal(workspace.fetch(name), want)
        assert workspace.fetch(name).dtype == np.float16


def test_sums_over_devices_are_in_float32():
    """Sums of squares over a whole batch are beyond the greatest float16."""
    x = np.full((64, 3, 8, 8), 10, np.float16)
    op = ChannelStats().with_arity(1, 2)
    sums, squares = run_plain(op, [x])
    assert sums.dtype == squares.dtype == np.float32
    np.testing.assert_array_equal([sums, squares], [[40960] * 3, [409600] * 3])


def test_sums_do_not_saturate():
    """A sum of 4096 ones and a half: float16 alone would stop at 2048."""
    x = np.ones((1, 4096), np.float16)
    (y,) = run_plain(FC(), [x, x, np.float16([0.5])])
    assert y == 4096
    rows = np.full((2, 40000), 1 / 40000, np.float16)
    assert run_plain(AveragedLoss(), [rows])[0] == rows[0, 0]
    assert np.isfinite(run_plain(LabelCrossEntropy(), [np.zeros((2, 3), np.float16), np.int32([0, 1])])[0]).all()
    loss = run_plain(SoftmaxWithLoss().with_arity(2, 2), [x, np.int32([7])])[1]
    assert loss.dtype == np.float16 and abs(loss - np.log(4096)) < 0.01


def test_statistics_of_half_images_are_in_single_precision():
    x = np.random.default_rng(2).standard_normal((4, 3, 5, 5)).astype(np.float16)
    vectors = [np.ones(3, np.float32)] * 4
    y, *statistics = run_plain(SpatialBN().with_arity(5, 5), [x, *vectors])
    assert y.dtype == np.float16 and {s.dtype for s in statistics} == {np.dtype(np.float32)}
    np.testing.assert_allclose(statistics[2], x.astype(np.float64).mean(axis=(0, 2, 3)), 1e-5, 1e-5)


def test_widen_and_narrow():
    half, single = np.ones(2, np.float16), np.ones(2, np.float32)
    assert widen(half).dtype == np.float32 and widen(single) is single
    assert narrow(single, half).dtype == np.float16 and narrow(single, single) is single


MIXED = [*CASES, (PRelu(), [(2, 3), (3,)], 1), (SpatialBN(is_test=True), [(2, 3, 4), (3,), (3,), (3,), (3,)], 1)]


@pytest.mark.parametrize("op, shapes, n_out", MIXED, ids=lambda v: getattr(v, "type", None))
def test_inputs_are_of_one_floating_type(op, shapes, n_out):
    op.with_arity(len(shapes), n_out)
    names = [name.rstrip("?") for name in op.inputs]
    for slot in range(len(shapes)):
        for other in ["float64", "int32"] if len(shapes) > 1 else ["int32"]:
            dtypes = [np.dtype(other if i == slot else "float32") for i in range(len(shapes))]
            specs = [TensorSpec(shape, dtype) for shape, dtype in zip(shapes, dtypes)]
            with pytest.raises(ShapeError, match=f"{op.type}: the inputs must have one floating type, ") as caught:
                op.infer(*specs)
            assert f"{names[slot]} {other}" in str(caught.value) and "Cast" in str(caught.value)
            assert ".astype(np.float32) before they are fed" in str(caught.value)
