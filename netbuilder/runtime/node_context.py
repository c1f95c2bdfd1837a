"""The plan context of one node: what prepared kernels may use while they are made ready."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from netbuilder.ops.contexts import ANY_ORDER, Demand
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
