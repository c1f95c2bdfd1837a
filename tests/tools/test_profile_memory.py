"""netbuilder-profile --memory: the page, the tables, and what it refuses."""

import html
import json
import re
import shutil
import subprocess

import numpy as np
import pytest

from netbuilder import Workspace
from netbuilder.graph import Net
from netbuilder.proto import NetDef, files
from netbuilder.proto.arguments import make_op
from netbuilder.runtime.profile.arena_map import ArenaMap, ArenaValue
from netbuilder.runtime.profile.memory import Memory
from netbuilder.tools import profile as tool
from netbuilder.tools.profiling import memory_page as pages
from netbuilder.tools.profiling.memory_page import memory_page
from netbuilder.tools.profiling.net_memory import NetMemory, net_memory
from netbuilder.tools.profiling.ready import Ready


def found_of(net, workspace, **options):
    return net_memory(Ready(workspace, workspace.create_net(net, **options), frozenset()))


def made_up(values, steps):
    """The memory of a net with these values in its arena."""
    nbytes = max((value.offset + value.nbytes for value in values), default=0)
    load = [sum(v.nbytes for v in values if v.start <= step <= v.end) for step in range(steps)]
    arena = ArenaMap(nbytes, [f"Relu y{i}" for i in range(steps)], values, load)
    return NetMemory("made up", Memory(nbytes, 0, 0, 0, 0, 0, 0, 0, True, 0), [arena], [])


def value(name, start, end, offset, nbytes):
    return ArenaValue(name, "forward", f"Relu {name}", "CPU 0", "", start, end, offset, nbytes)


def test_a_net_of_the_zoo(tmp_path, capsys):
    page, figures = tmp_path / "memory.html", tmp_path / "memory.json"
    size = ["--batch", "2", "--classes", "10", "--top", "3", "--observable", "outputs"]
    assert tool.main(["resnet8-cifar", "--memory", *size, "-o", str(page), "--json", str(figures)]) == 0
    said = capsys.readouterr()
    assert not said.err and "MiB planned" in said.out and f"written: {page}" in said.out
    assert "in the arena, the 3 largest of" in said.out and "outside the arena, the 3 largest of" in said.out
    found = json.loads(figures.read_text())
    [plan] = found["plans"]
    assert found["memory"]["arena"] == plan["nbytes"] and found["memory"]["parameters"] > 0
    text = page.read_text()
    assert text.count("<rect ") == len(plan["values"]) and 'class="peak"' in text
    alive = [v for v in plan["values"] if v["start"] <= plan["peak"] <= v["end"]]
    assert f"Needed at the peak: {len(alive)} values" in text
    assert all(html.escape(v["name"]) in text for v in plan["values"])


