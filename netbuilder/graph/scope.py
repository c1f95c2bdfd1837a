"""Name scopes and device scopes: prefix of the names and device of the operators made inside a ``with`` block."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dis import opname
from inspect import CO_ASYNC_GENERATOR, CO_GENERATOR
from types import FrameType
from typing import Generic, TypeVar

from netbuilder.proto import DeviceOption
from netbuilder.proto.call_checks import checked
from netbuilder.proto.late_dataclass import dataclass

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
    """The active scopes of one kind.

    A scope entered by a generator is active while that generator runs, not while it is suspended. Other
    scopes are active until they are exited; each thread and each asynchronous task has its own. Scopes may be exited
    in another order than the reverse of entering.

    Args:
        name: name of the context variable.
        outermost: the value outside all scopes.
    """

    def __init__(self, name: str, outermost: _Value) -> None:
        self._outermost = outermost
        self._entered: ContextVar[tuple[_Entry[_Value], ...]] = ContextVar(name, default=())
        self._of_generators: dict[FrameType, list[_Entry[_Value]]] = {}

    def current(self) -> _Value:
        """Return the value of the innermost active scope."""
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
        """Make ``value`` the current one in the block."""
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
    """A scope that was entered; compared by identity, since several may have the same value."""

    value: _Value


def _suspending_generator(frame: FrameType | None) -> FrameType | None:
    """Return the innermost generator on the stack whose scopes end while it is suspended; None if there is none.

    Generators that contextlib runs as context managers do not count, because the scopes they enter are meant for the
    ``with`` block; neither do generators that these delegate to by ``yield from``.
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
    """Return the current prefix of names, which ends in "/"; "" outside all scopes."""
    return _name_scopes.current()


def CurrentDeviceScope() -> DeviceOption | None:
    """Return the current device of new operators, which must not be changed; None outside all scopes."""
    return _device_scopes.current()


@checked("prefix")
@contextmanager
def NameScope(prefix: str | None, reset: bool = False) -> Iterator[None]:
    """Prefix the names made in the block with ``prefix`` and "/".

    If a generator yields inside the block, the scope is not active in the code that it yields to, unless it
    is a context manager of contextlib; once resumed, it has the scope again.

    Args:
        prefix: added to the enclosing scope; "" or None adds nothing.
        reset: replace the enclosing scope instead of adding to it.

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
    """Use no prefix in the block, regardless of enclosing scopes."""
    with _name_scopes.enter(""):
        yield


@checked("scope")
@contextmanager
def DeviceScope(scope: DeviceOption, node_name: str | None = None) -> Iterator[None]:
    """Set the device of the operators made in the block.

    From the enclosing scope only ``node_name``, if neither argument has one, and ``extra_info``, which comes first,
    are inherited.

    Args:
        scope: the device; it is copied.
        node_name: the host, instead of the one in ``scope``.

    Raises:
        TypeError: ``scope`` is not a DeviceOption.
    """
    if not isinstance(scope, DeviceOption):
        raise TypeError(
            "DeviceScope: scope must be a DeviceOption, for example make_device_option(PROTO_CPU, 1) of "
            f"netbuilder.proto.arguments (in Caffe2's names core.DeviceOption(caffe2_pb2.CPU, 1)), got {scope!r}"
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
    """Set no device for the operators made in the block, regardless of enclosing scopes."""
    with _device_scopes.enter(None):
        yield
