"""Tensor trains: cores at random and from matrices, and nets with TT in the place of FC."""

import math

import numpy as np
import pytest

from checks import run_plain
from netbuilder.caffe2.tensor_cores import init_tt_cores, matrix_to_tt, split_size, tt_svd
from netbuilder.caffe2.tensor_train import fc_net_to_tt_net
from netbuilder.model import ModelHelper, brew
from netbuilder.ops.dense.tensor_train import TT
from netbuilder.proto import NetError, ShapeError
from netbuilder.runtime import Workspace

INNER, OUTER = (2, 3, 2), (2, 2, 3)


def matrix_of(cores, inner, outer, ranks):
    """W^T as the operator computes it, (K, N)."""
    wide, high = math.prod(inner), math.prod(outer)
    return run_plain(TT(inner, outer, ranks), [np.eye(wide, dtype=np.float32), np.zeros(high, np.float32), cores])[0]


@pytest.mark.parametrize(("inner", "outer", "ranks"), [(INNER, OUTER, (1, 4, 6, 1)), ((4,), (3,), (1, 1))])
def test_full_ranks_keep_the_matrix(inner, outer, ranks):
    w = np.random.default_rng(0).standard_normal((math.prod(outer), math.prod(inner)))
    np.testing.assert_allclose(matrix_of(matrix_to_tt(w, inner, outer, ranks), inner, outer, ranks), w.T, atol=1e-5)


def test_lower_ranks_are_the_nearest_matrix_of_two_cores():
    """With two cores the error is determined by the dropped singular values."""
    w = np.random.default_rng(1).standard_normal((4, 6))
    found = matrix_of(matrix_to_tt(w, (2, 3), (2, 2), (1, 2, 1)), (2, 3), (2, 2), (1, 2, 1))
    values = np.linalg.svd(w.T.reshape(2, 3, 2, 2).transpose(0, 2, 1, 3).reshape(4, 6), compute_uv=False)
    assert np.linalg.norm(found - w.T) == pytest.approx(np.sqrt((values[2:] ** 2).sum()), rel=1e-5)


def test_cores_of_a_tensor():
    t = np.arange(24.0) ** 1.5
    flat = tt_svd(t, [2, 3, 4], [1, 2, 4, 1])
    a, b, c = flat[:4].reshape(1, 2, 2), flat[4:28].reshape(2, 3, 4), flat[28:].reshape(4, 4, 1)
    assert flat.dtype == np.float32
    np.testing.assert_allclose(np.einsum("aib,bjc,ckd->ijk", a, b, c).ravel(), t, atol=1e-4)
    np.testing.assert_allclose(a[0].T @ a[0], np.eye(2), atol=1e-6)


