"""Blobs with objects, such as counters and maps, that several operators share."""

from __future__ import annotations

from typing import Any, TypeVar

from netbuilder.ops.core.operator import Operator
from netbuilder.proto import NetError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["OnHost", "shared_object"]

_Kind = TypeVar("_Kind")


@dataclass(frozen=True)
class OnHost(Operator):
    """Base: works on an object in a blob, on the host."""

    stateful = True
    outputs_on_host = True
    inputs_on_host = True
    flops_per_element = 0


def shared_object(op: Operator, value: Any, kind: type[_Kind], maker: str) -> _Kind:
    """Return ``value`` if it is of ``kind``.

    Raises:
        NetError: it is not; the message names ``maker``, the operator that makes such objects.
    """
    if not isinstance(value, kind):
        raise NetError(f"{op.type}: input 0 must be what {maker} makes, got {type(value).__name__}")
    return value
