"""Fusion: neighboring operators become one kernel where the value between them is not visible.

A value is visible if it is the last version of its name and the name is observable. The engines' tables
(`netbuilder.ops.engines.engine.Fusion`) list the operators that have a common kernel; the patterns are:

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

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from netbuilder.ops.core.contexts import Prepared
from netbuilder.ops.core.registry import plain_kernel
from netbuilder.ops.engines.engine import Fusion, Pattern
from netbuilder.ops.engines.layouts import on_location
from netbuilder.runtime.plan.optimizations import check_optimization
from netbuilder.runtime.plan.run_context import KernelContext
from netbuilder.runtime.plan.values import Node, Value

__all__ = ["fuse"]


def fuse(
    nodes: Sequence[Node],
    last: Mapping[str, Value],
    fusions: Mapping[int, Sequence[Fusion]],
    hidden: Collection[str] = (),
    enabled: Callable[[str], bool] = lambda name: True,
) -> list[Node]:
    """Return the nodes of a plan with neighbors fused where a kernel for both exists.

    Args:
        nodes: operators over values, in order; the inputs of nodes that read the output of a removed one are changed.
        last: the last version of each name.
        fusions: the fusions of the engines, by kind of device, those of the preferred engine first.
        hidden: names of which no version is observable.
        enabled: whether an optimization is on, by its name in ``runtime.plan.optimizations``.

    Raises:
        NetError: the optimization that a fusion belongs to is not in ``runtime.plan.optimizations``.
    """
    for fusion in (fusion for found in fusions.values() for fusion in found):
        check_optimization(fusion.optimization, f"fusion of {', '.join((*fusion.first, fusion.second))}")
    matcher = _Matcher(nodes, last, fusions, hidden, enabled)
    for node in nodes:
        matcher.visit(node)
    return matcher.result()


class _Matcher:
    """The nodes while they are being fused, with the producer and the readers of each value at this point."""

    def __init__(
        self,
        nodes: Sequence[Node],
        last: Mapping[str, Value],
        fusions: Mapping[int, Sequence[Fusion]],
        hidden: Collection[str],
        enabled: Callable[[str], bool],
    ) -> None:
        self._last, self._hidden, self._enabled = last, hidden, enabled
        # By the kind of device, and the type of the operator at whose visit it is tried.
        self._by_trigger: dict[tuple[int, str], list[Fusion]] = {}
        for kind, found in fusions.items():
            for fusion in found:
                trigger = fusion.first[0] if fusion.pattern in _OF_GRADIENTS else fusion.second
                if enabled(fusion.optimization):
                    self._by_trigger.setdefault((kind, trigger), []).append(fusion)
        self._fuse_by = {
            Pattern.CHAIN: self._fuse_chain,
            Pattern.ACCUMULATE: self._fuse_sum,
            Pattern.ADD: self._fuse_sum,
            Pattern.NORMALIZATION_GRADIENT: self._fuse_normalization_gradient,
            Pattern.STATISTICS_GRADIENT: self._fuse_with_result,
            Pattern.SHARED_GRADIENT: self._fuse_with_result,
        }
        self._nodes: list[Node | None] = list(nodes)
        self._index = {id(node): i for i, node in enumerate(nodes)}
        self._origin = {id(value): node for node in nodes for value in node.outputs}
        self._maker = dict(self._origin)
        self._readers: dict[int, list[int]] = {}  # value -> indices of the nodes that read it
        for i, node in enumerate(nodes):
            for value in node.inputs:
                self._readers.setdefault(id(value), []).append(i)
        self._replacement: dict[int, Value] = {}  # value -> the one to read instead

    def result(self) -> list[Node]:
        return [node for node in self._nodes if node is not None]

    def visit(self, node: Node) -> None:
        """Fuse a node with an earlier one, or remove it, if possible."""
        if self._replacement:
            node.inputs = [self._replacement.get(id(value), value) for value in node.inputs]
        op_type = node.first.op_def.type
        if op_type == "Dropout" and self._enabled("dropout_in_test_mode"):
            self._remove_dropout(node)
        for fusion in self._by_trigger.get((node.first.device[0], op_type), ()):
            if self._fuse_by[fusion.pattern](node, fusion):
                return

    def _visible(self, value: Value) -> bool:
        return self._last[value.name] is value and value.name not in self._hidden

    def _producer(self, consumer: Node, between: Value) -> Node | None:
        """Return the node that makes ``between``, if only ``consumer`` uses that value and it need not be written."""
        producer = self._maker.get(id(between))
        if producer is None or between.readers != 1 or self._visible(between) or producer.outputs[0] is not between:
            return None
        if producer.first.device != consumer.first.device:
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

    def _fuse(self, front: Node, back: Node, others: Sequence[Value], fusion: Fusion) -> None:
        """Replace ``front`` by one node that does the work of both, and remove ``back``.

        Args:
            others: the inputs of ``back`` that ``front`` does not make.
        """
        op = front.first.op

        def maker(ctx: Any, *specs: Any) -> Prepared | None:
            return fusion.make(op, ctx, *specs)

        outputs = [back.outputs[0], *front.outputs[1:]]
        inputs = [*front.inputs, *others]
        node = Node([*front.parts, *back.parts], inputs, outputs, maker, originals=[front, back])
        index, old = self._index[id(front)], self._index[id(back)]
        self._nodes[index], self._nodes[old] = node, None
        self._index[id(node)] = index
        for value in outputs:
            self._maker[id(value)] = node
        for value in others:
            self._readers[id(value)] = [index if i == old else i for i in self._readers[id(value)]]

    def _fuse_chain(self, back: Node, fusion: Fusion) -> bool:
        """Fuse an operator with the producer of its only input."""
        front = self._producer(back, back.inputs[0]) if len(back.inputs) == 1 else None
        if front is None or not _can_begin(fusion, front) or not self._may_move_up(back, back.inputs[0]):
            return False
        self._fuse(front, back, (), fusion)
        return True

    def _fuse_sum(self, total: Node, fusion: Fusion) -> bool:
        """Fuse a sum of two values with the producer of the later one, if the earlier one is not missed."""
        if len(total.inputs) != 2:
            return False
        made = [self._maker.get(id(value)) for value in total.inputs]
        if made[0] is None or made[1] is None or made[0] is made[1]:
            return False
        later = 0 if self._index[id(made[0])] > self._index[id(made[1])] else 1
        product, other = total.inputs[later], total.inputs[1 - later]
        front = self._producer(total, product)
        if front is None or not _can_begin(fusion, front):
            return False
        overwrites = fusion.pattern is Pattern.ACCUMULATE or total.outputs[0].name == other.name
        if overwrites and not self._ends_at(other, front, total):
            return False  # somebody else reads the earlier value, so it would have to be copied
        if not self._may_move_up(total, product, other):
            return False
        self._fuse(front, total, [other], fusion)
        return True

    def _ends_at(self, value: Value, front: Node, back: Node) -> bool:
        """Whether nobody needs a value from ``front`` on but ``back``, which will be a part of ``front``."""
        here, own = self._index[id(front)], self._index[id(back)]
        return not self._visible(value) and all(i < here or i == own for i in self._readers[id(value)])

    def _remove_dropout(self, dropout: Node) -> None:
        """Remove a Dropout in test mode: readers of its output read its input instead."""
        x, y = dropout.inputs[0], dropout.outputs[0]
        if not dropout.first.op.is_test or self._visible(y):  # type: ignore[attr-defined]
            return
        if any(mask.readers or self._visible(mask) for mask in dropout.outputs[1:]):
            return
        if x.name != y.name and self._last[x.name] is not x:
            return  # the input might be overwritten before the readers of the output run
        own = self._index[id(dropout)]
        reads = self._readers.setdefault(id(x), [])
        reads[:] = [*(i for i in reads if i != own), *self._readers.get(id(y), ())]
        x.readers += y.readers - 1
        self._replacement[id(y)] = x
        self._nodes[own] = None

    def _fuse_normalization_gradient(self, relu: Node, fusion: Fusion) -> bool:
        """Fuse the gradient of an activation, in place, with that of the normalization before the activation."""
        y, before = relu.inputs
        between = relu.outputs[0]
        own, visible = self._index[id(relu)], self._visible(between)
        if between.readers != 1 or any(i > own for i in self._readers[id(before)]):
            return False
        if visible and between.name != before.name:
            return False  # a deferred value takes the place of the one that it overwrites
        target = self._nodes[self._readers[id(between)][0]]
        if target is None or target.first.op_def.type != fusion.second or target.inputs[2] is not between:
            return False
        front = target.first
        if not self._undoes_activation_after(target.inputs[3], relu, target):
            return False
        if visible and before.version == 0 and before.blob is not None:
            return False  # an external input, which a plan must not alter

        def maker(ctx: Any, *specs: Any) -> Prepared | None:
            prepared = fusion.make(front.op, ctx, *specs)
            if prepared is not None and visible:
                between.lazy = _relu_gradient_of(relu, y, before)
                between.lazy_from = before
                between.lazy_reads = (y, before)
                between.guarded = True
            return prepared

        x, scale, _, mean, deviation = (self._replacement.get(id(value), value) for value in target.inputs[:5])
        inputs = [x, scale, before, mean, deviation, *([y] if fusion.reads_result else [])]
        node = Node([front, relu.first], inputs, target.outputs, maker, originals=[relu, target])
        index = self._index[id(target)]
        self._nodes[index], self._nodes[own] = node, None
        self._index[id(node)] = index
        for value in target.outputs:
            self._maker[id(value)] = node
        for value in (before, y) if fusion.reads_result else (before,):
            self._readers[id(value)] = [index if i == own else i for i in self._readers[id(value)]]
        return True

    def _fuse_with_result(self, relu: Node, fusion: Fusion) -> bool:
        """Fuse the gradient of an activation with an operator for the normalization that reads it; both are written."""
        shared = fusion.pattern is Pattern.SHARED_GRADIENT
        between, before = relu.outputs[0], relu.inputs[1]
        target = self._reader(between, fusion.second, 2 if shared else 3)
        if target is None or target.first.device != relu.first.device:
            return False
        if not fusion.reads_result and not self._undoes_activation_after(target.inputs[1], relu, target):
            return False
        if any(value.version for value in target.outputs):
            return False  # they are written earlier than before
        own, made = self._index[id(relu)], [self._maker.get(id(value)) for value in target.inputs]
        if any(node is not None and self._index[id(node)] > own for node in made):
            return False
        total = self._sum_before(relu) if fusion.reads_result else None
        inputs = [self._replacement.get(id(value), value) for value in target.inputs]
        inputs = [before if value is between else value for value in inputs]
        inputs += [relu.inputs[0]] if fusion.reads_result else []
        if total is not None:
            inputs = [*(total.inputs[0] if value is before else value for value in inputs), total.inputs[1]]

        def maker(ctx: Any, *specs: Any) -> Prepared | None:
            return fusion.make(target.first.op, ctx, *specs)

        outputs = [between, *target.outputs]
        merged = [*([] if total is None else [total]), relu, target]
        node = Node([each.first for each in reversed(merged)], inputs, outputs, maker, originals=merged)
        old = [self._index[id(each)] for each in merged]
        for index in old:
            self._nodes[index] = None
        self._nodes[own] = node
        self._index[id(node)] = own
        for value in outputs:
            self._maker[id(value)] = node
        self._readers[id(between)].remove(self._index[id(target)])
        for value in inputs:
            self._readers[id(value)] = [own if i in old else i for i in self._readers.get(id(value), [])]
        return True

    def _reader(self, value: Value, op_type: str, input: int) -> Node | None:
        """Return the first node of an operator that reads a value as this input."""
        nodes = (self._nodes[i] for i in self._readers.get(id(value), ()))
        return next(
            (node for node in nodes if node and node.first.op_def.type == op_type and node.inputs[input] is value), None
        )

    def _sum_before(self, relu: Node) -> Node | None:
        """Return the Sum of two gradients that only ``relu`` reads, if it may be computed later."""
        before = relu.inputs[1]
        total = self._maker.get(id(before))
        if total is None or total.first.op_def.type != "Sum" or len(total.inputs) != 2 or len(total.parts) > 1:
            return None
        if before.readers != 1 or self._visible(before) or total.first.device != relu.first.device:
            return None
        names = {value.name for value in total.inputs}
        between = self._nodes[self._index[id(total)] + 1 : self._index[id(relu)]]
        if any(value.name in names for node in between if node is not None for value in node.outputs):
            return None
        return total

    def _undoes_activation_after(self, mean: Value, relu: Node, target: Node) -> bool:
        """Whether the operator that ``relu`` is the gradient of reads what the normalization with ``mean`` writes."""
        forward = self._origin.get(id(relu.inputs[0]))
        return (
            target.first.device == relu.first.device
            and forward is not None
            and f"{forward.first.op_def.type}Gradient" == relu.first.op_def.type
            and self._origin.get(id(forward.inputs[0])) is self._origin.get(id(mean))
        )


_OF_GRADIENTS = (Pattern.NORMALIZATION_GRADIENT, Pattern.STATISTICS_GRADIENT, Pattern.SHARED_GRADIENT)


def _can_begin(fusion: Fusion, front: Node) -> bool:
    """Whether a node can be the first part of a fusion, by the types of its operators."""
    types = tuple(part.op_def.type for part in front.parts)
    return types == fusion.first and fusion.inputs in (None, len(front.inputs))


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
