"""Weights of torchvision's and timm's nets: the mapping of names, files, new heads, errors, and back.

``golden/weight_names.json`` has name there -> blob here and shape there, from the modules of PyTorch that
``torch_nets/compare.py`` compares with the zoo's on equal parameters.
"""

import json
import sys

import numpy as np
import pytest

from house import ROOT
from netbuilder.exchange import checkpoint_blobs, load_weights, save_weights
from netbuilder.exchange.safetensors import read_safetensors, write_safetensors
from netbuilder.exchange.weights import read_weights
from netbuilder.graph.net_names import reset_names
from netbuilder.model import ModelHelper
from netbuilder.optimizers import build_sgd
from netbuilder.parallel import Parallelize_CPU, RunInitNet
from netbuilder.proto import NetDef, NetError, OperatorDef, ParseError
from netbuilder.runtime import Workspace
from netbuilder.tools import imagenet_trainer
from netbuilder.tools.training.images import Images
from netbuilder.tools.training.nets import NETS
from netbuilder.tools.training.options import parse
from netbuilder.tools.training.run import Run
from zoo_cases import SMALL

NAMES = json.loads((ROOT / "tests" / "golden" / "weight_names.json").read_text())
NET = "mobilenet-v2"


def drawn(name):
    """Return arrays by the names of a file, in alphabetical order."""
    rng = np.random.default_rng(0)
    return {there: rng.standard_normal(shape).astype(np.float32) for there, (_, shape) in NAMES[name].items()}


def built(name):
    reset_names()
    model, workspace = ModelHelper("case"), Workspace(threads=1)
    SMALL[name].create(model, SMALL[name].size, is_test=True)
    workspace.run_net_once(model.param_init_net)
    return model, workspace


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "weights.safetensors"
    write_safetensors(path, drawn(NET))
    return path


@pytest.mark.parametrize("name", NAMES)
def test_each_array_goes_where_pytorch_has_it(name, tmp_path):
    path, again, arrays = tmp_path / "weights.safetensors", tmp_path / "again.safetensors", drawn(name)
    write_safetensors(path, arrays)
    model, workspace = built(name)
    report = load_weights(model, path, workspace=workspace)
    assert sorted(report.loaded) == sorted(blob for blob, _ in NAMES[name].values()) and not report.reinitialized
    for there, (blob, _) in NAMES[name].items():
        np.testing.assert_array_equal(workspace.fetch(blob).ravel(), arrays[there].ravel(), err_msg=there)
    save_weights(model, again, like=path, workspace=workspace)
    back = read_safetensors(again)
    assert back.keys() == arrays.keys()
    for there, value in arrays.items():
        np.testing.assert_array_equal(back[there], value)


def test_all_devices_get_them(file):
    reset_names()
    model, workspace = ModelHelper("case"), Workspace(threads=1)

    def forward(model, loss_scale):
        return [model.Scale(SMALL[NET].create(model, SMALL[NET].size, is_test=False), scale=loss_scale)]

    update = {"optimizer_builder_fun": lambda model: build_sgd(model, 0.1)}
    Parallelize_CPU(model, lambda model: None, forward, devices=[0, 1], **update)
    RunInitNet(model, workspace=workspace)
    load_weights(model, file, workspace=workspace)
    for there, (blob, _) in NAMES[NET].items():
        for device in range(2):
            np.testing.assert_array_equal(workspace.fetch(f"cpu_{device}/{blob}"), drawn(NET)[there])


def test_a_new_head(tmp_path):
    path, arrays = tmp_path / "weights.safetensors", drawn(NET)
    head = {name: value for name, value in arrays.items() if name.startswith("classifier")}
    write_safetensors(path, {**arrays, **{name: np.repeat(value, 2, 0) for name, value in head.items()}})
    model, workspace = built(NET)
    blobs = {name: NAMES[NET][name][0] for name in head}
    before = {blob: workspace.fetch(blob) for blob in [blob for blob, _ in NAMES[NET].values()]}
    with pytest.raises(NetError, match=r"'classifier.1.weight' does not fit .*new_head=True \(--finetune\) replaces"):
        load_weights(model, path, workspace=workspace)
    for blob, value in before.items():
        np.testing.assert_array_equal(workspace.fetch(blob), value)
    report = load_weights(model, path, workspace=workspace, new_head=True)
    assert set(report.reinitialized) == set(blobs.values()) and head.keys() <= report.skipped.keys()
    for blob in blobs.values():
        np.testing.assert_array_equal(workspace.fetch(blob), before[blob])


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        (lambda a: a.pop("features.0.0.weight"), NetError, r"is of another net: it has \d+ parameters, the net \d+"),
        (lambda a: a.update({"features.0.0.weight": np.ones((2, 2), np.float32)}), NetError, "does not fit the net"),
        (lambda a: a.clear(), NetError, "is of another net: it has 0 parameters"),
    ],
    ids=["missing", "shape", "nothing"],
)
def test_another_net_is_refused(change, error, match, tmp_path):
    path, arrays = tmp_path / "weights.safetensors", drawn(NET)
    change(arrays)
    write_safetensors(path, arrays)
    model, workspace = built(NET)
    with pytest.raises(error, match=match):
        load_weights(model, path, workspace=workspace, new_head=True)


