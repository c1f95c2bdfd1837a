"""The benchmarks' machinery, with workers that only count, and our side of every task at a small size."""

import dataclasses
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from kernel_checks import needs_bfloat16
from netbuilder.proto import ArgumentError, DeviceError
from netbuilder.proto.arguments import arguments
from netbuilder.tools import benchmark
from netbuilder.tools.bench import machine, our_wrapper, works
from netbuilder.tools.bench.busy import _line, busy_rate
from netbuilder.tools.bench.check import CHANGE_BOUND, Agreement, replay
from netbuilder.tools.bench.growth import Sweeps, growth
from netbuilder.tools.bench.ours import Training
from netbuilder.tools.bench.pairs import Comparison, Worker, compare
from netbuilder.tools.bench.processes import modes_of, require_compiler
from netbuilder.tools.bench.report import compared, of_all, with_equality
from netbuilder.tools.bench.work import MODELS, TASKS, Task, Work

BENCH = Path(benchmark.__file__).parent / "bench"
MLP = Work("mlp", 4, size=6, classes=5, decay=1.0)


@pytest.fixture(autouse=True)
def _of_an_idle_machine(monkeypatch):
    monkeypatch.setattr(benchmark, "busy_share", lambda: 0.0)  # which measures for a second


def script(tmp_path, body):
    path = tmp_path / "peer.py"
    path.write_text(f"import sys; sys.path.insert(0, {str(BENCH)!r})\nimport time\nfrom worker import serve\n{body}\n")
    return [sys.executable, str(path)]


def test_two_workers_take_turns(tmp_path):
    quick = script(tmp_path, "serve(lambda: print('noise'), warmup=1, info={'name': 'quick'}, loss=lambda: 0.5)")
    with (
        Worker("a", quick, {}) as worker,
        Worker("b", script(tmp_path, "serve(lambda: time.sleep(0.002), warmup=1)"), {}) as other,
    ):
        assert worker.info == {"name": "quick", "first_loss": 0.5}
        result = compare(worker, other, pairs=3, steps=2)
        assert (worker.loss, other.loss) == (0.5, None)
    assert len(result.ours) == len(result.peers[0]) == 3
    assert min(result.peers[0]) >= 0.002
    assert min(result.ours) > 0


def test_every_other_turn_is_in_reverse_order():
    order = []

    class Fake:
        def __init__(self, name):
            self.name = name

        def run(self, steps):
            order.append(self.name)
            return [float(len(order))] * steps

    result = compare(Fake("a"), Fake("b"), Fake("c"), pairs=2, steps=3)
    assert order == ["a", "b", "c", "c", "b", "a"]
    assert result == Comparison([1.0, 6.0], [[2.0, 5.0], [3.0, 4.0]])


def test_a_worker_that_fails_says_why(tmp_path):
    with pytest.raises(RuntimeError, match="worker 'broken' ended with code 1.*no such thing"):
        Worker("broken", script(tmp_path, "raise SystemExit('no such thing')"), {})


def test_the_ratio_is_of_medians_and_the_spread_of_pairs():
    result = Comparison([1.0, 2.0, 4.0], [[4.0, 4.0, 4.0]])
    assert result.ratio == 2.0
    assert result.spread == (1.0, 4.0)


def test_the_ratio_is_to_the_fastest_peer():
    result = Comparison([1.0, 1.0, 1.0], [[1.0, 5.0, 6.0], [2.0, 3.0, 9.0]])
    assert result.best == 1 and result.ratio == 3.0 and result.spread == (2.0, 9.0)
    line = compared(Task(MLP, 1, 1, MLP), ("here", "one", "two"), result, [])
    assert "here 1000000.0 us, one 5000000.0 us, two 3000000.0 us; 3.00 x as fast as two (pairs 2.00 to" in line.text
    assert line.record["peer"] == "two" and len(line.record["seconds"]) == len(line.record["sides"]) == 3


