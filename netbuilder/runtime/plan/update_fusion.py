"""Fused updates: the operators that update parameters become few calls, each over many parameters.

A group consists of updates on one device that one engine joins. It runs at the position of its last
operator, so the others move after the operators in between: these must not read what the updates write, nor write what
they read or write. Within a group, operators that depend on one another (a weight decay, and the update after it) form
a chain; chains do not depend on one another.

Values that are not visible are not written: a gradient with its decay, and the step that an update writes over the
gradient, if that blob is not observable. A visible step that equals the new moment is copied when it is fetched.

Gradients that nobody can fetch need memory until their update has run. So large groups are divided into several, which
run during the backward pass, each as soon as its gradients are there. A large gradient of a matrix is not even computed
as a whole (``runtime.plan.updates_in_parts``).

Gradients that processes exchange arrive bucket after bucket. Large groups of their updates are divided by buckets, so
that those of one run while the next one is exchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from netbuilder.engines.engine import Engine
from netbuilder.engines.joined_updates import UpdateForm
from netbuilder.engines.layouts import on_location
from netbuilder.ops.core.contexts import Prepared
from netbuilder.ops.core.instructions import Role
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.runtime.plan.graph import PlanGraph
from netbuilder.runtime.plan.kernel_choice import choose_kernel
from netbuilder.runtime.plan.node_order import move_when_ready, ready_after
from netbuilder.runtime.plan.roles import between_processes
from netbuilder.runtime.plan.update_chain import Chain, joined
from netbuilder.runtime.plan.updates_in_parts import gradient_of_chain, update_with_gradient
from netbuilder.runtime.plan.values import Node, Value

__all__ = ["EARLY_BYTES", "fuse_updates"]


EARLY_BYTES = 4 << 20
"""Gradients of so many bytes are worth an update of their own, during the backward pass or the exchange."""


def fuse_updates(graph: PlanGraph) -> None:
    """Fuse groups of updates.

    Unless exchanges have a lane of their own, which needs the order of the net, they may run during the backward pass,
    those of large gradients with the kernel that computes the gradient, in parts.
    """
    options, nodes, last, hidden = graph.options, graph.nodes, graph.last, graph.hidden
    groups = _groups(nodes, graph.engines)
    if not groups:
        return
    early = options.enabled("early_updates") and not (graph.in_subgraph or options.exchange_lane)
    choose = partial(choose_kernel, options=options) if options.enabled("updates_in_parts") else None
    readers = graph.readers()
    moved: set[Node] = set()
    with_gradients: list[tuple[Chain, Node]] = []
    if early and choose is not None:
        when = _Readiness(nodes, groups)
        groups, with_gradients = _take_with_gradients(nodes, groups, readers, hidden, when)
        if with_gradients:
            graph.nodes = nodes = move_when_ready(nodes, lambda node: node in when.numbers)
    place = graph.places()
    groups, exchanged = _by_exchange(nodes, groups, place)
    if early:
        groups, moved = _divided(groups, hidden, _Readiness(nodes, groups))
    parts = [*exchanged, *((chains, _places(chains, place)[-1]) for chains in groups)]
    result = [[node] for node in nodes]
    for chains, _ in (*parts, *(([chain], 0) for chain, _ in with_gradients)):
        for index in _places(chains, place):
            result[index] = []
    for chain, gradient in with_gradients:
        assert choose is not None
        update = _fused_node([chain], chain.nodes, readers, last, hidden)
        result[place[gradient]] = [update_with_gradient(gradient, chain, update, choose)]
    for chains, position in parts:
        originals = [nodes[index] for index in _places(chains, place)]
        node = originals[0] if len(originals) == 1 else _fused_node(chains, originals, readers, last, hidden)
        result[position].append(node)
        if originals[-1] in moved:
            moved.add(node)
    graph.nodes = [node for of_place in result for node in of_place]
    if moved:
        graph.nodes = move_when_ready(graph.nodes, lambda node: node in moved)


def _places(chains: Iterable[Chain], place: Mapping[Node, int]) -> list[int]:
    return sorted(place[node] for chain in chains for node in chain.nodes)


def _by_exchange(
    nodes: Sequence[Node], groups: Sequence[list[Chain]], place: Mapping[Node, int]
) -> tuple[list[list[Chain]], list[tuple[list[Chain], int]]]:
    """Divide groups whose gradients processes exchange where enough bytes of them have arrived.

    Returns:
        The other groups; and the parts of these, in the order in which their gradients arrive, with the index of the
        node where they run, after those before them.
    """
    arrives: dict[Value, int] = {}  # the index of the collective that a value comes from
    for index, node in enumerate(nodes):
        if node.role is Role.EXCHANGE:
            own = index if between_processes(node) else max((arrives.get(v, -1) for v in node.inputs), default=-1)
            arrives.update((value, own) for value in node.outputs)
    others, found = [], []
    for chains in groups:
        when = {chain: max((arrives.get(v, -1) for v in chain.tensors), default=-1) for chain in chains}
        if max(when.values()) < 0:
            others.append(chains)
            continue
        position = _places(chains, place)[-1]
        parts: list[list[Chain]] = [[]]
        for chain in sorted(chains, key=lambda chain: when[chain]):
            full = sum(_bytes(each, arrives) for each in parts[-1]) >= EARLY_BYTES
            if full and when[chain] > when[parts[-1][-1]]:
                parts.append([])
            parts[-1].append(chain)
        found += [([chain for chain in chains if chain in part], position) for part in parts]
    return others, found


def _bytes(chain: Chain, arrives: Mapping[Value, int]) -> int:
    """Return the bytes of a chain's gradients that were exchanged."""
    return sum(value.spec.nbytes for value in chain.tensors if value in arrives and value.spec is not None)


