"""Fusion: neighboring operators become one kernel where the value between them is not visible.

A value is visible if it is the last version of its name and the name is observable. The engines' tables
(`netbuilder.engines.engine.Fusion`) list the operators that have a common kernel; the patterns are:

- CHAIN: an operator and the producer of its only input (``SpatialBN`` and ``Relu``), where the value between them is
  overwritten or not observable;
- ACCUMULATE: a ``Conv`` and the ``Sum`` of its output with an earlier value, whose buffer the result overwrites;
- ADD: a ``SpatialBN`` and the ``Sum`` of its output with an earlier value, which others may read;
- NORMALIZATION_GRADIENT: ``ReluGradient`` and the ``SpatialBNGradient`` after it. Where the value between them is
  visible, and overwrites the one before it, it becomes a deferred value: a fetch computes it from the inputs of the
  ``ReluGradient``;
- STATISTICS_GRADIENT: ``ReluGradient`` and the ``ChannelBackpropStats`` that reads its result, of a normalization over
  several devices. The kernel writes the results of both;
- SHARED_GRADIENT: ``ReluGradient`` and a ``SpatialBNGradient`` that reads its result, with the ``Sum`` of two gradients
  before them: the end of a residual block. The kernel writes the results of both.

A ``Dropout`` in test mode is removed: operators that read its output read its input instead.

A fused operator takes the position of its first part, so the last part writes earlier than before. That is safe for
the first version of a name, and for the next version of a name that no other operator reads in between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from netbuilder.engines.engine import Fusion, Pattern
from netbuilder.engines.layouts import on_location
from netbuilder.ops.core.contexts import Prepared
from netbuilder.ops.core.registry import plain_kernel
from netbuilder.runtime.plan.graph import PlanGraph
from netbuilder.runtime.plan.optimizations import optimization
from netbuilder.runtime.plan.run_context import KernelContext
from netbuilder.runtime.plan.values import Node, Value

__all__ = ["fuse"]


def fuse(graph: PlanGraph) -> None:
    """Fuse neighbors where a kernel for both exists; the inputs of nodes that read the output of a removed one change.

    Raises:
        NetError: the optimization that a fusion belongs to is not in ``runtime.plan.optimizations``.
    """
    fusions = {kind: [each for engine in found for each in engine.fusions()] for kind, found in graph.engines.items()}
    for fusion in (each for found in fusions.values() for each in found):
        optimization(fusion.optimization, f"fusion of {', '.join((*fusion.first, fusion.second))}")
    matcher = _Matcher(graph, fusions)
    for node in graph.nodes:
        matcher.visit(node)
    graph.nodes = matcher.result()


@dataclass(frozen=True, eq=False)
class _Match:
    """Operators that become one.

    Args:
        parts: the nodes that the fused one replaces, in order.
        main: the part whose operator makes the kernel.
        at: the part whose position the fused node takes.
        inputs, outputs: of the fused node.
        order: the parts in the order in which their operators are listed, the main one's first; None: as ``parts``.
        made: is called when the kernel has been made.
    """

    parts: Sequence[Node]
    main: Node
    at: Node
    inputs: Sequence[Value]
    outputs: Sequence[Value]
    order: Sequence[Node] | None = None
    made: Callable[[], None] = lambda: None


class _Matcher:
    """The nodes while they are being fused, with the producer and the readers of each value at this point."""

    def __init__(self, graph: PlanGraph, fusions: dict[int, list[Fusion]]) -> None:
        self._graph = graph
        # By the kind of device, and the type of the operator at whose visit it is tried.
        self._by_trigger: dict[tuple[int, str], list[Fusion]] = {}
        for kind, found in fusions.items():
            for fusion in found:
                trigger = fusion.first[0] if fusion.pattern in _OF_GRADIENTS else fusion.second
                if graph.options.enabled(fusion.optimization):
                    self._by_trigger.setdefault((kind, trigger), []).append(fusion)
        self._matches: dict[Pattern, Callable[[Node, Fusion], _Match | None]] = {
            Pattern.CHAIN: self._chain,
            Pattern.ACCUMULATE: self._sum,
            Pattern.ADD: self._sum,
            Pattern.NORMALIZATION_GRADIENT: self._normalization_gradient,
            Pattern.STATISTICS_GRADIENT: self._with_result,
            Pattern.SHARED_GRADIENT: self._with_result,
        }
        self._nodes: list[Node | None] = list(graph.nodes)
        self._index = graph.places()
        self._origin = graph.makers()
        self._maker = dict(self._origin)
        self._readers = {value: [self._index[node] for node in nodes] for value, nodes in graph.readers().items()}
        self._replacement: dict[Value, Value] = {}  # value -> the one to read instead

    def result(self) -> list[Node]:
        return [node for node in self._nodes if node is not None]

    def visit(self, node: Node) -> None:
        """Fuse a node with others, or remove it, if possible."""
        if self._replacement:
            node.inputs = [self._replacement.get(value, value) for value in node.inputs]
        op_type = node.first.op_def.type
        if op_type == "Dropout" and self._graph.options.enabled("dropout_in_test_mode"):
            self._remove_dropout(node)
        for fusion in self._by_trigger.get((node.first.device[0], op_type), ()):
            match = self._matches[fusion.pattern](node, fusion)
            if match is not None:
                self._apply(match, fusion)
                return

    def _apply(self, match: _Match, fusion: Fusion) -> None:
        """Replace the parts of a match by one node."""
        op = match.main.first.op

        def maker(ctx: Any, *specs: Any) -> Prepared | None:
            prepared = fusion.make(op, ctx, *specs)
            if prepared is not None:
                match.made()
            return prepared

        instructions = [part for each in match.order or match.parts for part in each.parts]
        node = Node(instructions, list(match.inputs), list(match.outputs), maker, originals=list(match.parts))
        index, old = self._index[match.at], {self._index[part] for part in match.parts}
        for each in old:
            self._nodes[each] = None
        self._nodes[index] = node
        self._index[node] = index
        for value in {value for part in match.parts for value in part.inputs}.union(match.inputs):
            others = [i for i in self._readers.get(value, ()) if i not in old]
            self._readers[value] = sorted([*others, *[index] * match.inputs.count(value)])
        for value in match.outputs:
            self._maker[value] = node

    def _producer(self, consumer: Node, between: Value) -> Node | None:
        """Return the node that makes ``between``, if only ``consumer`` uses that value and it need not be written."""
        producer = self._maker.get(between)
        if producer is None or between.readers != 1 or self._graph.visible(between):
            return None
        if producer.outputs[0] is not between or producer.first.device != consumer.first.device:
            return None
        if any(value.name == between.name for value in producer.inputs):
            return None  # the producer is itself in place
        return producer

    def _may_move_up(self, back: Node, *passed: Value) -> bool:
        """Whether a node may write its output earlier: it is the first version of its name, or overwrites ``passed``.

        Args:
            passed: values that no other node reads in between.
        """
        out = back.outputs[0]
        return out.version == 0 or any(out.name == value.name for value in passed)

    def _ends_at(self, value: Value, front: Node, back: Node) -> bool:
        """Whether nobody needs a value from ``front`` on but ``back``, which will be a part of ``front``."""
        here, own = self._index[front], self._index[back]
        return not self._graph.visible(value) and all(i < here or i == own for i in self._readers[value])

    def _chain(self, back: Node, fusion: Fusion) -> _Match | None:
        """An operator and the producer of its only input."""
        front = self._producer(back, back.inputs[0]) if len(back.inputs) == 1 else None
        if front is None or not _can_begin(fusion, front) or not self._may_move_up(back, back.inputs[0]):
            return None
        return _into(front, back, ())

    def _sum(self, total: Node, fusion: Fusion) -> _Match | None:
        """A sum of two values and the producer of the later one, if the earlier one is not missed."""
        if len(total.inputs) != 2:
            return None
        made = [self._maker.get(value) for value in total.inputs]
        if made[0] is None or made[1] is None or made[0] is made[1]:
            return None
        later = 0 if self._index[made[0]] > self._index[made[1]] else 1
        product, other = total.inputs[later], total.inputs[1 - later]
        front = self._producer(total, product)
        if front is None or not _can_begin(fusion, front):
            return None
        overwrites = fusion.pattern is Pattern.ACCUMULATE or total.outputs[0].name == other.name
        if overwrites and not self._ends_at(other, front, total):
            return None  # somebody else reads the earlier value, so it would have to be copied
        return _into(front, total, [other]) if self._may_move_up(total, product, other) else None

    def _remove_dropout(self, dropout: Node) -> None:
        """Remove a Dropout in test mode: readers of its output read its input instead."""
        x, y = dropout.inputs[0], dropout.outputs[0]
        visible = self._graph.visible
        if not dropout.first.op.is_test or visible(y):  # type: ignore[attr-defined]
            return
        if any(mask.readers or visible(mask) for mask in dropout.outputs[1:]):
            return
        if x.name != y.name and self._graph.last[x.name] is not x:
            return  # the input might be overwritten before the readers of the output run
        own = self._index[dropout]
        self._readers[x] = [*(i for i in self._readers.get(x, ()) if i != own), *self._readers.get(y, ())]
        x.readers += y.readers - 1
        self._replacement[y] = x
        self._nodes[own] = None

    def _normalization_gradient(self, relu: Node, fusion: Fusion) -> _Match | None:
        """The gradient of an activation, in place, and that of the normalization before the activation."""
        y, before = relu.inputs
        between = relu.outputs[0]
        own, visible = self._index[relu], self._graph.visible(between)
        if between.readers != 1 or any(i > own for i in self._readers[before]):
            return None
        if visible and between.name != before.name:
            return None  # a deferred value takes the place of the one that it overwrites
        target = self._nodes[self._readers[between][0]]
        if target is None or target.first.op_def.type != fusion.second or target.inputs[2] is not between:
            return None
        if not self._undoes_activation_after(target.inputs[3], relu, target):
            return None
        if visible and before.version == 0 and before.blob is not None:
            return None  # an external input, which a plan must not alter

        def compute_when_fetched() -> None:
            between.lazy = _relu_gradient_of(relu, y, before)
            between.lazy_from = before
            between.lazy_reads = (y, before)
            between.guarded = True

        x, scale, _, mean, deviation = (self._replacement.get(value, value) for value in target.inputs[:5])
        inputs = [x, scale, before, mean, deviation, *([y] if fusion.reads_result else [])]
        made = compute_when_fetched if visible else lambda: None
        return _Match([relu, target], target, target, inputs, target.outputs, [target, relu], made)

    def _with_result(self, relu: Node, fusion: Fusion) -> _Match | None:
        """The gradient of an activation and an operator for the normalization that reads it; both are written."""
        shared = fusion.pattern is Pattern.SHARED_GRADIENT
        between, before = relu.outputs[0], relu.inputs[1]
        target = self._reader(between, fusion.second, 2 if shared else 3)
        if target is None or target.first.device != relu.first.device:
            return None
        if not fusion.reads_result and not self._undoes_activation_after(target.inputs[1], relu, target):
            return None
        if any(value.version for value in target.outputs):
            return None  # they are written earlier than before
        own, made = self._index[relu], [self._maker.get(value) for value in target.inputs]
        if any(node is not None and self._index[node] > own for node in made):
            return None
        total = self._sum_before(relu) if fusion.reads_result else None
        inputs = [self._replacement.get(value, value) for value in target.inputs]
        inputs = [before if value is between else value for value in inputs]
        inputs += [relu.inputs[0]] if fusion.reads_result else []
        if total is not None:
            inputs = [*(total.inputs[0] if value is before else value for value in inputs), total.inputs[1]]
        parts = [*([] if total is None else [total]), relu, target]
        return _Match(parts, target, relu, inputs, [between, *target.outputs], parts[::-1])

    def _reader(self, value: Value, op_type: str, input: int) -> Node | None:
        """Return the first node of an operator that reads a value as this input."""
        nodes = (self._nodes[i] for i in self._readers.get(value, ()))
        return next(
            (node for node in nodes if node and node.first.op_def.type == op_type and node.inputs[input] is value), None
        )

    def _sum_before(self, relu: Node) -> Node | None:
        """Return the Sum of two gradients that only ``relu`` reads, if it may be computed later."""
        before = relu.inputs[1]
        total = self._maker.get(before)
        if total is None or total.first.op_def.type != "Sum" or len(total.inputs) != 2 or len(total.parts) > 1:
            return None
        if before.readers != 1 or self._graph.visible(before) or total.first.device != relu.first.device:
            return None
        names = {value.name for value in total.inputs}
        between = self._nodes[self._index[total] + 1 : self._index[relu]]
        if any(value.name in names for node in between if node is not None for value in node.outputs):
            return None
        return total

    def _undoes_activation_after(self, mean: Value, relu: Node, target: Node) -> bool:
        """Whether the operator that ``relu`` is the gradient of reads what the normalization with ``mean`` writes."""
        forward = self._origin.get(relu.inputs[0])
        return (
            target.first.device == relu.first.device
            and forward is not None
            and f"{forward.first.op_def.type}Gradient" == relu.first.op_def.type
            and self._origin.get(forward.inputs[0]) is self._origin.get(mean)
        )


_OF_GRADIENTS = (Pattern.NORMALIZATION_GRADIENT, Pattern.STATISTICS_GRADIENT, Pattern.SHARED_GRADIENT)


def _can_begin(fusion: Fusion, front: Node) -> bool:
    """Whether a node can be the first part of a fusion, by the types of its operators."""
    types = tuple(part.op_def.type for part in front.parts)
    return types == fusion.first and fusion.inputs in (None, len(front.inputs))


def _into(front: Node, back: Node, others: Sequence[Value]) -> _Match:
    """Return the match of two operators that run at the position of the first.

    Args:
        others: the inputs of ``back`` that ``front`` does not make.
    """
    return _Match([front, back], front, front, [*front.inputs, *others], [back.outputs[0], *front.outputs[1:]])


def _relu_gradient_of(relu: Node, y: Value, dy: Value) -> Callable[[], Any]:
    """Return a function that computes a ReluGradient which was fused away."""
    instruction = relu.first
    kernel = plain_kernel(instruction.op_def.type, instruction.device[0])
    context = KernelContext(instruction.op_def, device=instruction.device)
    assert kernel is not None

    def compute() -> Any:
        with on_location(instruction.location):
            return kernel(instruction.op, context, y.plain(), dy.plain())[0]

    return compute