def test_a_line_has_ratio_and_spread_and_doubts_losses_that_are_no_numbers():
    task = Task(Work("resnet18", 8, threads=2), 1, 1, MLP)
    result = Comparison([1.0, 2.0, 4.0], [[4.0, 4.0, 4.0]])
    line = compared(task, ("here", "there"), result, [1.5, None])
    assert line.text == (
        "resnet18, batch 8, 2 threads, 3 pairs: here 2000.0 ms, there 4000.0 ms; 2.00 x as fast (pairs 1.00 to 4.00), "
        "0.50 of its time"
    )
    assert line.good
    assert line.record["work"]["batch"] == 8 and line.record["ratio"] == 2.0
    half = dataclasses.replace(task, work=dataclasses.replace(task.work, dtype="bfloat16"))
    assert compared(half, ("here", "there"), result, []).text.startswith("resnet18, bfloat16, batch 8, 2 threads")
    doubtful = compared(task, ("here", "there"), result, [1.5, float("nan")])
    assert "DOUBTFUL: the loss of there" in doubtful.text
    assert not doubtful.good


def test_a_line_of_equal_parameters_says_whether_the_work_is_the_same_and_what_memory_it_takes():
    line = compared(Task(MLP, 1, 1, MLP), ("here", "one", "two"), Comparison([1.0], [[4.0], [3.0]]), [0.5] * 3)
    same = with_equality(line, [2.0, 2.0001, 2.0], [3 << 20, 4 << 20, 6 << 20])
    assert same.good and same.text.endswith("; memory 3, 4, 6 MiB: 0.75 of the least peer's; first losses 5e-05 apart")
    assert same.record["memory_ratio"] == 0.75 and same.record["ratio"] == 3.0
    for other in (2.001, float("nan")):
        apart = with_equality(line, [2.0, 2.0, other], [1, 1, 1])
        assert not apart.good and "NOT the same work: more than 1e-04 is no rounding" in apart.text
    text = of_all({"a": 1.0, "b": 0.5, "c": 2.0}, {"a": 0.5, "b": 0.7, "c": 0.6}).text
    assert text == (
        "3 nets: median 1.00 x as fast, least 0.50 (b); memory at the median 0.60 of the peer's, at most 0.70 (b)"
    )


@pytest.mark.parametrize("text", [MLP.to_text(), Work("resnet50", 2, width=32, dropout=False).to_text()])
def test_work_survives_a_command_line(text):
    assert Work.from_text(text).to_text() == text


def test_layers_are_those_of_residual_nets():
    assert [Work(net, 1).layers for net in ("resnet18", "resnet152", "mlp", "vgg16", "resnet")] == [18, 152, 0, 0, 0]


@pytest.mark.one_in(6)
@pytest.mark.parametrize("task", ["mlp", "resnet18", "inception_v1", "alexnet", "lstm", "attention"])
def test_our_side_trains(task):
    training = Training(TASKS[task].small)
    losses = []
    for _ in range(3):
        training.step()
        losses.append(training.loss())
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("net", ["dlrm", "tagger", pytest.param("bert", marks=pytest.mark.slow)])
def test_our_side_trains_models_from_the_parameters_of_a_peer(net):
    first = Training(MODELS[net].small)
    given = [first.workspace.fetch(name) for name in first.parameters()]
    training = Training(MODELS[net].small)
    training.start_from(given)
    losses = []
    for _ in range(3):
        training.step()
        losses.append(training.loss())
    first.step()
    assert losses[0] == pytest.approx(first.loss(), rel=1e-6) and losses[-1] < losses[0]


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.one_in(12)
def test_our_side_has_momentum_decay_of_weights_and_no_gradient_of_the_data(task):
    model = Training(TASKS[task].small).model
    ops = model.net.Proto().op
    decayed = {op.input[2] for op in ops if op.type == "WeightedSum" and len(op.input) == 4 and "_grad" in op.input[0]}
    assert decayed == {str(weight) for weight in model.GetParams() if not str(weight).endswith("_b")}
    updates = [op for op in ops if op.type == "MomentumSGDUpdate"]
    assert len(updates) == len(model.GetParams())
    assert all(arguments(op)["momentum"] == pytest.approx(0.9) for op in updates)
    first = next(op for op in ops if op.type in ("Conv", "FC", "Gather"))
    assert "data" in first.input
    if first.type == "Conv":
        assert not any("data_grad" in op.output for op in ops)


