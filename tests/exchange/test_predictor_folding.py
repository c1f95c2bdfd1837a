"""Predictors that fold normalizations, use little memory, and accept new parameters."""

import numpy as np
import pytest

from netbuilder.engines import onednn
from netbuilder.exchange import Predictor, load_predictor, save_predictor
from netbuilder.exchange.fills import fill_operator
from netbuilder.graph import Net
from netbuilder.graph.observability import set_stored
from netbuilder.model import ModelHelper, brew
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.passes import extract_predictor
from netbuilder.proto import BlobError, NetDef, NetError, files
from netbuilder.runtime import Workspace
from netbuilder.zoo.resnet import create_resnet_32x32


class Saved:
    """A saved small residual net with random statistics, and its results operator by operator."""

    def __init__(self, folder, **options):
        model = ModelHelper("small", arg_scope={"order": "NCHW"})
        create_resnet_32x32(model, "data", 3, 1, 5, is_test=True)
        self.net, parameters = extract_predictor(model.net, ["data"], ["last_out"])
        self.workspace = Workspace(threads=1, seed=1)
        self.workspace.run_net_once(model.param_init_net)
        rng = np.random.default_rng(0)
        for name in parameters:
            value = self.workspace.fetch(name)
            if value.ndim == 1:
                self.workspace.feed(name, rng.uniform(0.5, 1.5, value.shape).astype(np.float32))
        self.parameters = parameters
        self.x = rng.normal(size=(3, 3, 32, 32)).astype(np.float32)
        save_predictor(folder, self.net, parameters, inputs=["data"], workspace=self.workspace, **options)

    def expected(self):
        workspace = Workspace(threads=1, engines=())
        for name in self.parameters:
            workspace.feed(name, self.workspace.fetch(name))
        workspace.feed("data", self.x)
        workspace.run_net_once(self.net)
        return workspace.fetch("last_out")

    def check(self, predictor):
        got = predictor.run(data=self.x)["last_out"]
        want = self.expected()
        assert np.abs(got - want).max() <= 1e-4 * np.abs(want).max()


@pytest.fixture
def saved(tmp_path):
    return Saved(tmp_path / "p")


def types(net):
    return {op.type for op in net.op}


def test_loading_folds_and_leaves_the_files(tmp_path, saved):
    before = {path.name: path.read_bytes() for path in (tmp_path / "p").iterdir()}
    assert "SpatialBN" in types(files.load(tmp_path / "p" / "predict_net.pb", NetDef))
    predictor = load_predictor(tmp_path / "p", workspace=Workspace(threads=1))
    assert "SpatialBN" not in types(predictor.net)
    assert not predictor.workspace.has("conv1_w") and predictor.workspace.has("conv1_w_folded")
    saved.check(predictor)
    assert {path.name: path.read_bytes() for path in (tmp_path / "p").iterdir()} == before


def test_loading_as_it_is(tmp_path, saved):
    predictor = load_predictor(tmp_path / "p", fold=False, workspace=Workspace(threads=1))
    assert "SpatialBN" in types(predictor.net)
    saved.check(predictor)
    for name in ("conv1_w", "conv1_spatbn_rm"):  # and parameters can be fed
        saved.workspace.feed(name, saved.workspace.fetch(name) * 1.5)
        predictor.workspace.feed(name, saved.workspace.fetch(name))
        saved.check(predictor)


def test_saving_folded(tmp_path):
    saved = Saved(tmp_path / "p", fold=True)
    assert "SpatialBN" not in types(files.load(tmp_path / "p" / "predict_net.pb", NetDef))
    predictor = load_predictor(tmp_path / "p", fold=False, workspace=Workspace(threads=1))
    saved.check(predictor)


def test_blobs_of_others_stay(tmp_path, saved):
    workspace = Workspace(threads=1)
    workspace.feed("conv1_w", np.zeros(3, np.float32))
    load_predictor(tmp_path / "p", workspace=workspace)
    assert workspace.has("conv1_w") and not workspace.has("conv1_spatbn_s")


def test_only_what_is_observable_is_kept(tmp_path, saved):
    predictor = load_predictor(tmp_path / "p", workspace=Workspace(threads=1))
    predictor.run(data=saved.x)
    with pytest.raises(BlobError, match=r"'final_avg' is not observable .*observable=\['final_avg'\]"):
        predictor.workspace.fetch("final_avg")
    predictor = load_predictor(tmp_path / "p", observable=["final_avg", "conv1"], workspace=Workspace(threads=1))
    predictor.run(data=saved.x)
    assert predictor.workspace.fetch("final_avg").shape == (3, 64, 1, 1)
    assert predictor.workspace.fetch("conv1").shape == (3, 16, 30, 30)
    types = [op.type for op in predictor.net.op]
    assert types.count("AffineChannel") == 1 and "SpatialBN" not in types  # of conv1, which is kept
    assert list(predictor.net.external_output) == ["last_out"]
    with pytest.raises(BlobError, match="has no blob 'nope'"):
        load_predictor(tmp_path / "p", observable=["nope"])
    with pytest.raises(NetError, match="observable must be one of 'all', .* got 'conv1'"):
        load_predictor(tmp_path / "p", observable="conv1")


