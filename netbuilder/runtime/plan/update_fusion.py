"""Joined updates: the operators that update parameters become few calls, each over many parameters.

A group are updates of one device with nothing between them that depends on them. It stands where its last operator
stood, so the others move behind what lies between: that must not read what they write, nor write what they read or
write. Within a group, operators that depend on one another (a weight decay, the update behind it) are a chain; chains
do not depend on one another. See ``runtime.update_kernel`` for how a group runs.

What nobody can see is not written: a gradient with its decay, and the step that an update leaves in the place of the
gradient, if that blob is not observable. A step that is the same as the new moment is copied when it is fetched.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import Prepared
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.engines.layouts import HOST, convert
from netbuilder.ops.engines.piecewise import Piecewise
from netbuilder.runtime.plan.fused_update import Chain, joined_updates, make_piecewise
from netbuilder.runtime.plan.values import Node, Value
from netbuilder.runtime.values.blob import EdgeContext

__all__ = ["join_updates"]


def join_updates(nodes: Sequence[Node], last: Mapping[str, Value], hidden: Collection[str] = ()) -> list[Node]:
    """Return the nodes of a plan with neighboring updates joined.

    Args:
        nodes: operators over values, in order.
        last: the last version of each name, which stays observable.
        hidden: names of which no version is observable.
    """
    awaited = {name for node in nodes for part in node.parts for name in part.control}
    open_groups: dict[tuple[int, int], _Group] = {}
    groups: list[_Group] = []
    for index, node in enumerate(nodes):
        device = node.first.device
        made = _update(node, awaited)
        for other, group in list(open_groups.items()):
            if (made is None or other != device) and group.is_passed_by(node):
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
            joined = _joined(group, [nodes[i] for i in group.indices], readers, last, hidden)
            for i in group.indices:
                result[i] = None
            result[group.indices[-1]] = joined
    return [node for node in result if node is not None]


def _update(node: Node, awaited: Collection[str]) -> Piecewise | None:
    """Return what a node does to pieces of its tensors; None if it is no update that can be joined."""
    instruction = node.first
    if len(node.parts) > 1 or node.fused is not None or instruction.location != HOST:
        return None
    if instruction.control or any(name in awaited for name in instruction.outputs):
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
    """Updates that may be done together, as chains."""

    def __init__(self) -> None:
        self.indices: list[int] = []
        self.chains: list[Chain] = []
        self._maker: dict[int, Chain] = {}  # value -> the chain that makes it
        self._writes: dict[str, Chain] = {}
        self._reads: dict[str, list[Chain]] = {}  # tensors
        self._numbers: set[str] = set()

    def is_passed_by(self, node: Node) -> bool:
        """Whether the group has to be done before a node that stands behind it."""
        if any(id(value) in self._maker for value in node.inputs):
            return True
        return any(value.name in self._writes or value.name in self._reads or value.name in self._numbers
                   for value in node.outputs)  # fmt: skip

    def accepts(self, index: int, node: Node, made: Piecewise) -> bool:
        """Take an update in; False if it has to come after the whole group."""
        touched: dict[int, Chain] = {}
        for i, value in enumerate(node.inputs):
            chain = self._maker.get(id(value))
            if chain is None and value.name not in self._writes:
                continue
            if chain is None or i in made.numbers:
                return False  # it reads an old version, or a number that is made here
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


def _joined(
    group: _Group,
    originals: list[Node],
    readers: Mapping[int, Sequence[Node]],
    last: Mapping[str, Value],
    hidden: Collection[str],
) -> Node:
    """Return one node in the place of all nodes of a group."""
    chains = group.chains
    late: list[tuple[Value, Value, Value | None]] = []
    for chain in chains:
        for node, made in zip(chain.nodes, chain.made):
            for j, value in enumerate(node.outputs):
                reads = readers.get(id(value), ())
                read = any(reader not in chain.nodes for reader in reads)
                seen = last[value.name] is value and value.name not in hidden
                source = _twin(node, made.copies.get(j), last, hidden)
                if seen and not reads and source is not None and _may_be_late(chain, value):
                    late.append((value, source, _before(chain, value)))
                elif seen or read:
                    chain.outputs.append(value)
    numbers = {id(value): value for chain in chains for value in chain.numbers()}
    inputs = [*(value for chain in chains for value in chain.tensors), *numbers.values()]
    outputs = [value for chain in chains for value in chain.outputs]

    def maker(ctx: Any, *specs: TensorSpec) -> Prepared | None:
        made = joined_updates(chains, inputs, outputs, specs, ctx.threads)
        for value, source, before in late if made is not None else ():
            value.lazy, value.lazy_reads, value.lazy_from = _copy_of(source), (source,), before
            value.guarded = True
        return made

    parts = [node.first for node in originals]
    return Node(parts, inputs, outputs, maker, originals=originals)


def _twin(node: Node, output: int | None, last: Mapping[str, Value], hidden: Collection[str]) -> Value | None:
    """Return an output of a node if it lies in its blob after a run."""
    if output is None:
        return None
    value = node.outputs[output]
    return value if last[value.name] is value and value.name not in hidden else None


def _may_be_late(chain: Chain, value: Value) -> bool:
    """Whether a value can be left to be computed: its blob holds nothing from before that has to go another way."""
    before = _before(chain, value)
    if before is not None:
        return before.blob is None
    return any(out.name == value.name and out.version == 0 for node in chain.nodes for out in node.outputs)


def _before(chain: Chain, value: Value) -> Value | None:
    """Return the version of a name that a chain finds."""
    return next((tensor for tensor in chain.tensors if tensor.name == value.name), None)


def _copy_of(source: Value) -> Callable[[], Any]:
    def compute() -> Any:
        assert source.spec is not None
        if source.spec.layout is None:
            return np.array(source.buffer)
        return convert(source.buffer, source.spec, source.spec.plain, EdgeContext(), location=source.location)

    return compute