@pytest.mark.parametrize(
    "data",
    [b"", b"\0" * 20, b"\x02" + b"\0" * 7 + b"[]", b"\xff" * 30, (9000).to_bytes(8, "little") + b"[" * 9000, None],
    ids=range(6),
)
def test_damaged_files(data, file):
    file.write_bytes(file.read_bytes()[:-100] if data is None else data)
    with pytest.raises(ParseError, match="is no file of safetensors"):
        read_safetensors(file)


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (None, "is a folder; give a file with weights"),
        (b"\x03\x00\x00\x00\x02\x00\x00\x00keyab", "this is a minidb database"),
        (
            NetDef(name="net", op=[OperatorDef(type="Relu", input=["x"], output=["y"])]).SerializeToString(),
            "this is a net",
        ),
        (b"PK\x03\x04", "is read by PyTorch, which is not installed: pip install"),
    ],
    ids=["a predictor's folder", "a checkpoint", "a net", "a file of PyTorch's"],
)
def test_files_of_other_kinds(content, kind, tmp_path, monkeypatch):
    """Those of this project name the way to go on from them, whether PyTorch is installed or not."""
    monkeypatch.setitem(sys.modules, "torch", None)
    path = tmp_path / "file"
    path.mkdir() if content is None else path.write_bytes(content)
    ours = "PyTorch" not in kind
    with pytest.raises(NetError, match=f"{kind}.*{'netbuilder-train --onnx FILE' if ours else 'safetensors'}"):
        read_weights(path)


def test_bfloat16_becomes_float32(tmp_path):
    header = json.dumps({"x": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + np.array([0x3FC0, 0xC000], "<u2").tobytes())
    np.testing.assert_array_equal(read_safetensors(path)["x"], np.float32([1.5, -2]))


def test_weights_are_written_as_safetensors(file):
    model, workspace = built(NET)
    with pytest.raises(NetError, match=r"must write FILE\.safetensors, got 'x\.pth'"):
        save_weights(model, "x.pth", like=file, workspace=workspace)


def test_the_trainer_begins_with_them(tmp_path, capsys):
    """Frozen parameters stay as the file has them; the head for other classes is new."""
    path, (model, workspace) = tmp_path / "w.safetensors", squeezenet()
    names = [f"features.{layer}.{part}" for layer in range(25) for part in ("weight", "bias")]
    save_weights(model, path, like=[*names, "classifier.1.weight", "classifier.1.bias"], workspace=workspace)
    options = parse([
        "--cpu", "--model=squeezenet1.1", "--epochs=1", "--batch=4", "--finetune", "--frozen=conv1_*,fire2*",
        "--clip-norm=1", "--optimizer=adamw", "--learning-rate=0.01", f"--weights={path}",
    ])  # fmt: skip
    rng = np.random.default_rng(0)
    images = Images(rng.standard_normal((8, 3, 32, 32)).astype(np.float32), np.arange(8, dtype=np.int32) % 3)
    run = Run(options, images, images)
    blobs = [name for name in checkpoint_blobs(model).names if not name.startswith("conv10")]
    values = {blob: workspace.fetch(blob) for blob in blobs}
    assert sorted(run.loaded.loaded) == sorted(blobs) and set(run.loaded.reinitialized) == {"conv10_w", "conv10_b"}
    for blob, value in values.items():
        np.testing.assert_array_equal(run.model.workspace.fetch(f"cpu_0/{blob}"), value)
    run.train()
    for blob, value in values.items():
        same = np.array_equal(run.model.workspace.fetch(f"cpu_0/{blob}"), value)
        assert same == blob.startswith(("conv1_", "fire2")), blob


def squeezenet():
    reset_names()
    model, workspace = ModelHelper("whole"), Workspace(threads=1, seed=3)
    NETS["squeezenet1.1"](model, (3, 32, 32), 7, is_test=True)
    workspace.run_net_once(model.param_init_net)
    return model, workspace


@pytest.mark.parametrize(
    ("given", "match"),
    [
        (["--finetune"], "--finetune needs --weights FILE"),
        (["--new-head"], "--new-head needs --onnx FILE; with --weights FILE give --finetune"),
        (["--clip-norm=1", "--block-steps=2"], "--clip-norm cannot be combined with --block-steps"),
    ],
)
def test_the_trainer_refuses(given, match, capsys):
    with pytest.raises(SystemExit):
        imagenet_trainer.main(["--cpu", *given])
    assert match in capsys.readouterr().err


def test_the_trainer_says_how_to_go_on_from_a_predictor(tmp_path, capsys):
    assert imagenet_trainer.main(["--cpu", f"--weights={tmp_path}", "--finetune"]) == 1
    assert "is a folder, not a file; a net that was trained here is read from its ONNX" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("frozen", "match"),
    [("nothing*", "--frozen: 'nothing[*]' fits no parameter of mlp"), ("*", "leaves no parameter to train")],
)
def test_patterns_that_freeze_nothing_or_all(frozen, match):
    images = Images(np.ones((4, 1, 4, 4), np.float32), np.arange(4, dtype=np.int32) % 2)
    with pytest.raises(NetError, match=match):
        Run(parse(["--cpu", "--model=mlp", "--batch=4", f"--frozen={frozen}"]), images, images)
