"""Observable blobs: which values are kept, and that results do not depend on the choice."""

import gc

import numpy as np
import pytest

from netbuilder.graph import Net
from netbuilder.model import ModelHelper, brew
from netbuilder.optimizers import build_sgd
from netbuilder.proto import BlobError, NetDef, NetError
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import LossReader, Workspace
from netbuilder.zoo.resnet import create_resnet_32x32
from switches import single

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
    "observable, kept",
    [
        (None, "ab"),
        ("all", "ab"),
        ("activations", "ab"),
        ("outputs", ""),
        ([], ""),
        (["b"], "b"),
        (iter("ab"), "ab"),
    ],
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
        NetError, match="observable must be one of 'all', 'activations', 'outputs', or a list of blobs; got 'a'"
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
        np.testing.assert_allclose(workspace.fetch("a"), np.exp(X), rtol=1e-6)
        workspace.run_net(name)
        assert workspace.spec("a") is None and workspace.get("a").hidden_by == name
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
    np.testing.assert_allclose(workspace.fetch("y"), np.exp(X), rtol=1e-6)
    assert workspace.fetch("yes").tolist() == [[False, True]]  # nobody reads it, so it is a result


def test_what_is_asked_for_in_vain_is_kept_from_the_next_run_on():
    workspace, name = made(chain(), observable="outputs")
    with pytest.raises(BlobError, match=r"with observable='all' to keep every blob; from its next run on, .* keeps it"):
        workspace.fetch("a")
    with pytest.raises(BlobError, match="is not observable"):  # there is no value yet
        workspace.fetch("a")
    for x in (X, 2 * X, np.float32([[1], [2]])):
        workspace.feed("x", x)
        workspace.run_net(name)
        np.testing.assert_allclose(workspace.fetch("a"), np.exp(x), rtol=1e-6)
        assert workspace.get("b").is_empty


def test_what_another_net_or_a_reader_of_losses_asks_for_is_kept():
    workspace, name = made(chain(), observable="outputs")
    workspace.create_net(NetDef(name="reads", op=[make_op("ReduceBackMean", ["b"], ["mean"], num_reduce_dim=2)]))
    with pytest.raises(BlobError, match="'b' is not observable"):
        workspace.run_net("reads")
    workspace.run_net(name)
    workspace.run_net("reads")
    assert np.allclose(workspace.fetch("mean"), workspace.fetch("b").mean())
    workspace.feed("x", np.float32([0.5]))
    workspace.run_net(name)
    reader = LossReader(workspace, ["a"])
    with pytest.raises(BlobError, match="LossReader: blob 'a' is not observable"):
        reader.read()
    workspace.run_net(name)
    reader.read()
    assert np.isclose(reader.last()["a"], np.exp(0.5))


def test_a_net_that_is_replaced_or_gone_keeps_nothing():
    workspace, name = made(chain(), observable="outputs")
    workspace.delete_net(name)
    gc.collect()
    with pytest.raises(BlobError, match="to keep every blob$"):
        workspace.fetch("a")


def backward(update=True):
    """A net of two layers with its backward pass."""
    model = ModelHelper("mlp")
    hidden = brew.relu(model, brew.fc(model, "data", "fc0", 6, 5), "relu0")
    loss = model.net.AveragedLoss(brew.fc(model, hidden, "fc1", 5, 1), "loss")
    model.net.ReduceFrontMean(model.net.Abs(hidden, "size"), "mean")
    model.AddGradientOperators([model.net.Scale(loss, "scaled", scale=0.5)])
    if update:
        build_sgd(model, 0.1, momentum=0.9, policy="step", stepsize=2, gamma=0.5)
    return model


def run(model, **options):
    workspace = Workspace(threads=1, seed=1)
    workspace.feed("data", np.linspace(-1, 1, 18, dtype=np.float32).reshape(3, 6))
    workspace.run_net_once(model.param_init_net)
    workspace.create_net(model.net, **options)
    workspace.run_net(model.net.Name(), 2)
    return workspace


def hidden_in(workspace):
    return {blob for blob in workspace.blobs() if workspace.get(blob).hidden_by}


