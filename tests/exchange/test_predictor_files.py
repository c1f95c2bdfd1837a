"""Predictors in files: golden ones read, written ones read back, errors."""

import errno
import logging
import os

import numpy as np
import pytest

import golden_data
from netbuilder.exchange import Predictor, load_predictor, mobile_exporter, save_predictor
from netbuilder.exchange.onnx import read_onnx
from netbuilder.exchange.predictor_exporter import load_predictor_from_db
from netbuilder.exchange.predictor_files import read_net
from netbuilder.graph import Net
from netbuilder.model import ModelHelper, brew
from netbuilder.optimizers import build_sgd
from netbuilder.passes import ExtractPredictorNet
from netbuilder.proto import ArgumentError, BlobError, NetDef, NetError, ParseError, ShapeError, files
from netbuilder.runtime import Workspace
from structure import differences


def golden_workspace(export):
    workspace = Workspace(threads=1)
    for name, value in export.arrays["params"].items():
        workspace.feed(name, value)
    return workspace


def parameters_of(init_net):
    return [op.output[0] for op in init_net.op if op.output[0] != "data"]


@pytest.fixture
def scorer():
    """A net that scores, its parameters, and a workspace with their values."""
    model = ModelHelper("scorer")
    brew.softmax(model, brew.fc(model, "data", "fc", 3, 4), "scores")
    workspace = Workspace(threads=1)
    workspace.run_net_once(model.param_init_net)
    return model.net, ["fc_w", "fc_b"], workspace


def test_golden_export_of_a_convnet():
    export = golden_data.export("mobile_convnet")
    init_net, predict_net = export.net("init_net"), export.net("predict_net")
    net = NetDef()
    net.CopyFrom(predict_net)
    del net.external_output[:]
    got_init, got_predict = mobile_exporter.Export(golden_workspace(export), net, parameters_of(init_net))
    assert differences(got_init, init_net) == []
    assert differences(got_predict, predict_net) == []
    assert list(got_predict.external_input) == list(predict_net.external_input)
    assert list(got_predict.external_output) == list(predict_net.external_output)
    assert (got_init.name, got_predict.name) == (init_net.name, predict_net.name)


def test_golden_export_of_other_types():
    export = golden_data.export("mobile_datatypes")
    init_net, predict_net = export.net("init_net"), export.net("predict_net")
    workspace = Workspace(threads=1)
    workspace.run_net_once(init_net)
    got_init, got_predict = mobile_exporter.Export(workspace, predict_net, ["data_int", "data_obj"])
    assert differences(got_init, init_net) == []
    assert differences(got_predict, predict_net) == []
    assert list(got_predict.external_output) == list(predict_net.external_output)


def test_golden_files_are_read_and_give_the_numbers(tmp_path):
    export = golden_data.export("mobile_convnet")
    for name in ("init_net", "predict_net"):
        (tmp_path / f"{name}.pb").write_bytes(export.protos[name])
    predictor = load_predictor(tmp_path)
    assert (predictor.inputs, predictor.outputs) == (("data",), ("softmax",))
    got = predictor.run(data=export.arrays["inputs"]["data"])
    want = export.arrays["expected"]["softmax"]
    assert golden_data.mismatch(got["softmax"], want, "close", 1e-4, 1e-5) is None


def test_what_is_saved_is_loaded_and_gives_the_same(tmp_path, scorer):
    net, parameters, workspace = scorer
    data = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    workspace.feed("data", data)
    workspace.run_net_once(net)
    save_predictor(tmp_path / "models" / "first", net, parameters, outputs=["scores"], workspace=workspace)
    predictor = load_predictor(tmp_path / "models" / "first")
    # Weights that stay the same have kernels of their own.
    np.testing.assert_allclose(predictor.run(data=data)["scores"], workspace.fetch("scores"), rtol=1e-6)
    assert predictor.run({"data": data[:2]})["scores"].shape == (2, 4)
    assert predictor.specs["data"].shape == (5, 3) and predictor.specs["scores"].shape == (5, 4)
    assert "scorer" in repr(predictor)


def test_parameters_may_be_given_as_arrays_and_inputs_by_name(tmp_path, scorer):
    net, _, _ = scorer
    values = {"fc_w": np.eye(4, 3, dtype=np.float32), "fc_b": np.zeros(4, np.float32)}
    save_predictor(tmp_path, net, values, inputs=["data"], outputs=["fc"], shapes={"data": (1, 3)})
    assert load_predictor(tmp_path).run(data=[[1, 2, 3]])["fc"].tolist() == [[1, 2, 3, 0]]


