"""netbuilder-draw: what is drawn, and the page that lays it out and shows it."""

import html
import json
import re
import shutil
import subprocess

import numpy as np
import pytest

import golden_data
from netbuilder import ModelHelper, Workspace, brew, save_predictor
from netbuilder.graph import BlobReference, DeviceScope, NameScope, Net
from netbuilder.graph.drawing.drawing import drawing_of
from netbuilder.graph.drawing.folding import repeats
from netbuilder.graph.drawing.page import page
from netbuilder.graph.drawing.replicas import first_copies
from netbuilder.model import rnn
from netbuilder.ops.core.operator import STRING, TensorSpec
from netbuilder.optimizers import build_sgd
from netbuilder.parallel import Parallelize
from netbuilder.proto import files
from netbuilder.proto.arguments import make_device_option
from netbuilder.tools.draw import main
from toy_models import softmax_loss
from waiting import HANG


def two_devices():
    net = Net("two <devices>")
    net.Relu("x", "a")
    with DeviceScope(make_device_option(1, 3)):
        net.Copy("a", "b")
        net.Relu("b", "b")
    net.Copy("b", "c")
    return net


def test_boxes_and_blobs():
    drawing = drawing_of(two_devices(), {"x": (2, 3)})
    assert drawing.lanes == ["CPU 0", "GPU 3"]
    assert [(box.type, box.lane, box.part) for box in drawing.boxes] == [
        ("Relu", 0, 0), ("Copy", 1, 0), ("Relu", 1, 0), ("Copy", 0, 0),
    ]  # fmt: skip
    assert [(blob.name, blob.writer) for blob in drawing.blobs] == [("x", -1), ("a", 0), ("b", 1), ("b", 2), ("c", 3)]
    assert {blob.shape for blob in drawing.blobs} == {"2 x 3 float32"}
    assert [blob.fed for blob in drawing.blobs] == [True, False, False, False, False]


def test_what_the_init_net_makes_is_no_input():
    model = ModelHelper("small")
    brew.fc(model, "data", "scores", dim_in=8, dim_out=2)
    blobs = drawing_of(model.net, {"data": (3, 8)}, model.param_init_net).blobs
    assert {blob.name: blob.fed for blob in blobs} == {
        "data": True, "scores_w": False, "scores_b": False, "scores": False,
    }  # fmt: skip


def replicated(devices, columns=False):
    """Two layers, trained on some devices by the sum of their gradients."""
    model = ModelHelper("replicated")

    def forward(model, scale):
        hidden = brew.relu(model, brew.fc(model, "data", "fc1", 4, 4), "relu1")
        return [model.net.Scale(softmax_loss(model, brew.fc(model, hidden, "fc2", 4, 3)), "scaled", scale=scale)]

    Parallelize(
        model, lambda model: None, forward, optimizer_builder_fun=lambda model: build_sgd(model, 0.1),
        devices=range(devices), cpu_device=True,
    )  # fmt: skip
    return drawing_of(model.net, {}, model.param_init_net, columns=columns)


def test_replicas_are_drawn_once():
    one, many = replicated(1), replicated(3)
    for part in (0, 1):
        types = [box.type for box in one.boxes if box.part == part]
        assert [(box.type, box.copies) for box in many.boxes if box.part == part] == [(type, 2) for type in types]
    updates = [box for box in many.boxes if box.part == 2]
    assert [box.copies for box in updates if box.type == "WeightedSum"] == [2] * 4
    sums = [box for box in updates if box.type == "Sum"]
    assert len(sums) == 4
    for box in sums:  # the gradients of all devices come from one box
        (writer,) = {many.blobs[blob].writer for blob in box.inputs}
        assert many.boxes[writer].part == 1
    assert sum(box.copies + 1 for box in many.boxes) == many.operators
    for b, blob in enumerate(many.blobs):
        assert blob.writer < 0 or blob.name.partition("/")[2] in {
            many.blobs[out].name.partition("/")[2] for out in many.boxes[blob.writer].outputs
        } | {blob.name}, b


def test_each_device_has_columns_if_they_are_asked_for():
    drawing = replicated(3, columns=True)
    assert drawing.columns and len(drawing.boxes) == drawing.operators
    assert not any(box.copies for box in drawing.boxes) and {box.lane for box in drawing.boxes} == {0, 1, 2}


