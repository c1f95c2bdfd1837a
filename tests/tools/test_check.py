"""netbuilder-check: findings of nets in files, exit status, JSON, inputs, damaged files."""

import json
import re
import shlex

import numpy as np
import pytest

from command_parsers import parser_of
from house import ROOT
from netbuilder import ModelHelper, Workspace, brew, save_predictor
from netbuilder.exchange.fills import fill_operator
from netbuilder.exchange.onnx import export_onnx
from netbuilder.graph import reset_names
from netbuilder.graph.checks import Rule
from netbuilder.optimizers import build_sgd
from netbuilder.parallel import Parallelize_CPU
from netbuilder.passes import extract_predictor
from netbuilder.proto import NetDef, files
from netbuilder.proto.arguments import make_op
from netbuilder.tools import check as tool
from netbuilder.tools import draw, profile
from netbuilder.tools.check import main
from toy_models import layers


@pytest.fixture
def stored(tmp_path):
    """Files with the net and the init net of a model on two devices."""
    reset_names()

    model = ModelHelper("stored")
    optimizer = {"optimizer_builder_fun": lambda model: build_sgd(model, 0.1)}
    Parallelize_CPU(model, lambda model: None, layers(5, 3), devices=[0, 1], **optimizer)
    files.save(tmp_path / "net.pb", model.net.Proto())
    files.save(tmp_path / "init.pb", model.param_init_net.Proto())
    return str(tmp_path / "net.pb"), str(tmp_path / "init.pb")


SHAPES = ["--input", "data=4x5", "--input", "label=4:int32"]


def test_a_sound_net(stored, tmp_path, capsys):
    net, init = stored
    path = tmp_path / "found.json"
    assert main([net, "--init", init, *SHAPES, "--json", str(path)]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"net 'stored' and init net 'stored_init': \d+ operators, 0 findings", line)
    assert json.loads(path.read_text())["findings"] == []


def test_findings(stored, tmp_path, capsys):
    net, init = stored
    proto = files.load(net, NetDef)
    op = next(op for op in proto.op if op.type == "SoftmaxWithLoss")
    op.type = "SoftmaxWithLos"
    files.save(net, proto)
    path = tmp_path / "found.json"
    assert main([net, "--init", init, "--json", str(path)]) == 1
    line, last = capsys.readouterr().out.splitlines()
    assert line.startswith("unknown-operator: net 'stored', operator") and "toy_models.py" in line
    assert "did you mean" in line and "SoftmaxWithLoss" in line and last.endswith("1 finding")
    (found,) = json.loads(path.read_text())["findings"]
    assert found["rule"] == "unknown-operator" and found["type"] == "SoftmaxWithLos"
    assert "softmax_loss" in found["source"]


def test_shapes_of_the_share_of_each_replica(stored, capsys):
    net, init = stored
    assert main([net, "--init", init, "--input", "data=4x6", "--input", "label=4:int32"]) == 1
    assert "shape: net 'stored', operator" in capsys.readouterr().out
    assert main([net, "--init", init, "--input", "data=4x5"]) == 1
    said = capsys.readouterr().out
    assert "no-value: net 'stored': its external input 'cpu_0/label'" in said and said.count("no-value") == 2


def test_a_net_of_caffe2_is_checked_by_its_devices(stored, capsys):
    """Without a record, replicas are known by the operators' devices."""
    net, init = stored
    proto = files.load(net, NetDef)
    del proto.arg[:]
    next(op for op in proto.op if op.type == "FC" and "cpu_1/" in op.output[0]).input[1] = "cpu_0/fc_w"
    files.save(net, proto)
    assert main([net, "--init", init]) == 1
    assert "device: net 'stored', operator" in capsys.readouterr().out


