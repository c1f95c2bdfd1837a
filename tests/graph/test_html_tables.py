"""What notebooks show of nets, models, predictors, workspaces, plans and memory."""

import json
import re
from html.parser import HTMLParser

import numpy as np

from netbuilder import ModelHelper, Workspace, brew, load_predictor, save_predictor
from netbuilder.graph import Net
from netbuilder.graph.drawing.drawing import drawing_of
from netbuilder.graph.drawing.page import page
from netbuilder.graph.html_tables import table
from netbuilder.runtime.profile.memory import planned_memory


class Cells(HTMLParser):
    """Reads the rows of all tables, and fails if tags do not match."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.titles, self.frames, self._open = [], [], [], []
        self.feed(text)
        assert not self._open

    def handle_starttag(self, tag, attrs):
        self._open.append(tag)
        if tag == "iframe":
            self.frames.append(dict(attrs))
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if self._open[-1] in ("td", "th"):
            self.rows[-1][-1] += data
        elif self._open[-1] == "summary":
            self.titles.append(data)


def shown(value):
    return Cells(value._repr_html_())


def small():
    model = ModelHelper("small")
    brew.softmax(model, brew.fc(model, "data", "scores", dim_in=4, dim_out=2), "softmax")
    return model


def drawn(frame):
    """What the page in a frame draws."""
    return json.loads(re.search(r'<script id="data"[^>]*>(.*?)</script>', frame["srcdoc"], re.S)[1])


def test_a_net_is_a_drawing_and_a_table_of_its_operators():
    net = Net("a<b")
    net.Clip("x&y", "z", min=0.5)
    found = shown(net)
    assert found.titles == ["net a<b: 1 operator", "operators"]
    (head, row) = found.rows
    assert head[1:5] == ["operator", "inputs", "outputs", "arguments"]
    assert row[:5] == ["0", "Clip", "x&y", "z", "min=0.5"] and row[6]
    (frame,) = found.frames
    assert frame["sandbox"] == "allow-scripts" and "src" not in frame
    assert frame["srcdoc"] == page(drawing_of(net)) and [box["type"] for box in drawn(frame)["boxes"]] == ["Clip"]


def test_a_net_without_operators():
    found = shown(Net("empty"))
    assert found.titles == ["net empty: 0 operators"] and not found.frames


def test_nets_that_operators_hold_are_folded_under_them():
    net, inner = Net("outer"), Net("inner")
    inner.Relu("x", "x")
    net.If("condition", [], then_net=inner.Proto())
    found = shown(net)
    assert found.titles == ["net outer: 1 operator", "operators", "net inner"] and len(found.frames) == 1


def test_a_model_shows_its_parameters():
    found = shown(small())
    assert found.titles[0] == "model small: 2 parameters, 10 elements"
    assert found.rows[1] == ["scores_w", "(2, 4)", "8", "float32", "trained"]
    (frame,) = found.frames
    blobs = {blob["name"]: blob for blob in drawn(frame)["blobs"]}
    assert blobs["data"]["fed"] and not blobs["scores_w"]["fed"] and blobs["scores_w"]["shape"] == "2 x 4 float32"


def test_a_predictor_shows_inputs_outputs_and_its_net(tmp_path):
    model, workspace = small(), Workspace()
    workspace.run_net_once(model.param_init_net)
    save_predictor(
        tmp_path / "p", model.net, model.GetParams(), outputs=["softmax"], shapes={"data": (3, 4)}, workspace=workspace
    )
    found = shown(load_predictor(tmp_path / "p"))
    assert found.titles[:2] == ["predictor small: 2 parameters, 10 elements", "net small: 2 operators"]
    assert found.rows[1:3] == [["input", "data", "(3, 4)", "float32"], ["output", "softmax", "(3, 2)", "float32"]]
    blobs = {blob["name"]: (blob["fed"], blob["shape"]) for blob in drawn(found.frames[0])["blobs"]}
    assert blobs["data"] == (True, "3 x 4 float32") and blobs["scores_w"] == (False, "2 x 4 float32")


def test_a_workspace_a_plan_and_memory():
    model, workspace = small(), Workspace()
    workspace.feed("data", np.zeros((3, 4), np.float32))
    workspace.run_net_once(model.param_init_net)
    net = workspace.net(workspace.create_net(model.net))
    memory = planned_memory(workspace, [model.net])
    workspace.run_net("small")
    found = shown(workspace)
    assert ["data", "(3, 4)", "float32", "48 B"] in found.rows and found.titles[0].endswith("nets: small")
    steps = shown(net.plans[0]).rows
    assert any("FC" in row[2] for row in steps[1:])
    assert [row[0] for row in shown(memory).rows[1:3]] == ["arena", "parameters"]


def test_long_tables_are_cut():
    rows = Cells(table(["n"], [[n] for n in range(1000)])).rows
    assert len(rows) == 502 and rows[-1] == ["... and 500 more"]
