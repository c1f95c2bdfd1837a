"""Workspaces of their own for ONNX models, with the functions of ``workspace`` as methods."""

from __future__ import annotations

import uuid
from typing import Any

from netbuilder.caffe2.missing import names_of
from netbuilder.caffe2.python import workspace as functions
from netbuilder.runtime.execute import default

__all__ = ["Workspace"]

__getattr__ = names_of(__name__)


class Workspace:
    """A workspace that no other code uses; its blobs and nets go with this object.

    Each function of ``caffe2.python.workspace`` is a method, which works on this workspace and leaves the current one
    as it is. In a ``with`` statement this workspace is the current one.

    >>> ws = Workspace()
    >>> ws.FeedBlob("x", 1.5)
    True
    >>> ws.HasBlob("x"), functions.HasBlob("x")
    (True, False)
    """

    def __init__(self) -> None:
        self.workspace_id = str(uuid.uuid4())
        self._before: list[str] = []

    def __getattr__(self, attr: str) -> Any:
        if attr.startswith("_") or not callable(function := getattr(functions, attr)):
            raise AttributeError(f"onnx.workspace: Workspace has no method {attr!r}")

        def call(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return call

    def __enter__(self) -> Workspace:
        self._before.append(functions.CurrentWorkspace())
        functions.SwitchWorkspace(self.workspace_id, True)
        return self

    def __exit__(self, *exception: object) -> None:
        functions.SwitchWorkspace(self._before.pop(), True)

    def __del__(self) -> None:
        default.remove(self.workspace_id)