def test_devices_that_do_different_things_are_no_replicas():
    lanes, kinds = [0, 0, 1, 1, 1, 2, 2], ["a", "b", "a", "c", "d", "b", "a"]
    assert first_copies(lanes, kinds, [[]] * 7) == [0, 1, 2, 3, 4, 1, 0]


def test_devices_of_a_pipeline_are_no_replicas():
    assert first_copies([0, 0, 1, 1], "abab", [[], [0], [1], [2]]) == [0, 1, 2, 3]
    assert first_copies([0, 0, 1, 1, 0], "ababs", [[], [0, 4], [], [2, 4], [0, 2]]) == [0, 1, 0, 1, 4]  # they meet in s


def test_contradicting_shapes_leave_the_drawing_without():
    net = Net("wrong")
    net.Add(["x", "y"], "z")
    drawing = drawing_of(net, {"x": (2,), "y": (3, 4, 5)})
    assert len(drawing.boxes) == 1 and not any(blob.shape for blob in drawing.blobs)
    assert "Add" in drawing.problem and not drawing.missing


def test_step_nets_are_found_by_their_operators():
    model = ModelHelper("recurrent")
    rnn.LSTM(model, "x", "lengths", None, 2, 3, "lstm")
    box = next(box for box in drawing_of(model.net).boxes if box.type == "RecurrentNetwork")
    assert "LSTMUnit(lstm/hidden_t_prev" in box.arguments["step_net"]
    assert "LSTMUnitGradient(" in box.arguments["backward_step_net"]


def data_of(text):
    return json.loads(re.search(r'<script id="data"[^>]*>(.*?)</script>', text, re.S).group(1))


def scripts_of(text):
    return re.findall(r"<script>(.*?)</script>", text, re.S)


def test_the_page_needs_nothing_else():
    text = page(drawing_of(two_devices()))
    assert "two &lt;devices&gt;" in text and "4 operators, 2 devices" in text
    assert data_of(text)["name"].startswith("two <devices>")
    links = re.findall(r"https?://[^\"', ]+", text)
    assert set(links) <= {
        "http://www.w3.org/2000/svg",
        "https://github.com/dagrejs/dagre",
    }  # a name, where dagre is from
    assert "Permission is hereby granted" in text  # dagre's license goes with it
    assert not re.search(r"<(link|img|iframe)|src=|@import", text)


def test_nets_of_the_zoo_and_files(tmp_path, capsys):
    out = tmp_path / "net.html"
    assert main(["lenet", "--batch", "2", "-o", str(out)]) == 0
    drawn = data_of(out.read_text())
    assert all(blob["shape"] for blob in drawn["blobs"])
    assert any(box["type"] == "ConvGradient" and box["part"] == 1 for box in drawn["boxes"])
    assert re.search(r"on 1 device(, \d+ folded as repeats)?; shapes of", capsys.readouterr().out)
    net = golden_data.GOLDEN / "nets" / "dp_convnet_2" / "net.pb"
    assert main([str(net), "-o", str(out), "--without-shapes"]) == 0
    assert len(data_of(out.read_text())["lanes"]) == 2


def test_a_predictor(tmp_path, capsys):
    folder = golden_data.GOLDEN / "exports" / "extract_dropout_bn"
    net = files.load(folder / "train_net.pb", type(Net("n").Proto()))
    files.save(tmp_path / "predict_net.pb", net)
    given = [str(tmp_path), "-o", str(tmp_path / "net.html")]
    assert main(given) == 1
    said = capsys.readouterr().err
    assert "the shapes of 'data', 'conv1_w', 'conv1_b', " in said and "--init FILE" in said
    assert main([*given, "--without-shapes"]) == 0
    assert len(data_of((tmp_path / "net.html").read_text())["boxes"]) == len(net.op)


def test_an_input_that_the_net_lacks_is_refused(tmp_path, capsys):
    files.save(tmp_path / "net.pb", two_devices().Proto())
    given = [str(tmp_path / "net.pb"), "-o", str(tmp_path / "net.html"), "--input"]
    assert main([*given, "x1=2x3"]) == 1
    assert "has no blob 'x1'" in capsys.readouterr().err
    assert not (tmp_path / "net.html").exists()
    assert main([*given, "x=2x3"]) == 0


def test_bad_input(tmp_path, capsys):
    assert main([str(tmp_path / "none.pb"), "-o", str(tmp_path / "net.html")]) == 1
    assert "none.pb" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["lenet", "-o", "x", "--input", "data"])
    assert "must be BLOB=SHAPE" in capsys.readouterr().err


