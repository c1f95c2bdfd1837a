"""Packages whose names are imported on first use, so that importing the package is fast and needs no library."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any

__all__ = ["names_on_first_use"]


def names_on_first_use(
    package: str, exports: Mapping[str, Collection[str]], subpackages: Collection[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package.

    Args:
        package: its name.
        exports: module -> its names that the package has, too.
        subpackages: names of modules of the package that are imported on first use.
    """
    home = {name: module for module, names in exports.items() for name in names}

    def get(name: str) -> Any:
        if name in home:
            value = getattr(importlib.import_module(home[name]), name)
        elif name in subpackages:
            value = importlib.import_module(f"{package}.{name}")
        else:
            from netbuilder.proto.suggestions import did_you_mean

            hint = did_you_mean(name, [other for other in names() if not other.startswith("_")])
            raise AttributeError(f"module {package!r} has no attribute {name!r}{hint}")
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home, *subpackages})

    return get, names
