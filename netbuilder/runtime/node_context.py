"""The plan context of one node: what prepared kernels may use while they are made ready."""

from __future__ import annotations

from typing import Any

from netbuilder.proto import OperatorDef
from netbuilder.runtime.run_context import KernelContext
from netbuilder.runtime.values import Value

__all__ = ["NodeContext"]


class NodeContext:
    """See ``netbuilder.ops.contexts.PlanContext``.

    Args:
        op_def: the operator.
        run: what plain kernels get.
        threads: threads that the node's lane computes with.
        inputs, outputs: the values around the node.
    """

    def __init__(
        self, op_def: OperatorDef, run: KernelContext, threads: int, inputs: list[Value], outputs: list[Value]
    ) -> None:
        self.op_def = op_def
        self.run = run
        self.threads = threads
        self.device_id = op_def.device_option.device_id
        self._inputs = inputs
        self._outputs = outputs

    def publish(self, output: int, key: str, value: Any) -> None:
        self._outputs[output].published[key] = value

    def published(self, input: int, key: str) -> Any:
        return self._inputs[input].published.get(key)
