"""netbuilder-compare: devices, settings, stored nets, values of Caffe2, options."""

import json
import re
import shlex

import numpy as np
import pytest

import golden_data
from command_parsers import parser_of
from house import ROOT
from kernel_checks import needs_bfloat16
from netbuilder import ModelHelper, brew
from netbuilder.graph import reset_names
from netbuilder.optimizers import build_sgd
from netbuilder.parallel import Parallelize_CPU, replicas_of
from netbuilder.proto import NetDef, files
from netbuilder.runtime import Workspace
from netbuilder.tools import compare as tool
from netbuilder.tools.compare import main

QUICK = ["--model=mlp", "--cpu", "--batch=24", "--steps=2"]


@pytest.mark.parametrize(
    "given",
    [["--devices=0,1,2", "--batch=25"], ["--devices=0,1"], ["--devices=0,1,2", "--accumulate-steps=2"],
     ["--devices=0,1", "--against", "devices=0,1,2"],
     ["--against", "without=all"], ["--label-smoothing=0.1", "--devices=0,1", "--optimizer=adam"]],
)  # fmt: skip
@pytest.mark.one_in(4)
def test_nets_of_the_trainer_that_agree(given, tmp_path, capsys):
    path = tmp_path / "result.json"
    assert main([*QUICK, *given, "--json", str(path)]) == 0
    assert "no value differs by more than 0.0001 in 2 steps" in capsys.readouterr().out
    assert json.loads(path.read_text())["difference"] is None


@pytest.mark.slow
def test_recomputation_under_a_budget_changes_no_bit(capsys):
    given = ["--model=resnet8-cifar", "--cpu", "--batch=8", "--steps=2"]
    assert main([*given, "--against", "memory-budget=0.95", "--bound", "0"]) == 0
    assert "no value differs by more than 0 in 2 steps" in capsys.readouterr().out


@pytest.mark.slow
def test_nets_of_the_trainer_that_differ(tmp_path, capsys):
    path = tmp_path / "result.json"
    given = ["--model=resnet8-cifar", "--cpu", "--batch=8", "--devices=0,1", "--without=fusion", "--json", str(path)]
    assert main(given) == 1  # each device normalizes its own share
    said = capsys.readouterr().out
    assert said.startswith(
        "devices 0 and devices 0,1, step 1: 'conv1_spatbn' differs (the values of the replicas joined"
    )
    assert re.search(
        r"relative 0\..*, the bound is 0.0001; made by net 'resnet8-cifar_train', operator \d+: SpatialBN", said
    )
    assert "on CPU" in said and ", made at " in said
    found = json.loads(path.read_text())
    assert found["steps"] == 1 and found["difference"]["op_type"] == "SpatialBN" and found["difference"]["source"]


@needs_bfloat16
def test_activations_in_bfloat16(capsys):
    given = ["--model=resnet8-cifar", "--cpu", "--batch=8", "--steps=1", "--against", "dtype=bfloat16"]
    assert main([*given, "--bound", "1e-6"]) == 1
    assert "devices 0 and dtype=bfloat16, step 1: 'cpu_0/" in capsys.readouterr().out
    assert main([*given, "--bound", "1"]) == 0


def store(folder, devices, plant=lambda net: None, inputs=("label",), **options):
    """Write net and init net of a small model; return the file of the net."""
    reset_names()

    def forward(model, loss_scale):
        x = model.net.Tanh(brew.fc(model, "data", "fc", 5, 3), "scores")
        _, loss = model.net.SoftmaxWithLoss([x, *inputs], ["softmax", "loss"])
        return [model.net.Scale(loss, "scaled", scale=loss_scale)]

    model = ModelHelper("stored")
    Parallelize_CPU(
        model, lambda model: None, forward, optimizer_builder_fun=lambda model: build_sgd(model, 0.1),
        devices=list(range(devices)), **options,
    )  # fmt: skip
    plant(model.net.Proto())
    files.save(folder / f"net{devices}.pb", model.net.Proto())
    files.save(folder / f"init{devices}.pb", model.param_init_net.Proto())
    return str(folder / f"net{devices}.pb")


@pytest.fixture
def batch(tmp_path):
    rng = np.random.default_rng(0)
    data, label = rng.standard_normal((6, 5), dtype=np.float32), rng.integers(0, 3, 6).astype(np.int32)
    np.savez(tmp_path / "batch.npz", data=data, label=label)
    return ["--feed", str(tmp_path / "batch.npz")]


