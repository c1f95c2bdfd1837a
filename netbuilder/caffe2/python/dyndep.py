"""Libraries of operators: their paths are taken and remembered; the operators are here already."""

from __future__ import annotations

import logging

from netbuilder.caffe2.missing import names_of

__all__ = ["GetImportedOpsLibraries", "InitOpsLibrary"]

_log = logging.getLogger("netbuilder")
_imported: set[str] = set()

__getattr__ = names_of(__name__)


def InitOpsLibrary(name: str, trigger_lazy: bool = True) -> None:
    """Remember the name of a library of operators; nothing is loaded.

    An operator that only such a library has is refused by name where a net uses it.

    Args:
        name: path of the library, or its name in a build.
        trigger_lazy: accepted; nothing waits to be loaded.
    """
    if name not in _imported:
        _imported.add(name)
        _log.info("operators of %r: nothing is loaded, netbuilder has operators of its own", name)


def GetImportedOpsLibraries() -> set[str]:
    """Return the names given so far."""
    return set(_imported)