@dataclass(frozen=True, eq=False)
class _Update:
    """The form of an update, and the engine that joins it with others."""

    form: UpdateForm
    engine: Engine


def _groups(nodes: Sequence[Node], engines: Mapping[int, Sequence[Engine]]) -> list[list[Chain]]:
    """Return the chains of updates in groups that can run as one call, at the position of the last update."""
    controls = {name: index for index, node in enumerate(nodes) for part in node.parts for name in part.control}
    open_groups: dict[tuple[tuple[int, int], Engine], _Group] = {}  # by device and engine
    groups: list[_Group] = []
    for index, node in enumerate(nodes):
        awaited = any(controls.get(value.name, -1) > index for value in node.outputs)
        made = None if awaited else _update(node, engines)
        key = (node.first.device, made.engine) if made is not None else None
        for other, group in list(open_groups.items()):
            if other != key and group.must_precede(node):
                del open_groups[other]
        if made is None or key is None:
            continue
        if key not in open_groups or not open_groups[key].accepts(node, made.form):
            groups.append(_Group(made.engine))
            open_groups[key] = groups[-1]
            groups[-1].accepts(node, made.form)
    return [group.chains for group in groups]


class _Readiness:
    """When updates can run at the earliest, if they and what makes their numbers move.

    Attributes:
        numbers: the nodes that make numbers for updates.
        after: the index of the node after which a node can run.
    """

    def __init__(self, nodes: Sequence[Node], groups: Sequence[Sequence[Chain]]) -> None:
        chains = [chain for group in groups for chain in group]
        self.numbers = _makers_of_numbers(nodes, [number for chain in chains for number in chain.numbers()])
        updates = {node for chain in chains for node in chain.nodes}
        after = ready_after(nodes, lambda node: node in updates or node in self.numbers)
        self.after = dict(zip(nodes, after))

    def of(self, chain: Chain) -> int:
        """Return the index of the node after which all updates of a chain can run."""
        return max(self.after[node] for node in chain.nodes)


def _take_with_gradients(
    nodes: Sequence[Node],
    groups: Sequence[Sequence[Chain]],
    readers: Mapping[Value, Sequence[Node]],
    hidden: Collection[str],
    when: _Readiness,
) -> tuple[list[list[Chain]], list[tuple[Chain, Node]]]:
    """Return the groups without the chains that can run together with the node that makes their gradient; and these."""
    maker = {value: node for node in nodes for value in node.outputs}
    rest: list[list[Chain]] = []
    found: list[tuple[Chain, Node]] = []
    for chains in groups:
        rest.append([])
        for chain in chains:
            gradient = gradient_of_chain(chain, maker, readers, hidden)
            if (
                gradient is not None
                and nodes[when.of(chain)] is gradient
                and _has_numbers(gradient, chain, maker, when)
            ):
                found.append((chain, gradient))
            else:
                rest[-1].append(chain)
    return [chains for chains in rest if chains], found


