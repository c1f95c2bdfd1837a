"""Observable blobs: which values are kept, and that results do not depend on the choice."""

import numpy as np
import pytest

from netbuilder.graph import Net
from netbuilder.model import ModelHelper, brew
from netbuilder.optimizers import build_sgd
from netbuilder.proto import BlobError, NetDef, NetError
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from netbuilder.zoo.resnet import create_resnet_32x32

X = np.float32([[-1.0, 2.0]])


def chain():
    """x -> a -> b -> y -> z, of which y and z are outputs."""
    net = Net("chain")
    net.Exp("x", "a")
    net.Sigmoid("a", "b")
    net.Exp("b", "y")
    net.Copy("y", "z")
    net.AddExternalOutput("y", "z")
    return net


def made(net, **options):
    workspace = Workspace(threads=1)
    workspace.feed("x", X)
    name = workspace.create_net(net, **options)
    workspace.run_net(name)
    return workspace, name


@pytest.mark.parametrize(
    "observable, kept", [(None, "ab"), ("outputs", ""), ([], ""), (["b"], "b"), (iter("ab"), "ab")]
)
def test_what_is_kept(observable, kept):
    want, _ = made(chain())
    workspace, name = made(chain(), observable=observable)
    for blob in ("x", "y", "z", *kept):
        assert np.array_equal(workspace.fetch(blob), want.fetch(blob))
    for blob in set("ab").difference(kept):
        with pytest.raises(BlobError, match=rf"'{blob}' is not observable in net '{name}', .*observable=\['{blob}'\]"):
            workspace.fetch(blob)
        assert workspace.spec(blob) is None and workspace.has(blob)


def test_names_that_are_not_there_are_refused():
    with pytest.raises(
        BlobError, match=r"net 'chain.*' has no blob 'aa', so it cannot be observable; did you mean 'a'"
    ):
        made(chain(), observable=["aa"])
    with pytest.raises(
        NetError, match="observable must be None, 'outputs' or a list of blobs, got the single string 'a'"
    ):
        made(chain(), observable="a")


def test_another_net_cannot_read_what_is_not_kept():
    workspace, name = made(chain(), observable="outputs")
    with pytest.raises(BlobError, match=rf"operator 0: Relu .*input blob 'a' is not observable in net '{name}'"):
        workspace.run_operator_once(make_op("Relu", ["a"], ["c"]))


def test_nets_that_make_the_same_blob_take_turns():
    workspace, name = made(chain(), observable="outputs")
    other = Net("other")
    other.Exp("x", "a")
    whole = workspace.create_net(other)
    for _ in range(2):
        workspace.run_net(whole)
        assert np.array_equal(workspace.fetch("a"), np.exp(X))
        workspace.run_net(name)
        with pytest.raises(BlobError, match="is not observable"):
            workspace.fetch("a")
    workspace.feed("a", X)
    assert np.array_equal(workspace.fetch("a"), X)
    workspace.run_net(name)
    with pytest.raises(BlobError, match="is not observable"):
        workspace.fetch("a")


def test_a_blob_that_is_carried_from_run_to_run_is_kept():
    net = NetDef(name="counts", op=[make_op("Add", ["n", "x"], ["n"])])
    workspace = Workspace(threads=1)
    workspace.feed("n", X)
    workspace.feed("x", X)
    workspace.create_net(net, observable="outputs")
    workspace.run_net("counts", 3)
    assert np.array_equal(workspace.fetch("n"), 4 * X)


def test_what_a_dynamic_operator_reads_is_kept():
    net = Net("dynamic")
    net.Exp("x", "a")
    net.FlattenToVec("a", "flat")
    net.Cast("flat", "i", to="int32")
    net.Unique(["i"], ["u"])
    net.AddExternalOutput("u")
    want, _ = made(net)
    workspace, _ = made(net, observable="outputs")
    assert workspace.fetch("u").tolist() == want.fetch("u").tolist() == [0, 7]
    with pytest.raises(BlobError, match="'flat' is not observable"):
        workspace.fetch("flat")


def test_what_a_held_net_reads_is_kept():
    inner = NetDef(name="inner", op=[make_op("Copy", ["a"], ["y"])], external_input=["a"], external_output=["y"])
    net = NetDef(name="holds", external_output=["y"])
    net.op.extend([make_op("Exp", ["x"], ["a"]), make_op("GT", ["x", "zero"], ["yes"], broadcast=1)])
    net.op.append(make_op("If", ["once"], ["y"], then_net=inner))
    workspace = Workspace(threads=1)
    for name, value in {"x": X, "zero": np.float32([0]), "once": np.array([True])}.items():
        workspace.feed(name, value)
    workspace.create_net(net, observable="outputs")
    workspace.run_net("holds")
    assert np.array_equal(workspace.fetch("y"), np.exp(X))
    with pytest.raises(BlobError, match="'yes' is not observable"):
        workspace.fetch("yes")


def test_other_shapes_and_back():
    workspace, name = made(chain(), observable=["b"])
    for rows in (1, 5, 1, 5):
        x = np.arange(2 * rows, dtype=np.float32).reshape(rows, 2) / 9
        workspace.feed("x", x)
        workspace.run_net(name)
        np.testing.assert_allclose(workspace.fetch("y"), np.exp(1 / (1 + np.exp(-np.exp(x)))), rtol=1e-5)


