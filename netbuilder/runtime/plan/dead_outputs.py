"""Outputs that no operator reads: which a plan need not compute, and which it may compute when they are fetched.

Of an output that nobody reads, and that is overwritten or not observable, nothing is computed. One that is observable
(the gradient of the images) may be left to a fetch, by a kernel that knows how to compute it later from what its
inputs still hold then, and from copies of what changes until then (a parameter that is updated).

What is left to a fetch is computed before somebody overwrites what it is computed from: a feed, or another net (see
``Blob.settle``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import Later
from netbuilder.ops.core.operator import STRING
from netbuilder.ops.engines.arrays import aligned_empty
from netbuilder.ops.engines.layouts import HOST, convert, new_buffer
from netbuilder.runtime.plan.values import Node, Value
from netbuilder.runtime.values.blob import EdgeContext

__all__ = ["late_value", "note_demand"]


def note_demand(
    nodes: Sequence[Node], last: Mapping[str, Value], hidden: frozenset[str], read_outside: Collection[str]
) -> None:
    """Note on the values of a plan which are not read in it, and which stay as they are until they are fetched.

    Args:
        nodes: operators over values, in order.
        last: the last version of each name.
        hidden: names of which no version is observable.
        read_outside: names of which the last version is read, or may be, by others than these nodes.
    """
    read = {id(value) for node in nodes for value in node.inputs}
    for node in nodes:
        for value in (*node.inputs, *node.outputs):
            value.stays = last[value.name] is value and value.name not in hidden and value.location == HOST
        for value in node.outputs:
            if id(value) in read:
                continue
            if last[value.name] is not value or value.name in hidden:
                value.demand = "never"
            elif value.stays and value.version == 0 and value.name not in read_outside:
                value.demand = "fetch"


def late_value(later: Later, inputs: Sequence[Value], threads: int) -> Callable[[], Any]:
    """Return what computes an output that a kernel has left to a fetch, in plain order.

    Args:
        later: how, as the kernel says.
        inputs: of the operator.
        threads: to compute with.
    """

    def compute() -> Any:
        prepared, context = later.prepare(), EdgeContext(threads)
        buffers: list[Any] = []
        for i, wanted in enumerate(prepared.inputs):
            if wanted is None:
                buffers.append(None)
                continue
            value = inputs[i]
            spec, buffer = value.spec, value.blob.buffer if value.blob is not None else value.buffer
            if i in later.kept:
                spec, buffer = later.kept[i].spec, later.kept[i].buffer
            assert spec is not None and spec.dtype != STRING
            buffers.append(buffer if spec == wanted else convert(buffer, spec, wanted, context))
        made = prepared.outputs[0]
        assert made is not None
        out = new_buffer(made)
        with np.errstate(all="ignore"):
            prepared.bind(buffers, [out], aligned_empty(prepared.scratch) if prepared.scratch else None)()
        return out if made.layout is None else convert(out, made, made.plain, context)

    return compute
