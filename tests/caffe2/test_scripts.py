"""Old scripts run as they are, and give the numbers that Caffe2 gave.

``data/<script>.json`` is what ``<script>.py --output`` wrote on Caffe2 (the one inside PyTorch 1.10), rounded.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from house import ROOT
from waiting import HANG

HERE = Path(__file__).parent

# Relative differences, and absolute ones, that float32 in another order of summation makes. Batch normalization over
# few pictures enlarges them from step to step.
CLOSE = {"lenet_trainer": (1e-4, 1e-5), "data_parallel_resnet": (5e-3, 2e-4), "toy_regression": (1e-4, 1e-6)}


def run(*arguments, cwd):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "netbuilder.caffe2", *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", CLOSE)
def test_same_numbers(name, tmp_path):
    printed = run(HERE / "scripts" / f"{name}.py", "--output", tmp_path / "numbers.json", cwd=tmp_path).stdout
    got = json.loads((tmp_path / "numbers.json").read_text())
    want = json.loads((HERE / "data" / f"{name}.json").read_text())
    assert got.keys() == want.keys()
    rtol, atol = CLOSE[name]
    for key, value in want.items():
        if key == "operators":
            assert got[key] == value
        else:
            np.testing.assert_allclose(got[key], value, rtol=rtol, atol=atol, err_msg=key)
    if name == "lenet_trainer":
        first, second, *_, last = printed.splitlines()
        assert [line.split("loss")[0] for line in (first, second)] == ["step   0  ", "step  10  "]
        assert last.startswith("test accuracy 0.")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["records", "step_control", "builders", "records_in_blobs", "epochs", "tutorials", "maps_and_strings"],
)
def test_same_words(name, tmp_path):
    """``data/<script>.txt`` is what the script printed on Caffe2."""
    printed = run(HERE / "scripts" / f"{name}.py", cwd=tmp_path).stdout
    assert printed.splitlines() == (HERE / "data" / f"{name}.txt").read_text().splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("devices", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_other_numbers_of_devices(devices, tmp_path):
    """One device gives finite numbers, too, and a batch that three share is given out whole."""
    output = tmp_path / "numbers.json"
    script = HERE / "scripts" / "data_parallel_resnet.py"
    run(script, "--num_devices", devices, "--steps", 2, "--output", output, cwd=tmp_path)
    numbers = json.loads(output.read_text())
    assert np.isfinite(numbers["losses"]).all() and numbers["spread"] == 0


def test_the_unittest(tmp_path):
    done = run(HERE / "scripts" / "toy_regression.py", "-v", cwd=tmp_path)
    assert "Ran 6 tests" in done.stderr and done.stderr.rstrip().endswith("OK")


@pytest.mark.slow
def test_the_unittest_by_its_module(tmp_path):
    done = run("-m", "unittest", "toy_regression", cwd=HERE / "scripts")
    assert "Ran 6 tests" in done.stderr