def test_two_devices_train_as_one():
    found = []
    for devices in (1, 2):
        training = Training(dataclasses.replace(MLP, devices=devices, threads=2))
        rng = np.random.default_rng(1)
        names = training.parameters()[:8]
        before = [rng.normal(size=training.workspace.fetch(name).shape).astype("f") for name in names]
        for name in training.parameters():
            training.workspace.feed(name, before[names.index(name.replace("cpu_1", "cpu_0"))])
        for _ in range(3):
            training.step()
        found.append([training.loss(), *(training.workspace.fetch(name) for name in names)])
    for one, two in zip(*found):
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-6)


@needs_bfloat16
def test_activations_in_bfloat16():
    work = TASKS["resnet18"].small
    losses = []
    for dtype in ("float32", "bfloat16"):
        training = Training(dataclasses.replace(work, dtype=dtype))
        training.step()
        losses.append(training.loss())
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.05)


def test_devices_need_threads(capsys):
    assert benchmark.main(["devices", "--threads", "1"]) == 2
    assert "two devices need at least two threads, got 1" in capsys.readouterr().err


def test_devices_must_divide_the_batch():
    with pytest.raises(ArgumentError, match="mlp: a batch of 4 cannot be split evenly over 3 devices"):
        Training(dataclasses.replace(MLP, devices=3))


def test_an_unknown_net_is_refused():
    with pytest.raises(ArgumentError, match="unknown net 'lenet'; known are .*'vgg16'"):
        Training(dataclasses.replace(MLP, net="lenet"))


def state_of(work):
    """What a peer would write; netbuilder serves as one."""
    training = Training(work)
    names = training.parameters()
    before = [training.workspace.fetch(name) for name in names]
    training.start_from(before)
    losses = []
    for _ in range(3):
        training.step()
        losses.append(training.loss())
    state = {"losses": np.array(losses)} | {f"before_{i}": array for i, array in enumerate(before)}
    return state | {f"after_{i}": training.workspace.fetch(name) for i, name in enumerate(names)}


def test_the_check_holds_for_the_same_work_and_fails_for_other_work():
    state = state_of(MLP)
    same = replay(MLP, state)
    assert same.holds and same.loss < 1e-6 and len(same.ours) == 3
    without_decay = replay(dataclasses.replace(MLP, decay=0.0), state)
    assert not without_decay.holds and without_decay.worst_change > CHANGE_BOUND
    faster = replay(dataclasses.replace(MLP, rate=0.1), state)
    assert not faster.holds and faster.loss > 1e-3
    nan = Agreement((float("nan"),), (1.0,), 0.0, "w")
    assert not nan.holds


def test_the_check_refuses_other_parameters():
    state = state_of(MLP)
    with pytest.raises(ArgumentError, match=r"8 parameters in netbuilder, 8 in the peer: fc0_w \(7, 7\) and \(6, 6\)"):
        replay(dataclasses.replace(MLP, size=7), state)
    fewer = {name: value for name, value in state.items() if name != "before_7"}
    with pytest.raises(ArgumentError, match="8 parameters in netbuilder, 7 in the peer"):
        replay(MLP, fewer)


@pytest.mark.skipif("PEER_PYTHON" not in os.environ, reason="PEER_PYTHON names no interpreter with torch")
@pytest.mark.parametrize("task", TASKS)
def test_torch_does_the_same_work(task, capsys):
    arguments = [task, "--check", "--peer-python", os.environ["PEER_PYTHON"], "--threads", "1"]
    assert benchmark.main(arguments) == 0, capsys.readouterr().out
    assert f"{task}: the same work" in capsys.readouterr().out


def test_compiling_needs_a_compiler(tmp_path, capsys, monkeypatch):
    with pytest.raises(DeviceError, match="needs a C.. compiler, but 'c.-17' was not found; install g.."):
        require_compiler({"CXX": "c+-17", "PATH": str(tmp_path)})
    monkeypatch.setenv("CXX", "c+-17")
    assert benchmark.main(["mlp", "--mode", "compile", "--peer-python", sys.executable]) == 2
    assert "--mode eager" in capsys.readouterr().err


