"""netbuilder-doctor: each finding, and its remedy."""

import importlib.metadata
import json
import re

import pytest

from netbuilder.engines.engine import find_engine
from netbuilder.proto import DeviceError
from netbuilder.tools import doctor


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(doctor, "busy_share", lambda seconds: 0.0)


def requires(monkeypatch, lines, versions):
    """Let the distribution have these requirements, and of packages that it asks for only these be installed."""
    own = {re.match(r"[\w.-]+", line)[0] for line in lines} | {"mpi4py"}
    installed = importlib.metadata.version

    def version(name):
        if name in own and name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions.get(name) or installed(name)

    monkeypatch.setattr(doctor.importlib.metadata, "requires", lambda name: lines)
    monkeypatch.setattr(doctor.importlib.metadata, "version", version)


def finding(name):
    return next(each for each in doctor.findings() if each.name == name)


def test_everything_is_printed_and_written_as_json(tmp_path, capsys):
    status = doctor.main(["--json", str(tmp_path / "found.json")])
    lines = capsys.readouterr().out
    found = {each["name"]: each for each in json.loads((tmp_path / "found.json").read_text())}
    assert status == int(any(each["state"] == "wrong" for each in found.values()))
    names = {"netbuilder", "Python", "processor", "memory", "threads", "ONEDNN", "LLVM", "kept on file", "GPUs", "MPI"}
    assert names <= found.keys()
    for each in found.values():
        assert each["name"] in lines and each["text"].splitlines()[0] in lines and each["remedy"] in lines
    for name in ("ONEDNN", "LLVM"):
        if find_engine(name).available():
            assert any(digit.isdigit() for digit in found[name]["text"])
    doctor.main(["--json"])
    assert {each["name"] for each in json.loads(capsys.readouterr().out)} == found.keys()


def test_a_library_that_cannot_be_used_is_wrong_and_says_why(monkeypatch, capsys):
    engine = find_engine("ONEDNN")
    monkeypatch.setattr(engine, "available", lambda: False)
    monkeypatch.setattr(engine, "why_unavailable", lambda: "the package is not installed (pip install onednn-cpu-gomp)")
    assert doctor.main([]) == 1
    said = capsys.readouterr().out
    assert "! ONEDNN" in said and "NumPy computes in its place" in said and "-> the package is not installed" in said
    monkeypatch.setattr(engine, "why_unavailable", lambda: "turned off by NETBUILDER_ONEDNN=0")
    assert finding("ONEDNN").state == "ok"


def test_more_threads_than_cores(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "4000")
    found = finding("threads")
    assert found.state == "wrong" and "OMP_NUM_THREADS=4000" in found.text and "OMP_NUM_THREADS=" in found.remedy
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(doctor, "busy_share", lambda seconds: 0.7)
    found = finding("threads")
    assert found.state == "ok" and "others use 70%" in found.text and "doubtful" in found.remedy


def test_extras_name_what_is_missing_and_the_command(monkeypatch):
    lines = [
        "numpy>=2.0",
        'onnx>=1.16; extra == "onnx"',
        'pyyaml>=6; extra == "train"',
        'tqdm>=4.60; extra == "train"',
        'tomli>=2; python_version < "3.9" and extra == "train"',
        'mypy>=1.15; extra == "test"',
    ]
    requires(monkeypatch, lines, {"onnx": "1.19.0", "tqdm": "4.67"})
    onnx, train = (each for each in doctor.findings() if each.name.startswith("extra"))
    assert (onnx.name, onnx.state, onnx.text) == ("extra onnx", "ok", "onnx 1.19.0")
    assert (train.state, train.text, train.remedy) == (
        "missing", "without pyyaml", "pip install 'netbuilder-nn[train]'"
    )  # fmt: skip


def test_packages_for_gpus_that_conflict(monkeypatch):
    monkeypatch.setattr(
        doctor, "several_cupys", lambda: "cupy-cuda12x and cupy-cuda13x are installed; pip uninstall ..."
    )
    found = finding("GPUs")
    assert found.state == "wrong" and "pip uninstall" in found.remedy
    monkeypatch.setattr(doctor, "several_cupys", lambda: "")
    monkeypatch.setattr(doctor.shutil, "which", lambda name, **where: "/usr/bin/nvidia-smi")
    monkeypatch.setattr(doctor, "describe_gpus", lambda: ["GPU 0: H100", "driver 575"])
    monkeypatch.setattr(doctor, "wrong_cudnn", lambda: "nvidia-cudnn-cu12 and nvidia-cudnn-cu13 are installed")
    monkeypatch.setattr(doctor, "missing_for_gpus", lambda: ["nvidia-cudnn-cu12 and nvidia-cudnn-cu13 are installed"])
    found = finding("GPUs")
    assert found.state == "wrong" and found.text == "GPU 0: H100\ndriver 575" and "nvidia-cudnn-cu13" in found.remedy


def test_mpi_that_cannot_be_used(monkeypatch):
    requires(monkeypatch, [], {})
    assert finding("MPI").remedy == "pip install 'netbuilder-nn[mpi]'"
    requires(monkeypatch, [], {"mpi4py": "4.1"})

    def refuse():
        raise DeviceError("mpi4py cannot be used (no libmpi.so): pip install ...")

    monkeypatch.setattr(doctor, "installed_mpi", refuse)
    found = finding("MPI")
    assert found.state == "wrong" and "no libmpi.so" in found.remedy


def test_where_nothing_can_be_kept(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "cache_folder", lambda: None)
    assert finding("kept on file").remedy == "set XDG_CACHE_HOME"
    monkeypatch.setattr(doctor, "cache_folder", lambda: tmp_path / "netbuilder")
    assert "0 files" in finding("kept on file").text
    monkeypatch.setattr(doctor.os, "access", lambda path, mode: False)
    assert finding("kept on file").state == "wrong"
