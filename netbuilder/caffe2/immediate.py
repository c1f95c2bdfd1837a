"""Immediate mode: every operator runs when it is created or added to a net, in a separate workspace."""

from __future__ import annotations

import logging
import shutil
import tempfile
from typing import Any

from netbuilder.graph.blob import blob_name
from netbuilder.graph.net import operator_watchers
from netbuilder.proto import DeviceOption, OperatorDef
from netbuilder.runtime import Workspace

__all__ = [
    "FeedImmediate",
    "FetchImmediate",
    "ImmediateBlobs",
    "IsImmediate",
    "RunOperatorImmediate",
    "StartImmediate",
    "StopImmediate",
    "immediate_root_folder",
]

_log = logging.getLogger("netbuilder")
_workspace = Workspace()
_workspace.root_folder = ""
_workspace.draw_anew()


def immediate_root_folder() -> str:
    """Return the folder of the mode's workspace, which is removed when the mode ends; "" if the mode is off."""
    return str(_workspace.root_folder)


def IsImmediate() -> bool:
    """Whether the immediate mode is on."""
    return RunOperatorImmediate in operator_watchers


def StartImmediate(i_know: bool = False) -> None:
    """Run every operator when it is created or added to a net, in a separate workspace, until ``StopImmediate``.

    This mode is for experiments: inputs of an operator must have been fed by ``FeedImmediate`` or written by earlier
    operators. If it is on already, it starts again with no blobs.

    Args:
        i_know: do not log the warning that the mode is on.
    """
    StopImmediate()
    operator_watchers.append(RunOperatorImmediate)
    _workspace.root_folder = tempfile.mkdtemp()
    if not i_know:
        _log.warning(
            "immediate mode: operators run when they are created or added, in a separate workspace, until StopImmediate"
        )


def StopImmediate() -> None:
    """End the immediate mode and forget its blobs."""
    if IsImmediate():
        operator_watchers.remove(RunOperatorImmediate)
        shutil.rmtree(_workspace.root_folder, ignore_errors=True)
        _workspace.root_folder = ""
    _workspace.reset()
    _workspace.draw_anew()


def ImmediateBlobs() -> list[str]:
    """Return the names of the blobs in the immediate mode's workspace."""
    return _workspace.blobs()


def RunOperatorImmediate(op: OperatorDef) -> None:
    """Run an operator in the immediate mode's workspace."""
    _workspace.run_operator_once(op)


def FetchImmediate(name: Any) -> Any:
    """Return the value of a blob of the immediate mode's workspace."""
    return _workspace.fetch(blob_name(name))


def FeedImmediate(name: Any, arr: Any, device_option: DeviceOption | None = None) -> bool:
    """Set a blob of the immediate mode's workspace; return True."""
    _workspace.feed(blob_name(name), arr, device_option)
    return True
