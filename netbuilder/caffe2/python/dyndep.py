"""Operator libraries: their paths are accepted and remembered, but nothing is loaded."""

from __future__ import annotations

import logging

from netbuilder.caffe2.missing import names_of

__all__ = ["GetImportedOpsLibraries", "InitOpsLibrary"]

_log = logging.getLogger("netbuilder")
_imported: set[str] = set()

__getattr__ = names_of(__name__)


def InitOpsLibrary(name: str, trigger_lazy: bool = True) -> None:
    """Remember the name of an operator library; nothing is loaded.

    A net that uses an operator which only the library has is refused with the operator's name.

    Args:
        name: path of the library, or its name in a build.
        trigger_lazy: ignored.
    """
    if name not in _imported:
        _imported.add(name)
        _log.info("operator library %r is not loaded; netbuilder has its own operators", name)


def GetImportedOpsLibraries() -> set[str]:
    """Return the names of the libraries so far."""
    return set(_imported)