def test_stored_nets_on_one_device_and_on_two(tmp_path, batch, capsys):
    one, two = store(tmp_path, 1), store(tmp_path, 2)
    given = ["--net", one, "--init", str(tmp_path / "init1.pb"), *batch]
    other = ["--against", f"net={two}", "--against", f"init={tmp_path / 'init2.pb'}"]
    assert main([*given, *other, "--bound", "1e-5"]) == 0

    def plant(net):
        next(op for op in net.op if op.output[0] == "cpu_1/scores").type = "Relu"

    store(tmp_path, 2, plant)
    assert main([*given, *other]) == 1
    said = capsys.readouterr().out.splitlines()[-1]
    assert "step 1: 'scores' differs" in said and "Relu ['cpu_1/fc'] -> ['cpu_1/scores'] on CPU 1, made at" in said


@pytest.mark.one_in(2)
@pytest.mark.parametrize("options", [{}, {"weighted_shares": True}], ids=str)
def test_stored_nets_with_a_mean_over_weights(options, tmp_path, batch, capsys):
    path, weight = batch[1], np.float32([0, 0.5, 4, 1, 0, 9])
    np.savez(path, **np.load(path), weight=weight)
    nets = [store(tmp_path, devices, inputs=("label", "weight"), **options) for devices in (1, 2, 3)]
    for devices, net in enumerate(nets[1:], 2):
        given = ["--net", nets[0], "--init", str(tmp_path / "init1.pb"), *batch]
        other = ["--against", f"net={net}", "--against", f"init={tmp_path / f'init{devices}.pb'}"]
        assert main([*given, *other, "--bound", "1e-5"]) == 0, capsys.readouterr()


def updated(net, init, fed, share):
    """Return the weights and biases after an update by a share of the gradient, computed in float64."""
    workspace = Workspace()
    workspace.run_net_once(files.load(init, NetDef))
    w, b = (workspace.fetch(f"cpu_0/fc_{part}").astype(np.float64) for part in "wb")
    x, weight = fed["data"].astype(np.float64), fed["weight"].astype(np.float64)
    scores = np.tanh(x @ w.T + b)
    d = np.exp(scores)
    d /= d.sum(axis=1, keepdims=True)
    d[np.arange(len(x)), fed["label"]] -= 1
    d *= (weight / weight.sum())[:, None] * (1 - scores**2)
    return {"cpu_0/fc_w": w - 0.1 * share * d.T @ x, "cpu_0/fc_b": b - 0.1 * share * d.sum(axis=0)}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("options", [{}, {"weighted_shares": True}], ids=str)
@pytest.mark.parametrize("devices", [1, 2, 3])
def test_a_stored_net_whose_micro_batches_have_a_mean_in_common(devices, options, tmp_path, batch, capsys):
    """A run is one of two micro-batches with the same samples: the divisors are twice the sums of weights."""
    path = batch[1]
    fed = {**np.load(path), "weight": np.float32([0, 0.5, 4, 1, 0, 9])}
    np.savez(path, **fed)
    net = store(tmp_path, devices, inputs=("label", "weight"), accumulate_steps=2, **options)
    init = str(tmp_path / f"init{devices}.pb")
    assert replicas_of(files.load(net, NetDef)).step_divisors
    np.savez(tmp_path / "want.npz", **updated(net, init, fed, 1 / 2))
    given = ["--net", net, "--init", init, *batch, "--steps", "1", "--blobs", str(tmp_path / "want.npz")]
    assert main([*given, "--bound", "1e-6"]) == 0, capsys.readouterr()
    np.savez(tmp_path / "want.npz", **updated(net, init, fed, 1))
    assert main([*given, "--bound", "1e-3"]) == 1


def test_a_stored_net_without_what_a_mean_in_common_needs(tmp_path, batch, capsys):
    net = store(tmp_path, 2, inputs=("label", "weight"), accumulate_steps=2)
    assert main(["--net", net, "--init", str(tmp_path / "init2.pb"), *batch, "--against", "numpy"]) == 1
    assert "the batch lacks ['weight']: the means of the net are over all micro-batches" in capsys.readouterr().err


def test_settings_of_a_stored_net(tmp_path, batch, capsys):
    given = ["--net", store(tmp_path, 2), "--init", str(tmp_path / "init2.pb"), *batch]
    assert main([*given, "--against", "numpy", "--against", "without=fusion"]) == 0
    assert main([*given, "--against", "seed=7"]) == 1
    assert "'cpu_0/fc_w' differs" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["mlp_sgd", "lenet"])
def test_values_that_caffe2_stored(name, tmp_path, capsys):
    golden = golden_data.net(name)
    files.save(tmp_path / "net.pb", golden.main)
    files.save(tmp_path / "init.pb", golden.init)
    given = {**golden.start_values(), **golden.inputs(1)}
    reads = {blob for op in golden.main.op for blob in op.input}
    np.savez(tmp_path / "feed.npz", **{blob: value for blob, value in given.items() if blob in reads})
    stored = dict(golden.expected(1))
    np.savez(tmp_path / "caffe2.npz", **stored)
    given = ["--net", str(tmp_path / "net.pb"), "--feed", str(tmp_path / "feed.npz"), "--steps", "1"]
    given += ["--bound", str(golden.rtol), "--init", str(tmp_path / "init.pb"), "--blobs", str(tmp_path / "caffe2.npz")]
    assert main(given) == 0
    assert "no value differs" in capsys.readouterr().out
    blob = next(blob for blob in stored if blob.endswith("_w"))
    stored[blob] = stored[blob] * np.float32(1.01)
    np.savez(tmp_path / "caffe2.npz", **stored)
    assert main(given) == 1
    assert f"'{blob}' differs (the stored value and the last of the run)" in capsys.readouterr().out


