"""Functions that CuPy's modules look up and the emulated libraries lack, as C: they answer "not supported"."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

__all__ = ["stubs"]


def _symbols(file: Path, kinds: str) -> set[str]:
    dynamic = ["-D"] if ".so" in file.name else []
    lines = subprocess.run(["nm", *dynamic, str(file)], capture_output=True, text=True, check=True).stdout.splitlines()
    return {line.split()[-1].split("@")[0] for line in lines if line.split()[-2] in kinds}


def stubs(prefix: str, answer: int, ours: Sequence[Path], module: Path) -> str:
    """Return the source of the functions.

    Args:
        prefix: of the library's names: cu, cuda or cublas.
        answer: what they return.
        ours: the object files of the emulated library.
        module: the extension module of CuPy. It looks the driver's functions up by name while it runs, so those are
            read from its strings.
    """
    if prefix == "cu":
        names = re.findall(rb"(?<!\w)cu[A-Z][A-Za-z0-9]+(?:_v\d)?(?=\0)", module.read_bytes())
        wanted = {name.decode() for name in names}
    else:
        wanted = {name for name in _symbols(module, "U") if re.match(prefix + "[A-Z]", name)}
    present = set().union(*(_symbols(file, "TWBD") for file in ours))
    return "".join(f"int {name}(void) {{ return {answer}; }}\n" for name in sorted(wanted - present))
