"""``caffe2`` as an alias of ``netbuilder.caffe2``: the same module objects under both names.

``caffe.proto.caffe_pb2`` is an alias, too, unless Caffe is installed: scripts for Caffe2's translator import it.
"""

from __future__ import annotations

import os
import sys

from netbuilder._modules import AliasFinder

__all__ = ["CHILDREN", "ROOT_VARIABLE", "install_alias"]

ALIAS = "caffe2"
PACKAGE = "netbuilder.caffe2"

CHILDREN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "subprocess_hook")
"""Folder on PYTHONPATH from which child processes install the alias when they start."""

ROOT_VARIABLE = "NETBUILDER_CAFFE2"
"""Environment variable that installs the alias in child processes; its value is netbuilder's package folder."""


def install_alias(*, children: bool = True) -> None:
    """Make ``import caffe2`` import ``netbuilder.caffe2``, in this process and its child processes.

    Calling it again has no effect. Child processes are those started with ``sys.executable`` and this process's
    environment, by ``subprocess`` or ``multiprocessing``, but not with -I, -E or -S.

    Args:
        children: set PYTHONPATH and ``ROOT_VARIABLE`` in ``os.environ`` for child processes.

    Raises:
        ImportError: another ``caffe2`` has already been imported.

    >>> install_alias(children=False)
    >>> from caffe2.python import core
    >>> core.__name__
    'netbuilder.caffe2.python.core'
    """
    loaded = sys.modules.get(ALIAS)
    if loaded is not None and loaded is not sys.modules.get(PACKAGE):
        raise ImportError(
            f"caffe2 has already been imported from {getattr(loaded, '__file__', None)!r}; call "
            "install_alias() before that"
        )
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
        sys.meta_path.append(_CAFFE_FINDER)  # after those that find an installed Caffe
    if children:
        _set_environment()


def _set_environment() -> None:
    path = os.environ.get("PYTHONPATH", "")
    if CHILDREN not in path.split(os.pathsep):
        os.environ["PYTHONPATH"] = CHILDREN + (os.pathsep + path if path else "")
    os.environ[ROOT_VARIABLE] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def _original(name: str) -> str | None:
    return PACKAGE + name[len(ALIAS) :] if name == ALIAS or name.startswith(ALIAS + ".") else None


_CAFFE_MODULES = {
    "caffe": f"{PACKAGE}.caffe",
    "caffe.proto": f"{PACKAGE}.caffe.proto",
    "caffe.proto.caffe_pb2": "netbuilder.proto.caffe_pb2",
}

_FINDER = AliasFinder(_original)
_CAFFE_FINDER = AliasFinder(_CAFFE_MODULES.get)
