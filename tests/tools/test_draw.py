"""netbuilder-draw: the layout, and the page that holds it."""

import json
import re
import shutil
import subprocess

import pytest

import golden_data
from netbuilder import ModelHelper, Workspace, brew, save_predictor
from netbuilder.graph import DeviceScope, Net
from netbuilder.model import rnn
from netbuilder.proto import files
from netbuilder.proto.arguments import make_device_option
from netbuilder.tools.draw import main
from netbuilder.tools.drawing.layout import lay_out
from netbuilder.tools.drawing.page import page


def two_devices():
    net = Net("two <devices>")
    net.Relu("x", "a")
    with DeviceScope(make_device_option(1, 3)):
        net.Copy("a", "b")
        net.Relu("b", "b")
    net.Copy("b", "c")
    return net


def test_lanes_and_rows():
    drawing = lay_out(two_devices(), {"x": (2, 3)})
    assert drawing.lanes == ["CPU 0", "GPU 3"]
    assert [(box.lane, box.row) for box in drawing.boxes] == [(0, 0), (1, 1), (1, 2), (0, 3)]
    assert [(blob.name, blob.writer) for blob in drawing.blobs] == [("x", -1), ("a", 0), ("b", 1), ("b", 2), ("c", 3)]
    assert {blob.shape for blob in drawing.blobs} == {"2 x 3 float32"}


def test_contradicting_shapes_leave_the_drawing_without():
    net = Net("wrong")
    net.Add(["x", "y"], "z")
    drawing = lay_out(net, {"x": (2,), "y": (3, 4, 5)})
    assert len(drawing.boxes) == 1 and not any(blob.shape for blob in drawing.blobs)


def test_step_nets_are_told_and_found_by_their_operators():
    model = ModelHelper("recurrent")
    rnn.LSTM(model, "x", "lengths", None, 2, 3, "lstm")
    box = next(box for box in lay_out(model.net).boxes if box.type == "RecurrentNetwork")
    assert "LSTMUnit(lstm/hidden_t_prev" in box.arguments["step_net"]
    assert "LSTMUnitGradient(" in box.arguments["backward_step_net"]


def data_of(text):
    return json.loads(re.search(r'<script id="data"[^>]*>(.*?)</script>', text, re.S).group(1))


def test_the_page_needs_nothing_else():
    text = page(lay_out(two_devices()))
    assert "two &lt;devices&gt;" in text and "4 operators, 2 devices" in text
    assert data_of(text)["name"].startswith("two <devices>")
    links = re.findall(r"https?://[^\"' ]+", text)
    assert set(links) <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<(link|img|iframe)|src=|@import", text)


def test_nets_of_the_zoo_and_files(tmp_path, capsys):
    out = tmp_path / "net.html"
    assert main(["lenet", "--batch", "2", "-o", str(out)]) == 0
    drawn = data_of(out.read_text())
    assert all(blob["shape"] for blob in drawn["blobs"])
    assert any(box["type"] == "ConvGradient" and box["backward"] for box in drawn["boxes"])
    assert "on 1 devices, shapes of" in capsys.readouterr().out
    net = golden_data.GOLDEN / "nets" / "dp_convnet_2" / "net.pb"
    assert main([str(net), "-o", str(out), "--input", "cpu_0/data=4x3x8x8"]) == 0
    assert len(data_of(out.read_text())["lanes"]) == 2


def test_a_predictor(tmp_path):
    folder = golden_data.GOLDEN / "exports" / "extract_dropout_bn"
    net = files.load(folder / "train_net.pb", type(Net("n").Proto()))
    files.save(tmp_path / "predict_net.pb", net)
    assert main([str(tmp_path), "-o", str(tmp_path / "net.html")]) == 0
    assert len(data_of((tmp_path / "net.html").read_text())["boxes"]) == len(net.op)


def test_bad_input(tmp_path, capsys):
    assert main([str(tmp_path / "none.pb"), "-o", str(tmp_path / "net.html")]) == 1
    assert "none.pb" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["lenet", "-o", "x", "--input", "data"])
    assert "wanted BLOB=SHAPE" in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_the_script_is_correct_javascript(tmp_path):
    text = page(lay_out(two_devices()))
    (tmp_path / "page.js").write_text(re.search(r"<script>(.*)</script>", text, re.S).group(1))
    done = subprocess.run(["node", "--check", str(tmp_path / "page.js")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_predictor_knows_the_shapes_of_its_inputs(tmp_path, capsys):
    model = ModelHelper("small")
    brew.softmax(model, brew.fc(model, "data", "scores", dim_in=8, dim_out=2), "softmax")
    workspace = Workspace()
    workspace.run_net_once(model.param_init_net)
    folder = tmp_path / "net"
    save_predictor(
        folder, model.net, model.GetParams(), outputs=["softmax"], shapes={"data": (3, 8)}, workspace=workspace
    )
    assert main([str(folder), "-o", str(tmp_path / "net.html")]) == 0
    assert "shapes of 5 of 5 blobs" in capsys.readouterr().out


def test_what_is_no_net(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("nothing")
    assert main([str(tmp_path), "-o", "x.html"]) == 1
    assert "holds no predictor: without predict_net.pb; there is notes.txt" in capsys.readouterr().err
    assert main(["resnet19", "-o", "x.html"]) == 1
    assert "'resnet19': no such file or folder, and no net of the zoo; those are mlp, " in capsys.readouterr().err
