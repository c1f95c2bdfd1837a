"""Files with the results of commands."""

from __future__ import annotations

import json
from typing import Any

from netbuilder.proto.whole_file import write_text

__all__ = ["write_json"]


def write_json(path: str | None, value: Any, *, indent: int | None = 1, announced: bool = False) -> None:
    """Write results as JSON, if the command line names a file for them; a file that exists is replaced as a whole.

    Args:
        path: the file, or None.
        value: the results.
        indent: see ``json.dumps``.
        announced: whether to print that the file is written.

    Raises:
        OSError: it cannot be written.
    """
    if path:
        write_text(path, json.dumps(value, indent=indent) + "\n")
        if announced:
            print(f"written: {path}")