def test_inputs_alone_leave_the_rest_to_the_parameters(tmp_path, scorer):
    net, _, workspace = scorer
    save_predictor(tmp_path, net, inputs=["data"], outputs=["scores"], workspace=workspace)
    predictor = load_predictor(tmp_path)
    assert predictor.inputs == ("data",)
    assert np.array_equal(predictor.workspace.fetch("fc_w"), workspace.fetch("fc_w"))


def test_every_type_that_files_hold_comes_back(tmp_path):
    values = {
        "float32": np.float32([[1.5, -2], [np.inf, 0]]),
        "int32": np.int32([-1, 2]),
        "int64": np.int64([2**40]),
        "int16": np.int16([[3]]),
        "bool": np.array([True, False]),
        "uint8": np.uint8([[0, 255]]),
        "strings": np.array([b"a", "bé", b""], dtype=object),
        "scalar": np.float32(2.5).reshape(()),
        "empty": np.zeros((0, 3), np.float32),
    }
    net = Net("copies")
    for name in values:
        net.Copy(name, name + "_out")
    save_predictor(tmp_path, net, values, inputs=[], outputs=[name + "_out" for name in values])
    got = load_predictor(tmp_path).run()
    values["strings"] = np.array([b"a", "bé".encode(), b""], dtype=object)
    for name, want in values.items():
        assert got[name + "_out"].dtype == want.dtype and got[name + "_out"].shape == want.shape, name
        assert np.array_equal(got[name + "_out"], want), name


def test_another_operator_in_the_init_net_runs(tmp_path):
    init_net = NetDef(name="init")
    init_net.op.extend(_ops("ConstantFill", [], ["w"], shape=[2], value=3.0))
    net = Net("adds")
    net.Add(["x", "w"], "y")
    net.AddExternalOutput("y")
    files.save(tmp_path / "init_net.pb", init_net)
    files.save(tmp_path / "predict_net.pb", net.Proto())
    assert load_predictor(tmp_path).run(x=np.float32([1, 2]))["y"].tolist() == [4, 5]


def _ops(*args, **kwargs):
    net = Net("one")
    getattr(net, args[0])(*args[1:], **kwargs)
    return net.Proto().op


def test_loading_says_where_it_runs(tmp_path, scorer, caplog):
    net, parameters, workspace = scorer
    save_predictor(tmp_path, net, parameters, outputs=["scores"], workspace=workspace)
    with caplog.at_level(logging.INFO, "netbuilder"):
        load_predictor(tmp_path)
    assert "'scorer' runs on the CPU" in caplog.text or "runs on the CPU" in caplog.text


def test_a_second_save_replaces_the_first(tmp_path, scorer):
    net, parameters, workspace = scorer
    save_predictor(tmp_path, net, parameters, outputs=["scores"], workspace=workspace)
    workspace.feed("fc_b", np.float32([1, 2, 3, 4]))
    save_predictor(tmp_path, net, parameters, outputs=["scores"], workspace=workspace)
    assert load_predictor(tmp_path).workspace.fetch("fc_b").tolist() == [1, 2, 3, 4]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["init_net.pb", "predict_net.pb"]


def test_a_save_that_fails_leaves_the_files_as_they_were(tmp_path, scorer):
    net, parameters, workspace = scorer
    save_predictor(tmp_path, net, parameters, outputs=["scores"], workspace=workspace)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    workspace.feed("fc_b", np.zeros(4))
    with pytest.raises(ArgumentError, match="blob 'fc_b': an init net cannot hold elements of type float64"):
        save_predictor(tmp_path, net, parameters, outputs=["scores"], workspace=workspace)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("call", [0, 1])
