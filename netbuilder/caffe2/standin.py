"""``caffe2`` as another name of ``netbuilder.caffe2``: the same module objects under both names."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType

__all__ = ["CHILDREN", "ROOT_VARIABLE", "stand_in"]

ALIAS = "caffe2"
FACE = "netbuilder.caffe2"

CHILDREN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "children")
"""The folder on PYTHONPATH from which child processes get the alias at their start."""

ROOT_VARIABLE = "NETBUILDER_CAFFE2"
"""The environment variable that turns the alias on there; it holds the folder that netbuilder lies in."""


def stand_in(*, children: bool = True) -> None:
    """Let ``import caffe2`` give the modules of ``netbuilder.caffe2``, here and in child processes.

    Calling it again changes nothing. Children are processes that this one starts with ``sys.executable`` and its
    environment, by ``subprocess`` or ``multiprocessing``; those started with -I, -E or -S are left out.

    Args:
        children: set PYTHONPATH and ``ROOT_VARIABLE`` in ``os.environ`` for the sake of child processes.

    Raises:
        ImportError: another ``caffe2`` has been imported already.

    >>> stand_in(children=False)
    >>> from caffe2.python import core
    >>> core.__name__
    'netbuilder.caffe2.python.core'
    """
    loaded = sys.modules.get(ALIAS)
    if loaded is not None and loaded is not sys.modules.get(FACE):
        raise ImportError(
            f"caffe2 has been imported from {getattr(loaded, '__file__', None)!r} already; call stand_in() before that"
        )
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    if children:
        _tell_children()


def _tell_children() -> None:
    path = os.environ.get("PYTHONPATH", "")
    if CHILDREN not in path.split(os.pathsep):
        os.environ["PYTHONPATH"] = CHILDREN + (os.pathsep + path if path else "")
    os.environ[ROOT_VARIABLE] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != ALIAS and not fullname.startswith(ALIAS + "."):
            return None
        name = FACE + fullname[len(ALIAS) :]
        found = importlib.util.find_spec(name)
        if found is None:
            return None
        is_package = found.submodule_search_locations is not None
        return importlib.util.spec_from_loader(fullname, _Loader(found), origin=found.origin, is_package=is_package)


class _Loader(InspectLoader):
    """Gives the module of the face; it keeps its own name and spec."""

    def __init__(self, found: ModuleSpec) -> None:
        self._found = found
        self._own: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._found.name)
        self._own = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._own  # the import system has put the alias's there

    def get_code(self, fullname: str) -> CodeType | None:
        loader = self._found.loader
        return loader.get_code(self._found.name) if isinstance(loader, InspectLoader) else None

    def get_source(self, fullname: str) -> str | None:
        loader = self._found.loader
        return loader.get_source(self._found.name) if isinstance(loader, InspectLoader) else None

    def is_package(self, fullname: str) -> bool:
        return self._found.submodule_search_locations is not None