def test_what_a_net_stores_is_kept(tmp_path, saved):
    path = tmp_path / "p" / "predict_net.pb"
    net = files.load(path, NetDef)
    set_stored(net, "outputs", ["final_avg"])
    path.write_bytes(net.SerializeToString())
    for observable, kept in (("outputs", ["final_avg"]), (["conv1"], ["conv1"])):
        predictor = load_predictor(tmp_path / "p", observable=observable, workspace=Workspace(threads=1))
        saved.check(predictor)
        found = [
            name for name in ("final_avg", "conv1") if predictor.workspace.has(name) and predictor.workspace.spec(name)
        ]
        assert found == kept


def test_everything_is_kept_on_request(tmp_path, saved):
    predictor = load_predictor(tmp_path / "p", observable=None, workspace=Workspace(threads=1))
    saved.check(predictor)
    for op in predictor.net.op:
        assert predictor.workspace.fetch(op.output[0]) is not None


def test_batches_in_turn_and_inputs_that_change(tmp_path, saved):
    predictor = load_predictor(tmp_path / "p", workspace=Workspace(threads=1))
    x = saved.x
    for batch in (1, 3, 1, 2, 3):
        saved.x = x[:batch] * batch
        saved.check(predictor)


@pytest.mark.skipif(not onednn.available(), reason="needs oneDNN")
def test_weights_are_not_reordered_in_each_run(tmp_path, saved):
    predictor = load_predictor(tmp_path / "p", workspace=Workspace(threads=1))
    predictor.run(data=saved.x)
    (plan,) = predictor.workspace.net(predictor.net.name).plans
    moved = {value.name for step in plan.steps if step.moves for value in step.inputs}
    assert not moved & {name for name in predictor.net.external_input if name != "data"}


def training_net():
    model = ModelHelper("trains", arg_scope={"order": "NCHW"})
    brew.spatial_bn(model, brew.conv(model, "data", "conv", 3, 4, 1), "norm", 4)
    workspace = Workspace(threads=1)
    workspace.run_net_once(model.param_init_net)
    names = [op.output[0] for op in model.param_init_net.Proto().op]
    values = {name: workspace.fetch(name) for name in names}
    return model.net.Proto(), values


def test_normalization_in_training_mode(tmp_path):
    net, values = training_net()
    with pytest.raises(NetError, match="operator 1 SpatialBN .* it is in training mode"):
        save_predictor(tmp_path / "p", net, values, outputs=["norm"], fold=True)
    assert not (tmp_path / "p").exists()
    init_net = NetDef(op=[fill_operator(name, value) for name, value in values.items()])
    predictor = Predictor(init_net, net, inputs=["data"], outputs=["norm"])
    x = np.random.default_rng(0).normal(size=(8, 3, 5, 5)).astype(np.float32)
    got = predictor.run(data=x)["norm"]
    assert types(predictor.net) == {"Conv", "SpatialBN"} and abs(float(got.mean())) < 1e-5


@pytest.mark.parametrize("observable", ["outputs", "all"])
def test_attention_and_normalization_in_parts(observable):
    """They become one operator each, for every batch; not if their parts can be fetched."""
    net = Net("parts")
    net.Sqr("x", "squares")
    net.ReduceMean("squares", "mean", axes=[-1], keepdims=1)
    net.Add(["mean", "eps"], "more")
    net.Rsqrt("more", "factor")
    net.Mul(["x", "factor"], "normal")
    net.Mul(["normal", "g"], "q")
    net.Transpose("q", "k", axes=[0, 1, 3, 2])
    net.BatchMatMul(["q", "k"], "scores")
    net.Softmax("scores", "weights", axis=3)
    net.BatchMatMul(["weights", "x"], "y")
    net.Proto().external_input.extend(["x", "eps", "g"])
    net.Proto().external_output.append("y")
    parameters = {"eps": np.float32([1e-3]), "g": np.linspace(1, 2, 4, dtype=np.float32)}
    specs = {"x": TensorSpec((1, 2, 3, 4), np.dtype(np.float32))}
    predictor = Predictor(NetDef(), net.Proto(), parameters=parameters, specs=specs, observable=observable)
    types = [op.type for op in predictor.net.op]
    assert (types == ["RMSNorm", "Attention"]) == (observable == "outputs")
    for n in (1, 3):
        x = np.random.default_rng(n).normal(size=(n, 2, 3, 4))
        q = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-3) * parameters["g"]
        weights = np.exp(q @ q.swapaxes(-1, -2))
        want = weights / weights.sum(-1, keepdims=True) @ x
        np.testing.assert_allclose(predictor.run(x=x.astype(np.float32))["y"], want, 1e-5, 1e-5)
