"""Name scopes and device scopes: what the names and operators made inside a ``with`` block get."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from netbuilder.proto import DeviceOption

__all__ = [
    "SEPARATOR",
    "CurrentDeviceScope",
    "CurrentNameScope",
    "DeviceScope",
    "EmptyDeviceScope",
    "EmptyNameScope",
    "NameScope",
]

SEPARATOR = "/"
"""What stands between the parts of a blob's name."""

# Context variables: each thread, and each asynchronous task, has scopes of its own.
_name_scope: ContextVar[str] = ContextVar("netbuilder_name_scope", default="")
_device_scope: ContextVar[DeviceOption | None] = ContextVar("netbuilder_device_scope", default=None)


def CurrentNameScope() -> str:
    """Return the prefix of names made here: "" outside all scopes, else one that ends in "/"."""
    return _name_scope.get()


def CurrentDeviceScope() -> DeviceOption | None:
    """Return the device of operators made here; None outside all scopes. It is not to be changed."""
    return _device_scope.get()


@contextmanager
def NameScope(prefix: str | None, reset: bool = False) -> Iterator[None]:
    """Put ``prefix`` and "/" before the names made in the block.

    Args:
        prefix: added to the scope around; "" or None adds nothing.
        reset: start anew instead of adding to the scope around.

    Raises:
        TypeError: ``prefix`` is not a string.

    >>> with NameScope("a"), NameScope("b"):
    ...     CurrentNameScope()
    'a/b/'
    """
    if prefix is not None and not isinstance(prefix, str):
        raise TypeError(f"NameScope: prefix must be a string, got {prefix!r}")
    added = prefix + SEPARATOR if prefix else ""
    token = _name_scope.set(added if reset else _name_scope.get() + added)
    try:
        yield
    finally:
        _name_scope.reset(token)


@contextmanager
def EmptyNameScope() -> Iterator[None]:
    """Use no prefix in the block, whatever scopes are around it."""
    token = _name_scope.set("")
    try:
        yield
    finally:
        _name_scope.reset(token)


@contextmanager
def DeviceScope(scope: DeviceOption, node_name: str | None = None) -> Iterator[None]:
    """Give the operators made in the block a device.

    Of a scope around it only ``node_name``, where neither argument has one, and ``extra_info``,
    which comes first, are kept.

    Args:
        scope: the device; it is copied.
        node_name: the host, in the place of the one in ``scope``.

    Raises:
        TypeError: ``scope`` is not a DeviceOption.
    """
    if not isinstance(scope, DeviceOption):
        raise TypeError(
            "DeviceScope: needs a DeviceOption, as netbuilder.proto.arguments.make_device_option(PROTO_CPU, 1) makes "
            f"one (in Caffe2's names core.DeviceOption(caffe2_pb2.CPU, 1)), got {scope!r}"
        )
    token = _device_scope.set(_merged(_device_scope.get(), scope, node_name))
    try:
        yield
    finally:
        _device_scope.reset(token)


def _merged(outer: DeviceOption | None, inner: DeviceOption, node_name: str | None) -> DeviceOption:
    device = DeviceOption()
    device.CopyFrom(inner)
    if node_name:
        device.node_name = node_name
    if outer is not None:
        if not device.HasField("node_name") and outer.HasField("node_name"):
            device.node_name = outer.node_name
        if outer.extra_info:
            del device.extra_info[:]
            device.extra_info.extend([*outer.extra_info, *inner.extra_info])
    return device


@contextmanager
def EmptyDeviceScope() -> Iterator[None]:
    """Give the operators made in the block no device, whatever scopes are around it."""
    token = _device_scope.set(None)
    try:
        yield
    finally:
        _device_scope.reset(token)