@pytest.mark.parametrize(
    "given, message",
    [
        ([*QUICK], "give several --devices"),
        ([*QUICK, "--devices=0,1", "--against", "batch=12"], "batch, data and seed must be the same"),
        ([*QUICK, "--init", "init.pb"], "--init is for a net in a file"),
        (["--net", "net.pb"], "give --against OPTION=VALUE"),
        (["--net", "net.pb", "--batch=3", "--against", "numpy"], "--batch=3 is an option of netbuilder-train"),
        (["--net", "net.pb", "--against", "dtyp=bfloat16"], "; did you mean 'dtype'?"),
        (["--steps", "0"], "must be a positive whole number"),
    ],
)
def test_options(given, message, capsys):
    with pytest.raises(SystemExit):
        main(given)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "given, message",
    [
        (["--modle=mlp"], "unrecognized arguments: --modle=mlp; did you mean '--model'?"),
        (["--model=mlpx", "--devices=0,1"], "--model: unknown net 'mlpx'"),
        ([*QUICK, "--devices=0,1", "--batch=-3"], "--batch must be positive, got -3"),
        (
            [*QUICK, "--devices=0,1", "--batch=10", "--accumulate-steps=2"],
            "shares of a comparison must have the same number of samples; got 10 for 4 shares, give a multiple of 4",
        ),
        (
            [*QUICK, "--against", "optimiser=adam"],
            "unrecognized arguments: --optimiser=adam; did you mean '--optimizer",
        ),
    ],
)
def test_errors_of_the_trainers_options_name_this_command(given, message, capsys):
    with pytest.raises(SystemExit):
        main(given)
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("netbuilder-compare: error: ") and message in said


def test_a_missing_file_of_options(capsys):
    assert main(["--config=missing.toml", "--devices=0,1"]) == 1
    assert capsys.readouterr().err.startswith("netbuilder-compare: --config: 'missing.toml': no such file")


@pytest.mark.slow
def test_biases_before_normalizations_are_no_difference(capsys):
    """Their gradients consist of rounding errors, of which Adam makes steps of the usual size."""
    given = [
        "--model=shufflenet-g1",
        "--cpu",
        "--batch=16",
        "--devices=0,1",
        "--combine-bn",
        "--steps=2",
        "--learning-rate=1e-5",
    ]
    assert main([*given, "--optimizer=adam", "--bound", "0.01"]) == 0
    assert "no value differs by more than 0.01 in 2 steps" in capsys.readouterr().out


def test_files(tmp_path, batch, capsys):
    net = store(tmp_path, 1)
    init = ["--init", str(tmp_path / "init1.pb")]
    (tmp_path / "damaged.pb").write_bytes(b"\x0a\xff\xff")
    for given, message in [
        (["--net", str(tmp_path / "missing.pb"), *batch], "missing.pb"),
        (["--net", str(tmp_path / "damaged.pb"), *batch], "damaged.pb"),
        (["--net", net, *batch], "reads ['cpu_0/fc_w', 'cpu_0/fc_b'"),
        (["--net", net, *init, "--input", "date=6x5"], "input 'date': net 'stored' has no such external input"),
        (["--net", net, *init, "--feed", str(tmp_path / "missing.npz")], "missing.npz"),
        (["--net", net, *init, *batch, "--json", str(tmp_path / "no" / "x.json")], "no' does not exist"),
    ]:
        assert main([*given, "--against", "numpy"]) == 1
        said = capsys.readouterr().err
        assert said.startswith("netbuilder-compare: ") and message in said
    proto = files.load(net, NetDef)
    proto.op.add(type="Save", input=["cpu_0/fc_w"])
    files.save(net, proto)
    assert main(["--net", net, *init, *batch, "--against", "numpy"]) == 1
    assert "give trusted=True (on a command line: --trusted)" in capsys.readouterr().err


def test_the_commands_of_the_page():
    page = (ROOT / "docs" / "diagnosis.md").read_text(encoding="utf-8")
    lines = [shlex.split(line) for line in re.findall(r"^    (netbuilder-compare.*)", page, re.M)]
    assert len(lines) > 3 and all(parser_of(tool).parse_known(line[1:]) for line in lines)
    (rounded,) = (line[1:] for line in lines if "dtype=bfloat16" in line)
    assert main(rounded) == 0