def _has_numbers(gradient: Node, chain: Chain, maker: Mapping[Value, Node], when: _Readiness) -> bool:
    """Whether the numbers of a chain are there before a node runs."""
    made = (maker.get(number) for number in chain.numbers())
    return all(node is None or when.after[node] < when.after[gradient] for node in made)


def _divided(
    groups: Sequence[Sequence[Chain]], hidden: Collection[str], when: _Readiness
) -> tuple[list[list[Chain]], set[Node]]:
    """Divide groups into those that can run one after another during the backward pass.

    Returns:
        The groups; and the nodes that move to where they can run.
    """
    found: list[list[Chain]] = []
    moved: set[Node] = set()
    for chains in groups:
        parts = _by_readiness(chains, when.of, hidden)
        found += parts
        if len(parts) > 1:
            moved |= when.numbers | {node for chain in chains for node in chain.nodes}
    return found, moved


def _makers_of_numbers(nodes: Sequence[Node], numbers: Iterable[Value]) -> set[Node]:
    """Return the nodes that make numbers, such as learning rates, from nothing but numbers."""
    maker = {value: node for node in nodes for value in node.outputs}
    found: set[Node] = set()
    wanted = [*numbers]
    while wanted:
        node = maker.get(wanted.pop())
        if node is None or node in found:
            continue
        if all(value.spec is not None and value.spec.size <= 1 for value in (*node.inputs, *node.outputs)):
            found.add(node)
            wanted += node.inputs
    return found


def _by_readiness(chains: Sequence[Chain], when: Callable[[Chain], int], hidden: Collection[str]) -> list[list[Chain]]:
    """Divide a group of chains where enough bytes of gradients that nobody can fetch are ready."""

    def freed(chain: Chain) -> int:
        return sum(value.spec.nbytes for value in chain.tensors if value.name in hidden and value.spec is not None)

    parts: list[list[Chain]] = [[]]
    total = 0
    for chain in sorted((chain for chain in chains if freed(chain)), key=when):
        if total >= EARLY_BYTES and when(chain) > when(parts[-1][-1]):
            parts.append([])
            total = 0
        parts[-1].append(chain)
        total += freed(chain)
    parts[-1] += [chain for chain in chains if not freed(chain)]
    order = {chain: index for index, chain in enumerate(chains)}
    return [sorted(part, key=lambda chain: order[chain]) for part in parts]


def _update(node: Node, engines: Mapping[int, Sequence[Engine]]) -> _Update | None:
    """Return the form of a node's operator; None if it is not an update that can be fused.

    Args:
        node: the node, whose outputs no later node has among its control inputs.
        engines: by kind of device.
    """
    instruction = node.first
    if len(node.parts) > 1 or node.fused is not None:
        return None
    if instruction.control:
        return None
    if instruction.op_def.type == "WeightedSum" and instruction.outputs[0] != instruction.inputs[0]:
        return None
    if len({*instruction.outputs}) < len(instruction.outputs):
        return None
    made = _form(node, engines.get(instruction.device[0], ()))
    if made is None or any(instruction.inputs[i] in instruction.outputs for i in made.form.numbers):
        return None
    tensors = [value for i, value in enumerate(node.inputs) if i not in made.form.numbers]
    return made if all(value.location == instruction.location for value in tensors) else None


def _form(node: Node, engines: Sequence[Engine]) -> _Update | None:
    specs = [value.spec.plain for value in node.inputs if value.spec is not None]
    forms = ((engine.update_form(node.first.op, *specs), engine) for engine in engines)
    return next((_Update(form, engine) for form, engine in forms if form is not None), None)