def test_blobs_have_their_sizes(tmp_path, capsys):
    drawing = drawing_of(two_devices(), {"x": (2, 3)})
    assert [blob.nbytes for blob in drawing.blobs] == [24] * 5
    assert not any(blob.nbytes for blob in drawing_of(two_devices()).blobs)
    files.save(tmp_path / "net.pb", two_devices().Proto())
    out = tmp_path / "net.html"
    given = [str(tmp_path / "net.pb"), "-o", str(out), "--by-bytes"]
    assert main([*given, "--input", "x=2x3"]) == 0
    assert data_of(out.read_text())["by_bytes"] is True and 'id="legend"' in out.read_text()
    assert data_of(page(drawing))["by_bytes"] is False
    out.unlink()
    assert main([*given, "--without-shapes"]) == 1
    assert re.search(
        r"--by-bytes: no shape of net 'two <devices>\w*' is known, so no blob has a size; give --input",
        capsys.readouterr().err,
    )
    assert not out.exists()


def test_texts_and_unknown_sizes_count_nothing():
    net = Net("texts")
    net.StringPrefix("names", "short", length=2)
    net.Unique("rows", "some")
    drawing = drawing_of(net, {"rows": TensorSpec((3,), np.dtype(np.int32)), "names": TensorSpec((3,), STRING)})
    assert {blob.name: blob.nbytes for blob in drawing.blobs} == {"names": 0, "short": 0, "rows": 12, "some": 0}


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_colors_follow_bytes(tmp_path):
    """The script's own functions, without a page."""
    text = page(drawing_of(two_devices(), {"x": (2, 3)}))
    script = scripts_of(text)[-1]
    begin, end = script.index("const COLORS"), script.index("function tellBytes")
    (tmp_path / "colors.js").write_text(
        "const net = {boxes: [{outputs: [0]}, {outputs: [1, 1]}, {outputs: []}, {outputs: [2]}], blobs: [{nbytes: "
        + "2 ** 30}, {nbytes: 100}, {nbytes: 2 ** 25}]};\n"
        + script[begin:end]
        + "console.log(JSON.stringify([sizes, sizes.map(colorOf), sizes.map(bytesText)]))"
    )
    done = subprocess.run(["node", str(tmp_path / "colors.js")], capture_output=True, text=True, check=True)
    sizes, colors, texts = json.loads(done.stdout)
    assert sizes == [2**30, 100, 0, 2**25] and texts == ["1.00 GiB", "100 B", "0 B", "32.0 MiB"]
    assert colors[0] == "#6d0a1e" and colors[1] == "#fff7c8" and colors[2] == "#fff" and len(set(colors)) == 4


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_the_script_is_correct_javascript(tmp_path):
    text = page(drawing_of(two_devices()))
    (tmp_path / "page.js").write_text(scripts_of(text)[-1])
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
    assert "does not hold a predictor: predict_net.pb is missing; it holds notes.txt" in capsys.readouterr().err
    assert main(["resnet19", "-o", "x.html"]) == 1
    said = capsys.readouterr().err
    assert "'resnet19' is not a file, a folder or a net of the zoo; did you mean 'resnet18' or " in said
    assert "; did you mean 'resnet18'" in said


# Repeated blocks.


@pytest.mark.parametrize(
    ("kinds", "want"),
    [
        ("abcabcabc", [(0, 3, 3)]),
        ("aaaaaa", [(0, 1, 6)]),
        ("abab", []),  # too little to hide
        ("xyabcdeabcdez", [(2, 5, 2)]),
        ("abcabcabcxdefghdefgh", [(0, 3, 3), (10, 5, 2)]),
        ("abcdefgh", []),
        ("", []),
    ],
)
def test_repeats(kinds, want):
    assert repeats(kinds) == want


def test_of_several_beginnings_the_one_that_cuts_least_is_taken():
    assert repeats("cabcabcabca", cost=lambda start, length: abs(start - 1)) == [(1, 3, 3)]
    assert repeats("cabcabcabca", cost=lambda start, length: -start) == [(2, 3, 3)]


def chain(blocks):
    net = Net("chain")
    for k in range(blocks):
        net.FC([f"x{k}", f"w{k}", f"b{k}"], f"a{k}")
        net.Relu(f"a{k}", f"r{k}")
        net.Scale(f"r{k}", f"x{k + 1}", scale=2.0)
    return net, {"x0": (2, 4), **{f"w{k}": (4, 4) for k in range(blocks)}, **{f"b{k}": (4,) for k in range(blocks)}}


