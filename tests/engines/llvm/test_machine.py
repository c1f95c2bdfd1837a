"""Machine code on file: a second process compiles nothing, damaged files are replaced; and plans without llvmlite."""

import os
import subprocess
import sys

import numpy as np
import pytest

from machine_code import run_traced
from netbuilder.engines.engine import find_engine
from netbuilder.engines.llvm import machine, object_file
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace

needs_llvmlite = pytest.mark.skipif(not machine.available(), reason="needs llvmlite")

TRAINS = """
import sys
hidden = sys.argv[1:] == ["hidden"]
if hidden:
    sys.modules["llvmlite"] = None
import numpy as np
from netbuilder.model import ModelHelper, brew
from netbuilder.engines.llvm import machine, object_file
from netbuilder.optimizers import build_adam
from netbuilder.runtime import Workspace
model = ModelHelper("model")
y = model.net.Mish(model.net.Gelu(brew.fc(model, "x", "fc", 7, 5), "gelu"), "mish")
loss = model.net.AveragedLoss(model.net.Dropout(y, ["dropped", "mask"])[0], "loss")
model.AddGradientOperators([loss])
build_adam(model, base_learning_rate=0.1)
workspace = Workspace(seed=1, threads=1)
assert "llvmlite.binding" not in sys.modules
workspace.run_net_once(model.param_init_net)
workspace.feed("x", np.linspace(-3, 3, 28, dtype=np.float32).reshape(4, 7))
workspace.create_net(model.net)
for _ in range(3):
    workspace.run_net(model.net)
names = [step.prepared.name for plan in workspace.net(model.net).plans
         for step in plan.steps]
assert any(name.startswith("llvm") for name in names) is not hidden
print(len(machine.compiled_here), "llvmlite.binding" in sys.modules, workspace.fetch("fc_w").tobytes().hex())
"""


def trained(folder, *arguments):
    """Return how many functions a process has compiled, whether it imported LLVM, and the parameter it has trained."""
    done = subprocess.run(
        [sys.executable, "-c", TRAINS, *arguments], capture_output=True, text=True, check=False,
        env=os.environ | {"NETBUILDER_CACHE": str(folder), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    count, imported, parameter = done.stdout.split()[-3:]
    return int(count), imported == "True", np.frombuffer(bytes.fromhex(parameter), np.float32)


@needs_llvmlite
def test_a_second_process_compiles_nothing(tmp_path):
    count, imported, first = trained(tmp_path)
    files = {path: path.read_bytes() for path in (tmp_path / "machine_code").iterdir()}
    assert count == len(files) > 3 and imported
    again, imported, second = trained(tmp_path)
    assert again == 0 and imported is not object_file.serves()
    np.testing.assert_array_equal(first, second)
    assert {path: path.read_bytes() for path in (tmp_path / "machine_code").iterdir()} == files
    none, imported, plain = trained(tmp_path, "hidden")
    assert none == 0 and not imported
    np.testing.assert_allclose(plain, first, rtol=1e-4, atol=1e-5)


@needs_llvmlite
@pytest.mark.parametrize("damage", [lambda old: b"", lambda old: old[:-9], lambda old: old[:99] + b"?" + old[100:]])
def test_damaged_files_are_replaced(damage, tmp_path, monkeypatch):
    monkeypatch.setenv("NETBUILDER_CACHE", str(tmp_path))
    x = np.float32([1, 2, 3])

    def run():
        monkeypatch.setattr(machine, "compiled_functions", {})
        before = len(machine.compiled_here)
        (got,) = run_traced(lambda xp, x: [x * x * x - 0.75], x)
        np.testing.assert_array_equal(got, x * x * x - np.float32(0.75))
        return len(machine.compiled_here) - before

    assert run() == 1 and run() == 0
    files = sorted((tmp_path / "machine_code").iterdir())
    whole = [path.read_bytes() for path in files]
    for path, content in zip(files, whole):
        path.write_bytes(damage(content))
    assert run() == 1 and run() == 0
    assert [path.read_bytes()[32:] for path in files] == [content[32:] for content in whole]
    assert sorted((tmp_path / "machine_code").iterdir()) == files  # nothing else is left


@needs_llvmlite
def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NETBUILDER_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(machine, "compiled_functions", {})
    (got,) = run_traced(lambda xp, x: [x + 1], np.float32([1]))
    assert got.tolist() == [2]


def test_without_llvmlite_plain_kernels_serve(monkeypatch):
    monkeypatch.setattr(machine, "installed", lambda: False)
    engine = find_engine("LLVM")
    assert not engine.available() and "pip install llvmlite" in engine.why_unavailable()
    workspace = Workspace(threads=1)
    workspace.feed("x", np.float32([-1, 0, 2]))
    workspace.run_operator_once(make_op("Selu", ["x"], ["y"]))
    assert workspace.fetch("y")[2] == np.float32(2) * np.float32(1.0507009873554804)


def test_a_library_that_cannot_be_loaded(monkeypatch):
    def failing():
        raise OSError("built for another system")

    monkeypatch.setattr(machine, "new_compiler", failing)
    monkeypatch.setattr(machine, "installed", lambda: True)
    monkeypatch.setattr(machine, "failed", [])
    assert machine.available() and machine.address_of("") is None
    assert not machine.available()
    workspace = Workspace(threads=1)
    workspace.feed("x", np.float32([-1, 0, 2]))
    workspace.run_operator_once(make_op("Sqr", ["x"], ["y"]))
    assert workspace.fetch("y").tolist() == [1, 0, 4]


@needs_llvmlite
@pytest.mark.skipif(not object_file.serves(), reason="LLVM loads the object files of this system")
def test_object_files_are_loaded_without_llvm_or_left_to_it(tmp_path, monkeypatch):
    monkeypatch.setenv("NETBUILDER_CACHE", str(tmp_path))
    monkeypatch.setattr(machine, "compiled_functions", {})
    x = np.arange(21, dtype=np.float32)
    want = run_traced(lambda xp, x: [xp.exp(x) + 0.3], x)[0]
    codes = [path.read_bytes()[32:] for path in (tmp_path / "machine_code").iterdir()]
    assert all(object_file.load(code, "kernel") is not None for code in codes)
    assert object_file.load(codes[0], "another") is None
    (code,) = (code for code in codes if b"memcpy" in code)
    for damaged in (b"", code[:70], code.replace(b"memcpy", b"strcpy"), b"MZ" + code[2:]):
        assert object_file.load(damaged, "kernel") is None
    monkeypatch.setattr(object_file, "serves", lambda: False)
    monkeypatch.setattr(machine, "compiled_functions", {})
    np.testing.assert_array_equal(run_traced(lambda xp, x: [xp.exp(x) + 0.3], x)[0], want)
