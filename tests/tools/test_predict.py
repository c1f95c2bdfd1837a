"""The benchmark of predictors: exports for the peer, and messages about results that agree or differ."""

import dataclasses
import functools
import json
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from netbuilder.exchange import load_predictor
from netbuilder.proto import ArgumentError, DeviceError
from netbuilder.runtime import Workspace
from netbuilder.tools import benchmark
from netbuilder.tools.bench import our_predictor, predict, processes, worker, works
from netbuilder.tools.bench.pairs import Comparison

onnx = pytest.importorskip("onnx", reason="needs the packages onnx and onnxruntime")
from onnx import numpy_helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

BENCH = Path(predict.__file__).parent
SMALL = {"layers": 18, "batch": 2, "size": 32}

# A peer that reads our files with our own library; {factor} makes it right or wrong.
PEER = """
import sys
import numpy as np
sys.path[:0] = {path}
from netbuilder.exchange import load_predictor
from worker import serve
predictor = load_predictor(sys.argv[2] + "/predictor", fold=False)
batch = np.load(sys.argv[2] + "/inputs.npz")["data"]
found = predictor.run(data=batch)
np.savez(sys.argv[2] + "/{name}.npz", **{{name: {factor} * value for name, value in found.items()}})
serve(lambda: predictor.run(data=batch), warmup=int(sys.argv[1]), info={{"version": "1.0"}})
"""


@pytest.fixture(autouse=True)
def _of_an_idle_machine(monkeypatch):
    monkeypatch.setattr(benchmark, "busy_share", lambda: 0.0)  # which measures for a second


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("export")
    our_predictor.export(folder, **SMALL)
    return folder


@pytest.mark.slow
def test_the_model_of_the_peers_computes_what_the_predictor_does(folder):
    with np.load(folder / our_predictor.INPUTS) as inputs:
        batch = inputs["data"]
    assert batch.shape == (2, 3, 32, 32)
    model = onnx.load(folder / our_predictor.MODEL)
    assert "BatchNormalization" in {node.op_type for node in model.graph.node}  # folding is the peers' work
    want = ReferenceEvaluator(model).run(None, {"data": batch})
    got = load_predictor(folder / "predictor", workspace=Workspace(threads=1)).run(data=batch)
    for value, expected in zip(got.values(), want, strict=True):
        assert predict.difference(value, expected) < 1e-4


def test_statistics_are_not_those_that_nets_start_with(folder):
    stored = [numpy_helper.to_array(each) for each in onnx.load(folder / our_predictor.MODEL).graph.initializer]
    vectors = [value for value in stored if value.ndim == 1 and value.dtype == np.float32]
    assert vectors and all(len(np.unique(vector)) > 1 for vector in vectors)


def write_peer(folder, name, factor):
    text = PEER.format(path=[str(BENCH), str(BENCH.parent.parent)], name=name, factor=factor)
    (folder / f"peer_{name}.py").write_text(text, encoding="utf-8")


@pytest.mark.slow
def test_both_sides_take_turns_and_their_outputs_are_compared(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(BENCH.parent.parent))
    work = predict.Predictors(2, 1, layers=18, size=32, warmup=1)
    write_peer(tmp_path, "double", 1.01)
    write_peer(tmp_path, "exact", 1)
    pythons = dict.fromkeys(["exact", "double"], sys.executable)
    found = predict.predict(work, pythons, pairs=2, steps=1, scripts=tmp_path)
    assert not found.good and 0.005 < found.apart < 0.02 and "NOT the same work" in found.text
    same = dataclasses.replace(found, apart=1e-6)
    assert same.good and "NOT the same work" not in same.text
    assert [len(times) for times in (found.times.ours, *found.times.peers)] == [2, 2, 2]
    assert found.record["sides"] == ["netbuilder", "exact 1.0", "double 1.0"]
    assert f"x as fast as {found.record['peer']} (pairs" in found.text
    assert "predict, ResNet-18, batch 2, threads 1, 2 pairs: netbuilder " in found.text
    json.dumps(found.record)


@pytest.mark.slow
def test_a_peer_whose_outputs_agree(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(BENCH.parent.parent))
    work = predict.Predictors(2, 1, layers=18, size=32, warmup=1)
    write_peer(tmp_path, "exact", 1)
    alone = predict.predict(work, {"exact": sys.executable}, pairs=1, steps=1, scripts=tmp_path)
    assert alone.good and "x as fast (pairs" in alone.text


