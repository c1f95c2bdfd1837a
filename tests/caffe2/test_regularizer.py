"""Regularizers: the operators that Caffe2's add, and the values of their terms."""

import numpy as np
import pytest
from caffe2.python import core, regularizer, workspace
from caffe2.python.regularizer import RegularizationBy

from netbuilder.proto import ArgumentError

# Case -> (regularizer, operators on the loss, operators after the update), as Caffe2 (PyTorch 1.10) adds them.
ADDED = {
    "l1": (regularizer.L1Norm(0.5), "LpNorm Scale", ""),
    "l2": (regularizer.L2Norm(0.5), "LpNorm Scale", ""),
    "elastic": (regularizer.ElasticNet(0.1, 0.2), "LpNorm LpNorm Scale Scale Add", ""),
    "trimmed": (regularizer.L1NormTrimmed(0.1, 2), "Abs SumElements TopK SumElements Sub Scale", ""),
    "elastic_trimmed": (
        regularizer.ElasticNetL1NormTrimmed(0.1, 0.2, 3),
        "LpNorm Scale Abs SumElements TopK SumElements Sub Scale Add", "",
    ),
    "lp": (regularizer.LpNorm(0.1, 0.5), "Mul ReduceFrontSum Pow Pow ReduceFrontSum Pow Scale", ""),
    "l0": (regularizer.L0ApproxNorm(0.1), "Mul ReduceFrontSum Pow Abs Clip ReduceFrontSum Scale Scale", ""),
    "l0_budget": (
        regularizer.L0ApproxNorm(0.1, 0.01, 3),
        "Mul ReduceFrontSum Pow Abs Clip ReduceFrontSum Scale ConstantFill Sub Relu Scale", "",
    ),
    "barrier": (
        regularizer.LogBarrier(0.1), "AtomicIter LearningRate Clip Log SumElements Mul", "EnsureClipped"
    ),
    "bounded": (regularizer.BoundedGradientProjection(lb=0.0, ub=1.0), "", "EnsureClipped"),
}  # fmt: skip

W = np.float32([[0.5, -2.0, 0.0], [1.5, 0.25, 0.0]])
COLUMNS = np.sqrt((W.astype(np.float64) ** 2).sum(0))
TERMS = {
    "l1": 0.5 * 4.25,
    "l2": 0.5 * np.square(W).sum(),
    "elastic": 0.1 * 4.25 + 0.2 * np.square(W).sum(),
    "lp": 0.1 * np.sqrt(COLUMNS).sum() ** 2,
    "l0": 0.1 * 2,
    "l0_budget": 0.0,
}


def build(case, by):
    net, init = core.Net("regularized"), core.Net("init")
    net.AddExternalInput("w")
    made = ADDED[case][0](net, init, core.BlobReference("w"), by=by)
    return net, init, made


@pytest.mark.parametrize("case", ADDED)
def test_operators(case):
    for by, wanted in zip((RegularizationBy.ON_LOSS, RegularizationBy.AFTER_OPTIMIZER), ADDED[case][1:]):
        net, _, made = build(case, by)
        assert " ".join(op.type for op in net.Proto().op) == wanted
        assert (made is not None) == (by == RegularizationBy.ON_LOSS and bool(wanted))


@pytest.mark.parametrize("case", TERMS)
def test_values(case):
    net, init, made = build(case, RegularizationBy.ON_LOSS)
    workspace.FeedBlob("w", W)
    workspace.RunNetOnce(init)
    workspace.RunNetOnce(net)
    np.testing.assert_allclose(workspace.FetchBlob(made), TERMS[case], rtol=1e-5, atol=1e-7)


def test_the_trimmed_norm_leaves_the_largest_out():
    workspace.FeedBlob("w", W.reshape(-1))
    net, init, made = build("trimmed", RegularizationBy.ON_LOSS)
    workspace.RunNetOnce(net)
    np.testing.assert_allclose(workspace.FetchBlob(made), 0.1 * 0.75, rtol=1e-6)


def test_clipped_into_a_range():
    workspace.FeedBlob("w", W)
    workspace.RunNetOnce(build("bounded", RegularizationBy.AFTER_OPTIMIZER)[0])
    np.testing.assert_array_equal(workspace.FetchBlob("w"), W.clip(0, 1))


REFUSED = {
    "L1Norm: reg_lambda must not be negative, got -1": lambda: regularizer.L1Norm(-1),
    "k must be a whole number, 0 or greater, got 0.5": lambda: regularizer.L1NormTrimmed(0.1, 0.5),
    "lb must be at most ub, .*; got lb=1.0 and ub=0.0": lambda: regularizer.BoundedGradientProjection(lb=1.0, ub=0.0),
    "p must be 1 or 2, got 3": lambda: regularizer.SparseLpNorm(3, 0.1),
    "groups must be a list": lambda: regularizer.GroupL1Norm(0.1, 3),
    "by must be a value of RegularizationBy, got 'x'": lambda: build("l1", "x"),
}


@pytest.mark.parametrize("message", REFUSED)
def test_bad_input(message):
    with pytest.raises(ArgumentError, match=message):
        REFUSED[message]()


def test_norms_of_rows_want_a_sparse_gradient():
    for made in (regularizer.MaxNorm(1.0), regularizer.ConstantNorm(1.0), regularizer.SparseL1Norm(0.1)):
        with pytest.raises(NotImplementedError, match="not supported for dense gradients"):
            made(core.Net("n"), core.Net("i"), core.BlobReference("w"), grad=core.BlobReference("g"),
                 by=RegularizationBy.AFTER_OPTIMIZER)  # fmt: skip