class _Group:
    """Updates that can run as one call, in chains."""

    def __init__(self, engine: Engine) -> None:
        self.chains: list[Chain] = []
        self._engine = engine
        self._maker: dict[Value, Chain] = {}  # the chain that makes a value
        self._writes: dict[str, Chain] = {}
        self._reads: dict[str, list[Chain]] = {}  # tensors
        self._numbers: set[str] = set()

    def must_precede(self, node: Node) -> bool:
        """Whether a later node reads what the group writes, or writes what the group reads or writes."""
        if any(value in self._maker for value in node.inputs):
            return True
        return any(value.name in self._writes or value.name in self._reads or value.name in self._numbers
                   for value in node.outputs)  # fmt: skip

    def accepts(self, node: Node, form: UpdateForm) -> bool:
        """Add an update and return True, or return False if it has to come after the whole group."""
        touched: dict[Chain, None] = {}
        for i, value in enumerate(node.inputs):
            chain = self._maker.get(value)
            if chain is None and value.name not in self._writes:
                continue
            if chain is None or i in form.numbers:
                return False  # it reads an old version, or a number that the group makes
            touched[chain] = None
        for value in node.outputs:
            if value.name in self._numbers:
                return False
            touched.update(dict.fromkeys(self._reads.get(value.name, ())))
            if value.name in self._writes:
                touched[self._writes[value.name]] = None
        if any(self._shape(chain.nodes[0]) != self._shape(node) for chain in touched):
            return False
        if not touched:
            self.chains.append(Chain(self._engine))
        chain, *others = [*touched] or self.chains[-1:]
        for other in others:
            self._merge(chain, other)
        self._add(chain, node, form)
        return True

    def _shape(self, node: Node) -> tuple[Any, ...]:
        """Return what the operators of a chain have in common."""
        spec = node.outputs[0].spec
        assert spec is not None
        return spec.shape

    def _merge(self, chain: Chain, other: Chain) -> None:
        """Make another chain a part of a chain, since an update depends on both."""
        self.chains.remove(other)
        for value in other.tensors:
            self._reads[value.name] = [each for each in self._reads[value.name] if each is not other]
        for node, form in zip(other.nodes, other.forms):
            self._add(chain, node, form)

    def _add(self, chain: Chain, node: Node, form: UpdateForm) -> None:
        chain.nodes.append(node)
        chain.forms.append(form)
        for i, value in enumerate(node.inputs):
            if i in form.numbers:
                self._numbers.add(value.name)
                continue
            self._reads.setdefault(value.name, []).append(chain)
            if value not in self._maker and value not in chain.tensors:
                chain.tensors.append(value)
        for value in node.outputs:
            self._maker[value] = chain
            self._writes[value.name] = chain


def _fused_node(
    chains: Sequence[Chain],
    originals: list[Node],
    readers: Mapping[Value, Sequence[Node]],
    last: Mapping[str, Value],
    hidden: Collection[str],
) -> Node:
    """Return the node that replaces all nodes of a group of chains."""
    deferred: list[tuple[Value, Value, Value | None]] = []
    for chain in chains:
        for node, form in zip(chain.nodes, chain.forms):
            for j, value in enumerate(node.outputs):
                reads = readers.get(value, ())
                read = any(reader not in chain.nodes for reader in reads)
                visible = last[value.name] is value and value.name not in hidden
                source = _equal_output(node, form.copies.get(j), last, hidden)
                if visible and not reads and source is not None and _may_defer(chain, value):
                    deferred.append((value, source, _before(chain, value)))
                elif visible or read:
                    chain.outputs.append(value)
    tensors = [value for chain in chains for value in chain.tensors]
    numbers = {key: value for chain in chains for key, value in chain.numbers_read()}
    inputs = [*tensors, *numbers.values()]
    outputs = [value for chain in chains for value in chain.outputs]
    engine = chains[0].engine

    def maker(ctx: Any, *specs: TensorSpec) -> Prepared | None:
        made = engine.join_updates(ctx, joined(chains, tensors, [*numbers], outputs, specs))
        if made is None:
            return None
        for i, j in made.inplace:  # buffers are shared by successive versions only; those in between are not written
            if inputs[i].name == outputs[j].name:
                outputs[j].version = inputs[i].version + 1
        for value, source, before in deferred:
            value.lazy, value.lazy_reads, value.lazy_from = _copy_of(source), (source,), before
            value.guarded = True
        return made

    parts = [node.first for node in originals]
    locations = [*(value.location for value in tensors), *(location for _, location in numbers)]
    return Node(parts, inputs, outputs, maker, originals=originals, locations=locations)


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
        if plain is not source.buffer:
            return plain
        with on_location(source.location):
            return plain.copy()

    return compute
