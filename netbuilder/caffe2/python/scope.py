"""Name scopes and device scopes."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from netbuilder.caffe2.missing import names_of
from netbuilder.graph import scope as native
from netbuilder.graph.scope import (
    SEPARATOR,
    CurrentDeviceScope,
    CurrentNameScope,
    EmptyDeviceScope,
    EmptyNameScope,
    NameScope,
)
from netbuilder.proto import DeviceOption

__all__ = [
    "CurrentDeviceScope",
    "CurrentNameScope",
    "DeviceScope",
    "EmptyDeviceScope",
    "EmptyNameScope",
    "NameScope",
]

_NAMESCOPE_SEPARATOR = SEPARATOR

__getattr__ = names_of(__name__)


def DeviceScope(scope: Any, node_name: str | None = None) -> AbstractContextManager[None]:
    """Set the device of the operators created in the block.

    Args:
        scope: a DeviceOption; None or 0: no device.
        node_name: the host; overrides that of ``scope``.
    """
    return native.DeviceScope(scope or DeviceOption(), node_name)