def test_equal_blocks_are_folded():
    (fold,) = drawing_of(*chain(4)).folds
    assert (fold.first, fold.others, fold.times) == ([0, 1, 2], list(range(3, 12)), 4)
    net, shapes = chain(5)
    net.Proto().op[5].arg[0].f = 3.0  # the second block differs
    (fold,) = drawing_of(net, shapes).folds
    assert (fold.first, fold.times) == ([6, 7, 8], 3)
    net, shapes = chain(4)
    shapes["w3"], shapes["b3"] = (5, 4), (5,)  # the last one has another shape
    assert drawing_of(net, shapes).folds[0].times == 3


def test_a_residual_net_is_folded_by_stages(tmp_path, capsys):
    out = tmp_path / "net.html"
    assert main(["resnet50", "--inference", "--batch", "1", "-o", str(out)]) == 0
    drawn = data_of(out.read_text())
    assert [fold["times"] for fold in drawn["folds"]] == [2, 3, 5, 2]
    for fold in drawn["folds"]:
        types = [drawn["boxes"][index]["type"] for index in fold["first"]]
        assert [drawn["boxes"][index]["type"] for index in fold["others"]] == types * (fold["times"] - 1)
        inside = {blob for index in fold["first"] for blob in drawn["boxes"][index]["outputs"]}
        read = {blob for index in fold["first"] for blob in drawn["boxes"][index]["inputs"]} - inside
        assert sum(drawn["blobs"][blob]["writer"] >= 0 for blob in read) == 1  # it begins between two blocks
    assert re.search(
        r"175 operators on 1 device, \d+ folded as repeats; shapes of 443 of 443 blobs", capsys.readouterr().out
    )


# Name scopes.


def towers(blocks, names=("left", "right")):
    net, shapes = Net("towers"), {"x": (2, 4)}
    for tower in names:
        above = BlobReference("x")
        with NameScope(tower):
            for k in range(blocks):
                with NameScope(f"block{k}"):
                    above = net.Add([net.Tanh(net.Relu(above, "r"), "t"), above], "sum")
        net.Scale(above, BlobReference(f"{tower}_end"), scale=2.0)
    return net, shapes


def test_name_scopes_are_folds_one_inside_the_other():
    drawing = drawing_of(*towers(2))
    found = [(fold.scope, fold.others) for fold in drawing.scopes]
    assert found == [
        ("left", list(range(6))), ("right", list(range(7, 13))),
        ("left/block0", [0, 1, 2]), ("left/block1", [3, 4, 5]),
        ("right/block0", [7, 8, 9]), ("right/block1", [10, 11, 12]),
    ]  # fmt: skip
    assert not drawing.by_scope and drawing_of(*towers(2), by_scope=True).by_scope


def test_of_scopes_with_the_same_operators_the_innermost_is_named():
    assert [fold.scope for fold in drawing_of(*towers(1)).scopes] == ["left/block0", "right/block0"]
    assert not drawing_of(*chain(4)).scopes


def test_a_large_net_is_folded_by_scope_if_that_hides_more():
    net, shapes = towers(100, ["left"])
    assert not drawing_of(net, shapes).by_scope  # its blocks are equal, so they are folded as repeats
    for number, op in enumerate(net.Proto().op):
        if op.type == "Tanh":
            op.type = "Clip"
            op.arg.add(name="max", f=number + 1.0)  # so that no two blocks are equal
    assert drawing_of(net, shapes).by_scope and not drawing_of(net, shapes, by_scope=False).by_scope


def test_by_scope_on_the_command_line(tmp_path, capsys):
    net, _ = towers(3)
    files.save(tmp_path / "net.pb", net.Proto())
    given = [str(tmp_path / "net.pb"), "-o", str(tmp_path / "net.html"), "--input", "x=2x4"]
    assert main([*given, "--by-scope"]) == 0
    assert "folded by 8 name scopes" in capsys.readouterr().out
    assert data_of((tmp_path / "net.html").read_text())["by_scope"] is True
    files.save(tmp_path / "net.pb", chain(2)[0].Proto())
    assert main([*given[:3], "--by-scope", "--without-shapes"]) == 1
    assert "--by-scope: no operators of net 'chain" in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
