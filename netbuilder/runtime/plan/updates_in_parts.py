"""Updates in parts: some rows of a large matrix's gradient are computed, then these rows of the matrix are updated.

So the gradient of an FC's weights, which is as large as they are, never exists as a whole, and an update reads a part
of it while that is in the caches. The kernel of the gradient says how it is divided (``InParts``); that
of the update works on any tensors of one shape. Its other outputs, among them dX, which
depends on the old weights, are computed first. The results are equal to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from netbuilder.engines.arrays import as_flat
from netbuilder.engines.layouts import HOST
from netbuilder.ops.core import extensions
from netbuilder.ops.core.contexts import Call, Prepared
from netbuilder.ops.core.extensions import DeferredOutputs, InParts
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.runtime.plan.update_chain import Chain, joined
from netbuilder.runtime.plan.values import Node, Value

__all__ = ["Choose", "gradient_of_chain", "update_with_gradient"]

Choose = Callable[[Node, Any], Prepared | None]
"""Returns the kernel of a node, given its plan context."""

_ALIGNMENT = 64


def gradient_of_chain(
    chain: Chain, maker: Mapping[Value, Node], readers: Mapping[Value, Sequence[Node]], hidden: Collection[str]
) -> Node | None:
    """Return the node that makes the large gradient which a chain of updates reads, if nobody else needs it.

    Args:
        chain: the updates of one parameter.
        maker: by value, the node that makes it.
        readers: by value, the nodes that read it.
        hidden: names of which no version is observable.
    """
    for value in chain.tensors if chain.nodes[0].first.location == HOST else ():
        node = maker.get(value)
        if node is None or node.fused is not None or len(node.parts) > 1 or node.outputs[0] is not value:
            continue
        if value.name not in hidden or value.spec is None or value.spec.ndim < 2:
            continue
        if value.spec.nbytes < extensions.LARGE_GRADIENT:
            continue
        if node.first.op_def.is_gradient_op and all(reader in chain.nodes for reader in readers[value]):
            return node
    return None


def update_with_gradient(gradient: Node, chain: Chain, update: Node, choose: Choose) -> Node:
    """Return the node that computes a gradient and updates its parameter, in parts.

    Args:
        gradient: makes the gradient, as its output 0.
        chain: the updates.
        update: the fused node of the chain.
        choose: chooses the kernel of the gradient.
    """
    value = gradient.outputs[0]
    at = update.inputs.index(value)
    inputs = [*gradient.inputs, *update.inputs[:at], *update.inputs[at + 1 :]]
    given = update.locations
    assert given is not None and update.fused is not None
    locations = [gradient.input_location(i) for i in range(len(gradient.inputs))]
    locations += [*given[:at], *given[at + 1 :]]
    prepare_update = update.fused

    def maker(ctx: Any, *specs: TensorSpec) -> Prepared | None:
        first = choose(gradient, ctx)
        parts = first.get(InParts) if first is not None else None
        if first is None or parts is None or first.get(DeferredOutputs) or value.spec is None:
            return None
        own = [*specs[len(gradient.inputs) :]]
        own.insert(at, value.spec.plain)
        whole = prepare_update(ctx, *own)
        if whole is None or any(spec != own[at] for spec in _tensors(chain, whole)):
            return None
        row = own[at].size // own[at].shape[0]
        rows = own[at].with_shape((parts.rows, row))
        of_rows = [rows if i < len(chain.tensors) else spec for i, spec in enumerate(own)]
        numbers = [*dict(chain.numbers_read())]
        one = chain.engine.join_updates(ctx, joined([chain], chain.tensors, numbers, chain.outputs, of_rows))
        return None if one is None else _prepared(gradient, update, at, first, parts, whole, one)

    originals = [gradient, chain.nodes[0] if len(chain.nodes) == 1 else update]
    return Node(
        [*gradient.parts, *update.parts], inputs, [*gradient.outputs, *update.outputs], maker, originals, locations
    )


def _tensors(chain: Chain, kernel: Prepared) -> list[TensorSpec | None]:
    """Return the specs of all tensors that the kernel of a chain reads and writes."""
    return [*kernel.inputs[: len(chain.tensors)], *kernel.outputs]


def _prepared(
    gradient: Node, update: Node, at: int, first: Prepared, parts: InParts, whole: Prepared, one: Prepared
) -> Prepared:
    """Return the kernel of a gradient and its update.

    Args:
        gradient, update: the nodes.
        at: the index of the gradient among the inputs of the update.
        first: the kernel of the gradient.
        parts: how it is divided.
        whole: the kernel of the update.
        one: the kernel of the update of one part.
    """
    n_in, n_out = len(gradient.inputs), len(gradient.outputs)
    spec = whole.inputs[at]
    assert spec is not None
    count, nbytes = spec.shape[0], spec.nbytes // spec.shape[0] * parts.rows
    begin = -(-nbytes // _ALIGNMENT) * _ALIGNMENT

    def bind(ins: Sequence[Any], outs: Sequence[Any], scratch: Any) -> Call:
        own_ins, own_outs, work = ins[:n_in], outs[:n_out], scratch[begin:]
        made = as_flat(scratch[:nbytes], np.dtype(spec.dtype)).reshape(parts.rows, -1)
        calls = [parts.rest.bind(own_ins, own_outs, work)]
        for start in range(0, count, parts.rows):

            def of_part(buffers: Sequence[Any], kernel: Sequence[TensorSpec | None], start: int = start) -> list[Any]:
                """Return the rows of tensors; numbers stay as they are."""
                return [
                    buffer.reshape(count, -1)[start : start + parts.rows] if tensor == spec else buffer
                    for buffer, tensor in zip(buffers, kernel)
                ]

            reads = of_part(ins[n_in:], [*whole.inputs[:at], *whole.inputs[at + 1 :]])
            reads.insert(at, made)
            calls.append(parts.part(start).bind(own_ins, [made], work))
            calls.append(one.bind(reads, of_part(outs[n_out:], whole.outputs), work))

        def call() -> None:
            for each in calls:
                each()

        return call

    return Prepared(
        [*first.inputs, *whole.inputs[:at], *whole.inputs[at + 1 :]],
        [None, *first.outputs[1:], *whole.outputs],
        bind,
        scratch=begin + max(parts.rest.scratch, parts.part(0).scratch, one.scratch),
        inplace=_inplace(gradient, update, at, whole),
        name=f"{first.name} + {whole.name}, in {count // parts.rows} parts",
        engine=first.engine,
    )


def _inplace(gradient: Node, update: Node, at: int, whole: Prepared) -> list[tuple[int, int]]:
    """Return the pairs that may share a buffer: those of the update; the gradient has read the weights before it."""
    pairs = []
    for i, j in whole.inplace:
        if i != at:
            target = len(gradient.outputs) + j
            pairs.append((len(gradient.inputs) + i - (i > at), target))
            pairs += [(k, target) for k, value in enumerate(gradient.inputs) if value is update.inputs[i]]
    return pairs