@pytest.mark.slow
def test_several_threads_call_one_predictor(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(BENCH.parent.parent))
    work = predict.Predictors(1, 1, layers=0, callers=3, warmup=1)
    write_peer(tmp_path, "exact", 1)
    found = predict.predict(work, {"exact": sys.executable}, pairs=1, steps=5, scripts=tmp_path)
    assert found.good and "predict, MLP, batch 1, threads 1, 3 callers, 1 pair: netbuilder 0." in found.text
    assert "inputs/s)" in found.text and found.record["callers"] == 3


def test_the_time_of_callers_is_that_of_all_divided_by_their_number():
    threads, steps = [], 4

    def step():
        threads.append(threading.get_ident())
        time.sleep(0.01)

    assert 0.01 / 3 <= worker.timed_by_callers(step, steps, 3)
    assert sorted(map(threads.count, set(threads))) == [steps] * 3
    with pytest.raises(ZeroDivisionError):
        worker.timed_by_callers(lambda: 1 / 0, 1, 2)


@pytest.mark.slow
def test_a_peer_that_fails_is_reported(tmp_path):
    (tmp_path / "peer_onnxruntime.py").write_text("raise SystemExit('no such library')", encoding="utf-8")
    work = predict.Predictors(1, 1, layers=18, size=32)
    with pytest.raises(RuntimeError, match="worker 'onnxruntime' ended with code 1: no such library"):
        predict.predict(work, {"onnxruntime": sys.executable}, pairs=1, scripts=tmp_path)


@pytest.mark.parametrize("a, b, want", [([1, 2], [1, 2], 0), ([1], [1, 2], np.inf), ([0, 3], [0, 4], 0.25)])
def test_difference(a, b, want):
    assert predict.difference(np.float32(a), np.float32(b)) == want


def test_what_is_not_a_number_is_not_good():
    times = Comparison([1.0], [[2.0]])
    work = predict.Predictors(1, 1)
    assert predict.Prediction(work, ["peer"], times, [1.0, 2.0], [2.0, 3.0], 1e-4).good
    assert not predict.Prediction(work, ["peer"], times, [1.0, 2.0], [2.0, 3.0], float("nan")).good


def test_the_largest_difference_is_that_of_a_side_that_is_not_a_number():
    assert np.isnan(predict.worst([0.5, float("nan"), 0.25])) and predict.worst([0.25, 0.5]) == 0.5


def test_callers_of_the_command(monkeypatch, capsys):
    asked = []

    def measured(work, pythons, *, pairs, steps):
        asked.append((work.layers, work.batch, work.callers, *pythons))
        return predict.Prediction(work, ["onnxruntime 1.0"], Comparison([0.1], [[0.2]]), [1.0, 2.0], [2.0, 3.0], 0.0)

    monkeypatch.setattr(works, "predict", measured)
    monkeypatch.setattr(works, "prediction_pythons", lambda python: dict.fromkeys(["openvino", "onnxruntime"], ""))
    assert benchmark.main(["predict", "--nets", "resnet18,mlp", "--callers", "1,4"]) == 0
    assert asked == [(layers, 1, callers, "onnxruntime") for layers in (18, 0) for callers in (1, 4)]
    assert "ResNet-18, batch 1, threads" in capsys.readouterr().out
    assert benchmark.main(["predict", "--nets", "vgg16", "--callers", "1"]) == 2
    assert "predict takes mlp and residual nets" in capsys.readouterr().err
    monkeypatch.setattr(works, "prediction_pythons", lambda python: {"openvino": ""})
    assert benchmark.main(["predict", "--callers", "1"]) == 2
    assert "--callers needs onnxruntime" in capsys.readouterr().err


@pytest.mark.parametrize("batch, batches", [([], [1, 32]), (["--batch", 4], [4])])
@pytest.mark.parametrize("apart, status", [(1e-6, 0), (0.1, 1)])
def test_the_command(tmp_path, monkeypatch, capsys, batch, batches, apart, status):
    asked = []

    def measured(work, pythons, *, pairs, steps):
        asked.append((work.batch, work.threads, pythons, pairs, steps))
        times = Comparison([0.1] * pairs, [[0.2] * pairs])
        return predict.Prediction(work, ["peer 2.0"], times, [1.0, 2.0], [2.0, 3.0], apart)

    monkeypatch.setattr(works, "predict", measured)
    monkeypatch.setattr(works, "prediction_pythons", lambda python: {"peer": python})
    file = tmp_path / "figures.json"
    options = ["--threads", 2, "--pairs", 3, "--peer-python", "python-of-peer", "--json", file, *batch]
    assert benchmark.main(["predict", *map(str, options)]) == status
    assert asked == [(n, 2, {"peer": "python-of-peer"}, 3, None) for n in batches]
    said = capsys.readouterr().out
    assert said.count("netbuilder 100.0 ms") == said.count("peer 2.0 200.0 ms") == len(batches)
    assert [row["batch"] for row in json.loads(file.read_text())["results"]] == batches


