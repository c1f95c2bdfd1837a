"""Modules without a file: aliases of other modules, and modules with generated source, whose names may be others'."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import Any

__all__ = ["AliasFinder", "ReexportingModule", "TextFinder"]


class AliasFinder(MetaPathFinder):
    """Finds aliases of modules: importing an alias returns the original module, whose name and spec are unchanged.

    Args:
        original: function that returns the name of the original module of an alias, or None for other names.
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
        module.__spec__ = self._own  # the import system has replaced it by the spec of the alias

    def get_code(self, fullname: str) -> CodeType | None:
        loader = self._found.loader
        return loader.get_code(self._found.name) if isinstance(loader, InspectLoader) else None

    def get_source(self, fullname: str) -> str | None:
        loader = self._found.loader
        return loader.get_source(self._found.name) if isinstance(loader, InspectLoader) else None

    def is_package(self, fullname: str) -> bool:
        return self._found.submodule_search_locations is not None


class TextFinder(MetaPathFinder):
    """Finds modules whose source is returned by a function; it comes after the finders of files.

    Args:
        source: function that returns the source of a module, given its name, or None for other modules.
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


class ReexportingModule(ModuleType):
    """A module whose names come from other modules: a name that is assigned is assigned there, too.

    Functions read the names of the module in which they are defined. So a script that assigns a setting, or replaces a
    function, changes what these functions do, as if they were defined in the module that it knows. A module becomes
    one when its ``__class__`` is set; ``_sources`` has (module, name) of each name that is forwarded.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        source = vars(self).get("_sources", {}).get(name)
        if source is not None:
            setattr(importlib.import_module(source[0]), source[1], value)
