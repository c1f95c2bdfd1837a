"""What notebooks show of nets, models, workspaces, plans and memory."""

from html.parser import HTMLParser

import numpy as np

from netbuilder import ModelHelper, Workspace, brew
from netbuilder.graph import Net
from netbuilder.graph.html_tables import table
from netbuilder.runtime.profile.memory import planned_memory


class Cells(HTMLParser):
    """Reads the rows of all tables, and fails if tags do not match."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.titles, self._open = [], [], []
        self.feed(text)
        assert not self._open

    def handle_starttag(self, tag, attrs):
        self._open.append(tag)
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


def test_a_net_is_a_table_of_its_operators():
    net = Net("a<b")
    net.Clip("x&y", "z", min=0.5)
    found = shown(net)
    assert found.titles == ["net a<b: 1 operator"]
    (head, row) = found.rows
    assert head[1:5] == ["operator", "inputs", "outputs", "arguments"]
    assert row[:5] == ["0", "Clip", "x&y", "z", "min=0.5"] and row[6]


def test_nets_that_operators_hold_are_folded_under_them():
    net, inner = Net("outer"), Net("inner")
    inner.Relu("x", "x")
    net.If("condition", [], then_net=inner.Proto())
    assert shown(net).titles == ["net outer: 1 operator", "net inner: 1 operator"]


def test_a_model_shows_its_parameters():
    found = shown(small())
    assert found.titles[0] == "model small: 2 parameters, 10 elements"
    assert found.rows[1] == ["scores_w", "(2, 4)", "8", "float32", "trained"]


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
