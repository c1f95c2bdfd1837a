"""Outputs that no operator reads: a plan computes them when they are fetched, or not at all.

An output that no operator reads, and that is overwritten or not observable, is not computed. An observable one (the
gradient of the images) may be deferred until it is fetched, if its kernel can compute it then: from inputs that still
have their values, and from saved copies of those that have changed (a parameter that is updated).

A feed or another net may overwrite an input of a deferred value; the value is computed before that happens (see
``Blob.flush_readers``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import Deferred
from netbuilder.ops.core.operator import STRING
from netbuilder.ops.engines.layouts import HOST, Location, convert, new_buffer, new_bytes, on_location
from netbuilder.runtime.plan.values import Node, Value
from netbuilder.runtime.values.blob import EdgeContext

__all__ = ["deferred_value", "mark_unused"]


def mark_unused(
    nodes: Sequence[Node],
    last: Mapping[str, Value],
    hidden: frozenset[str],
    read_outside: Collection[str],
    *,
    again: bool = False,
) -> None:
    """Set ``demand``, ``persists``, ``read_by`` and ``ends_early`` of the values of a plan.

    Args:
        nodes: operators over values, in order.
        last: the last version of each name.
        hidden: names of which no version is observable.
        read_outside: names whose last version operators outside the plan read, or may read.
        again: whether values may be computed again in the backward pass.
    """
    read: dict[int, bool] = {}  # value -> whether operators of the backward pass read it
    types: dict[int, set[str]] = {}  # value -> the types of operators that read it
    for node in nodes:
        backward = any(part.op_def.is_gradient_op for part in node.parts)
        for value in node.inputs:
            read[id(value)] = read.get(id(value), False) or backward
            types.setdefault(id(value), set()).update(part.op_def.type for part in node.parts)
    trains = True in read.values()
    given = {value.name for node in nodes for value in node.inputs if value.blob is not None}
    earliest: dict[str, int] = {}  # name -> the version that is the first, or the first that fusion has left
    for node in nodes:
        for value in (*node.inputs, *node.outputs):
            value.persists = last[value.name] is value and value.name not in hidden
            earliest.setdefault(value.name, value.version)
    for node in nodes:
        read_here = {value.name for value in node.inputs}
        for value in node.outputs:
            value.read_by = types.get(id(value), set())
            if id(value) in read:
                # Made anew: it is no earlier version, nor a blob from before the run, changed in place.
                anew = value.version == earliest[value.name] or value.name not in read_here | given
                ends = anew and value.name not in read_outside and (again or not read[id(value)])
                value.ends_early = trains and value.persists and ends
                continue
            if last[value.name] is not value or value.name in hidden:
                value.demand = "never"
            elif value.persists and value.name not in given and value.name not in read_outside:
                value.demand = "fetch"


def deferred_value(
    deferred: Deferred, inputs: Sequence[Value], threads: int, location: Location = HOST
) -> Callable[[], Any]:
    """Return a function that computes an output which the kernel does not write, in plain order.

    Args:
        deferred: the kernel's recipe for it.
        inputs: the inputs of the operator; those that the recipe reads are at ``location``.
        threads: how many threads the function may use.
        location: where the operator runs.
    """

    def compute() -> Any:
        prepared, context = deferred.prepare(), EdgeContext(threads)
        buffers: list[Any] = []
        for i, expected in enumerate(prepared.inputs):
            if expected is None:
                buffers.append(None)
                continue
            value = inputs[i]
            spec, buffer = value.spec, value.blob.buffer if value.blob is not None else value.buffer
            if i in deferred.saved:
                spec, buffer = deferred.saved[i].spec, deferred.saved[i].buffer
            assert spec is not None and spec.dtype != STRING
            same = spec == expected
            buffers.append(buffer if same else convert(buffer, spec, expected, context, location=location))
        made = prepared.outputs[0]
        assert made is not None
        out = new_buffer(made, location)
        scratch = new_bytes(prepared.scratch, location) if prepared.scratch else None
        with np.errstate(all="ignore"), on_location(location):
            prepared.bind(buffers, [out], scratch)()
        return out if made.layout is None else convert(out, made, made.plain, context, location=location)

    return compute
