"""netbuilder-profile: nets of the zoo, nets in files, predictors; tables, figures, traces; what it refuses."""

import json
import re

import numpy as np
import pytest

import golden_data
from kernel_checks import has_instructions
from netbuilder import Workspace, save_predictor
from netbuilder.proto import NetDef, NetError, files
from netbuilder.proto.arguments import make_op
from netbuilder.runtime.profile import profiling
from netbuilder.runtime.profile.roofline import Limits
from netbuilder.tools import profile as tool
from netbuilder.tools.training.nets import NETS


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """The measurements of the machine's limits and of its load have their own tests."""
    monkeypatch.setattr(
        profiling, "measure_limits", lambda threads, bfloat16=False: Limits(1e12, "a guess", 1e11, threads)
    )
    monkeypatch.setattr(tool, "busy_share", lambda: 0.0)


def run(*arguments):
    return tool.main([*map(str, arguments), "--runs", "2", "--warmup", "1", "--threads", "2"])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["lenet", "resnet8-cifar"])
def test_a_training_step_of_the_zoo(name, tmp_path, capsys):
    figures, trace = tmp_path / "figures.json", tmp_path / "trace.json"
    size = ["--batch", 4, "--classes", 10, "--top", 5]
    assert run(name, *size, "--json", figures, "--trace", trace) == 0
    said = capsys.readouterr()
    assert re.search(rf"net '{name}(_\d+)?': 2 threads; means over", said.out)
    assert "by call, the 5 that take longest of" in said.out
    assert "GFLOP/s" in said.out and "GB/s" in said.out and not said.err
    assert "parameters 0.0 kB" not in said.out
    found = json.loads(figures.read_text())
    kinds = {kind["kind"]: kind for kind in found["kinds"]}
    assert {"Conv", "ConvGradient", "FC"} <= kinds.keys()
    assert any("MomentumSGDUpdate" in kind for kind in kinds) and any("WeightedSum" in kind for kind in kinds)
    assert 0 < found["fraction_of_limit"] < 1.5
    events = json.loads(trace.read_text())["traceEvents"]
    assert sum(event.get("cat") == "step" for event in events) == 2
    assert any(event["name"].startswith("ConvGradient ") for event in events)


def test_inference_has_no_gradients(tmp_path):
    assert run("resnet8-cifar", "--inference", "--batch", 2, "--classes", 10, "--json", tmp_path / "f.json") == 0
    calls = json.loads((tmp_path / "f.json").read_text())["calls"]
    assert {call["category"] for call in calls} <= {"operator", "copy"}
    first = next(call for call in calls if call["kind"].startswith("Conv"))
    assert first["outputs"][0]["shape"] == [2, 16, 32, 32]


def test_activations_in_bfloat16(tmp_path, capsys):
    for dtype in ("float32", "bfloat16"):
        options = ["--batch", 8, "--observable", "outputs", "--memory", "-o", tmp_path / "m.html"]
        assert run("resnet8-cifar", *options, "--dtype", dtype, "--json", tmp_path / f"{dtype}.json") == 0
    wide, narrow = (json.loads((tmp_path / f"{dtype}.json").read_text())["plans"] for dtype in ("float32", "bfloat16"))
    assert narrow[0]["nbytes"] < (0.8 if has_instructions("bfloat16") else 1.01) * wide[0]["nbytes"]
    capsys.readouterr()
    net = NetDef(name="net", op=[make_op("Relu", ["x"], ["y"])], external_input=["x"])
    files.save(tmp_path / "net.pb", net)
    assert run(tmp_path / "net.pb", "--input", "x=8x8", "--dtype", "bfloat16") == 0
    (tmp_path / "predictor").mkdir()
    assert run(tmp_path / "predictor", "--dtype", "bfloat16") == 1
    assert "--dtype: a predictor runs in the type in which it was exported" in capsys.readouterr().err


