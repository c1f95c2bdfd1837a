"""Blobs with objects, such as counters and maps, that several operators share."""

from __future__ import annotations

from typing import Any, TypeVar

from netbuilder.ops.core.operator import Operator
from netbuilder.proto import NetError

__all__ = ["shared_object"]

_Kind = TypeVar("_Kind")


def shared_object(op: Operator, value: Any, kind: type[_Kind], maker: str) -> _Kind:
    """Return ``value`` if it is of ``kind``.

    Raises:
        NetError: it is not; the message names ``maker``, the operator that makes such objects.
    """
    if not isinstance(value, kind):
        raise NetError(f"{op.type}: input 0 must be what {maker} makes, got {type(value).__name__}")
    return value
