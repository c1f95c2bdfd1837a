"""The message of a net or plan."""

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
    """Return the message of a Net, a Plan, or what else has ``Proto()``; bytes are parsed, a message is itself.

    Raises:
        NetError: it is nothing of the kind.
        ParseError: the bytes are cut short or hold something else.

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
        raise NetError(f"needs a {name.removesuffix('Def')} or {name}, got {thing!r} of type {type(thing).__name__}")
    return proto