def test_without_a_compiler_pytorch_runs_only_eager(tmp_path, capsys):
    without = {"CXX": "c+-17", "PATH": str(tmp_path)}
    assert modes_of("best", without) == ("eager",)
    assert "'c+-17' was not found" in (said := capsys.readouterr().err) and "PyTorch runs only eager" in said
    assert modes_of("compile", without) == ("compile",)
    assert modes_of("best", {"CXX": Path(sys.executable).name, "PATH": str(Path(sys.executable).parent)}) == (
        "eager", "compile",
    )  # fmt: skip


@pytest.mark.parametrize(("mode", "modes"), [
    ([], ["eager", "compile"]), pytest.param(["--mode", "compile"], ["compile"], marks=pytest.mark.slow)
])  # fmt: skip
@pytest.mark.slow
def test_pytorch_runs_eager_and_compiled_by_default(mode, modes, tmp_path, capsys, monkeypatch):
    """Both in the same run, and the line has the ratio to the faster one."""

    def start(work, python, *, warmup):
        wait = {"eager": 0.12, "compile": 0.02}[work.mode]
        info = f"info={{'version': '1.0', 'mode': {work.mode!r}}}"
        return Worker("torch", script(tmp_path, f"serve(lambda: time.sleep({wait}), warmup=1, {info})"), {})

    monkeypatch.setattr(works, "torch_worker", start)
    monkeypatch.setattr(works, "modes_of", lambda mode, environment: modes_of(mode, os.environ | {"CXX": "python"}))
    file = tmp_path / "figures.json"
    given = ["mlp", "--pairs", "1", "--steps", "2", "--threads", "1", "--peer-python", "python", "--json", str(file)]
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent) + os.pathsep + os.environ.get("PATH", ""))
    assert benchmark.main([*given, *mode]) == 0
    (row,) = json.loads(file.read_text())["results"]
    assert row["sides"] == ["netbuilder", *(f"torch 1.0 {mode}" for mode in modes)]
    assert row["peer"] == "torch 1.0 compile"
    assert ("x as fast as torch 1.0 compile" in capsys.readouterr().out) == (len(modes) > 1)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs a shell of Unix")
def test_caffe2_runs_the_net_that_we_built(tmp_path, capsys, monkeypatch):
    """Here Caffe2 is ``netbuilder.caffe2``; both sides run as many steps, so they end with the same loss."""
    torch = script(tmp_path, "serve(lambda: time.sleep(0.02), warmup=1, info={'version': '1.0', 'mode': 'eager'})")
    monkeypatch.setattr(works, "torch_worker", lambda work, python, *, warmup: Worker("torch", torch, {}))
    monkeypatch.setitem(TASKS, "mlp", dataclasses.replace(TASKS["mlp"], warmup=3))
    python, file = tmp_path / "python", tmp_path / "figures.json"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -m netbuilder.caffe2 "$@"\n')
    python.chmod(0o755)
    given = ["mlp", "--pairs", "2", "--steps", "2", "--threads", "1", "--peer-python", "python", "--mode", "eager"]
    assert benchmark.main([*given, "--caffe2-python", str(python), "--json", str(file)]) == 0
    (row,) = json.loads(file.read_text())["results"]
    assert [side.split()[0] for side in row["sides"]] == ["netbuilder", "torch", "Caffe2"]
    ours, _, theirs = row["losses"]
    assert ours == pytest.approx(theirs, rel=1e-6)
    assert benchmark.main([*given, "--caffe2-python", str(python), "--dtype", "bfloat16"]) == 2
    assert "Caffe2 runs in float32 only, got --dtype bfloat16" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="needs a shell of Unix")
def test_a_failing_peer_is_reported(tmp_path, capsys):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho no torch here >&2\nexit 3\n")
    python.chmod(0o755)
    assert benchmark.main(["mlp", "--peer-python", str(python)]) == 2
    assert "worker 'torch' ended with code 3: no torch here" in capsys.readouterr().err


