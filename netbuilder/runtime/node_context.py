"""The plan context of one node: what prepared kernels may use while they are made ready."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from netbuilder.ops.contexts import ANY_ORDER, Demand, Prepared
from netbuilder.ops.operator import Operator, TensorSpec
from netbuilder.ops.registry import prepared_kernels
from netbuilder.proto import PROTO_CPU, OperatorDef
from netbuilder.runtime.blob import EdgeContext
from netbuilder.runtime.program import Instruction
from netbuilder.runtime.run_context import KernelContext
from netbuilder.runtime.values import Value

__all__ = ["NodeContext"]


class NodeContext:
    """See ``netbuilder.ops.contexts.PlanContext``.

    Args:
        instruction: the operator.
        run: what plain kernels get.
        threads: threads that the node's lane computes with.
        precision: how activations may be kept in memory.
        inputs, outputs: the values around the node.
        does: whether an optimisation is on, by its name in ``runtime.optimisations``.
        image_order: in which order images should lie.
        allows: whether an engine may serve, by its name.
    """

    def __init__(
        self,
        instruction: Instruction,
        run: KernelContext,
        threads: int,
        precision: str,
        inputs: list[Value],
        outputs: list[Value],
        does: Callable[[str], bool],
        image_order: str = ANY_ORDER,
        allows: Callable[[str], bool] = "".__eq__,
    ) -> None:
        self.op_def = instruction.op_def
        self.run = run
        self.threads = threads
        self.precision = precision
        self.device_id = instruction.device[1]
        self._inputs = inputs
        self._outputs = outputs
        self._does = does
        self.image_order = image_order
        self._allows = allows

    def publish(self, output: int, key: str, value: Any) -> None:
        self._outputs[output].published[key] = value

    def published(self, input: int, key: str) -> Any:
        return self._inputs[input].published.get(key) if self._does("kept_for_gradients") else None

    def is_constant(self, input: int) -> bool:
        return self._inputs[input].constant is not None

    def does(self, optimisation: str) -> bool:
        return self._does(optimisation)

    def demand(self, output: int, reads: Sequence[int] = ()) -> Demand:
        demand = self._outputs[output].demand
        if demand == "fetch" and not all(self._inputs[i].stays for i in reads):
            return "run"
        return demand

    def repeats(self, input: int) -> bool:
        return False

    def held_kernel(
        self,
        op_def: OperatorDef,
        op: Operator,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        same: Sequence[int],
    ) -> Prepared | None:
        for row in prepared_kernels(op_def.type, PROTO_CPU):
            if not self._allows(row.engine) or not (row.engine or self._does("bound_kernels")):
                continue
            prepared = row.make(op, _HeldContext(self, op_def, same), *inputs)
            if prepared is not None and _is_plain(prepared, len(outputs), same):
                return prepared
        return None


def _is_plain(prepared: Prepared, outputs: int, same: Sequence[int]) -> bool:
    """Whether a kernel writes all outputs, in plain order, and reads plain order but for ``same``."""
    if prepared.later or len(prepared.outputs) < outputs or None in prepared.outputs[:outputs]:
        return False
    inputs = [spec for i, spec in enumerate(prepared.inputs) if i not in same]
    return all(spec is None or spec.layout is None for spec in (*inputs, *prepared.outputs))


class _HeldContext(EdgeContext):
    """The plan context of an operator in a step net: nothing is kept from one operator to another."""

    def __init__(self, outer: NodeContext, op_def: OperatorDef, same: Sequence[int]) -> None:
        super().__init__(outer.threads)
        self.device_id = outer.device_id
        self.op_def = op_def
        self.run = outer.run.inner(op_def, 0)
        self._outer, self._same = outer, same

    def does(self, optimisation: str) -> bool:
        return self._outer.does(optimisation)

    def repeats(self, input: int) -> bool:
        return input in self._same and self.does("step_copies")

    def held_kernel(self, *args: Any) -> Prepared | None:
        return self._outer.held_kernel(*args)
