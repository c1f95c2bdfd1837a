"""onnx-caffe2 on the compatibility layer: what passes on Caffe2 itself passes here."""

import subprocess
import sys

import pytest

from caffe2_suite import onnx_client


def test_what_differs_is_named():
    assert {each.split()[1] for each in onnx_client.expected()} == set(onnx_client.STEPS)
    found = dict.fromkeys(onnx_client.expected(), "passed")
    assert onnx_client.differences(found) == []
    found["node/test_abs backend"] = "failed: NetError: no"
    del found["node/test_add returned"]
    assert onnx_client.differences({**found, "node/test_new backend": "failed"}) == [
        "node/test_abs backend: failed: NetError: no",
        "node/test_add returned: not reached",
    ]


@pytest.mark.slow
def test_the_cases():
    if onnx_client.missing():
        pytest.skip(f"needs the packages {onnx_client.missing()} (make onnx-caffe2-cases)")
    if not (onnx_client.FOLDER / "complete").exists():
        pytest.skip(f"needs the cases of onnx 1.1.2 in {onnx_client.FOLDER.name} (make onnx-caffe2-cases)")
    command = [sys.executable, "-m", "caffe2_suite.onnx_client"]  # a process of its own: the shims change onnx
    done = subprocess.run(command, cwd=onnx_client.HERE.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