def test_a_predictor(tmp_path, capsys):
    model = ModelHelper("small")
    model.net.Softmax(brew.fc(model, "data", "fc", 4, 3), "softmax")
    workspace = Workspace()
    workspace.run_net_once(model.param_init_net)
    net, parameters = extract_predictor(model.net, inputs=["data"], outputs=["softmax"])
    workspace.feed("data", np.zeros((2, 4), np.float32))
    save_predictor(tmp_path, net, parameters, workspace=workspace)
    assert main([str(tmp_path)]) == 0
    assert "0 findings" in capsys.readouterr().out
    assert main([str(tmp_path), "--init", "x.pb"]) == 1
    assert "which has its own init_net.pb" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["missing.pb"], "missing.pb"),
        (["damaged.pb"], "damaged.pb"),
        (["net.pb", "--init", "missing.pb"], "missing.pb"),
        (
            ["net.pb", "--input", "date=4x5"],
            "input 'date': net 'stored' has no such external input; its inputs are [",
        ),
        (["net.pb", "--json", "nowhere/found.json"], "nowhere"),
        (["empty"], "does not hold a predictor"),
    ],
)
def test_files(arguments, message, stored, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "damaged.pb").write_bytes(b"\x0a\xff\xff")
    (tmp_path / "empty").mkdir()
    assert main(arguments) == 1
    said = capsys.readouterr().err
    assert said.startswith("netbuilder-check: ") and message in said


def test_the_page_explains_each_rule():
    page = (ROOT / "docs" / "diagnosis.md").read_text(encoding="utf-8")
    for rule in Rule:
        assert f"| `{rule.value}` |" in page
    lines = [shlex.split(line) for line in re.findall(r"^    (netbuilder-check.*)", page, re.M)]
    assert lines and all(parser_of(tool).parse(line[1:]) for line in lines)


PLACEHOLDERS = [fill_operator("data", np.zeros((1, 1), np.float32)), make_op("ConstantFill", [], ["data"], shape=[1])]
"""As Caffe2's exporter for mobile devices writes them, and its translator of Caffe models."""


@pytest.mark.parametrize("placeholder", PLACEHOLDERS)
def test_given_shapes_replace_the_placeholders_of_inputs(placeholder, tmp_path, capsys):
    reset_names()
    model = ModelHelper("exported", arg_scope={"order": "NCHW"})
    brew.conv(model, "data", "scores", 3, 4, 3)
    init = model.param_init_net.Proto()
    init.op.append(placeholder)
    init.name = ""
    files.save(tmp_path / "predict_net.pb", model.net.Proto())
    files.save(tmp_path / "init_net.pb", init)
    net, filled = (str(tmp_path / name) for name in ("predict_net.pb", "init_net.pb"))
    assert main([net, "--init", filled, "--input", "data=1x3x8x8"]) == 0
    assert capsys.readouterr().out == "net 'exported' and its init net: 1 operator, 0 findings\n"
    page = tmp_path / "net.html"
    assert draw.main([net, "--init", filled, "--input", "data=1x3x8x8", "-o", str(page)]) == 0
    assert "shapes of 4 of 4 blobs" in capsys.readouterr().out
    for given in ([net, "--init", filled], [str(tmp_path)]):
        assert main(given) == 0
        assert capsys.readouterr().out.endswith("those of 'data' are not stored; give --input data=SHAPE\n")
        assert draw.main([*given, "-o", str(page)]) == 1
        assert "give --input data=SHAPE (such as" in capsys.readouterr().err
        assert profile.main(given) == 1
        said = capsys.readouterr()
        assert said.err.endswith("give --input data=SHAPE\n") and not said.out


def test_an_onnx_model(tmp_path, capsys):
    pytest.importorskip("onnx")
    model = ModelHelper("read", arg_scope={"order": "NCHW"})
    brew.fc(model, brew.conv(model, "data", "features", 3, 4, 3), "scores", 4 * 36, 5)
    workspace = Workspace()
    workspace.run_net_once(model.param_init_net)
    file, page = str(tmp_path / "net.onnx"), tmp_path / "net.html"
    export_onnx(file, model.net, shapes={"data": (2, 3, 8, 8)}, outputs=["scores"], workspace=workspace)
    for more in ([], ["--input", "data=4x3x8x8"]):
        assert main([file, *more]) == 0
        assert draw.main([file, *more, "-o", str(page)]) == 0
        assert "0 findings" in (said := capsys.readouterr().out) and re.search(r"shapes of (\d+) of \1 blobs", said)
    assert main([file, "--input", "data=4x2x8x8"]) == draw.main([file, "--init", file, "-o", str(page)]) == 1
    said = capsys.readouterr().err
    assert "got 4 x 2 x 8 x 8" in said and "is an ONNX model, which has its own parameters; leave --init out" in said
    assert profile.main([file, "--input", "data=4x3x8x8", "--memory", "-o", str(page)]) == 0
    assert profile.main([file, "--gpu", "h100"]) == 1
    assert "read_onnx(FILE).save(FOLDER)" in capsys.readouterr().err
