"""The protobuf message of a net or plan."""

from __future__ import annotations

from typing import Any, TypeVar, overload

from netbuilder.proto import NetDef, NetError, PlanDef, files

__all__ = ["message_of"]

Message = TypeVar("Message", NetDef, PlanDef)


@overload
def message_of(thing: Any) -> NetDef: ...


@overload
def message_of(thing: Any, kind: type[Message]) -> Message: ...


def message_of(thing: Any, kind: type[Any] = NetDef) -> Any:
    """Return the message of a Net, a Plan, or another object with ``Proto()``.

    Bytes are parsed; a message is returned as it is.

    Raises:
        NetError: ``thing`` is none of these.
        ParseError: the bytes are truncated or another message.

    >>> message_of(NetDef(name="net").SerializeToString()).name
    'net'
    """
    if isinstance(thing, kind):
        return thing
    if isinstance(thing, bytes):
        return files.parse(thing, kind)
    proto = thing.Proto() if callable(getattr(type(thing), "Proto", None)) else None
    if not isinstance(proto, kind):
        name = kind.DESCRIPTOR.name
        short = name.removesuffix("Def")
        raise NetError(f"expected a {short}, a {name} or its bytes, got {thing!r} of type {type(thing).__name__}")
    return proto
