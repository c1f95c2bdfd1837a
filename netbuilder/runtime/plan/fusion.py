"""Fusion: neighboring operators that become one kernel where nobody can see the value between them.

A value can be seen if it is the last version of its name and the name is observable. Which neighbors have a common
kernel is in the tables of the engines (`netbuilder.ops.engines.engine.Fusion`); by `Pattern` they are:

- CHAIN: an operator after the one that makes its only input (``SpatialBN`` and ``Relu``), where the value between them
  is overwritten or not observable, so no one misses it;
- ACCUMULATE: a ``Conv`` and the ``Sum`` of what it makes with a value that was there before, which is overwritten;
- NORMALIZATION_GRADIENT: ``ReluGradient`` in place before ``SpatialBNGradient``. Where the value between is the last
  version of its name, it can be computed from what both read; the blob gets that computation, and a fetch runs it.

A ``Dropout`` in test mode vanishes: operators that read its output read its input.

A fused operator takes the place of its first part, so the last part writes earlier than before. That is safe for the
first version of a name, and for the next version of a name that only the parts read in between.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from netbuilder.ops.core.contexts import Prepared
from netbuilder.ops.core.registry import plain_kernel
from netbuilder.ops.engines.engine import HOST, Fusion, Pattern
from netbuilder.ops.engines.layouts import convert
from netbuilder.runtime.plan.run_context import KernelContext
from netbuilder.runtime.plan.values import Node, Value
from netbuilder.runtime.values.blob import EdgeContext

__all__ = ["fuse"]


def fuse(
    nodes: Sequence[Node],
    last: Mapping[str, Value],
    fusions: Sequence[Fusion],
    hidden: Collection[str] = (),
    does: Callable[[str], bool] = lambda name: True,
) -> list[Node]:
    """Return the nodes of a plan with neighbors joined where a kernel for both exists.

    Args:
        nodes: operators over values, in order; the inputs of those after one that vanishes are changed.
        last: the last version of each name, which stays observable.
        fusions: the kernels there are for neighbors, those of the preferred engine first.
        hidden: names of which no version is observable.
        does: whether an optimization is on, by its name in ``runtime.optimizations``.
    """
    matcher = _Matcher(nodes, last, [f for f in fusions if does(f.optimization)], hidden, does)
    for node in nodes:
        matcher.visit(node)
    return matcher.result()


class _Matcher:
    """The nodes while they are being joined: who makes and who reads each value by now."""

    def __init__(
        self,
        nodes: Sequence[Node],
        last: Mapping[str, Value],
        fusions: Sequence[Fusion],
        hidden: Collection[str],
        does: Callable[[str], bool],
    ) -> None:
        self._last, self._hidden, self._does = last, hidden, does
        self._by_trigger: dict[str, list[Fusion]] = {}  # the type of the operator whose visit may join two
        for fusion in fusions:
            gradient = fusion.pattern is Pattern.NORMALIZATION_GRADIENT
            self._by_trigger.setdefault(fusion.first[0] if gradient else fusion.second, []).append(fusion)
        self._join_by = {
            Pattern.CHAIN: self._join_chain,
            Pattern.ACCUMULATE: self._accumulate,
            Pattern.NORMALIZATION_GRADIENT: self._join_normalization_gradient,
        }
        self._at: list[Node | None] = list(nodes)
        self._place = {id(node): i for i, node in enumerate(nodes)}
        self._origin = {id(value): node for node in nodes for value in node.outputs}
        self._maker = dict(self._origin)
        self._readers: dict[int, list[int]] = {}  # value -> places of the nodes that read it
        for i, node in enumerate(nodes):
            for value in node.inputs:
                self._readers.setdefault(id(value), []).append(i)
        self._instead: dict[int, Value] = {}  # value -> the one that is read in its place

    def result(self) -> list[Node]:
        return [node for node in self._at if node is not None]

    def visit(self, node: Node) -> None:
        """Join a node with those in front of it, if it can be."""
        if self._instead:
            node.inputs = [self._instead.get(id(value), value) for value in node.inputs]
        if node.first.location != HOST:
            return
        kind = node.first.op_def.type
        if kind == "Dropout" and self._does("dropout_in_test_mode"):
            self._drop(node)
        for fusion in self._by_trigger.get(kind, ()):
            if self._join_by[fusion.pattern](node, fusion):
                return

    def _seen(self, value: Value) -> bool:
        return self._last[value.name] is value and value.name not in self._hidden

    def _before(self, back: Node, between: Value) -> Node | None:
        """Return the node that makes ``between`` if ``back`` can be joined to it as far as values are concerned."""
        front = self._maker.get(id(between))
        if front is None or between.readers != 1 or self._seen(between) or front.outputs[0] is not between:
            return None
        if front.first.device != back.first.device:
            return None
        if any(value.name == between.name for value in front.inputs):
            return None  # the operator in front works in place itself
        return front

    def _may_move_up(self, back: Node, *passed: Value) -> bool:
        """Whether a node may write earlier, if nothing but the node itself reads ``passed`` in between."""
        after = back.outputs[0]
        return after.version == 0 or any(after.name == value.name for value in passed)

    def _join(self, front: Node, back: Node, others: Sequence[Value], fusion: Fusion) -> None:
        """Put one node in the place of ``front`` that does the work of both; ``back`` goes.

        Args:
            others: what ``back`` reads besides what ``front`` makes.
        """
        op = front.first.op

        def maker(ctx: Any, *specs: Any) -> Prepared | None:
            return fusion.make(op, ctx, *specs)

        outputs = [back.outputs[0], *front.outputs[1:]]
        inputs = [*front.inputs, *others]
        node = Node([*front.parts, *back.parts], inputs, outputs, maker, originals=[front, back])
        place, old = self._place[id(front)], self._place[id(back)]
        self._at[place], self._at[old] = node, None
        self._place[id(node)] = place
        for value in outputs:
            self._maker[id(value)] = node
        for value in others:
            self._readers[id(value)] = [place if i == old else i for i in self._readers[id(value)]]

    def _join_chain(self, back: Node, fusion: Fusion) -> bool:
        """Join an operator to the one that makes its only input."""
        front = self._before(back, back.inputs[0]) if len(back.inputs) == 1 else None
        if front is None or not fits(fusion, front) or not self._may_move_up(back, back.inputs[0]):
            return False
        self._join(front, back, (), fusion)
        return True

    def _accumulate(self, total: Node, fusion: Fusion) -> bool:
        """Join a sum of two values to what makes the later one, if it may overwrite the other one."""
        if len(total.inputs) != 2:
            return False
        made = [self._maker.get(id(value)) for value in total.inputs]
        if made[0] is None or made[1] is None or made[0] is made[1]:
            return False
        later = 0 if self._place[id(made[0])] > self._place[id(made[1])] else 1
        product, other = total.inputs[later], total.inputs[1 - later]
        front = self._before(total, product)
        if front is None or not fits(fusion, front) or self._seen(other):
            return False
        here, own = self._place[id(front)], self._place[id(total)]
        if other in front.inputs or any(i >= here and i != own for i in self._readers[id(other)]):
            return False  # it is needed as it is, and would have to be copied
        if not self._may_move_up(total, product, other):
            return False
        self._join(front, total, [other], fusion)
        return True

    def _drop(self, dropout: Node) -> None:
        """Let those that read the output of a Dropout in test mode read its input."""
        x, y = dropout.inputs[0], dropout.outputs[0]
        if not dropout.first.op.is_test or self._seen(y):  # type: ignore[attr-defined]
            return
        if any(mask.readers or self._seen(mask) for mask in dropout.outputs[1:]):
            return
        if x.name != y.name and self._last[x.name] is not x:
            return  # it might be overwritten before it is read
        own = self._place[id(dropout)]
        places = self._readers.setdefault(id(x), [])
        places[:] = [*(i for i in places if i != own), *self._readers.get(id(y), ())]
        x.readers += y.readers - 1
        self._instead[id(y)] = x
        self._at[own] = None

    def _join_normalization_gradient(self, relu: Node, fusion: Fusion) -> bool:
        """Join the gradient of an activation, in place, to that of the normalization before the activation."""
        y, before = relu.inputs
        between = relu.outputs[0]
        if between.readers != 1 or between.name != before.name or self._last[between.name] is not between:
            return False
        own = self._place[id(relu)]
        target = self._at[self._readers[id(between)][0]]
        if target is None or target.first.op_def.type != fusion.second or target.inputs[2] is not between:
            return False
        front = target.first
        forward = self._origin.get(id(y))
        normalized = self._origin.get(id(target.inputs[3]))
        if front.device != relu.first.device or forward is None:
            return False
        if f"{forward.first.op_def.type}Gradient" != relu.first.op_def.type:
            return False
        if self._origin.get(id(forward.inputs[0])) is not normalized:
            return False
        seen = self._seen(between)
        if seen and before.version == 0 and before.blob is not None:
            return False  # an external input; a plan must not alter it

        def maker(ctx: Any, *specs: Any) -> Prepared | None:
            prepared = fusion.make(front.op, ctx, *specs)
            if prepared is not None and seen:
                between.lazy = _relu_gradient_of(relu, y, before)
                between.lazy_from = before
                between.lazy_reads = (y, before)
                between.guarded = True
            return prepared

        x, scale, _, mean, deviation = (self._instead.get(id(value), value) for value in target.inputs[:5])
        node = Node(
            [front, relu.first], [x, scale, before, mean, deviation], target.outputs, maker, originals=[relu, target]
        )
        place = self._place[id(target)]
        self._at[place], self._at[own] = node, None
        self._place[id(node)] = place
        for value in target.outputs:
            self._maker[id(value)] = node
        self._readers[id(before)] = [place if i == own else i for i in self._readers[id(before)]]
        return True


def fits(fusion: Fusion, front: Node) -> bool:
    """Whether a node can be the first part of a fusion, by the types of its operators."""
    types = tuple(part.op_def.type for part in front.parts)
    return types == fusion.first and fusion.inputs in (None, len(front.inputs))


def _relu_gradient_of(relu: Node, y: Value, dy: Value) -> Callable[[], Any]:
    instruction = relu.first
    kernel = plain_kernel(instruction.op_def.type, instruction.device[0])
    context = KernelContext(instruction.op_def, device=instruction.device)
    assert kernel is not None

    def compute() -> Any:
        return np.asarray(kernel(instruction.op, context, _plain(y), _plain(dy))[0])

    return compute


def _plain(value: Value) -> Any:
    assert value.spec is not None
    if value.spec.layout is None:
        return value.buffer
    return convert(value.buffer, value.spec, value.spec.plain, EdgeContext(), location=value.location)
