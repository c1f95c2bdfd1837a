"""Fused updates: the operators that update parameters become few calls, each over many parameters.

A group consists of updates on one device. It runs at the position of its last operator, so the others move after the
operators in between: these must not read what the updates write, nor write what they read or write. Within a group,
operators that depend on one another (a weight decay, and the update after it) form a chain; chains do not depend on one
another. See ``runtime.plan.fused_update`` for how a group runs.

Values that are not visible are not written: a gradient with its decay, and the step that an update writes over the
gradient, if that blob is not observable. A visible step that equals the new moment is copied when it is fetched.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import Prepared
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.engines.layouts import HOST
from netbuilder.ops.engines.piecewise import Piecewise
from netbuilder.runtime.plan.fused_update import Chain, make_piecewise, prepare_chains
from netbuilder.runtime.plan.values import Node, Value

__all__ = ["fuse_updates"]


def fuse_updates(nodes: Sequence[Node], last: Mapping[str, Value], hidden: Collection[str] = ()) -> list[Node]:
    """Return the nodes of a plan with groups of updates fused.

    Args:
        nodes: operators over values, in order.
        last: the last version of each name.
        hidden: names of which no version is observable.
    """
    controls = {name for node in nodes for part in node.parts for name in part.control}
    open_groups: dict[tuple[int, int], _Group] = {}
    groups: list[_Group] = []
    for index, node in enumerate(nodes):
        device = node.first.device
        made = _piecewise_update(node, controls)
        for other, group in list(open_groups.items()):
            if (made is None or other != device) and group.must_precede(node):
                del open_groups[other]
        if made is None:
            continue
        if device not in open_groups or not open_groups[device].accepts(index, node, made):
            groups.append(_Group())
            open_groups[device] = groups[-1]
            groups[-1].accepts(index, node, made)
    result: list[Node | None] = list(nodes)
    readers = _readers(nodes)
    for group in groups:
        if len(group.indices) > 1:
            fused = _fused_node(group, [nodes[i] for i in group.indices], readers, last, hidden)
            for i in group.indices:
                result[i] = None
            result[group.indices[-1]] = fused
    return [node for node in result if node is not None]


def _piecewise_update(node: Node, controls: Collection[str]) -> Piecewise | None:
    """Return a node's operator as calls on pieces of its tensors; None if it is not an update that can be fused.

    Args:
        node: the node.
        controls: names of the control inputs of all nodes.
    """
    instruction = node.first
    if len(node.parts) > 1 or node.fused is not None or instruction.location != HOST:
        return None
    if instruction.control or any(name in controls for name in instruction.outputs):
        return None
    if instruction.op_def.type == "WeightedSum" and instruction.outputs[0] != instruction.inputs[0]:
        return None
    if len({*instruction.outputs}) < len(instruction.outputs) or any(value.location != HOST for value in node.inputs):
        return None
    made = make_piecewise(node)
    if made is None or any(instruction.inputs[i] in instruction.outputs for i in made.numbers):
        return None
    return made


def _readers(nodes: Iterable[Node]) -> dict[int, list[Node]]:
    readers: dict[int, list[Node]] = {}
    for node in nodes:
        for value in node.inputs:
            readers.setdefault(id(value), []).append(node)
    return readers


class _Group:
    """Updates that can run as one call, in chains."""

    def __init__(self) -> None:
        self.indices: list[int] = []
        self.chains: list[Chain] = []
        self._maker: dict[int, Chain] = {}  # value -> the chain that makes it
        self._writes: dict[str, Chain] = {}
        self._reads: dict[str, list[Chain]] = {}  # tensors
        self._numbers: set[str] = set()

    def must_precede(self, node: Node) -> bool:
        """Whether a later node reads what the group writes, or writes what the group reads or writes."""
        if any(id(value) in self._maker for value in node.inputs):
            return True
        return any(value.name in self._writes or value.name in self._reads or value.name in self._numbers
                   for value in node.outputs)  # fmt: skip

    def accepts(self, index: int, node: Node, made: Piecewise) -> bool:
        """Add an update and return True, or return False if it has to come after the whole group."""
        touched: dict[int, Chain] = {}
        for i, value in enumerate(node.inputs):
            chain = self._maker.get(id(value))
            if chain is None and value.name not in self._writes:
                continue
            if chain is None or i in made.numbers:
                return False  # it reads an old version, or a number that the group makes
            touched[id(chain)] = chain
        for value in node.outputs:
            if value.name in self._numbers:
                return False
            touched |= {id(chain): chain for chain in self._reads.get(value.name, ())}
            if value.name in self._writes:
                touched[id(self._writes[value.name])] = self._writes[value.name]
        if len(touched) > 1 or any(_shape(chain.nodes[0]) != _shape(node) for chain in touched.values()):
            return False
        chain = next(iter(touched.values()), None)
        if chain is None:
            chain = Chain()
            self.chains.append(chain)
        self._add(chain, index, node, made)
        return True

    def _add(self, chain: Chain, index: int, node: Node, made: Piecewise) -> None:
        self.indices.append(index)
        chain.nodes.append(node)
        chain.made.append(made)
        for i, value in enumerate(node.inputs):
            if i in made.numbers:
                self._numbers.add(value.name)
                continue
            self._reads.setdefault(value.name, []).append(chain)
            if id(value) not in self._maker and value not in chain.tensors:
                chain.tensors.append(value)
        for value in node.outputs:
            self._maker[id(value)] = chain
            self._writes[value.name] = chain


def _shape(node: Node) -> tuple[Any, ...]:
    spec = node.outputs[0].spec
    assert spec is not None
    return spec.shape, spec.dtype


def _fused_node(
    group: _Group,
    originals: list[Node],
    readers: Mapping[int, Sequence[Node]],
    last: Mapping[str, Value],
    hidden: Collection[str],
) -> Node:
    """Return the node that replaces all nodes of a group."""
    chains = group.chains
    deferred: list[tuple[Value, Value, Value | None]] = []
    for chain in chains:
        for node, made in zip(chain.nodes, chain.made):
            for j, value in enumerate(node.outputs):
                reads = readers.get(id(value), ())
                read = any(reader not in chain.nodes for reader in reads)
                visible = last[value.name] is value and value.name not in hidden
                source = _equal_output(node, made.copies.get(j), last, hidden)
                if visible and not reads and source is not None and _may_defer(chain, value):
                    deferred.append((value, source, _before(chain, value)))
                elif visible or read:
                    chain.outputs.append(value)
    numbers = {id(value): value for chain in chains for value in chain.numbers()}
    inputs = [*(value for chain in chains for value in chain.tensors), *numbers.values()]
    outputs = [value for chain in chains for value in chain.outputs]

    def maker(ctx: Any, *specs: TensorSpec) -> Prepared | None:
        made = prepare_chains(chains, inputs, outputs, specs, ctx.threads)
        for value, source, before in deferred if made is not None else ():
            value.lazy, value.lazy_reads, value.lazy_from = _copy_of(source), (source,), before
            value.guarded = True
        return made

    parts = [node.first for node in originals]
    return Node(parts, inputs, outputs, maker, originals=originals)


def _equal_output(node: Node, output: int | None, last: Mapping[str, Value], hidden: Collection[str]) -> Value | None:
    """Return the output that equals another one, if its blob has it after a run."""
    if output is None:
        return None
    value = node.outputs[output]
    return value if last[value.name] is value and value.name not in hidden else None


def _may_defer(chain: Chain, value: Value) -> bool:
    """Whether a value can be deferred: it has no earlier version, or its chain reads one that the plan made."""
    before = _before(chain, value)
    if before is not None:
        return before.blob is None
    return any(out.name == value.name and out.version == 0 for node in chain.nodes for out in node.outputs)


def _before(chain: Chain, value: Value) -> Value | None:
    """Return the version of a value's name that its chain reads from outside, if any."""
    return next((tensor for tensor in chain.tensors if tensor.name == value.name), None)


def _copy_of(source: Value) -> Callable[[], Any]:
    def compute() -> Any:
        plain = source.plain()
        return np.array(plain) if plain is source.buffer else plain

    return compute
