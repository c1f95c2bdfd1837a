"""netbuilder-train --onnx: the net of an ONNX file is trained, resumed, and exported again; what it refuses."""

import functools
import importlib.util

import numpy as np
import pytest

if importlib.util.find_spec("onnx") is None:
    pytest.skip("needs the package onnx", allow_module_level=True)

import onnx

from netbuilder import ModelHelper, Workspace, load_predictor
from netbuilder.data.digit_images import digits
from netbuilder.exchange.onnx import export_onnx
from netbuilder.passes import extract_predictor
from netbuilder.tools import imagenet_trainer
from netbuilder.zoo.vit import ViT, create_vit

NORM = ("scale", "shift", "mean", "variance")


@functools.cache
def cnn(classes=10, batch="N", side=8, last="", inputs=""):
    """Return a small net of convolutions as text of ONNX; its input is ``x``, ``label`` a blob that the trainer has."""
    rng = np.random.default_rng(0)
    values = {
        "conv_w": rng.normal(0, 0.3, (6, 1, 3, 3)), "scale": np.ones(6), "shift": np.zeros(6), "mean": np.zeros(6),
        "variance": np.ones(6), "head_w": rng.normal(0, 0.3, (classes, 6)), "head_b": np.zeros(classes),
    }  # fmt: skip
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17]>
        cnn (float[{batch}, 1, {side}, {side}] x{inputs}) => (float[{batch}, {classes}] softmax) {{
            y = Conv <pads=[1, 1, 1, 1]> (x, conv_w)
            label = BatchNormalization (y, {", ".join(NORM)})
            r = Relu (label)
            p = GlobalAveragePool (r)
            f = Flatten (p)
            scores = Gemm <transB=1> (f, head_w, head_b)
            softmax = {last or "Softmax <axis=-1> (scores)"}
        }}""")
    made = [onnx.numpy_helper.from_array(np.float32(value), name) for name, value in values.items()]
    model.graph.initializer.extend(made)
    return model


def vit(path):
    """Write a ViT of netbuilder's, with 5 classes."""
    model = ModelHelper("vit")
    create_vit(model, "data", 1, 5, ViT(8, 1, 2, 4), image_size=8, is_test=True)
    workspace = Workspace(seed=1)
    workspace.run_net_once(model.param_init_net)
    net, parameters = extract_predictor(model.net, ["data"], ["softmax"])
    export_onnx(path, net, parameters, shapes={"data": (1, 1, 8, 8)}, workspace=workspace)


@pytest.fixture
def train(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    onnx.save(cnn(), "cnn.onnx")
    vit("vit.onnx")

    def run(*options):
        status = imagenet_trainer.main(["--cpu", "--epochs", "2", "--batch", "64", *options])
        said = capsys.readouterr()
        return status, said.out + said.err

    return run


def outputs(path):
    """Return onnxruntime's probabilities of held-out digits."""
    session = pytest.importorskip("onnxruntime").InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: images()})[0]


def images():
    return digits()[0][:40].reshape(-1, 1, 8, 8).astype(np.float32) / 8 - 1


@pytest.mark.one_in(2)
@pytest.mark.parametrize("options", [["--onnx", "cnn.onnx"], ["--onnx", "vit.onnx", "--new-head", "--ema", "0.9"]])
def test_a_net_is_trained_and_exported_again(train, options):
    status, said = train(*options, "--learning-rate", "0.2", "--export", "out.onnx")
    assert status == 0, said
    assert train(*options, "--learning-rate", "0.2", "--export", "out")[0] == 0
    found = outputs("out.onnx")
    np.testing.assert_allclose(found, load_predictor("out").run(data=images())["softmax"], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-5)
    before = {each.name: onnx.numpy_helper.to_array(each) for each in onnx.load(options[1]).graph.initializer}
    after = {each.name: onnx.numpy_helper.to_array(each) for each in onnx.load("out.onnx").graph.initializer}
    both = [name for name in before if name in after and after[name].shape == before[name].shape]
    assert any(np.abs(after[name] - before[name]).max() > 1e-4 for name in both if before[name].dtype == np.float32)
    assert found.shape == (40, 10)


def test_two_devices_and_a_resumed_run_train_as_one(train):
    options = ["--onnx", "cnn.onnx", "--combine-bn", "--learning-rate", "0.2"]
    assert train(*options, "--export", "one")[0] == 0
    assert train(*options, "--devices", "0,1", "--checkpoint", "run", "--epochs", "1")[0] == 0
    assert train(*options, "--devices", "0,1", "--checkpoint", "run", "--resume", "auto", "--export", "two")[0] == 0
    one, two = (load_predictor(name).run(data=images())["softmax"] for name in ("one", "two"))
    np.testing.assert_allclose(two, one, rtol=1e-3, atol=1e-5)
    onnx.save(cnn(last="Identity (scores)"), "cnn.onnx")
    status, said = train(*options, "--checkpoint", "run", "--resume", "auto")
    assert status == 1 and "contents of --onnx was" in said


def test_frozen_parameters_keep_their_values(train):
    assert train("--onnx", "vit.onnx", "--new-head", "--frozen", "patches*,positions*", "--export", "out.onnx")[0] == 0
    before, after = (
        {each.name: onnx.numpy_helper.to_array(each) for each in onnx.load(name).graph.initializer}
        for name in ("vit.onnx", "out.onnx")
    )
    same = {name for name in before if name in after and np.array_equal(before[name], after[name])}
    frozen = {name for name in before if name.startswith(("patches", "positions"))}
    assert frozen and frozen <= same
    assert not any(name in same for name in before if name.endswith("_w") and name not in frozen)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "mlp"], "--onnx is the net to train; leave --model mlp out"),
        (["--frozen", "nothing*"], "frozen: 'nothing*' fits none of the parameters"),
        ({"classes": 7}, "computes 7 scores, but there are 10 classes; --new-head replaces its last layer"),
        ({"batch": 3}, "is for batches of 3 only; export it with a dynamic first axis"),
        ({"side": 28}, r"reads images of 1 x 28 x 28 (C x H x W), those of the data have 1 x 8 x 8; --crop"),
        ({"inputs": ", float[N] weights"}, "must have one input, images (N, C, H, W); its inputs are: x, weights"),
        ({"last": "ReduceSum (scores)"}, "must compute scores (N, classes); 'softmax_of_model' has the shape"),
        ({"last": "Bernoulli (scores)"}, "Bernoulli"),
    ],
)
def test_what_is_refused(train, options, message):
    given = ["--onnx", "cnn.onnx"]
    if isinstance(options, dict):
        onnx.save(cnn(**options), "cnn.onnx")
    else:
        given += options
    try:
        status, said = train(*given)
    except SystemExit as end:  # of the parser
        status, said = end.code, message
    assert status in (1, 2) and message in said


def test_files_that_are_no_models_and_heads_that_are_none(train, tmp_path):
    (tmp_path / "text.onnx").write_text("no model")
    status, said = train("--onnx", "text.onnx")
    assert status == 1 and "'text.onnx' is not an ONNX model" in said
    status, said = train("--onnx", "cmn.onnx")
    assert status == 1 and "cmn.onnx" in said and "cnn.onnx" in said
    onnx.save(cnn(last="Sigmoid (scores)"), "cnn.onnx")
    status, said = train("--onnx", "cnn.onnx", "--new-head")
    assert (
        status == 1
        and "must be fully connected, Gemm or MatMul by a constant; 'softmax_of_model' is made by Sigmoid" in said
    )
