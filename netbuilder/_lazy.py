"""Packages whose names are imported on first use, so that importing the package is fast and needs no library."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Collection, Mapping
from types import FrameType, ModuleType
from typing import Any

__all__ = ["names_on_first_use"]


def names_on_first_use(
    package: str, exports: Mapping[str, Collection[str]], subpackages: Collection[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package, whose modules are imported on first use, too.

    Args:
        package: its name.
        exports: module -> its names that the package has, too.
        subpackages: names of modules of the package that ``dir`` lists before they are imported.
    """
    home = {name: module for module, names in exports.items() for name in names}

    def get(name: str) -> Any:
        if name in home:
            value = getattr(importlib.import_module(home[name]), name)
        elif (module := _module(package, name)) is not None:
            value = module
        else:
            raise _unknown(package, name, names(), sys._getframe(1))
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home, *subpackages})

    return get, names


def _module(package: str, name: str) -> ModuleType | None:
    """Import a module of a package; None: there is none of this name, or a private one."""
    if name.startswith("_") or not name.isidentifier():
        return None
    full = f"{package}.{name}"
    try:
        return importlib.import_module(full)
    except ModuleNotFoundError as error:
        if error.name != full:
            raise
        return None


def _unknown(package: str, name: str, known: Collection[str], caller: FrameType) -> Exception:
    """Return the error for a name that a package lacks, with similar ones.

    It is an ImportError where the caller is executing ``from package import name``: Python would replace an
    AttributeError by an error of its own, without the similar names.
    """
    import opcode

    from netbuilder.proto.suggestions import did_you_mean

    hint = did_you_mean(name, [other for other in known if not other.startswith("_")])
    if caller.f_code.co_code[caller.f_lasti] == opcode.opmap["IMPORT_FROM"]:
        return ImportError(f"cannot import name {name!r} from {package!r}{hint}", name=package)
    return AttributeError(f"module {package!r} has no attribute {name!r}{hint}")
