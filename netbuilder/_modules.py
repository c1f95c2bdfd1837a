"""Modules without a file of their own: another module under a second name, or names of other modules together."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType

__all__ = ["AliasFinder", "TextFinder"]


class AliasFinder(MetaPathFinder):
    """Finds modules that are other modules: the same objects, which keep their own names and specs.

    Args:
        original: function of a module's name that returns the name of the module that it is, or None for a name that
            is no second name.
    """

    def __init__(self, original: Callable[[str], str | None]) -> None:
        self.original = original

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        name = self.original(fullname)
        found = importlib.util.find_spec(name) if name is not None else None
        if found is None:
            return None
        is_package = found.submodule_search_locations is not None
        return importlib.util.spec_from_loader(
            fullname, _AliasLoader(found), origin=found.origin, is_package=is_package
        )


class _AliasLoader(InspectLoader):
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


class TextFinder(MetaPathFinder):
    """Finds modules whose source a function returns; it is asked after the finders of files.

    Args:
        source: function of a module's name that returns its source, or None for a name that it does not know.
    """

    def __init__(self, source: Callable[[str], str | None]) -> None:
        self.source = source

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        text = self.source(fullname)
        return None if text is None else importlib.util.spec_from_loader(fullname, _TextLoader(text))


class _TextLoader(InspectLoader):
    def __init__(self, text: str) -> None:
        self._text = text

    def get_source(self, fullname: str) -> str:
        return self._text

    def is_package(self, fullname: str) -> bool:
        return False
