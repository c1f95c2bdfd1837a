"""net_printer and net_drawer: what Caffe2's write, and checks of what nets read."""

import json

import pytest
from caffe2.proto import caffe2_pb2
from caffe2.python import checkpoint, core, model_helper, net_drawer, net_printer, rnn_cell, task

from netbuilder.graph import reset_names
from netbuilder.proto import NetError

# What Caffe2 (PyTorch 1.10) wrote for the net of `small`.
PROGRAM = """\
main = core.Net('main')
main.FC(['x', 'w', 'b'], ['y'], axis=1, order='NCHW')
main.Relu(['y'], ['y'])
main.Copy(['y'], ['z'], device_option=DeviceOption(1, 1, ''))
main.Concat(['layer/a', 'layer/b'], ['layer/c', 'layer/d'], axis=1)"""

ASSIGNMENTS = """\
# net: main
y = FC(x, w, b, axis=1, order='NCHW')
y = Relu(y)
z = Copy(y, device_option=DeviceOption(1, 1, ''))
layer/c, layer/d = Concat(layer/a, layer/b, axis=1)"""


def small(name="main"):
    net = core.Net(name)
    net.AddExternalInput("x")
    y = net.FC(["x", "w", "b"], ["y"], axis=1, order="NCHW")
    net.Relu(y, y)
    net.Copy(y, ["z"], device_option=core.DeviceOption(caffe2_pb2.CUDA, 1))
    net.Concat(["layer/a", "layer/b"], ["layer/c", "layer/d"], axis=1)
    net.Proto().name = name
    return net


def tasks(step):
    with task.TaskGroup() as group, task.Node("reader"):
        task.Task(name="t", step=step)
    return group


def test_nets_and_operators():
    net = small()
    assert net_printer.to_string(net) == net_printer.to_string(net.Proto()) == PROGRAM
    assert net_printer.to_string(net, c2_syntax=False) == ASSIGNMENTS
    assert net_printer.to_string(net.Proto().op[1]) == "y = Relu(y)"
    factored = net_printer.to_string(net, c2_syntax=False, factor_prefixes=True)
    assert factored.endswith("layer/[c, d] = Concat(layer/[a, b], axis=1)")


def test_an_argument_without_values():
    net = core.Net("empty")
    net.ConstantFill([], "c", shape=[], value=0.0)
    assert net_printer.to_string(net).endswith("ConstantFill([], ['c'], shape=[], value=0.0)")


def test_nets_that_an_operator_holds():
    reset_names()
    model = model_helper.ModelHelper("m")
    rnn_cell.LSTM(model, "x", "lengths", None, 2, 3, "c", forward_only=True)
    model.net.Relu("c/hidden_state_all", "y")
    for text, net_line, unit in (
        (net_printer.to_string(model.net), "    c = core.Net('c')", "    c.LSTMUnit(['c/hidden_t_prev', "),
        (
            net_printer.to_string(model.net, c2_syntax=False),
            "    # net: c",
            "    c/hidden_state, c/cell_state = LSTMUnit(",
        ),
    ):
        lines = text.splitlines()
        start = lines.index("with arg: step_net:")
        assert lines[start + 1] == net_line and lines[start + 4].startswith(unit)
        assert lines[-1].endswith((".Relu(['c/hidden_state_all'], ['y'])", "y = Relu(c/hidden_state_all)"))
    listed = net_printer.debug_net(model.net).splitlines()
    assert listed[3] == "    # step_net: c" and listed[6].startswith("    c/hidden_state, c/cell_state = LSTMUnit(")


def test_steps_plans_and_tasks():
    step = core.execution_step("steps", [small()], num_iter=3)
    assert net_printer.to_string(step).startswith("with loop(3):\n    main = core.Net('main')\n    main.FC(")
    plan = core.Plan("plan")
    plan.AddStep(step)
    assert "with Plan('plan" in net_printer.to_string(plan)
    group = tasks(small())
    text = net_printer.to_string(group)
    assert text.startswith("with TaskGroup():\n    with Task(node=reader, name=reader/")
    assert "main.Relu(['y'], ['y'])" in text
    with pytest.raises(TypeError, match="Printer: unsupported object type"):
        net_printer.to_string(3)


def test_pieces():
    assert net_printer.call("Op", ["q/a", "q/b"], ["c"], True) == "c = Op(q/[a, b])"
    assert net_printer.call("Op") == "Op()"
    assert net_printer.commonprefix(["ab/c", "ab/d"]) == "ab/"
    assert net_printer.factor_prefix(["x", "y"], True) == "x, y"
    assert net_printer.format_value([1, 2]) == "['1', '2']"
    assert net_printer.format_device_option(core.DeviceOption(0, 0)) is None
    text = net_printer.Text()
    with text.context("nothing()"):
        pass
    assert str(text) == "with nothing():\n    pass"


