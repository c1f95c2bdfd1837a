"""The stub that tells type checkers the operators: it is that of the registry, and mistakes are found by it."""

import re
import subprocess
import sys

import pytest

from netbuilder.tools.operator_methods import STUB, stub


def test_the_stub_is_that_of_the_operators():
    assert STUB.read_text(encoding="utf-8") == stub(), "run make operator-methods"


PROGRAM = """\
from netbuilder.graph import BlobReference, Net

net = Net("n")
one: BlobReference = net.Relu("x", "y")
both = net.SoftmaxWithLoss(["x", "label"], ["p", "loss"], axis=1, order="NCHW")
net.Softmaxx("x", "y")
net.Softmax("x", "y", axes=1)
net.Softmax("x", "y", axis="1")
net.Conv(["x", "w"], "y", kernels=[3, 3], use_cudnn=1, name="conv")
"""


@pytest.mark.slow
def test_a_type_checker_finds_mistakes(tmp_path):
    pytest.importorskip("mypy")
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--follow-imports=silent", f"--cache-dir={tmp_path / 'cache'}", str(file)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    found = re.findall(r"program.py:(\d+): error: (.*?)  \[", done.stdout)
    if any("import" in text for _, text in found):
        pytest.skip("needs the package installed")
    assert [int(line) for line, _ in found] == [6, 7, 8], done.stdout
    assert '"Net" has no attribute "Softmaxx"' in found[0][1]