def test_a_disk_that_fills_leaves_the_predictor_that_was_there(tmp_path, scorer, monkeypatch, call):
    net, parameters, workspace = scorer
    save_predictor(tmp_path, net, parameters, outputs=["scores"], workspace=workspace)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    workspace.feed("fc_b", np.ones(4, np.float32))
    calls = []

    def fsync(number):
        calls.append(number)
        if len(calls) > call:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="cannot be written: No space left on device"):
        save_predictor(tmp_path, net, parameters, outputs=["scores"], workspace=workspace)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_files_of_two_saves_do_not_go_together(tmp_path, scorer):
    net, parameters, workspace = scorer
    for folder, shift in (("a", 0), ("b", 1)):
        workspace.feed("fc_b", np.full(4, shift, np.float32))
        save_predictor(tmp_path / folder, net, parameters, outputs=["scores"], workspace=workspace)
    (tmp_path / "a" / "init_net.pb").write_bytes((tmp_path / "b" / "init_net.pb").read_bytes())
    with pytest.raises(
        ParseError, match=r"init_net.pb' does not hold the weights that '.*predict_net.pb' was saved with"
    ):
        load_predictor(tmp_path / "a")


@pytest.mark.parametrize("name", ["init_net.pb", "predict_net.pb"])
@pytest.mark.parametrize("keep", [0, 7, 0.5, -1])
def test_a_truncated_file_is_refused(tmp_path, scorer, name, keep):
    net, parameters, workspace = scorer
    save_predictor(tmp_path, net, parameters, outputs=["scores"], workspace=workspace)
    data = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(data[: int(keep * len(data)) if 0 < keep < 1 else keep])
    with pytest.raises(ParseError, match=name):
        load_predictor(tmp_path)


@pytest.mark.parametrize("name", ["init_net.pb", "predict_net.pb"])
def test_a_missing_file_is_named(tmp_path, scorer, name):
    net, parameters, workspace = scorer
    save_predictor(tmp_path, net, parameters, outputs=["scores"], workspace=workspace)
    (tmp_path / name).unlink()
    with pytest.raises(FileNotFoundError, match=name):
        load_predictor(tmp_path)


@pytest.mark.parametrize(
    "options, error, match",
    [
        (
            {"parameters": ["fc_w"], "outputs": ["fc"], "inputs": ["data"]},
            NetError,
            r"reads \['fc_b'\], which are neither",
        ),
        (
            {"parameters": ["fc_w", "fc_b", "data"], "inputs": ["data"]},
            NetError,
            r"\['data'\] cannot be inputs and param",
        ),
        (
            {"inputs": ["data", "data"], "outputs": ["fc"]},
            NetError,
            r"must be distinct, got \['data', 'data'\]",
        ),
        ({"outputs": ["fc"]}, NetError, "give inputs= or parameters= to say which of these are inputs"),
        ({"inputs": ["data"]}, NetError, "declares no external output; name the outputs"),
        ({"inputs": ["data"], "outputs": ["nope"]}, BlobError, r"no operator makes the outputs \['nope'\]"),
        ({"inputs": ["data", "nope"], "outputs": ["fc"]}, BlobError, r"no operator reads the inputs \['nope'\]"),
        ({"inputs": ["data"], "outputs": ["fc", "fc_w"]}, NetError, r"\['fc_w'\] cannot be parameters and outputs"),
        (
            {"parameters": "fc_w", "outputs": ["fc"]},
            NetError,
            "save_predictor: parameters must be a list, a mapping or None, got 'fc_w'",
        ),
        (
            {"inputs": ["data"], "outputs": ["fc"], "shapes": {"x": (1,)}},
            NetError,
            "no input 'x'; the inputs are data",
        ),
        ({"inputs": ["data"], "outputs": ["fc"], "shapes": {"data": (1, 7)}}, ShapeError, "FC"),
    ],
)
def test_wrong_arguments_are_refused(tmp_path, scorer, options, error, match):
    net, _, workspace = scorer
    with pytest.raises(error, match=match):
        save_predictor(tmp_path / "new", net, workspace=workspace, **options)
    assert not (tmp_path / "new").exists()


def test_a_parameter_that_is_not_there_is_named(tmp_path, scorer):
    net, parameters, workspace = scorer
    workspace.remove("fc_w")
    with pytest.raises(BlobError, match="net 'scorer.*': parameter 'fc_w' cannot be exported: no blob 'fc_w'"):
        save_predictor(tmp_path, net, parameters, outputs=["fc"], workspace=workspace)
    with pytest.raises(BlobError, match="parameter 'fc_w' cannot be exported"):
        mobile_exporter.Export(workspace, net, parameters)


