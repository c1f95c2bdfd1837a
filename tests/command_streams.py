"""Commands whose standard streams are closed, full, or read no further: ``command_streams.py LINES.json``.

Each command runs in a fork of this process, which has imported all of them. The file has pairs of a name of streams and
a command line; what comes out is a list of exit statuses and of what standard error has, as JSON.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import signal
import sys
import tempfile
import traceback
from typing import Any

__all__ = ["STREAMS"]

STREAMS = {
    "out closed": ("closed", "file"),
    "err closed": ("null", "closed"),
    "both closed": ("closed", "closed"),
    "out full": ("/dev/full", "file"),
    "err full": ("null", "/dev/full"),
    "both full": ("/dev/full", "/dev/full"),
    "head": ("pipe", "file"),
    "head of both": ("pipe", "pipe"),
}
"""Name -> what standard output and standard error are; a pipe is one whose reader has ended."""


def main(path: str) -> None:
    with open(path, encoding="utf-8") as file:
        lines = json.load(file)
    modules = {name: importlib.import_module(f"netbuilder.tools.{name}") for _, name, _ in lines}
    results = []
    for streams, name, arguments in lines:
        with tempfile.TemporaryFile() as errors:
            child = os.fork()
            if not child:
                os._exit(_ended(modules[name], arguments, *STREAMS[streams], errors.fileno()))
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            errors.seek(0)
            results.append((status, errors.read().decode()))
    print(json.dumps(results))


def _ended(module: Any, arguments: list[str], out: str, err: str, errors: int) -> int:
    """Run a command as the interpreter does, to its end; return the exit status."""
    signal.alarm(100)
    sys.stdout, sys.stderr = _redirected(1, out, errors), _redirected(2, err, errors)  # type: ignore[assignment]
    try:
        status = module.main(arguments)
    except SystemExit as end:
        status = end.code
    except BaseException:
        os.write(errors, traceback.format_exc().encode())
        status = 99
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except BaseException:
            os.write(errors, f"Exception ignored: {traceback.format_exc()}".encode())
            status = 120
    return int(status or 0)


def _redirected(number: int, kind: str, errors: int) -> io.TextIOWrapper | None:
    """Redirect a descriptor; return the stream over it, which is None where it is closed, as in a new interpreter."""
    if kind == "closed":
        os.close(number)
        return None
    if kind == "pipe":
        reader, source = os.pipe()
        os.close(reader)
    else:
        source = errors if kind == "file" else os.open(os.devnull if kind == "null" else kind, os.O_WRONLY)
    os.dup2(source, number)
    return io.TextIOWrapper(os.fdopen(number, "wb", closefd=False), line_buffering=number == 2)


if __name__ == "__main__":
    main(sys.argv[1])
