"""The plan context of one node: what a prepared kernel is given when it is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from netbuilder.engines.engine import Location
from netbuilder.engines.layouts import HOST
from netbuilder.ops.core.contexts import Call, CompiledSubgraph, Demand, Subgraph
from netbuilder.runtime.plan.options import PlanOptions
from netbuilder.runtime.plan.run_context import KernelContext
from netbuilder.runtime.plan.values import Node
from netbuilder.runtime.values.workers import Team

__all__ = ["CompileSubgraph", "NodeContext"]

CompileSubgraph = Callable[[Subgraph, KernelContext, PlanOptions], CompiledSubgraph]


class NodeContext:
    """See ``netbuilder.ops.core.contexts.PlanContext``.

    Args:
        node: the node.
        run: the run context of its plain kernels.
        options: of the plan.
        threads: of the node's lane.
        image_order: in which order images should be stored.
        compile_subgraph: compiles operators of the operator's subgraph, given the run context of the operator.
        in_subgraph: the node is in an operator's subgraph; its constants are the same in all steps.
        builds_later: whether engines may build what takes long later, and the node's kernel is then made again.
    """

    def __init__(
        self,
        node: Node,
        run: KernelContext,
        options: PlanOptions,
        threads: int,
        image_order: str,
        compile_subgraph: CompileSubgraph,
        *,
        in_subgraph: bool = False,
        builds_later: bool = False,
    ) -> None:
        self.op_def = node.first.op_def
        self.run = run
        self.threads = threads
        self.precision = options.dtype
        self.allow_tf32 = options.allow_tf32
        self.device_id = node.first.device[1]
        self.image_order = image_order
        self._node = node
        self._inputs = node.inputs
        self._outputs = node.outputs
        self._options = options
        self._compile_subgraph = compile_subgraph
        self.in_subgraph = in_subgraph
        self.builds_later = builds_later

    def publish(self, output: int, key: str, value: Any) -> None:
        self._outputs[output].published[key] = value

    def published(self, input: int, key: str) -> Any:
        return self._inputs[input].published.get(key) if self._options.enabled("kept_for_gradients") else None

    def location(self, input: int) -> Location:
        return self._node.input_location(input)

    def is_constant(self, input: int) -> bool:
        return self._inputs[input].constant is not None

    def enabled(self, optimization: str) -> bool:
        return self._options.enabled(optimization)

    def uses_engine(self, name: str) -> bool:
        return self._options.uses_engine(name)

    def demand(self, output: int, reads: Sequence[int] = ()) -> Demand:
        demand = self._outputs[output].demand
        return "run" if demand == "fetch" and not self._persist(reads) else demand

    def ends_early(self, output: int, reads: Sequence[int]) -> bool:
        return self._outputs[output].ends_early and self._persist(reads)

    def may_be_read_by(self, output: int, op_type: str) -> bool:
        types = self._outputs[output].read_by
        return types is None or op_type in types

    def _persist(self, reads: Sequence[int]) -> bool:
        """Whether inputs stay in their blobs, where the operator runs."""
        own = self.run.device if self.run.is_gpu else HOST
        return all(self._inputs[i].persists and self._inputs[i].location == own for i in reads)

    def repeats(self, input: int) -> bool:
        return self.in_subgraph and self.is_constant(input)

    def together(self, jobs: Sequence[Call]) -> Call:
        return Team(jobs).run

    def compile_subgraph(self, subgraph: Subgraph) -> CompiledSubgraph:
        return self._compile_subgraph(subgraph, self.run, self._options)
