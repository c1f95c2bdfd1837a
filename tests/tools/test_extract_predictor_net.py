"""netbuilder-extract: from a net and parameters to a predictor, on what Caffe2 exported."""

import numpy as np
import pytest

import golden_data
from netbuilder.exchange import ImagePreparation, describe_images, load_predictor, save_predictor
from netbuilder.graph.blob_devices import place_operators
from netbuilder.proto import PROTO_CUDA, NetDef, files
from netbuilder.proto.arguments import make_device_option, make_op
from netbuilder.runtime.execute import default
from netbuilder.tools.extract_predictor_net import main

FOLDER = golden_data.GOLDEN / "exports"


def extract(name, tmp_path, *arguments, parameters="params.npz"):
    folder = FOLDER / name
    return main([
        str(folder / "train_net.pb"), "--parameters", str(folder / parameters), "--output-dir", str(tmp_path / "out"),
        *arguments,
    ])  # fmt: skip


def expected(name):
    arrays = golden_data.export(name).arrays
    return arrays["inputs"], arrays["expected"]


@pytest.mark.parametrize(
    ("name", "parameters", "output"),
    [
        ("extract_dropout_bn", "params.npz", "softmax"),
        ("extract_data_parallel", "params.npz", "softmax"),
        ("extract_data_parallel", "checkpoint.minidb", "softmax"),
    ],
)
def test_the_predictor_gives_what_caffe2s_gives(name, parameters, output, tmp_path, capsys):
    assert extract(name, tmp_path, "--inputs", "data", "--outputs", output, parameters=parameters) == 0
    assert "predictor written to" in capsys.readouterr().out
    inputs, wanted = expected(name)
    predictor = load_predictor(tmp_path / "out")
    assert predictor.inputs == ("data",)
    got = predictor.run(data=inputs["data"])[output]
    np.testing.assert_allclose(got, wanted[output], rtol=1e-4, atol=1e-5)


def test_inspect_lists_what_can_be_named(capsys):
    assert main([str(FOLDER / "extract_dropout_bn" / "train_net.pb"), "--inspect"]) == 0
    text = capsys.readouterr().out
    assert "data  by Conv" in text
    assert "softmax" in text
    assert "outputs (read by no operator)" in text


def test_a_net_in_training_mode_is_refused_and_inspect_says_so(tmp_path, capsys):
    folder = FOLDER / "extract_dropout_bn"
    net = str(folder / "train_mode_net.pb")
    assert main([net, "--inspect"]) == 0
    assert "in training mode" in capsys.readouterr().out
    status = main([
        net, "--parameters", str(folder / "params.npz"), "--inputs", "data", "--outputs", "softmax",
        "--output-dir", str(tmp_path / "out"),
    ])  # fmt: skip
    assert status == 1
    assert "is_test" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--inputs", "dota", "--outputs", "softmax"], "no operator reads 'dota'.*did you mean 'data'"),
        (["--inputs", "data", "--outputs", "sofmax"], "no operator writes 'sofmax'.*'softmax'"),
        (["--inputs", "data"], "--outputs is required; --inspect lists"),
    ],
)
def test_wrong_names(arguments, message, tmp_path, capsys):
    import re

    assert extract("extract_dropout_bn", tmp_path, *arguments) == 1
    assert re.search(message, capsys.readouterr().err)


def test_parameters_that_lack_one_are_refused(tmp_path, capsys):
    np.savez(tmp_path / "few.npz", conv1_w=np.zeros(3))
    status = extract(
        "extract_dropout_bn", tmp_path, "--inputs", "data", "--outputs", "softmax", parameters=str(tmp_path / "few.npz")
    )
    assert status == 1
    said = capsys.readouterr().err
    assert "is not in" in said
    assert said.rstrip().endswith("['conv1_w']")


def test_a_net_that_is_no_init_net_is_refused(tmp_path, capsys):
    net = golden_data.GOLDEN / "nets" / "dp_convnet_2" / "net.pb"
    status = extract("extract_dropout_bn", tmp_path, "--inputs", "data", "--outputs", "softmax", parameters=str(net))
    assert status == 1
    assert "give the net that makes the parameters, such as init_net.pb" in capsys.readouterr().err


def test_swapped_nets_are_named_as_such(tmp_path, capsys):
    nets = {
        "init.pb": NetDef(op=[make_op("GivenTensorFill", [], ["w"], shape=[1], values=[1.0])]),
        "net.pb": NetDef(op=[make_op("Add", ["x", "w"], ["y"], broadcast=1)], external_input=["x", "w"]),
    }
    for name, net in nets.items():
        files.save(tmp_path / name, net)
    named = ["--inputs", "x", "--outputs", "y", "--output-dir", str(tmp_path / "out")]
    assert main([str(tmp_path / "init.pb"), "--parameters", str(tmp_path / "net.pb"), *named]) == 1
    assert "and the second one only fills blobs; swap them" in capsys.readouterr().err
    assert main([str(tmp_path / "net.pb"), "--parameters", str(tmp_path / "init.pb"), *named]) == 0