def test_without_a_workspace_the_message_says_where_was_looked(tmp_path, scorer):
    net, parameters, workspace = scorer
    where = r"'fc_w' cannot be exported.*; looked in the default workspace 'default': .* give workspace="
    with pytest.raises(BlobError, match=where):
        save_predictor(tmp_path, net, parameters, outputs=["fc"])
    with pytest.raises(BlobError) as error:
        save_predictor(tmp_path, net, ["nope"], inputs=["data", "fc_w", "fc_b"], outputs=["fc"], workspace=workspace)
    assert "default workspace" not in str(error.value)


def test_an_input_that_still_holds_the_placeholder_is_named(scorer):
    net, parameters, workspace = scorer
    init_net, predict_net = mobile_exporter.Export(workspace, net, parameters)
    other = Workspace(threads=1)
    other.run_net_once(init_net)
    other.create_net(predict_net)
    other.feed("dta", np.zeros((2, 3), np.float32))
    with pytest.raises(ShapeError, match=r"FC: X \(1, 1\).*; \['data'\] hold the placeholder, one 0, .*: feed them$"):
        other.run_net(predict_net.name)
    other.feed("data", np.zeros((2, 5), np.float32))
    with pytest.raises(ShapeError) as error:
        other.run_net(predict_net.name)
    assert "placeholder" not in str(error.value)


def test_what_is_no_net_or_no_tensor_is_refused(tmp_path, scorer):
    net, parameters, workspace = scorer
    with pytest.raises(NetError, match="expected a Net, a NetDef or its bytes, got 'scorer' of type str"):
        save_predictor(tmp_path, "scorer", parameters, workspace=workspace)
    workspace.feed("fc_w", b"text")
    with pytest.raises(ArgumentError, match="blob 'fc_w': an init net can hold only tensors, got bytes"):
        save_predictor(tmp_path, net, parameters, outputs=["fc"], workspace=workspace)


def test_a_net_for_training_is_named_as_such(tmp_path):
    model, workspace = ModelHelper("trained"), Workspace(threads=1)
    _, loss = model.net.SoftmaxWithLoss([brew.fc(model, "data", "fc", 3, 4), "label"], ["softmax", "loss"])
    model.AddGradientOperators([loss])
    build_sgd(model, 0.1)
    workspace.run_net_once(model.param_init_net)
    with pytest.raises(ArgumentError, match=r"net for training: save the net of a model in test mode, or .* extract"):
        save_predictor(tmp_path, model.net, inputs=["data", "label"], outputs=["softmax"], workspace=workspace)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("dtype", ["float64", "float16", "int8", "uint16"])
def test_types_that_files_cannot_hold_are_refused(dtype):
    net = Net("copy")
    net.Copy("p", "q")
    workspace = Workspace(threads=1)
    workspace.feed("p", np.zeros(2, dtype))
    with pytest.raises(
        ArgumentError, match=f"blob 'p': .* elements of type {dtype} without loss; convert them to one of"
    ):
        mobile_exporter.Export(workspace, net, ["p"])


def test_running_needs_the_inputs_of_the_right_kind(tmp_path, scorer):
    net, parameters, workspace = scorer
    save_predictor(tmp_path, net, parameters, outputs=["scores"], shapes={"data": (1, 3)}, workspace=workspace)
    predictor = load_predictor(tmp_path)
    with pytest.raises(BlobError, match=r"takes the inputs \['data'\]; missing: \['data'\]; unknown: \['image'\]"):
        predictor.run(image=np.zeros((1, 3), np.float32))
    with pytest.raises(BlobError, match=r"unknown: \['dta'\]; did you mean 'data'\?"):
        predictor.run(dta=np.zeros((1, 3), np.float32))
    with pytest.raises(ShapeError, match="input 'data' must have elements of type float32, got float64"):
        predictor.run(data=np.zeros((1, 3)))
    with pytest.raises(ShapeError, match=r"input 'data' must have the shape \(batch, 3\), got \(1, 4\)"):
        predictor.run(data=np.zeros((1, 4), np.float32))


