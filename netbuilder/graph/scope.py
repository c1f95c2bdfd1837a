"""Name scopes and device scopes: what the names and operators made inside a ``with`` block get."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from dis import opname
from inspect import CO_ASYNC_GENERATOR, CO_GENERATOR
from types import FrameType
from typing import Generic, TypeVar

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
"""The separator between the parts of a blob's name."""

_Value = TypeVar("_Value")

_SUSPENDS = CO_GENERATOR | CO_ASYNC_GENERATOR
_DELEGATES = frozenset({"SEND", "YIELD_FROM"})


class _Scopes(Generic[_Value]):
    """The scopes entered and not left yet, of one kind.

    A scope that a generator enters holds while that generator runs, not in the code that it is suspended for. Other
    scopes hold until they are left, each thread and each asynchronous task having its own. What is left need not be
    what was entered last.

    Args:
        name: of the context variable.
        outermost: the value outside all scopes.
    """

    def __init__(self, name: str, outermost: _Value) -> None:
        self._outermost = outermost
        self._entered: ContextVar[tuple[_Entry[_Value], ...]] = ContextVar(name, default=())
        self._of_generators: dict[FrameType, list[_Entry[_Value]]] = {}

    def current(self) -> _Value:
        """Return the value of the innermost scope that holds."""
        if self._of_generators:
            frame: FrameType | None = sys._getframe(1)
            while frame is not None:
                if entries := self._of_generators.get(frame):
                    return entries[-1].value
                frame = frame.f_back
        entered = self._entered.get()
        return entered[-1].value if entered else self._outermost

    @contextmanager
    def enter(self, value: _Value) -> Iterator[None]:
        """Let ``value`` hold in the block."""
        entry, owner = _Entry(value), _suspending_generator(sys._getframe(1))
        if owner is None:
            self._entered.set((*self._entered.get(), entry))
        else:
            self._of_generators.setdefault(owner, []).append(entry)
        try:
            yield
        finally:
            if owner is None:
                self._entered.set(tuple(other for other in self._entered.get() if other is not entry))
            else:
                entries = self._of_generators[owner]
                entries.remove(entry)
                if not entries:
                    del self._of_generators[owner]


@dataclass(frozen=True, eq=False)
class _Entry(Generic[_Value]):
    """A scope that was entered; another one of the same value is not it."""

    value: _Value


def _suspending_generator(frame: FrameType | None) -> FrameType | None:
    """Return the innermost generator on the stack that is suspended where it yields; None: there is none.

    One that contextlib runs as a context manager is not: what it enters is meant for the block of the ``with``. It
    may leave its work to another one by ``yield from``.
    """
    while frame is not None:
        caller = frame.f_back
        if frame.f_code.co_flags & _SUSPENDS and not (
            caller is not None and (caller.f_globals is vars(contextlib) or _delegates(caller))
        ):
            return frame
        frame = caller
    return None


def _delegates(frame: FrameType) -> bool:
    """Whether a frame is a generator that waits in ``yield from``."""
    return bool(frame.f_code.co_flags & CO_GENERATOR) and opname[frame.f_code.co_code[frame.f_lasti]] in _DELEGATES


_name_scopes: _Scopes[str] = _Scopes("netbuilder_name_scopes", "")
_device_scopes: _Scopes[DeviceOption | None] = _Scopes("netbuilder_device_scopes", None)


def CurrentNameScope() -> str:
    """Return the prefix of names made here: "" outside all scopes, else one that ends in "/"."""
    return _name_scopes.current()


def CurrentDeviceScope() -> DeviceOption | None:
    """Return the device of operators made here; None outside all scopes. It is not to be changed."""
    return _device_scopes.current()


@contextmanager
def NameScope(prefix: str | None, reset: bool = False) -> Iterator[None]:
    """Put ``prefix`` and "/" before the names made in the block.

    A generator that yields inside of the block does not carry the scope into the code that it yields to, unless it
    is a context manager of contextlib; once resumed, it has the scope again.

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
    with _name_scopes.enter(added if reset else CurrentNameScope() + added):
        yield


@contextmanager
def EmptyNameScope() -> Iterator[None]:
    """Use no prefix in the block, whatever scopes are around it."""
    with _name_scopes.enter(""):
        yield


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
    with _device_scopes.enter(_merged(CurrentDeviceScope(), scope, node_name)):
        yield


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
    with _device_scopes.enter(None):
        yield
