"""Losses with class labels as machine code, against plain kernels in float64: labels of all types, weights, threads."""

import numpy as np
import pytest

from machine_code import alone
from netbuilder.engines.llvm import label_losses, machine
from netbuilder.engines.llvm.label_losses import LABEL_LOSSES
from netbuilder.ops.core.registry import CPU, find, plain_kernel
from netbuilder.proto import ShapeError
from prepared import Value, bind

pytestmark = pytest.mark.skipif(not machine.available(), reason="needs llvmlite")
INTEGERS = [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64]
SIGNED = [np.int32, np.int64]
rng = np.random.default_rng(0)


@pytest.fixture(params=[1, 3])
def threads(request, monkeypatch):
    """How many threads share work of any size."""
    monkeypatch.setattr(label_losses, "_OF_A_THREAD", 0)
    return request.param


def plain(op, arrays):
    wide = [each.astype(np.float64) if each.dtype.kind == "f" else each for each in arrays]
    return plain_kernel(op.type, CPU)(op, alone().run, *wide)


def served(op, arrays, threads, inplace=False):
    found = bind(LABEL_LOSSES[op.type], op, [Value.of(each) for each in arrays], threads=threads, inplace=inplace,
                 context=alone().run)  # fmt: skip
    assert found is not None, f"{op} is not served"
    found.call()
    return [value.plain() for value in found.outputs]


def check(op, arrays, threads):
    for inplace in (False, True):
        results = served(op, arrays, threads, inplace)
        for result, expected in zip(results, plain(op, arrays), strict=True):
            assert result.dtype == np.float32
            np.testing.assert_allclose(result, expected, rtol=3e-6, atol=3e-6)


def scores(*shape):
    return (3 * rng.standard_normal(shape)).astype(np.float32)


def check_softmax(x, label, threads, *weight, op_type="SoftmaxWithLoss", **options):
    forward = find(op_type)(scale=0.5, **options).with_arity(2 + len(weight), 2)
    check(forward, [x, label, *weight], threads)
    p = plain(forward, [x, label, *weight])[0].astype(np.float32)
    backward = find(op_type + "Gradient")(scale=0.5, **options).with_arity(4 + len(weight), 1)
    check(backward, [x, label, *weight, p, np.float32(0.3)], threads)


@pytest.mark.parametrize("kind", INTEGERS)
@pytest.mark.parametrize("classes", [1, 5, 16, 100])
def test_softmax_with_labels(kind, classes, threads):
    x, label = scores(19, classes), rng.integers(0, classes, 19).astype(kind)
    check_softmax(x, label, threads)
    check_softmax(x, label[:, None], threads, rng.random(19).astype(np.float32))
    check_softmax(x, label, threads, rng.random(19).astype(np.float32), average_by_batch_size=True)
    check_softmax(x, label, threads, np.zeros(19, np.float32))


def test_softmax_of_further_axes_and_of_probabilities(threads):
    x = scores(3, 4, 7)
    check_softmax(x, rng.integers(0, 28, 3), threads)
    check_softmax(x, rng.integers(0, 7, (3, 4)), threads, axis=2)
    shares = rng.dirichlet(np.ones(7), (3, 4)).astype(np.float32)
    check_softmax(x, shares, threads, axis=2, label_prob=True)
    check_softmax(x, shares, threads, rng.random((3, 4)).astype(np.float32), axis=2, label_prob=True)


@pytest.mark.parametrize("kind", SIGNED)
@pytest.mark.parametrize("side", [(1, 1), (2, 8), (5, 7), (9, 15)])
def test_softmax_over_the_channels_of_images(kind, side, threads):
    x, label = scores(3, 4, *side), rng.integers(-1, 4, (3, *side)).astype(kind)
    label.reshape(-1)[0] = 2
    weight = rng.random(label.shape).astype(np.float32)
    check_softmax(x, label, threads, op_type="SpatialSoftmaxWithLoss")
    check_softmax(x, label, threads, weight, op_type="SpatialSoftmaxWithLoss")
    check_softmax(x, np.full_like(label, -1), threads, op_type="SpatialSoftmaxWithLoss")


def test_large_scores_and_what_is_not_finite(threads):
    x = np.float32([[1e4, -1e4, 0], [88, 90, -300], [np.inf, 0, 1], [np.nan, 0, 1], [-np.inf, 0, 1]])
    op = find("SoftmaxWithLoss")().with_arity(2, 2)
    for row in x:
        with np.errstate(all="ignore"):
            expected = plain(op, [row[None], np.int32([1])])
        for result, wanted in zip(served(op, [row[None], np.int32([1])], threads), expected):
            np.testing.assert_allclose(result, wanted, rtol=3e-6, atol=3e-6)


def test_the_mean_does_not_depend_on_threads(threads):
    arrays = [scores(1000, 30), rng.integers(0, 30, 1000)]
    op = find("SoftmaxWithLoss")().with_arity(2, 2)
    np.testing.assert_array_equal(served(op, arrays, threads)[1], served(op, arrays, 2)[1])


@pytest.mark.parametrize("kind", INTEGERS)
def test_losses_of_probabilities(kind, threads):
    x = rng.dirichlet(np.ones(5), 37).astype(np.float32)
    label = rng.integers(0, 5, 37).astype(kind)
    x[3], x[4, label[4]] = np.nan, 0
    check(find("LabelCrossEntropy")().with_arity(2, 1), [x, label], threads)
    check(find("LabelCrossEntropyGradient")().with_arity(3, 1), [x, label, scores(37)], threads)


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int64, np.uint64])
@pytest.mark.parametrize("label", [5, "highest", "lowest"])
def test_labels_out_of_range_are_the_plain_kernels_errors_and_nothing_is_written(kind, label, threads):
    limits = np.iinfo(kind)
    wrong = {"highest": limits.max, "lowest": limits.min if kind in (np.int8, np.int64) else 6}.get(label, label)
    x, labels = scores(20, 5), np.zeros(20, kind)
    labels[17] = wrong
    cases = [
        ("SoftmaxWithLoss", [x, labels]),
        ("SoftmaxWithLossGradient", [x, labels, x, np.float32(1)]),
        ("LabelCrossEntropy", [x, labels]),
        ("LabelCrossEntropyGradient", [x, labels, scores(20)]),
    ]
    if kind == np.int64:
        image = [x.reshape(4, 5, 1, 5), labels.reshape(4, 1, 5)]
        cases += [("SpatialSoftmaxWithLoss", image)]
        cases += [("SpatialSoftmaxWithLossGradient", [*image, image[0], np.float32(1)])]
    for op_type, arrays in cases:
        op = find(op_type)().with_arity(len(arrays), len(find(op_type).outputs))
        with pytest.raises(ShapeError) as expected:
            plain(op, arrays)
        found = bind(LABEL_LOSSES[op_type], op, [Value.of(each) for each in arrays], threads=threads,
                     context=alone().run)  # fmt: skip
        for _ in range(2):
            with pytest.raises(ShapeError) as error:
                found.call()
            assert str(error.value) == str(expected.value)
        assert all(np.isnan(value.plain()).all() for value in found.outputs)  # as before