def test_debug_net_shows_lines(capsys):
    net_printer.debug_net(small())
    assert "y = Relu(y)  # " in capsys.readouterr().out


def test_reads_of_what_nothing_makes():
    net_printer.analyze(small())
    wrong = core.Net("wrong")
    wrong.Relu("u", "v")
    group = tasks(wrong)
    with pytest.raises(NetError, match="Blob undefined: u"):
        net_printer.analyze(group)
    init = core.Net("init")
    init.ConstantFill([], "u", shape=[1])
    net_printer.analyze(tasks([init, wrong]))


def test_jobs():
    init, reads, wrong = core.Net("init"), core.Net("reads"), core.Net("wrong")
    init.ConstantFill([], "u", shape=[1])
    reads.Relu("u", "v")
    wrong.Relu("w", "v")
    with checkpoint.Job() as job:
        with job.init_group:
            task.Task(name="first", step=init)
        task.Task(name="epoch", step=reads)
    text = net_printer.to_string(job)
    heads = [line for line in text.splitlines() if line.startswith("with")]
    assert heads == [f"with Job.{part}:" for part in ("init_group", "epoch_group", "stop_conditions", "exit_group")]
    assert ".ConstantFill([], ['u']" in text and ".Relu(['u'], ['v'])" in text
    net_printer.analyze(job)
    with checkpoint.Job() as job:
        task.Task(name="epoch", step=wrong)
    with pytest.raises(NetError, match="Blob undefined: w$"):
        net_printer.analyze(job)


def test_graph_in_json(tmp_path):
    net = core.Net("two")
    net.FC(["x", "w", "b"], ["y"])
    net.Relu("y", "y")
    net_drawer.GetGraphInJson(net, str(tmp_path / "net.json"))
    graph = json.loads((tmp_path / "net.json").read_text())
    labels = [(node["label"], node["type"]) for node in graph["nodes"]]
    assert labels == [
        ("FC", "op"), ("x", "blob"), ("w", "blob"), ("b", "blob"), ("y", "blob"), ("Relu", "op"), ("y", "blob")
    ]  # fmt: skip
    pairs = [(edge["source"], edge["target"]) for edge in graph["edges"]]
    assert pairs == [(1, 0), (2, 0), (3, 0), (0, 4), (4, 5), (5, 6)]


class Piece:
    """A fake node or edge of pydot."""

    def __init__(self, *parts, **attributes):
        self.parts, self.attributes = parts, attributes


class Dot(Piece):
    def __init__(self, *parts, **attributes):
        super().__init__(*parts, **attributes)
        self.nodes, self.edges = [], []
        self.add_node, self.add_edge = self.nodes.append, self.edges.append

    def pairs(self):
        names = [[p.parts[0] if isinstance(p, Piece) else p for p in edge.parts] for edge in self.edges]
        return [(a.strip('"'), b.strip('"')) for a, b in names]


class Library:
    Dot, Node, Edge = Dot, Piece, Piece


def test_graphs(monkeypatch):
    monkeypatch.setattr(net_drawer, "pydot", Library)
    net = core.Net("two")
    net.FC(["x", "w", "b"], ["y"])
    net.Relu("y", "y")
    net.Add(["y", "y"], "z")
    graph = net_drawer.GetPydotGraph(net)
    assert graph.pairs()[3:6] == [("FC (op#0)", "y0"), ("y0", "Relu (op#1)"), ("Relu (op#1)", "y1")]
    assert graph.attributes == {"rankdir": "LR"}
    few = net_drawer.GetPydotGraphMinimal(net, minimal_dependency=True)
    assert few.pairs() == [("FC (op#0)", "Relu (op#1)"), ("Relu (op#1)", "Add (op#2)")]
    plan = core.Plan("plan")
    plan.AddStep(core.execution_step("step", [net], num_iter=2))
    shown = net_drawer.GetPlanGraph(plan.Proto())
    assert shown.pairs() == [(r"step\nIterations: 2", net.Name())]
    (named,) = net_drawer.GetOperatorMapForPlan(plan.Proto()).values()
    assert [op.type for op in named] == ["FC", "Relu", "Add"]


def test_without_pydot(monkeypatch, capsys):
    monkeypatch.setattr(net_drawer, "pydot", None)
    with pytest.raises(ImportError, match="pip install 'netbuilder-nn.draw.'.*netbuilder-draw NET"):
        net_drawer.GetPydotGraph(small())
    assert net_drawer.GetGraphPngSafe(net_drawer.GetPydotGraph, small())[:4] == b"\x89PNG"
    assert "Failed to draw graph: net_drawer needs pydot" in capsys.readouterr().out
