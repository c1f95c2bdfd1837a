"""The benchmark that compares bytes on a GPU which is described: our plan, and PyTorch's compiled graphs."""

import json
import os
import sys

import pytest

from netbuilder.tools import benchmark
from netbuilder.tools.bench import gpu_bytes as module
from netbuilder.tools.bench.gpu_bytes import gpu_bytes


def test_a_line_has_both_sides(tmp_path, monkeypatch):
    peer = tmp_path / "peer.py"
    peer.write_text(
        "import json, sys\n"
        "print('a warning')\n"
        "print(json.dumps({'net': sys.argv[1], 'batch': sys.argv[2], 'version': '2', 'nbytes': 10**9, 'kernels': 7}))\n"
    )
    monkeypatch.setattr(module, "_PEER", peer)
    [line] = gpu_bytes(["resnet18"], 4, "bfloat16", sys.executable)
    assert line.record["peer"] == {"net": "resnet18", "batch": "4", "version": "2", "nbytes": 10**9, "kernels": 7}
    # at least each parameter and momentum read, its gradient written and read, and the first two written
    assert line.record["nbytes"] > 6 * 4 * 11_689_512
    assert "torch 2 compiled 1.0 GB in 7 kernels" in line.text
    json.dumps(line.record)


def test_a_peer_that_fails(tmp_path, monkeypatch):
    peer = tmp_path / "peer.py"
    peer.write_text("raise SystemExit('no triton here')")
    monkeypatch.setattr(module, "_PEER", peer)
    with pytest.raises(RuntimeError, match="step of resnet18 could not be counted: no triton here"):
        list(gpu_bytes(["resnet18"], 4, "bfloat16", sys.executable))


@pytest.mark.slow
@pytest.mark.skipif("PEER_PYTHON" not in os.environ, reason="PEER_PYTHON names an interpreter with torchvision")
def test_pytorch_graphs_are_counted(tmp_path, monkeypatch):
    """What grows with the batch is counted in proportion to it, and neither side is far from the other."""
    monkeypatch.setattr(module, "GPU_NETS", {"resnet18": "resnet18"})
    monkeypatch.setattr("netbuilder.tools.bench.works.GPU_NETS", {"resnet18": "resnet18"})
    found = []
    for batch in ("16", "32"):
        file = tmp_path / f"{batch}.json"
        given = ["--batch", batch, "--peer-python", os.environ["PEER_PYTHON"], "--json", str(file)]
        assert benchmark.main(["gpu-bytes", *given]) == 0
        [record] = json.loads(file.read_text())["results"]
        found.append((record["nbytes"], record["peer"]["nbytes"], record["peer"]["update"]))
    (ours, theirs, update), (ours_twice, theirs_twice, _) = found
    fixed = update * 2.5  # parameters are read and written about so often, whatever the batch
    assert (theirs_twice - fixed) / (theirs - fixed) == pytest.approx(2, rel=0.1)
    assert 0.5 < ours_twice / theirs_twice < 1.5