def test_growth_measures_each_point(monkeypatch, tmp_path):
    worker = script(tmp_path, "serve(lambda: time.sleep(0.002), warmup=1)")
    asked = []

    def start(work, *, warmup):
        asked.append(work)
        return Worker("counting", worker, {})

    monkeypatch.setattr("netbuilder.tools.bench.growth.our_worker", start)
    sweeps = Sweeps(Work("resnet18", 4), batches=[1, 2], depths=[50], widths=[32], devices=[1, 2])
    lines = list(growth(sweeps, ["batch", "depth", "width", "devices"], warmup=1, steps=3))
    assert [(w.net, w.batch, w.width, w.devices) for w in asked] == [
        ("resnet18", 1, 0, 1),
        ("resnet18", 2, 0, 1),
        ("resnet50", 4, 0, 1),
        ("resnet50", 4, 32, 1),
        ("resnet18", 4, 0, 1),
        ("resnet18", 4, 0, 2),
    ]
    assert lines[1].text.startswith("growth with batch: batch 2 (resnet18, float32, batch 2, 1 threads): ")
    assert lines[1].record["seconds_an_image"] >= 0.001
    assert len(lines[1].record["seconds"]) == 3


@pytest.mark.slow
def test_a_width_changes_the_bottlenecks_only():
    small = Work("resnet50", 1, size=32, classes=3)
    usual, narrow = (Training(dataclasses.replace(small, width=width)) for width in (64, 8))
    as_it_is = Training(small)
    shapes = [[t.workspace.fetch(p).shape for p in t.parameters()] for t in (as_it_is, usual, narrow)]
    assert shapes[0] == shapes[1]
    assert shapes[2][3] == (8, 64, 1, 1)
    assert shapes[2][-1] == shapes[0][-1]


def test_build_counts_both_nets(capsys, tmp_path):
    file = tmp_path / "figures.json"
    assert benchmark.main(["build", "--devices", "1", "2", "--json", str(file)]) == 0
    text = capsys.readouterr().out
    assert "over 1 devices" in text
    assert "us per operator" in text
    found = json.loads(file.read_text())
    assert [r["devices"] for r in found["results"]] == [1, 2]
    assert "cores" in found["machine"]
    one, two = (r["operators"] for r in found["results"])
    assert two > 1.8 * one


def test_the_machine_is_described():
    assert "cores" in machine.describe_machine()
    assert -0.01 <= machine.busy_share(0.05) <= 1.01


def test_the_busy_line_says_what_is_kept_and_fails_below_half():
    task = Task(Work("mlp", 32, threads=2), 1, 1, MLP)
    line = _line(task, [1e-3, 1e-3, 2e-3], [2e-3, 1.6e-3, 1e-3], 1)
    assert line.text == (
        "mlp, batch 32, up to 2 threads, 3 pairs: 32,000 samples/s alone, 20,000 with 1 busy loop: 62% of its rate"
    )
    assert line.good and line.record["kept"] == pytest.approx(0.625)
    slow = _line(task, [1e-3], [3e-3], 3)
    assert "with 3 busy loops: 33% of its rate; TOO SLOW: it should keep 50%" in slow.text and not slow.good


@pytest.mark.slow
def test_a_small_net_trains_with_a_busy_loop():
    task = Task(MLP, 20, 5, MLP)
    line = busy_rate(task, pairs=1)
    assert [len(turns) for turns in line.record["seconds"]] == [1, 1] and line.record["kept"] > 0


@pytest.mark.parametrize("devices", [1, 2])
def test_both_ways_to_feed_a_step_train_the_same(devices):
    """The comparison of DataParallel with RunNet is one of equal work."""
    work = dataclasses.replace(MLP, devices=devices)
    losses = []
    for way in our_wrapper.WAYS:
        step, loss = our_wrapper.steps(way, work)
        for _ in range(4):
            step()
        losses.append(loss())
    assert losses[0] == pytest.approx(losses[1], rel=1e-6) and np.isfinite(losses[0])


@pytest.mark.slow
def test_the_benchmark_of_the_wrapper(capsys):
    assert benchmark.main(["wrapper", "--pairs", "1", "--steps", "1", "--threads", "1", "--batch", "4"]) == 0
    assert "DataParallel" in capsys.readouterr().out