def test_random_cores():
    ranks = (1, 8, 8, 1)
    cores = init_tt_cores((8, 8, 4), (4, 8, 8), ranks)
    assert (cores.dtype, cores.shape) == (np.float32, (8 * 4 * 8 + 8 * 8 * 64 + 4 * 8 * 8,))
    w = matrix_of(cores, (8, 8, 4), (4, 8, 8), ranks)
    assert abs(w.var() * 256 - 1) < 0.5  # 2 / (256 + 256)
    assert (init_tt_cores((8, 8, 4), (4, 8, 8), ranks) == cores).all()
    assert (init_tt_cores((8, 8, 4), (4, 8, 8), ranks, seed=1) != cores).any()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: init_tt_cores([2], [2], [1]),
            NetError,
            "init_tt_cores: inp_sizes and out_sizes must have",
        ),
        (lambda: init_tt_cores([2], [2], [1, 2]), NetError, "the first and last rank 1"),
        (lambda: matrix_to_tt(np.ones((6, 4)), [2, 3], [2, 2], [1, 1, 1]), ShapeError, r"must have shape \(4, 6\)"),
        (lambda: tt_svd(np.ones(5), [2, 3], [1, 2, 1]), ShapeError, "must have 6 elements"),
        (
            lambda: tt_svd(np.ones(6), [2, 3], [1, 3, 1]),
            NetError,
            r"tt_ranks\[1\] must be at most 2 for sizes \[2, 3\], got 3",
        ),
        (lambda: fc_net_to_tt_net(ModelHelper().net, {}, rank=0), NetError, "at least 1, got 2 and 0"),
    ],
)
def test_what_does_not_fit(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_sizes_are_split():
    assert [split_size(n, p) for n, p in ((768, 3), (7, 2), (1, 2), (64, 2), (30, 1))] == [
        [8, 8, 12],
        [1, 7],
        [1, 1],
        [8, 8],
        [30],
    ]


@pytest.fixture
def model():
    model = ModelHelper(name="mlp")
    brew.fc(model, "x", "hidden", dim_in=16, dim_out=24)
    brew.relu(model, "hidden", "hidden")
    brew.fc(model, "hidden", "y", dim_in=24, dim_out=2)
    return model


@pytest.fixture
def workspace(model):
    workspace = Workspace(seed=3)
    workspace.run_net_once(model.param_init_net)
    workspace.feed("x", np.random.default_rng(0).standard_normal((5, 16)).astype(np.float32))
    return workspace


def test_a_net_computes_the_same(model, workspace):
    """Weights that are a Kronecker product are a train of rank 1."""
    rng, before = np.random.default_rng(0), model.net.Proto().SerializeToString()
    known = {"hidden_w": np.kron(rng.standard_normal((4, 4)), rng.standard_normal((6, 4))).astype(np.float32)}
    workspace.feed("hidden_w", known["hidden_w"])
    workspace.run_net_once(model.net)
    want = workspace.fetch("y")
    net, cores = fc_net_to_tt_net(model.net, known, rank=1)
    assert [op.type for op in net.op] == ["TT", "Relu", "FC"]
    assert list(cores) == ["hidden_w_cores"]
    assert cores["hidden_w_cores"].size < known["hidden_w"].size
    assert model.net.Proto().SerializeToString() == before
    assert "hidden_w" not in net.external_input and "hidden_w_cores" in net.external_input
    for name, value in cores.items():
        workspace.feed(name, value)
    workspace.run_net_once(net)
    np.testing.assert_allclose(workspace.fetch("y"), want, atol=1e-5)


def test_layers_that_stay_and_nets_with_gradients(model, workspace):
    net, cores = fc_net_to_tt_net(model.net, {}, rank=2)
    assert cores == {} and net == model.net.Proto()
    loss = model.net.AveragedLoss(model.net.Sqr("y", "squares"), "loss")
    model.AddGradientOperators([loss])
    with pytest.raises(NetError, match="net 'mlp.*' must not have gradients; call this before AddGradientOperators"):
        fc_net_to_tt_net(model.net, {"y_w": workspace.fetch("y_w")})


def test_a_train_learns(workspace):
    """Gradients of the cores, the bias and the input reach an optimizer."""
    rng = np.random.default_rng(0)
    model = ModelHelper(name="tt")
    model.net.TT(["x", "b", "cores"], "y", inp_sizes=[4, 4], out_sizes=[2, 1], tt_ranks=[1, 3, 1])
    model.net.AveragedLoss(model.net.SquaredL2Distance(["y", "t"], "d"), "loss")
    gradients = model.net.AddGradientOperators(["loss"])
    for name in ("b", "cores"):
        model.net.WeightedSum([name, "one", gradients[name], "rate"], name)
    values = {"b": np.zeros(2), "cores": init_tt_cores([4, 4], [2, 1], [1, 3, 1]), "one": [1.0], "rate": [-0.02]}
    x = rng.standard_normal((64, 16))
    for name, value in {**values, "x": x, "t": x[:, [1, 7]]}.items():
        workspace.feed(name, np.float32(value))
    workspace.create_net(model.net)
    losses = []
    for _ in range(150):
        workspace.run_net(model.net)
        losses.append(float(workspace.fetch("loss")))
    assert losses[-1] < 0.3 * losses[0]