GRADIENTS_OF_ACTIVATIONS = {"fc0_grad", "relu0_grad", "loss_grad", "fc1_grad"}
GRADIENTS_OF_PARAMETERS = {"fc0_w_grad", "fc0_b_grad", "fc1_w_grad", "fc1_b_grad"}


def test_gradients_of_activations_are_hidden_by_default():
    model = backward()
    whole = run(model, observable="all")
    assert not hidden_in(whole)
    for options in ({}, {"observable": "activations"}):
        workspace = run(model, **options)
        hidden = hidden_in(workspace)
        # of fc0_grad the gradient of the data is made, if it is fetched
        assert {"relu0_grad", "fc1_grad"} <= hidden <= GRADIENTS_OF_ACTIVATIONS - {"fc0_grad"} | {"scaled_grad"}
        for blob in sorted(set(whole.blobs()) - hidden - {"iteration_mutex"}):
            np.testing.assert_array_equal(workspace.fetch(blob), whole.fetch(blob), err_msg=blob)


def test_without_an_update_gradients_of_parameters_are_results():
    workspace = run(backward(update=False))
    for blob in (*GRADIENTS_OF_PARAMETERS, "data_grad"):
        assert workspace.fetch(blob) is not None


def test_losses_metrics_and_learning_rates_are_outputs():
    model = backward()
    workspace, whole = run(model, observable="outputs"), run(model, observable="all")
    rate = next(op.output[0] for op in model.net.Proto().op if op.type == "LearningRate")
    kept = {"loss", "scaled", "mean", "fc0_w", "fc0_w_momentum", rate}
    for blob in kept:
        np.testing.assert_array_equal(workspace.fetch(blob), whole.fetch(blob), err_msg=blob)
    assert {"relu0", "size", "fc1"} | GRADIENTS_OF_PARAMETERS <= hidden_in(workspace)


def test_a_net_stores_what_is_observable():
    net = chain()
    net.set_observable("outputs", [net.GetBlobRef("b")])
    message = NetDef.FromString(net.Proto().SerializeToString())
    for made_from in (net, message):
        workspace, name = made(made_from)
        assert hidden_in(workspace) == {"a"}
    for observable, hidden in (("all", ""), ("activations", ""), ("outputs", "ab"), (["a"], "b")):
        assert hidden_in(made(net, observable=observable)[0]) == set(hidden)
    clone = net.Clone("copy", {"b": "renamed"})
    workspace, _ = made(clone)
    assert hidden_in(workspace) == {"a"} and not workspace.get("renamed").is_empty
    net.set_observable("all")
    assert not hidden_in(made(net)[0])


def test_bad_kinds_are_refused():
    net = chain()
    before = net.Proto().SerializeToString()
    with pytest.raises(NetError, match=r"net 'chain.*': observable must be one of 'all', .*; got 'some'"):
        net.set_observable("some")
    with pytest.raises(NetError, match="Net.set_observable: blobs must be a list, got 'ab'"):
        net.set_observable("outputs", "ab")
    assert net.Proto().SerializeToString() == before
    net.AddArgument("observable", "most")
    with pytest.raises(NetError, match="got 'most'"):
        made(net)


def test_other_shapes_and_back():
    workspace, name = made(chain(), observable=["b"])
    for rows in (1, 5, 1, 5):
        x = np.arange(2 * rows, dtype=np.float32).reshape(rows, 2) / 9
        workspace.feed("x", x)
        workspace.run_net(name)
        np.testing.assert_allclose(workspace.fetch("y"), np.exp(1 / (1 + np.exp(-np.exp(x)))), rtol=1e-5)


def training(observable, without=(), net_type="", devices=1):
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
    workspace.create_net(model.net, observable=observable, without=without)
    workspace.run_net(model.net.Name(), 3)
    return {str(p): workspace.fetch(p) for p in model.params}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("net_type", ["", "dag"])
def test_training_gives_the_same_parameters(net_type):
    want = training(None, net_type=net_type)
    for without in (single("reuse"), ()):
        got = training("outputs", without, net_type)
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
    for options in ({}, {"observable": "outputs", "without": single("reuse")}, {"observable": "outputs"}):
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
    (plan,) = net.plans
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
