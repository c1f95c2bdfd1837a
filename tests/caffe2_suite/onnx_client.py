"""Runs onnx-caffe2, a client of Caffe2, on the compatibility layer: the backend cases of onnx 1.1, there and back.

    cd tests
    python -m caffe2_suite.onnx_client

It needs the packages onnx-caffe2 (1.0.0) and onnx. The cases are downloaded once to ``--folder``. Each model runs in
onnx-caffe2's backend; its frontend makes a model of the nets; and that model runs again. It ends with 0 if all that
passes on Caffe2 itself (onnx_client.txt, recorded by ``onnx_client_cases``) passes here.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from caffe2_suite.onnx_client_cases import outcomes
from netbuilder.caffe2 import install_alias

__all__ = ["FOLDER", "STEPS", "differences", "expected", "missing", "run"]

HERE = Path(__file__).resolve().parent
FOLDER = HERE.parent.parent / ".caffe2-tests" / "onnx-1.1.2"
STEPS = ("backend", "frontend", "returned")
_RELEASE = "onnx==1.1.2"
_PREFIX = "onnx/backend/test/data/"


def missing() -> str:
    """Return the packages that are needed and not installed, or ""."""
    return ", ".join(name for name in ("onnx", "onnx_caffe2", "click") if importlib.util.find_spec(name) is None)


def expected() -> set[str]:
    """Return what passes on Caffe2 itself: the name of a case and a step."""
    lines = (HERE / "onnx_client.txt").read_text(encoding="utf-8").splitlines()
    return {f"{name} {step}" for name, *steps in map(str.split, lines) for step in steps}


def differences(found: Mapping[str, str]) -> list[str]:
    """Return what passes on Caffe2 and not here, with the reason."""
    return [f"{each}: {found.get(each, 'not reached')}" for each in sorted(expected()) if found.get(each) != "passed"]


def fetch_cases(folder: Path) -> Path:
    """Return the folder of the cases, which are downloaded unless they are there.

    Raises:
        SystemExit: pip cannot download the wheel that has them.
    """
    if not (folder / "complete").exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as download:
            command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "download", _RELEASE]
            command += ["--no-deps", "--only-binary", ":all:", "--python-version", "3.6", "--implementation", "cp"]
            command += ["--abi", "cp36m", "--platform", "manylinux1_x86_64", "--dest", download]
            if subprocess.run(command, check=False).returncode:
                raise SystemExit(f"cannot download {_RELEASE}, which has the cases; they need pip and a package index")
            (wheel,) = Path(download).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(folder, [name for name in archive.namelist() if name.startswith(_PREFIX)])
        (folder / "complete").touch()
    return folder / _PREFIX


def run(folder: Path) -> dict[str, str]:
    """Return for each case and step "passed", or why it failed."""
    install_alias(children=False)
    found: dict[str, str] = outcomes(fetch_cases(folder))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the cases are kept (default: %(default)s)")
    options = parser.parse_args()
    if missing():
        raise SystemExit(f"the packages {missing()} are not installed")
    found = run(options.folder)
    passed = Counter(each.split()[1] for each, said in found.items() if said == "passed")
    there = Counter(each.split()[1] for each in expected())
    for step in STEPS:
        print(f"{step:10} {passed[step]:4} pass, {there[step]:4} on Caffe2")
    for line in differences(found):
        print("FAILS  ", line)
    return bool(differences(found))


if __name__ == "__main__":
    sys.exit(main())