def test_the_page_needs_nothing_else():
    text = memory_page(made_up([value("a", 0, 3, 0, 64)], 5))
    assert set(re.findall(r"https?://[^\"' ]+", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<(link|img|iframe)|src=|@import", text)


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_the_script_is_correct_javascript(tmp_path):
    text = memory_page(made_up([value("a", 0, 3, 0, 64)], 5))
    (tmp_path / "page.js").write_text(re.search(r"<script>(.*)</script>", text, re.S).group(1))
    subprocess.run(["node", "--check", str(tmp_path / "page.js")], check=True)


@pytest.mark.parametrize("name", ["<script>alert('1')</script>", 'a" onload="b', "]]>&amp;", "a\x00\x1b[31m", "NaN"])
def test_names_are_text(name):
    text = memory_page(made_up([value(name, 0, 1, 0, 64)], 2))
    assert text.count("<script>") == 1 and 'onload="b' not in text and "\x00" not in text and "\x1b" not in text
    shown = name.replace("\x00", "\ufffd").replace("\x1b", "\ufffd")
    assert shown in html.unescape(re.search(r"<rect[^>]*><title>(.*?)</title>", text, re.S).group(1))


def numbers(text):
    drawing = re.search(r"<svg.*?</svg>", text, re.S).group(0)
    return [float(x) for x in re.findall(r' (?:x|y|x1|x2|width|height)="([^"]*)"', drawing)]


def test_many_small_values_are_drawn_together(monkeypatch):
    monkeypatch.setattr(pages, "DRAWN", 50)
    values = [value(f"v{i}", i % 900, i % 900 + 1, 64 * (i // 900), 64) for i in range(4_000)]
    values.append(value("large", 0, 999, 64 * 50, 2**20))
    text = memory_page(made_up(values, 1000))
    assert text.count("<rect ") < 500 and "small values" in text and "several small values" in text
    drawn = sum(int(count) for count in re.findall(r"<title>(\d+) small values", text))
    assert drawn == len(values) - 50 and "large: 1.0 MiB" in text
    assert np.isfinite(numbers(text)).all() and max(numbers(text)) <= 1200


def test_nothing_in_the_arena():
    workspace, net = Workspace(threads=1), Net("one")
    net.Relu("x", "y")
    workspace.feed("x", np.ones(3, np.float32))
    text = memory_page(found_of(net, workspace))
    assert "1 steps have nothing in the arena" in text and "<svg" not in text
    empty = memory_page(made_up([value("nothing", 0, 0, 0, 0)], 1))
    assert np.isfinite(numbers(empty)).all()


def test_plans_after_shapes_that_depend_on_data():
    """Such a net runs once."""
    workspace, net = Workspace(threads=1), Net("dynamic")
    for i in range(3):
        net.Relu(f"x{i}", f"x{i + 1}")
    net.Unique("indices", "u")
    for i in range(3, 6):
        net.Relu(f"x{i}", f"x{i + 1}")
    workspace.feed("x0", np.ones(1000, np.float32))
    workspace.feed("indices", np.int32([3, 3, 4]))
    found = found_of(net, workspace, observable=["x6", "u"])
    assert found.memory.whole and len(found.maps) == 2
    text = memory_page(found)
    assert "The arena in plan 1 of 2" in text and "The arena in plan 2 of 2" in text


def test_the_page_has_a_name_by_default(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    net = NetDef(name="small", external_input=["x"])
    net.op.append(make_op("Relu", ["x"], ["y"]))
    files.save(tmp_path / "small.pb", net)
    assert tool.main(["small.pb", "--memory", "--input", "x=10", "--observable", "outputs"]) == 0
    assert (tmp_path / "small-memory.html").exists()
    assert tool.main(["small.pb", "--memory"]) == 1
    assert "give --input x=SHAPE" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--memory", "-o", "none/page.html"], "--output: 'none/page.html': the folder "),
        (["--memory", "--batch", "3", "--devices", "2"], "a batch of 3 cannot be split evenly over 2 devices"),
    ],
)
def test_what_cannot_be_drawn(arguments, message, capsys):
    assert tool.main(["mlp", *arguments]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--memory", "--trace", "t.json"], "--memory runs nothing; give one of the two"),
        (["-o", "page.html"], "-o/--output is for the page of --memory"),
        (["--observable", "some"], "invalid choice: 'some'"),
    ],
)
def test_options_that_do_not_fit(arguments, message, capsys):
    with pytest.raises(SystemExit):
        tool.main(["mlp", *arguments])
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_under_a_memory_budget(tmp_path, capsys):
    figures = tmp_path / "memory.json"
    size = ["--batch", "16", "--classes", "10", "--memory-budget", "85%", "--observable", "outputs"]
    page = tmp_path / "memory.html"
    for devices in ("1", "2"):
        arguments = [*size, "--devices", devices, "-o", str(page), "--json", str(figures)]
        assert tool.main(["resnet8-cifar", "--memory", *arguments]) == 0
        assert re.search(r"\ncomputed again: \d+ % more time predicted\n", capsys.readouterr().out)
        [plan] = json.loads(figures.read_text())["plans"]
        assert "recompute" in {value["kind"] for value in plan["values"]}
        assert "made a second time, to keep to the memory budget" in page.read_text()
    assert tool.main(["resnet8-cifar", "--batch", "16", "--runs", "1", "--warmup", "1", *size]) == 0
    out = capsys.readouterr().out
    assert "SpatialBN+Relu again" in out
    assert re.search(r"\ncomputed again: \d+ % more time predicted, (less than )?\d+ % measured\n", out)
    assert tool.main(["resnet8-cifar", "--memory", "--memory-budget", "half"]) != 0
    assert "memory_budget must be a number of bytes" in capsys.readouterr().err
    predictor = tmp_path / "predictor"
    predictor.mkdir()
    assert tool.main([str(predictor), "--memory-budget", "0.5"]) != 0
    assert "--memory-budget: a predictor has no backward pass" in capsys.readouterr().err
