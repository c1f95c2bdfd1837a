"""Libraries of operators that a script names now and needs later; see ``dyndep``: nothing is ever loaded."""

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
_waiting: set[str] = set()
_handler: Callable[[BaseException], object] | None = None

__getattr__ = names_of(__name__)


def RegisterOpsLibrary(name: str) -> None:
    """Name a library of operators; whether it can serve is said when operators are first needed.

    A path that does not exist is ignored with a word in the log, as in Caffe2. A file that exists holds compiled
    operators, which netbuilder cannot load: the error comes when operators are first needed, through the handler of
    ``SetErrorHandler`` if there is one.

    Args:
        name: path of the library, or its name in a build.
    """
    if not os.path.exists(name):
        _log.info("operators of %r: there is no such file, the name is ignored", name)
        return
    _waiting.add(name)


def SetErrorHandler(handler: Callable[[BaseException], object] | None) -> None:
    """Set the function that is called with the error of a library that cannot be loaded; None: the error is dropped."""
    global _handler
    _handler = handler


def GetImportedOpsLibraries() -> set[str]:
    """Return the names that ``dyndep.InitOpsLibrary`` was given; those that wait here are tried before."""
    _load()
    return dyndep.GetImportedOpsLibraries()


def _load() -> None:
    while _waiting:
        name = _waiting.pop()
        error = NetError(
            f"library of operators {name!r}: compiled operators of Caffe2 cannot be loaded; netbuilder has operators "
            "of its own, see core.IsOperator and docs/operators.md"
        )
        if _handler is None:
            _log.warning("%s", error)
        else:
            _handler(error)


RegisterLazyImport(_load)