def test_image_size_and_switches(tmp_path):
    size = ["--image-size", 40, "--batch", 1, "--classes", 7, "--inference", "--numpy", "--without=fusion"]
    assert run("lenet", *size, "--json", tmp_path / "f.json") == 0
    calls = json.loads((tmp_path / "f.json").read_text())["calls"]
    assert calls[0]["inputs"][0]["shape"] == [1, 1, 40, 40]
    assert not any("onednn" in call["kernel"] or "+" in call["kind"] for call in calls)
    assert run("lenet", *size, "--pixels", "--json", tmp_path / "f.json") == 0
    first, second, *_ = json.loads((tmp_path / "f.json").read_text())["calls"]
    assert (first["kind"], first["inputs"][0]["shape"], first["inputs"][0]["dtype"]) == (
        "NormalizeImages", [1, 40, 40, 1], "uint8",
    )  # fmt: skip
    assert second["inputs"][0]["shape"] == [1, 1, 40, 40]


@pytest.mark.parametrize("training", [True, False])
def test_replicas(training, tmp_path, capsys):
    mode = [] if training else ["--inference"]
    size = ["--batch", 4, "--classes", 10, "--devices", 2]
    assert run("mlp", *size, *mode, "--trace", tmp_path / "t.json", "--json", tmp_path / "f.json") == 0
    out = capsys.readouterr().out
    assert ("3 lanes" if training else "2 lanes") in out
    assert ("while another lane computes" in out) == training
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    tracks = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert tracks == {"steps", "CPU 0, lane 0", "CPU 1, lane 1"} | ({"CPU 0, lane 2, exchange"} if training else set())
    exchanged = {event["name"] for event in events if event.get("cat") == "exchange"}
    assert exchanged == (
        {f"{kind}_{part}_grad" for i in range(3) for part in "wb" for kind in (f"Sum cpu_0/fc{i}", f"Copy cpu_1/fc{i}")}
        if training
        else set()
    )


def test_a_net_in_files(tmp_path, capsys):
    """Caffe2's own net, whose init net makes all but the images and the labels."""
    golden = golden_data.net("convnet")
    np.savez(tmp_path / "feed.npz", **golden.inputs(1))
    nets = [golden.folder / "net.pb", "--init", golden.folder / "param_init_net.pb"]
    assert run(*nets, "--feed", tmp_path / "feed.npz", "--json", tmp_path / "f.json") == 0
    found = json.loads((tmp_path / "f.json").read_text())
    listed = [name for call in found["calls"] if call["category"] != "copy" for name in call["operators"]]
    assert len(listed) == len(golden.main.op)
    assert 0 < found["memory"]["parameters"] < found["memory"]["outside"]
    capsys.readouterr()
    assert run(*nets) == 1
    assert "reads ['data', 'label'], which have no values; give --input data=SHAPE" in capsys.readouterr().err
    assert run(nets[0], "--feed", tmp_path / "feed.npz") == 1
    assert "or the init net that makes them by --init" in capsys.readouterr().err


def test_inputs_by_shape_and_text_files(tmp_path, capsys):
    net = NetDef(name="lookup", external_input=["table", "rows"])
    net.op.append(make_op("Gather", ["table", "rows"], ["y"]))
    files.save_text(tmp_path / "net.pbtxt", net)
    given = ["--input", "table=10x4", "--input", "rows=3:int64"]
    assert run(tmp_path / "net.pbtxt", *given, "--json", tmp_path / "f.json") == 0
    call = json.loads((tmp_path / "f.json").read_text())["calls"][0]
    assert call["nbytes"] == 2 * 3 * 4 * 4 + 3 * 8
    assert run(tmp_path / "net.pbtxt", *given, "--input", "tible=2") == 1
    assert "input 'tible': net 'lookup' has no such external input" in capsys.readouterr().err


