"""netbuilder-benchmark memory: what is measured, the table, and what it refuses."""

import dataclasses
import json
import os
import re
import sys
from pathlib import Path

import pytest

from netbuilder.tools import benchmark
from netbuilder.tools.bench import memory
from netbuilder.tools.bench.memory import Ours, Point, depths_and_batches, memory_lines, sides_of
from netbuilder.tools.bench.ours import Training, _creation
from netbuilder.tools.bench.pairs import Worker
from netbuilder.tools.bench.work import Work

BENCH = Path(benchmark.__file__).parent / "bench"
MLP = Work("mlp", 4, size=6, classes=5)

# A worker that takes {take} MiB and {wait} seconds a step.
WORKER = """
import sys, time
sys.path.insert(0, {bench!r})
from worker import resident, serve
start = resident()
held = bytearray({take} << 20)
for i in range(0, len(held), 4096):
    held[i] = 1
serve(lambda: time.sleep({wait}), warmup=1, info={{"version": "1.0", "start": start, "mode": "x"}})
"""


@pytest.fixture(autouse=True)
def _of_an_idle_machine(monkeypatch):
    monkeypatch.setattr(benchmark, "busy_share", lambda: 0.0)  # which measures for a second


@pytest.fixture
def workers(monkeypatch, tmp_path):
    """Workers take known memory: netbuilder's 20 MiB, PyTorch's 40 MiB if compiled, 80 MiB otherwise; budgets fail."""
    asked = []

    def start(work, take, wait):
        asked.append(work)
        script = tmp_path / f"worker{len(asked)}.py"
        script.write_text(WORKER.format(bench=str(BENCH), take=take, wait=wait))
        return Worker("made up", [sys.executable, str(script)], os.environ)

    def ours(work, *, warmup):
        if work.budget is not None:
            raise RuntimeError("worker 'netbuilder' ended with code 1: Traceback\nNetError: the budget is too small")
        return start(work, 20, 0.002)

    monkeypatch.setattr(memory, "our_worker", ours)
    monkeypatch.setattr(
        memory, "torch_worker", lambda work, python, *, warmup: start(work, 40 if work.mode == "compile" else 80, 0.004)
    )
    return asked


def test_the_sides():
    ours = Ours(("default", "outputs"), (0.5, "1GiB"))
    names = ["torch compile", "torch eager", "torch checkpoint", "observable default", "observable outputs",
             "budget 0.5", "budget 1GiB"]  # fmt: skip
    sides = sides_of(MLP, ours, ("eager", "checkpoint", "compile"))
    assert [side.name for side in sides] == names
    assert [side.work.mode for side in sides[:3]] == ["compile", "eager", "checkpoint"]
    assert [_creation(side.work) for side in sides[3:]] == [
        {}, {"observable": "outputs"}, {"memory_budget": 0.5}, {"memory_budget": "1GiB"},
    ]  # fmt: skip
    test = sides_of(dataclasses.replace(MLP, test=True), ours, ("eager", "checkpoint"))
    assert [side.name for side in test] == ["torch eager", "observable default", "observable outputs"]


def test_points_of_growth():
    points = list(depths_and_batches(Work("resnet50", 16), Ours(("default",)), [], batches=[1, 2], depths=[18]))
    assert [point.name for point in points] == [
        "resnet50, float32, batch 1", "resnet50, float32, batch 2", "resnet18, float32, batch 16",
    ]  # fmt: skip
    assert [(s.work.net, s.work.batch) for p in points for s in p.sides] == [
        ("resnet50", 1), ("resnet50", 2), ("resnet18", 16),
    ]  # fmt: skip


def test_the_table(workers):
    points = [Point("mlp, batch 4", sides_of(MLP, Ours(("default",), (0.01,)), ("eager", "compile")))]
    lines = list(memory_lines(points, "python", warmup=1, steps=2))
    rows = [line.text.splitlines()[-1] for line in lines]
    assert "what" in lines[0].text and "\n" not in lines[1].text
    assert rows[0].startswith("mlp, batch 4") and "torch 1.0 compile" in rows[0] and " 1.00 " in rows[0]
    assert [line.good for line in lines] == [True, True, True, False]
    assert "failed: NetError: the budget is too small" in rows[3] and lines[3].record["error"]
    peaks = [line.record["peak"] / 2**20 for line in lines[:3]]
    assert peaks == pytest.approx([40, 80, 20], abs=6)
    assert [line.record["ratio"] for line in lines[:3]] == pytest.approx([p / peaks[0] for p in peaks])
    assert all(line.record["reference"] == "torch 1.0 compile" for line in lines[:3])
    json.dumps([line.record for line in lines])