def training(observable, reuse=True, net_type="", devices=1):
    """Train a small residual net; return its parameters."""
    model = ModelHelper("small", arg_scope={"order": "NCHW"})
    softmax = create_resnet_32x32(model, "data", 3, 1, 5)
    loss = model.net.AveragedLoss(model.net.LabelCrossEntropy([softmax, "label"], "xent"), "loss")
    model.AddGradientOperators([loss])
    build_sgd(model, 0.1, momentum=0.9)
    model.net.Proto().type = net_type
    rng = np.random.default_rng(0)
    workspace = Workspace(threads=1, seed=1)
    workspace.feed("data", rng.normal(size=(4, 3, 32, 32)).astype(np.float32))
    workspace.feed("label", rng.integers(0, 5, 4).astype(np.int32))
    workspace.run_net_once(model.param_init_net)
    workspace.create_net(model.net, observable=observable, reuse=reuse)
    workspace.run_net(model.net.Name(), 3)
    return {str(p): workspace.fetch(p) for p in model.params}


@pytest.mark.parametrize("net_type", ["", "dag"])
def test_training_gives_the_same_parameters(net_type):
    want = training(None, net_type=net_type)
    for reuse in (False, True):
        got = training("outputs", reuse, net_type)
        for name, value in want.items():
            assert np.array_equal(got[name], value), name


def test_two_lanes_share_no_memory():
    net = Net("lanes")
    for lane in (0, 1):
        blob = "x"
        for i in range(6):
            blob = net.Sigmoid(blob, f"lane{lane}_{i}")
            net.Proto().op[-1].device_option.device_id = lane
        net.AddExternalOutput(blob)
    net.Proto().type = "dag"
    workspace = Workspace(threads=2)
    workspace.feed("x", np.zeros((64, 64), np.float32))
    name = workspace.create_net(net, observable="outputs")
    for _ in range(20):
        workspace.run_net(name)
        assert np.array_equal(workspace.fetch("lane0_5"), workspace.fetch("lane1_5"))


def test_a_model_in_test_mode_makes_the_same_scores_from_less_memory():
    model = ModelHelper("small", arg_scope={"order": "NCHW"})
    create_resnet_32x32(model, "data", 3, 1, 5, is_test=True)
    model.net.AddExternalOutput("last_out")
    results, sizes = [], []
    for options in ({}, {"observable": "outputs", "reuse": False}, {"observable": "outputs"}):
        workspace = Workspace(threads=1, seed=1)
        workspace.feed("data", np.random.default_rng(0).normal(size=(4, 3, 32, 32)).astype(np.float32))
        workspace.run_net_once(model.param_init_net)
        workspace.create_net(model.net, **options)
        workspace.run_net(model.net.Name())
        results.append(workspace.fetch("last_out"))
        sizes.append(_bytes(workspace.net(model.net.Name())))
    np.testing.assert_allclose(results[1], results[0], rtol=1e-4, atol=1e-5)  # fusion adds in another order
    assert np.array_equal(results[2], results[1])
    assert sizes[2] < sizes[1] / 2


def _bytes(net):
    (plan,) = net._plans[0]
    buffers = {v.buffer.ctypes.data: v.buffer.nbytes for s in plan.steps for v in s.outputs if v is not None}
    return sum(buffers.values())


def test_values_share_memory_only_when_their_lives_do_not_meet():
    rng = np.random.default_rng(3)
    net, known = NetDef(name="random", external_output=["out"]), ["x"]
    for i in range(60):
        a, b = (known[-1 - min(int(rng.exponential(3)), len(known) - 1)] for _ in range(2))
        net.op.append(make_op("Add" if i % 3 else "Mul", [a, b], [f"v{i}"]))
        if i % 4 == 0:
            net.op.append(make_op("Sigmoid", [f"v{i}"], [f"v{i}"]))
        known.append(f"v{i}")
    net.op.append(make_op("Sum", known[1::2], ["out"]))
    results = []
    for options in ({}, {"observable": "outputs"}, {"observable": ["v7", "v20"]}):
        for engines in (None, ()):
            workspace = Workspace(threads=1, engines=engines)
            workspace.feed("x", np.linspace(-1, 1, 50, dtype=np.float32).reshape(5, 10))
            workspace.create_net(net, **options)
            workspace.run_net("random")
            workspace.run_net("random")
            results.append(workspace.fetch("out"))
    for engine in (0, 1):
        for got in results[engine::2]:
            assert np.array_equal(got, results[engine])


def test_brew_layers_with_gradients_of_hidden_blobs():
    model = ModelHelper("mlp")
    hidden = brew.relu(model, brew.fc(model, "data", "fc0", 6, 5), "relu0")
    loss = model.net.AveragedLoss(brew.fc(model, hidden, "fc1", 5, 1), "loss")
    model.AddGradientOperators([loss])
    grads = []
    for observable in (None, ["fc0_w_grad"]):
        workspace = Workspace(threads=1)
        workspace.feed("data", np.ones((3, 6), np.float32))
        workspace.run_net_once(model.param_init_net)
        workspace.create_net(model.net, observable=observable)
        workspace.run_net(model.net.Name())
        grads.append(workspace.fetch("fc0_w_grad"))
    assert np.array_equal(*grads)