def test_a_predictor(tmp_path, capsys):
    net = NetDef(name="scores", external_input=["data", "w", "b"], external_output=["y"])
    net.op.append(make_op("FC", ["data", "w", "b"], ["y"]))
    workspace = Workspace()
    values = {"w": np.ones((3, 4), np.float32), "b": np.zeros(3, np.float32)}
    save_predictor(tmp_path / "known", net, values, inputs=["data"], shapes={"data": (1, 4)}, workspace=workspace)
    assert run(tmp_path / "known", "--batch", 5, "--json", tmp_path / "f.json") == 0
    found = json.loads((tmp_path / "f.json").read_text())
    assert found["calls"][-1]["outputs"][0]["shape"] == [5, 3]
    assert found["memory"]["parameters"] == 4 * (3 * 4 + 3)
    save_predictor(tmp_path / "unknown", net, values, inputs=["data"], workspace=workspace)
    capsys.readouterr()
    assert run(tmp_path / "unknown") == 1
    assert "does not store the shape of its input 'data'; give --input data=SHAPE" in capsys.readouterr().err
    assert run(tmp_path / "unknown", "--input", "data=2x4") == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["resnet51"], "; did you mean 'resnet50'"),
        (["mobilenet-v2"], "; did you mean 'mobilenet-v2-1.4x' or "),
        (["mobilenet_v2"], "; did you mean 'mobilenet-v2-1.4x' or "),
        (["unet"], "; commands do not offer that net: in a program, netbuilder.zoo.create_unet builds it"),
        (
            ["lenet", "--batch", "5", "--devices", "2"],
            "a batch of 5 cannot be split evenly over 2 devices; give a multiple of 2",
        ),
        (["none.pb"], "no such file"),
        (["lenet", "--trace", "none/trace.json"], "--trace: 'none/trace.json': the folder "),
        ([__file__, "--feed", __file__], "cannot be read as npz: BadZipFile"),
        (["lenet", "--image-size", "8", "--batch", "1"], "must be at least 16 pixels, got 8"),
    ],
)
def test_what_cannot_run(arguments, message, capsys):
    assert run(*arguments) == 1
    error = capsys.readouterr().err
    assert error.startswith("netbuilder-profile: ") and message in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batch", "0"], "must be a positive whole number, got '0'"),
        (["--exhaustive-search"], "--exhaustive-search is for a described GPU"),
        (["--input", "data"], "must be BLOB=SHAPE, such as data=32x3x224x224"),
        (["--input", "data=3xtwo"], "must be BLOB=SHAPE"),
        (["--input", "data=3:float128"], "TYPE is one of float32"),
        (["--net-type", "dog"], "invalid choice: 'dog'"),
    ],
)
def test_wrong_options(arguments, message, capsys):
    with pytest.raises(SystemExit):
        run("lenet", *arguments)
    assert message in capsys.readouterr().err


def test_a_file_that_is_no_net(tmp_path, capsys):
    (tmp_path / "image.pb").write_bytes(b"\xff\xd8\xff\xe0 not a net")
    assert run(tmp_path / "image.pb") == 1
    assert "NetDef" in capsys.readouterr().err


def test_a_busy_machine_is_warned_of(monkeypatch, capsys):
    monkeypatch.setattr(tool, "busy_share", lambda: 0.5)
    assert run("lenet", "--batch", 1, "--inference") == 0
    assert "the machine is not idle: other work uses 50% of its cores" in capsys.readouterr().err


@pytest.mark.parametrize("name", NETS)
def test_names_of_the_zoo_are_not_taken_for_files(name, monkeypatch):
    """Some have a dot."""
    asked = []

    def load(workspace, net, options):
        asked.append(net)
        raise NetError("enough for this test")

    monkeypatch.setattr(tool, "load_zoo", load)
    assert run(name) != 0
    assert asked == [name]


def test_every_net_of_the_zoo_has_a_size_of_its_own():
    from netbuilder.tools.profiling.zoo import ZooOptions, image_shape

    sizes = {name: image_shape(name, ZooOptions()) for name in NETS}
    assert (
        sizes["lenet"] == (1, 28, 28) and sizes["resnet20-cifar"] == (3, 32, 32) and sizes["resnet50"] == (3, 224, 224)
    )
    assert image_shape("resnet50", ZooOptions(image_size=64)) == (3, 64, 64)


def test_find_nan(tmp_path, capsys):
    net = NetDef(name="logs", op=[make_op("Relu", ["x"], ["r"]), make_op("Log", ["r"], ["y"])], external_input=["x"])
    files.save(tmp_path / "net.pb", net)
    np.savez(tmp_path / "good.npz", x=np.float32([1, 2]))
    np.savez(tmp_path / "bad.npz", x=np.float32([1, -2]))
    given = [str(tmp_path / "net.pb"), "--find-nan", "--feed"]
    assert run(*given, tmp_path / "good.npz") == 0
    assert capsys.readouterr().out == "net 'logs': no NaN and no infinities in 2 runs\n"
    assert run(*given, tmp_path / "bad.npz") == 1
    assert "operator 1: Log ['r'] -> ['y']" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run(*given, tmp_path / "good.npz", "--trace", "trace.json")
    assert "--trace is for times or memory" in capsys.readouterr().err
