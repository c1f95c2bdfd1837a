"""Name scopes and device scopes."""

from netbuilder.caffe2.absent import names_of
from netbuilder.graph.scope import (
    SEPARATOR,
    CurrentDeviceScope,
    CurrentNameScope,
    DeviceScope,
    EmptyDeviceScope,
    EmptyNameScope,
    NameScope,
)

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
