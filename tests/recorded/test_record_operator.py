"""The recorder of golden cases, run here in place of on Caffe2, makes what Caffe2's cases of the same inputs are."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import golden_data

RECORDER = Path(__file__).with_name("record_operator.py")
CASES = """\
import numpy as np

stored = np.load("stored.npz")
OPERATOR = "{operator}"
CASES = {cases}
"""


def written(case):
    """Return a case as the recorder is given it."""
    inputs = ", ".join(f'{name!r}: stored["{case.index}/{name}"]' for name in case.meta["inputs"])
    names = ("outputs", "args", "label", "check", "rtol", "atol", "grad_rtol", "grad_atol")
    said = {name: case.meta[name] for name in names if name in case.meta}
    return f"dict(inputs={{{inputs}}}, gradient={case.has_gradient}, **{said!r})"


@pytest.mark.parametrize("operator", ["ColwiseMax", "SparseLengthsSum"])
def test_a_case_is_recorded_as_it_is_stored(tmp_path, operator):
    stored = [case for case in golden_data.cases(operator) if "inputs" in case.meta][-2:]
    arrays = {f"{case.index}/{name}": value for case in stored for name, value in case.inputs.items()}
    np.savez(tmp_path / "stored.npz", **arrays)
    cases = "[" + ",\n".join(map(written, stored)) + "]"
    (tmp_path / "cases.py").write_text(CASES.format(operator=operator, cases=cases))
    command = [sys.executable, "-m", "netbuilder.caffe2", RECORDER, "cases.py", tmp_path]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / f"{operator}.npz") as made:
        for number, case in enumerate(stored):
            with np.load(case.path) as file:
                start = f"c{case.stored_as}/"
                want = {name[len(start) :]: file[name] for name in file if name.startswith(start)}
            got = {name.split("/", 1)[1]: made[name] for name in made if name.startswith(f"c{number}/")}
            assert got.keys() == want.keys()
            meta, expected = (json.loads(bytes(each["meta"])) for each in (got, want))
            assert {name: meta[name] for name in expected} == expected
            for name, value in want.items():
                assert got[name].shape == value.shape or name.startswith(("op", "gop", "meta")), name
            for name in (name for name in want if name.startswith(("in/", "out/"))):
                np.testing.assert_allclose(got[name], want[name], rtol=case.rtol, atol=case.atol)
