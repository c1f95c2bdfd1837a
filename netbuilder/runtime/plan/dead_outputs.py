"""Outputs that no operator reads: a plan computes them when they are fetched, or not at all.

An output that no operator reads, and that is overwritten or not observable, is not computed. An observable one (the
gradient of the images) may be deferred until it is fetched, if its kernel can compute it then: from inputs that still
have their values, and from saved copies of those that have changed (a parameter that is updated).

A feed or another net may overwrite an input of a deferred value; the value is computed before that happens (see
``Blob.flush_readers``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from netbuilder.engines.layouts import HOST, Location, convert, new_buffer, new_bytes, on_location
from netbuilder.ops.core.extensions import Deferred
from netbuilder.ops.core.operator import STRING
from netbuilder.runtime.plan.graph import PlanGraph
from netbuilder.runtime.plan.values import Value
from netbuilder.runtime.values.blob import EdgeContext

__all__ = ["deferred_value", "mark_unused"]


def mark_unused(graph: PlanGraph) -> None:
    """Set ``demand``, ``persists``, ``read_by`` and ``ends_early`` of the values of a plan."""
    again = graph.options.enabled("cheap_recomputation")  # so values may be computed again in the backward pass
    nodes = graph.nodes
    read: dict[Value, bool] = {}  # value -> whether operators of the backward pass read it
    types: dict[Value, set[str]] = {}  # value -> the types of operators that read it
    for node in nodes:
        backward = any(part.op_def.is_gradient_op for part in node.parts)
        for value in node.inputs:
            read[value] = read.get(value, False) or backward
            types.setdefault(value, set()).update(part.op_def.type for part in node.parts)
    trains = True in read.values()
    given = {value.name for node in nodes for value in node.inputs if value.blob is not None}
    earliest: dict[str, int] = {}  # name -> the version that is the first, or the first that fusion has left
    for node in nodes:
        for value in (*node.inputs, *node.outputs):
            value.persists = graph.visible(value)
            earliest.setdefault(value.name, value.version)
    for node in nodes:
        read_here = {value.name for value in node.inputs}
        for value in node.outputs:
            value.read_by = types.get(value, set())
            outside = value.name in graph.read_outside
            if value in read:
                # Made anew: it is no earlier version, nor a blob from before the run, changed in place.
                anew = value.version == earliest[value.name] or value.name not in read_here | given
                value.ends_early = trains and value.persists and anew and not outside and (again or not read[value])
            elif not value.persists:
                value.demand = "never"
            elif value.name not in given and not outside:
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
