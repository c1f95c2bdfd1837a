"""Environments of the peers: made once, by pip, in the user's cache, apart from the project's own."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

__all__ = ["peer_python"]

_PINS = {
    "onnxruntime": ["onnxruntime==1.31.1", "onnx==1.23.2", "numpy"],
    "torch": ["torch==2.13.0", "numpy"],
}


def peer_python(peer: str) -> str:
    """Return the interpreter of a peer's environment, made at the first call.

    Args:
        peer: "torch" or "onnxruntime".

    Raises:
        RuntimeError: pip could not install it; the message has the end of what it said.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser()
    folder = cache / "netbuilder" / "peers" / _PINS[peer][0].replace("==", "-")
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    stamp = folder / "installed"
    if not stamp.exists():
        print(f"making an environment with {_PINS[peer][0]} in {folder}", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=True)
        done = subprocess.run(
            [str(python), "-m", "pip", "install", "--quiet", *_PINS[peer]], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"pip could not install {_PINS[peer]}:\n{done.stderr[-2000:]}")
        stamp.touch()
    return str(python)