@pytest.mark.parametrize(
    ("blocks", "seen"),
    [(2, 14), (20, 42), (40, 4)],  # all; all blocks; the towers
)
def test_outer_scopes_are_unfolded_while_few_nodes_are_seen(blocks, seen, tmp_path):
    text = page(drawing_of(*towers(blocks), by_scope=True))
    script = scripts_of(text)[-1]
    begin, end = script.index("const FEW"), script.index("function makeNodes")
    (tmp_path / "folds.js").write_text(
        f"const net = {json.dumps(data_of(text))}, MOST = 400;\nconst document = {{}};\n{script[begin:end]}\n"
        "useFolds();\nconst seen = new Set(net.boxes.map((_, i) => keyOf(i))).size;\n"
        "console.log(JSON.stringify([seen, folds.length]));\n"
    )
    done = subprocess.run(["node", str(tmp_path / "folds.js")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [seen, 2 * blocks + 2]


def test_shapes_that_are_missing_are_asked_for(tmp_path, capsys):
    net, shapes = chain(2)
    files.save(tmp_path / "net.pb", net.Proto())
    given = [str(tmp_path / "net.pb"), "-o", str(tmp_path / "net.html")]
    assert main([*given, "--input", "x0=2x4"]) == 1
    said = capsys.readouterr().err
    assert "the shapes of 'w0', 'b0', 'w1', 'b1', which net 'chain" in said
    assert "give --input w0=SHAPE --input b0=SHAPE (such as w0=32x3x224x224, or =32:int32" in said
    assert not (tmp_path / "net.html").exists()
    options = [text for name, shape in shapes.items() for text in ("--input", f"{name}={'x'.join(map(str, shape))}")]
    assert main([*given, *options]) == 0
    assert main([*given, *options, "--input", "w1=4x9"]) == 0
    assert "drawn without shapes, since they contradict each other: " in capsys.readouterr().err


def test_parameters_that_an_init_net_makes_are_not_asked_for(tmp_path, capsys):
    """Even if the net updates them, so that without a shape of its input nothing is known of them at its end."""
    model = ModelHelper("trained")
    model.AddGradientOperators([softmax_loss(model, brew.fc(model, "data", "fc", 3, 2))])
    build_sgd(model, 0.1, momentum=0.9)
    files.save(tmp_path / "net.pb", model.net.Proto())
    files.save(tmp_path / "init.pb", model.param_init_net.Proto())
    given = [str(tmp_path / name) for name in ("net.pb", "init.pb", "net.html")]
    given = [given[0], "--init", given[1], "-o", given[2]]
    assert main(given) == 1
    assert "the shapes of 'data', 'label', which net 'trained" in capsys.readouterr().err
    assert main([*given, "--input=data=8x3", "--input=label=8:int32"]) == 0


BROWSER = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")


def in_browser(tmp_path, text, steps):
    """Return what steps, the body of a function, return in the page."""
    end = (
        f"<script>document.body.textContent = 'RESULT' + JSON.stringify((() => {{{steps}}})()) + 'END';</script></body>"
    )
    (tmp_path / "page.html").write_text(text.replace("</body>", end))
    done = subprocess.run(
        [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
         "--virtual-time-budget=5000", "--dump-dom", (tmp_path / "page.html").as_uri()],
        capture_output=True, text=True, timeout=HANG,
    )  # fmt: skip
    found = re.search(r"RESULT(.*)END", done.stdout, re.S)
    assert found, done.stdout[-2000:] + done.stderr[-2000:]
    return json.loads(html.unescape(found[1]))


@pytest.mark.skipif(BROWSER is None, reason="needs a browser")
def test_the_page_in_a_browser(tmp_path):
    """The script runs to its end: boxes, a folded block that unfolds, the overview, what a search finds."""
    steps = """
      const count = () => document.querySelectorAll('.box').length;
      const said = [count(), document.querySelectorAll('.fold').length, panel.textContent];
      document.querySelector('.fold rect').dispatchEvent(new Event('click'));
      said.push(count());
      document.getElementById('fold').click();
      said.push(count());
      search.value = 'relu r3'; find();
      said.push(document.getElementById('found').textContent);
      choose(matches[0], true);
      said.push(count(), panel.textContent, map.width > 0);
      return said;
    """
    folded, bars, overview, unfolded, again, hits, chosen, panel, has_map = in_browser(
        tmp_path, page(drawing_of(*chain(4))), steps
    )
    assert (folded, bars, unfolded, again) == (3, 1, 12, 3)
    assert overview.startswith("Overview12 operators") and "4 \u00d7 (FC, Relu, Scale), from operator 0" in overview
    assert "x0  (2 x 4 float32, 32 B)" in overview and "4  FC" in overview
    assert hits == "1 found" and chosen == 12  # what was found in a folded block unfolds it
    assert panel.startswith("Reluoperator 10 on CPU 0") and has_map


def branches():
    """Three branches of a value, and the value itself, meet in a sum."""
    net = Net("branches")
    net.Relu("x", "r")
    for branch in "abc":
        net.Tanh("r", f"{branch}1")
        net.Sigmoid(f"{branch}1", f"{branch}2")
    net.Sum(["r", "a2", "b2", "c2"], "s")
    net.Relu("s", "y")
    return drawing_of(net, {"x": (2, 3)})


@pytest.mark.skipif(BROWSER is None, reason="needs a browser")
def test_branches_are_side_by_side(tmp_path):
    """Readers are below writers, no two nodes overlap, and no edge crosses a node that it does not join."""
    steps = """
      folded.fill(false); draw();
      const all = [...nodes.values()];
      const lines = edges.map(edge => {
        const line = edge.group.querySelector('path'), length = line.getTotalLength(), points = [];
        for (let k = 1; k < 100; k++) { const p = line.getPointAtLength(length * k / 100); points.push([p.x, p.y]); }
        return {from: edge.from.key, to: edge.to.key, skip: edge.group.classList.contains('skip'), points};
      });
      return [all.map(n => [n.key, n.x, n.y, n.width, n.height]), lines, width, height];
    """
    nodes, lines, width, height = in_browser(tmp_path, page(branches()), steps)
    place = {key: rest for key, *rest in nodes}
    assert len(place) == 10  # nine operators and the input
    assert len({place[f"o{k}"][1] for k in (1, 3, 5)}) == 1 and len({place[f"o{k}"][0] for k in (1, 3, 5)}) == 3
    for key, (x, y, wide, high) in place.items():
        assert 0 <= x - wide / 2 and x + wide / 2 <= width and 0 <= y - high / 2 and y + high / 2 <= height
        for other, (x2, y2, wide2, high2) in place.items():
            assert key == other or abs(x - x2) >= (wide + wide2) / 2 or abs(y - y2) >= (high + high2) / 2
    assert len(lines) == 12
    assert [(line["from"], line["to"]) for line in lines if line["skip"]] == [("o0", "o7")]  # the residual edge
    for line in lines:
        assert place[line["from"]][1] < place[line["to"]][1]
        for key in place.keys() - {line["from"], line["to"]}:
            x, y, wide, high = place[key]
            assert not [p for p in line["points"] if abs(p[0] - x) < wide / 2 and abs(p[1] - y) < high / 2]


@pytest.mark.skipif(BROWSER is None, reason="needs a browser")
def test_passes_are_columns_and_their_edges_are_drawn_when_asked_for(tmp_path):
    steps = """
      const far = () => document.querySelectorAll('.edge.far').length;
      const said = [titles.map(t => titleOf(t.key)), far(), new Set([...nodes.values()].map(n => n.column)).size];
      choose(net.boxes.findIndex(box => box.type === 'Relu'), false);
      said.push(far());
      overview();
      said.push(far());
      document.getElementById('all').click();
      said.push(far(), edges.filter(edge => edge.far).length);
      return said;
    """
    titles, before, columns, chosen, after, shown, known = in_browser(tmp_path, page(replicated(2)), steps)
    assert titles == ["forward", "backward", "updates"] and columns == 3
    assert before == after == 0 < chosen < shown == known
    titles, *_ = in_browser(tmp_path, page(replicated(2, columns=True)), steps)
    assert titles == [f"CPU {k}: {part}" for k in (0, 1) for part in ("forward", "backward", "updates")]


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="needs a browser")
def test_a_net_of_thousands_of_operators_is_drawn(tmp_path):
    """In pieces: laid out at once, a chain this long would exceed dagre's recursion."""
    net = Net("long")
    for k in range(3000):
        net.Scale([f"x{k}"], f"x{k + 1}", scale=float(k + 1))
        if k % 10 == 9:
            net.Add([f"x{k + 1}", f"x{k - 8}"], f"x{k + 1}")
    count, ordered = in_browser(
        tmp_path, page(drawing_of(net)), "return [nodes.size, edges.every(edge => edge.from.y < edge.to.y)];"
    )
    assert count == 3300 and ordered
