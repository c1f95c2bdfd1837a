"""Operator libraries to load later; see ``dyndep``: nothing is ever loaded."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from netbuilder.caffe2.missing import names_of
from netbuilder.caffe2.python import dyndep
from netbuilder.caffe2.python.lazy import RegisterLazyImport
from netbuilder.proto import NetError

__all__ = ["GetImportedOpsLibraries", "RegisterOpsLibrary", "SetErrorHandler"]

_log = logging.getLogger("netbuilder")
_pending: set[str] = set()
_handler: Callable[[BaseException], object] | None = None

__getattr__ = names_of(__name__)


def RegisterOpsLibrary(name: str) -> None:
    """Register an operator library to load when operators are first needed.

    A path that does not exist is ignored with a log message, as in Caffe2. A file that exists contains compiled
    operators, which netbuilder cannot load: when operators are first needed, the handler of ``SetErrorHandler`` is
    called, or a warning is logged.

    Args:
        name: path of the library, or its name in a build.
    """
    if not os.path.exists(name):
        _log.info("operator library %r: there is no such file; ignored", name)
        return
    _pending.add(name)


def SetErrorHandler(handler: Callable[[BaseException], object] | None) -> None:
    """Set the function that is called with the error of a library that cannot be loaded; None: log a warning."""
    global _handler
    _handler = handler


def GetImportedOpsLibraries() -> set[str]:
    """Try to load the registered libraries; return the names that ``dyndep.InitOpsLibrary`` was given."""
    _load()
    return dyndep.GetImportedOpsLibraries()


def _load() -> None:
    while _pending:
        name = _pending.pop()
        error = NetError(
            f"operator library {name!r}: compiled operators of Caffe2 cannot be loaded; netbuilder has its own "
            "operators, see core.IsOperator and workspace.RegisteredOperators"
        )
        if _handler is None:
            _log.warning("%s", error)
        else:
            _handler(error)


RegisterLazyImport(_load)