def test_tokens_may_be_of_any_type_of_whole_numbers(tmp_path):
    model = ModelHelper("language")
    brew.embedding(model, "tokens", "vectors", 5, 2)
    workspace = Workspace()
    workspace.run_net_once(model.param_init_net)
    workspace.feed("tokens", np.int32([[3, 1]]))
    save_predictor(tmp_path, model.net, inputs=["tokens"], outputs=["vectors"], workspace=workspace)
    predictor = load_predictor(tmp_path)
    (expected,) = workspace.fetch("vectors_w")[[[3, 1]]][None]
    for tokens in (np.int32([[3, 1]]), np.int64([[3, 1]]), np.uint8([[3, 1]]), [[3, 1]]):
        np.testing.assert_array_equal(predictor.run(tokens=tokens)["vectors"], expected)
    for tokens, said in (
        ([[3.0, 1.5]], "must have whole numbers, of type int32, got"),
        (np.float32([[3, 1]]), "must have elements of type int32, got float32"),
        (np.int64([[3, 1 << 40]]), "must have whole numbers from -2147483648 to 2147483647, of type int32, got 3 to"),
    ):
        with pytest.raises(ShapeError, match=said):
            predictor.run(tokens=tokens)


@pytest.mark.parametrize(
    "value", [np.zeros((1, 3), np.float32), [[0.0, 0.0, 0.0]], 1.0], ids=["array", "list", "number"]
)
def test_running_needs_the_names_of_the_inputs(tmp_path, scorer, value):
    net, parameters, workspace = scorer
    save_predictor(tmp_path, net, parameters, outputs=["scores"], workspace=workspace)
    predictor = load_predictor(tmp_path)
    match = rf"takes \['data'\], got .* {type(value).__name__}; give inputs by name: run\(data=\.\.\.\)"
    with pytest.raises(TypeError, match=match):
        predictor.run(value)
    net = Net("scoped")
    net.Relu("gpu_0/x", "y")
    predictor = Predictor(NetDef(), net.Proto(), inputs=["gpu_0/x"], outputs=["y"])
    with pytest.raises(TypeError, match=r"by name: run\(\{'gpu_0/x': \.\.\.\}\)"):
        predictor.run(value)


def test_a_parameter_that_the_init_net_leaves_out_is_named():
    net = Net("adds")
    net.Add(["x", "w"], "y")
    with pytest.raises(NetError, match=r"\['w'\] are neither inputs \(\['x'\]\) nor filled by the init net"):
        Predictor(NetDef(name="init"), net.Proto(), inputs=["x"], outputs=["y"])


def test_an_extracted_predictor_gives_what_the_training_net_gives_in_test_mode(tmp_path):
    """With batch normalization, its statistics, and dropout."""
    export = golden_data.export("extract_dropout_bn")
    net, parameters = ExtractPredictorNet(export.net("train_net"), ["data"], ["softmax"])
    workspace = golden_workspace(export)
    save_predictor(tmp_path, net, parameters, workspace=workspace)
    got = load_predictor(tmp_path).run(data=export.arrays["inputs"]["data"])
    want = export.arrays["expected"]["softmax"]
    assert golden_data.mismatch(got["softmax"], want, "close", export.meta["rtol"], export.meta["atol"]) is None
    assert "label" not in load_predictor(tmp_path).net.external_input


def test_files_of_other_kinds(tmp_path, scorer):
    """Each reader says what the file is, and what reads it; a folder that is misspelt is looked for."""
    pytest.importorskip("onnx")
    net, parameters, workspace = scorer
    save_predictor(tmp_path / "pair", net, parameters, outputs=["scores"], workspace=workspace)
    init, net, onnx = (tmp_path / name for name in ("pair/init_net.pb", "pair/predict_net.pb", "net.onnx"))
    onnx.write_bytes(b"\x08\x08\x12\x05other")
    ours = "is a net of netbuilder or Caffe2, which load_predictor reads together with its init net"
    for file in (init, net):
        for reader in (load_predictor, load_predictor_from_db, read_onnx):
            with pytest.raises((OSError, ParseError), match=ours):
                reader(file)
    for reader in (load_predictor, load_predictor_from_db, read_net):
        with pytest.raises((OSError, ParseError), match="is an ONNX model, which read_onnx reads"):
            reader(onnx)
    for trusted in (False, True):
        with pytest.raises(NetError, match=r"the first one computes \(FC\), and the second one only fills blobs; swap"):
            load_predictor(init, init_net=net, trusted=trusted)
    with pytest.raises(FileNotFoundError, match="no such folder; near it is pair"):
        load_predictor(tmp_path / "piar")
    with pytest.raises(IsADirectoryError, match="is a folder, not a file"):
        read_onnx(tmp_path / "pair")
