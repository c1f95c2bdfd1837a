"""Runs a script or module as Python does, with caffe2 as an alias of netbuilder.caffe2."""

from __future__ import annotations

import builtins
import importlib.util
import io
import os
import pickle
import sys
from collections.abc import Sequence
from importlib.abc import InspectLoader
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any

import numpy as np

# Protobuf chooses its parser at import. Old scripts set PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION to "cpp", which it no
# longer has, so it is imported before they run.
import netbuilder.proto.netbuilder_pb2  # noqa: F401
from netbuilder.caffe2.import_alias import install_alias

__all__ = ["main"]

USAGE = """\
usage: python -m netbuilder.caffe2 SCRIPT [ARGUMENT ...]
       python -m netbuilder.caffe2 -m MODULE [ARGUMENT ...]
       python -m netbuilder.caffe2 -c CODE [ARGUMENT ...]

Runs a Caffe2 script, module or piece of code unchanged: caffe2 is an alias of netbuilder.caffe2, also in child
processes."""


def main(arguments: Sequence[str]) -> int:
    """Run the program of the command line, with its own arguments in ``sys.argv``.

    Args:
        arguments: SCRIPT, or "-m" and MODULE, or "-c" and CODE, and the program's arguments.

    Returns:
        2 if the command line is wrong or the script cannot be read, 1 if there is no such module, 0 otherwise.
    """
    if not arguments or arguments[0] in ("-h", "--help") or arguments[0] in ("-m", "-c") and len(arguments) < 2:
        print(USAGE, file=sys.stdout if arguments[:1] in (["-h"], ["--help"]) else sys.stderr)
        return 0 if arguments and arguments[0].startswith(("-h", "--h")) else 2
    if arguments[0].startswith("-") and arguments[0] not in ("-m", "-c"):
        print(f"unknown option {arguments[0]}\n{USAGE}", file=sys.stderr)
        return 2
    install_alias()
    _restore_numpy_names()
    sys.modules.setdefault("cPickle", pickle)  # as scripts for Python 2 name it
    if arguments[0] == "-m":
        return _run_module(arguments[1], arguments[2:])
    if arguments[0] == "-c":
        _run(compile(arguments[1], "<string>", "exec", dont_inherit=True), ["-c", *arguments[2:]])
        return 0
    return _run_file(arguments[0], arguments[1:])


_OLD_NUMPY_NAMES: dict[str, Any] = {
    "asscalar": lambda a: np.asarray(a).item(),
    "bool": bool,
    "complex": complex,
    "float": float,
    "int": int,
    "long": int,
    "object": object,
    "str": str,
    "unicode": str,
    "unicode_": str,
}


def _restore_numpy_names() -> None:
    """Set ``np.asscalar``, ``np.float`` and other names that NumPy has removed since Caffe2's scripts were written."""
    for name, value in _OLD_NUMPY_NAMES.items():
        if name not in vars(np):
            setattr(np, name, value)


def _run_file(path: str, arguments: Sequence[str]) -> int:
    try:
        with io.open_code(os.path.abspath(path)) as file:
            text = file.read()
    except OSError as error:
        print(f"netbuilder.caffe2: can't open file {path!r}: {error.strerror}", file=sys.stderr)
        return 2
    full = os.path.abspath(path)
    code = compile(text, full, "exec", dont_inherit=True)
    if not getattr(sys.flags, "safe_path", False):  # Python put the current directory there for -m
        sys.path[0] = os.path.dirname(os.path.realpath(path))
    _run(code, [path, *arguments], __file__=full, __cached__=None, __loader__=SourceFileLoader("__main__", full))
    return 0


def _run_module(name: str, arguments: Sequence[str]) -> int:
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(name + ".__main__")
    except ModuleNotFoundError as error:
        print(f"netbuilder.caffe2: {error}", file=sys.stderr)
        return 1
    code = _code_of(spec)
    if spec is None or code is None:
        print(f"netbuilder.caffe2: there is no module {name}, or it cannot be run", file=sys.stderr)
        return 1
    _run(
        code,
        [spec.origin or name, *arguments],
        __file__=spec.origin,
        __cached__=spec.cached,
        __loader__=spec.loader,
        __package__=spec.parent,
        __spec__=spec,
    )
    return 0


def _code_of(spec: ModuleSpec | None) -> CodeType | None:
    if spec is None or not isinstance(spec.loader, InspectLoader):
        return None
    return spec.loader.get_code(spec.name)


def _run(code: CodeType, argv: list[str], **attributes: Any) -> None:
    """Execute ``code`` as the module ``__main__``, which stays until the process ends, as in Python."""
    module = ModuleType("__main__")
    vars(module).update({"__builtins__": builtins, "__package__": None, "__spec__": None, **attributes})
    sys.argv[:] = argv
    sys.modules["__main__"] = module
    exec(code, vars(module))