@pytest.mark.skipif(sys.platform == "win32", reason="needs a shell of Unix")
def test_an_interpreter_may_have_one_peer_only(tmp_path, capsys):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\ntest \"$2\" = 'import onnxruntime'\n")
    python.chmod(0o755)
    assert processes.prediction_pythons(str(python)) == {"onnxruntime": str(python)}
    assert "without openvino: " in capsys.readouterr().err
    python.write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(DeviceError, match="cannot import onnxruntime; install it there, or leave --peer-python out"):
        processes.prediction_pythons(str(python))


def test_a_peer_that_cannot_be_installed_is_left_out(capsys, monkeypatch):
    def made(peer):
        if peer == "openvino":
            raise RuntimeError("no wheel for this machine")
        return f"python of {peer}"

    monkeypatch.setattr(processes, "peer_python", made)
    assert processes.prediction_pythons(None) == {"onnxruntime": "python of onnxruntime"}
    assert "without openvino: no wheel for this machine" in capsys.readouterr().err


@pytest.mark.parametrize("peer", predict.PEERS)
def test_each_peer_has_a_program(peer):
    assert (BENCH / f"peer_{peer}.py").is_file()


def small_model(folder, name, extents, dtype=onnx.TensorProto.FLOAT):
    """Write a model that doubles its input; return its file."""
    value = onnx.helper.make_tensor_value_info("x", dtype, extents)
    result = onnx.helper.make_tensor_value_info("y", dtype, extents)
    graph = onnx.helper.make_graph([onnx.helper.make_node("Add", ["x", "x"], ["y"])], name, [value], [result])
    file = folder / f"{name}.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), file)
    return file


# A peer that doubles; one that cannot is a model that it refuses.
DOUBLING = """
import sys
import numpy as np
sys.path[:0] = {path}
from worker import serve
inputs = dict(np.load(sys.argv[2] + "/inputs.npz"))
if inputs["x"].shape[0] == 5:
    raise SystemExit("five are too many")
np.savez(sys.argv[2] + "/onnxruntime.npz", y=2 * inputs["x"])
serve(lambda: 2 * inputs["x"], warmup=1, info={{"version": "1.0", "first": 0.5, "whole": 1.5}})
"""


def test_models_of_others(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PYTHONPATH", str(BENCH.parent.parent))
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    (scripts / "peer_onnxruntime.py").write_text(DOUBLING.format(path=[str(BENCH)]), encoding="utf-8")
    monkeypatch.setattr(works, "predict", functools.partial(predict.predict, scripts=scripts))
    monkeypatch.setattr(works, "prediction_pythons", lambda python: {"onnxruntime": sys.executable})
    small_model(tmp_path, "dynamic", ["n", 4])
    small_model(tmp_path, "refused", [5, 4])
    stored = small_model(tmp_path, "stored", [3], onnx.TensorProto.INT64)
    np.savez(stored.with_suffix(".npz"), x=np.int64([7, 8, 9]))
    file = tmp_path / "figures.json"
    options = ["--models", tmp_path, "--pairs", 1, "--steps", 2, "--threads", 1, "--batch", 2, "--json", file]
    assert benchmark.main(["models", *map(str, options)]) == 1
    said = capsys.readouterr().out.splitlines()
    assert "dynamic, batch 2, threads 1, 1 pair: netbuilder" in said[-4] and "0.0e+00 apart" in said[-4]
    assert "refused, batch 2" in said[-3] and "five are too many" in said[-3]
    assert "stored, batch 2" in said[-2] and "0.0e+00 apart" in said[-2]
    assert said[-1].startswith("2 models: median ") and "; 2 with equal outputs, 2 without nodes run" in said[-1]
    dynamic, refused, _, all_of_them = json.loads(file.read_text())["results"]
    assert (dynamic["first"][1], dynamic["whole"][1]) == (0.5, 1.5) and "five" in refused["error"]
    assert all_of_them["ratios"].keys() == {"dynamic", "stored"}


@pytest.mark.parametrize("name, said", [("none.onnx", "no such file"), ("", "no \\*.onnx in ")])
def test_models_that_are_not_there(tmp_path, name, said):
    with pytest.raises(ArgumentError, match=f"--models: names ONNX models, or folders of them: {said}"):
        predict.model_files([str(tmp_path / name)])


def test_models_are_named(capsys, monkeypatch):
    monkeypatch.setattr(works, "prediction_pythons", lambda python: {"onnxruntime": sys.executable})
    assert benchmark.main(["models"]) == 2
    assert "models needs --models FILE,FOLDER" in capsys.readouterr().err