def test_without_a_first_side_the_next_one_is_the_reference(workers):
    sides = sides_of(MLP, Ours(("default",), ()), ())
    failing = [dataclasses.replace(sides[0], work=dataclasses.replace(MLP, budget=0.1)), *sides]
    lines = list(memory_lines([Point("a", failing)], "", warmup=1, steps=1))
    assert [line.good for line in lines] == [False, True] and lines[1].record["ratio"] == 1


@pytest.mark.slow
def test_our_side_alone(capsys, tmp_path):
    file = tmp_path / "figures.json"
    given = ["memory", "--nets", "mlp", "--dtype", "float32", "--threads", "1", "--steps", "1", "--json", str(file)]
    assert benchmark.main([*given, "--peers"]) == 0
    rows = json.loads(file.read_text())["results"]
    assert [row["side"] for row in rows] == ["netbuilder, observable default", "netbuilder, observable outputs"]
    assert all(row["planned"] > 2 * 4 * 4 * 64 * 64 and row["peak"] > row["planned"] for row in rows)
    assert all(row["planned"] < row["expected"] < 1.05 * row["peak"] for row in rows)
    assert "mlp, float32, batch 32" in capsys.readouterr().out


@pytest.mark.parametrize("net", ["resnet18", "vgg16", "inception_v1", "alexnet"])
@pytest.mark.slow
def test_our_side_in_test_mode(net):
    training = Training(Work(net, 2, size=67 if net == "alexnet" else 32, classes=5, test=True, observable="outputs"))
    assert training.planned().total > sum(training.workspace.fetch(name).nbytes for name in training.parameters())
    training.step()
    assert training.workspace.fetch("softmax").sum() == pytest.approx(2, rel=1e-5)
    types = {op.type for op in training.model.net.Proto().op}
    assert not any("Gradient" in kind or "Update" in kind for kind in types)


def test_what_is_observable_is_passed_on():
    training = Training(dataclasses.replace(MLP, observable="outputs"))
    training.step()
    assert training.loss() > 0
    with pytest.raises(ValueError, match="not observable"):
        training.workspace.fetch("fc0")


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("task", "text"), [("memory-growth", "resnet18, float32, batch 2"),
                                            ("memory-predict", "resnet18, float32, batch 3, test mode")])  # fmt: skip
def test_the_other_tasks(task, text, workers, capsys):
    given = ["--nets", "resnet18", "--batch", "3", "--batches", "2", "--depths", "34", "--observable", "default"]
    assert benchmark.main([task, *given, "--image-size", "40", "--peers", "eager", "--peer-python", "python"]) == 0
    assert text in capsys.readouterr().out
    assert all(work.size == 40 and work.threads for work in workers)
    if task == "memory-growth":
        assert [(w.net, w.batch) for w in workers] == [("resnet18", 2)] * 2 + [("resnet34", 3)] * 2
    else:
        assert all(work.test for work in workers)


def test_both_types_by_default(workers):
    assert benchmark.main(["memory", "--nets", "mlp", "vgg16", "--observable", "default", "--peers"]) == 0
    assert [(w.net, w.dtype) for w in workers] == [
        ("mlp", "float32"), ("mlp", "bfloat16"), ("vgg16", "float32"), ("vgg16", "bfloat16"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nets", "lenet"], "must be one of mlp, .* or resnet with 18, 34, 50, 101, 152 layers, got 'lenet'"),
        (["--nets", "resnet19"], "got 'resnet19'"),
        (["--budget", "1.5"], "a share must be between 0 and 1, such as 0.65, got '1.5'"),
        (["--observable", "some"], "invalid choice: 'some'"),
        (["--peers", "jax"], "invalid choice: 'jax'"),
    ],
)
def test_wrong_options(arguments, message, capsys):
    with pytest.raises(SystemExit):
        benchmark.main(["memory", *arguments])
    assert re.search(message, capsys.readouterr().err)


def test_growth_of_one_net(capsys):
    assert benchmark.main(["memory-growth", "--nets", "mlp", "vgg16", "--peers"]) == 2
    assert "--nets: memory-growth takes one net, got mlp, vgg16" in capsys.readouterr().err


@pytest.mark.skipif("PEER_PYTHON" not in os.environ, reason="PEER_PYTHON names no interpreter with torch")
def test_the_peer(capsys):
    given = ["--image-size", "32", "--batch", "2", "--peer-python", os.environ["PEER_PYTHON"], "--threads", "1"]
    assert (
        benchmark.main(
            [
                "memory",
                "--nets",
                "vgg16",
                *given,
                "--dtype",
                "float32",
                "--observable",
                "default",
                "--peers",
                "eager",
                "checkpoint",
            ]
        )
        == 0
    )
    assert (
        benchmark.main(["memory-predict", "--nets", "resnet18", *given, "--observable", "default", "--peers", "eager"])
        == 0
    )
    assert "checkpoint" in capsys.readouterr().out