def test_shapes_of_a_predictor_stay(tmp_path):
    """What is extracted from a predictor says the size of its images, and how they are prepared, if it takes them."""
    net = NetDef(name="net", external_input=["x"], external_output=["y"])
    net.op.append(make_op("Relu", ["x"], ["h"]))
    net.op.append(make_op("Sigmoid", ["h"], ["y"]))
    describe_images(net, ImagePreparation(scale=0.5), ["one", "two"])
    save_predictor(tmp_path / "whole", net, {}, inputs=["x"], shapes={"x": (1, 3, 4, 6)})
    given = [str(tmp_path / "whole" / "predict_net.pb"), "--parameters", str(tmp_path / "whole" / "init_net.pb")]
    for first, last, shape in (("x", "h", (1, 3, 4, 6)), ("h", "y", None)):
        out = str(tmp_path / first)
        assert main([*given, "--inputs", first, "--outputs", last, "--output-dir", out]) == 0
        found = load_predictor(out)
        assert (found.specs[first].shape if first in found.specs else None) == shape
        assert (found.images is None) == (shape is None)


def test_inspect_shows_the_forward_pass_of_the_first_replica(capsys):
    net = golden_data.GOLDEN / "nets" / "dp_convnet_2" / "net.pb"
    assert main([str(net), "--inspect"]) == 0
    text = capsys.readouterr().out
    assert "18 of them in the forward pass of the first replica, 'cpu_0/'" in text
    assert "  data  by Conv" in text
    assert "cpu_1" not in text
    assert "_grad" not in text
    assert "lr_cpu" not in text


def test_a_default_workspace_in_use_does_not_matter(tmp_path):
    try:
        default.workspace().feed("data", np.zeros((64, 2), np.float32))
        assert extract("extract_dropout_bn", tmp_path, "--inputs", "data", "--outputs", "softmax") == 0
    finally:
        default.reset()


@pytest.mark.parametrize("content", [b"PK\x03\x04 cut", b"text"])
def test_parameters_in_a_broken_npz(content, tmp_path, capsys):
    (tmp_path / "p.npz").write_bytes(content)
    status = extract(
        "extract_dropout_bn", tmp_path, "--inputs", "data", "--outputs", "softmax", parameters=str(tmp_path / "p.npz")
    )
    assert status == 1
    assert "p.npz" in capsys.readouterr().err


def test_folders_and_files_taken_for_one_another(tmp_path, capsys):
    assert main([str(tmp_path), "--inspect"]) == 1
    assert "is a folder; give the net's file" in capsys.readouterr().err
    (tmp_path / "out").touch()
    assert extract("extract_dropout_bn", tmp_path, "--inputs", "data", "--outputs", "softmax") == 1
    assert "is a file; name a folder" in capsys.readouterr().err


def test_files_that_are_not_there_or_not_nets(tmp_path, capsys):
    assert main([str(tmp_path / "none.pb"), "--inspect"]) == 1
    assert "none.pb" in capsys.readouterr().err
    (tmp_path / "text.pb").write_bytes(b"\xff\xd8\xff\xe0 not a net")
    assert main([str(tmp_path / "text.pb"), "--inspect"]) == 1
    assert "NetDef" in capsys.readouterr().err


def test_nets_that_were_written_for_a_gpu(tmp_path):
    """The parameters are made on the host, and with --cpu the predictor runs there."""
    net, init_net = NetDef(name="scale", external_input=["x", "w"], external_output=["y"]), NetDef(name="init")
    net.op.append(make_op("Mul", ["x", "w"], ["y"], broadcast=1))
    init_net.op.append(make_op("ConstantFill", [], ["w"], shape=[2], value=3.0))
    for each, name in ((net, "net.pb"), (init_net, "init.pb")):
        place_operators(each, make_device_option(PROTO_CUDA, 0))
        files.save(tmp_path / name, each)
    given = [str(tmp_path / "net.pb"), "--parameters", str(tmp_path / "init.pb"), "--inputs", "x", "--outputs", "y",
             "--output-dir", str(tmp_path / "out")]  # fmt: skip
    assert main([*given, "--cpu"]) == 0
    got = load_predictor(tmp_path / "out").run(x=np.float32([[1, 2]]))["y"]
    np.testing.assert_array_equal(got, [[3, 6]])
    with pytest.raises(SystemExit):
        main([*given, "--cpu", "--device", "gpu"])
