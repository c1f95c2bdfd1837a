"""The plan compiler: from a net's operators and the specs of its inputs to steps over values.

A plan covers the operators from ``start`` up to the first one whose output shapes depend on data. The phases:
shapes and values (each write makes a new version; ``runtime.static_run``), fusion, kernels with their layouts
(``runtime.kernel_choice``, ``runtime.step_list``), buffers, binding.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from netbuilder.ops.core.instructions import Role, describe, located
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.engines.engine import engine_names, find_engine, library_engines
from netbuilder.runtime.plan.dead_outputs import note_demand
from netbuilder.runtime.plan.fusion import fuse
from netbuilder.runtime.plan.halves import with_waits
from netbuilder.runtime.plan.kernel_choice import choose_image_order, choose_kernel
from netbuilder.runtime.plan.node_context import CompileSubgraph, NodeContext
from netbuilder.runtime.plan.options import Setting
from netbuilder.runtime.plan.roles import exchange_when_ready
from netbuilder.runtime.plan.runner import Runner
from netbuilder.runtime.plan.small_plans import setting_for
from netbuilder.runtime.plan.static_segment import static_run, values_of
from netbuilder.runtime.plan.step_list import StepList
from netbuilder.runtime.plan.update_fusion import join_updates
from netbuilder.runtime.plan.values import Node, Step, Value

__all__ = ["Compilation", "compile_range", "compile_steps"]


@dataclass(slots=True)
class Compilation:
    """What the compiler hands to the buffer phase.

    ``setting`` is that of the net, with as many threads as are worth it; ``once`` are the copies of constants, which
    are made when the plan is; ``hidden`` the blobs that the plan makes and that are not observable.
    """

    end: int
    steps: list[Step]
    once: list[Step]
    values: list[Value]
    last: dict[str, Value]
    externals: dict[str, Value]
    hidden: frozenset[str]
    setting: Setting


def compile_steps(net: Runner, start: int, setting: Setting, compile_subgraph: CompileSubgraph) -> Compilation | None:
    """Compile the longest static run of operators from ``start``; None if the first is not static.

    Args:
        net: the net.
        start: the first operator.
        setting: how to plan it.
        compile_subgraph: compiles operators of nets that operators hold (see ``runtime.plan.subgraph_segment``).
    """
    for name in engine_names():
        if setting.allows(name):
            engine = find_engine(name)
            engine.register_kernels()
            engine.check_precision(setting.precision)
    specs, end = static_run(net, start, setting)
    if end == start:
        return None
    read_outside = {name for each in (*net.program[:start], *net.program[end:]) for name in each.inputs}
    return compile_range(net, start, end, specs, setting, compile_subgraph, read_outside)


def compile_range(
    net: Runner,
    start: int,
    end: int,
    specs: Sequence[tuple[TensorSpec, ...]],
    setting: Setting,
    compile_subgraph: CompileSubgraph,
    read_outside: Collection[str],
    *,
    in_subgraph: bool = False,
) -> Compilation:
    """Compile the operators from ``start`` to before ``end``.

    Args:
        net: the net.
        start, end: the operators.
        specs: the plain specs of the outputs of each operator.
        setting: how to plan them.
        compile_subgraph: compiles operators of nets that they hold.
        read_outside: names of which the last version is read, or may be, when they have run.
        in_subgraph: they are a segment of a net that an operator holds.
    """
    nodes, last, externals, values = values_of(net, start, end, specs)
    if not in_subgraph:
        setting = setting_for(nodes, setting)
    for name in setting.constants.intersection(externals) if setting.does("constants") else ():
        externals[name].constant = externals[name].blob
    hidden = frozenset(name for name in last if name not in externals and net.hides(name, start, end))
    engines = library_engines(setting.allows)
    nodes = fuse(nodes, last, [fusion for engine in engines for fusion in engine.fusions()], hidden, setting.does)
    if setting.does("joined_updates"):
        nodes = join_updates(nodes, last, hidden)
    if setting.does("unread_outputs"):
        note_demand(nodes, last, hidden, read_outside)
    if setting.exchange_lane:
        nodes = exchange_when_ready(nodes)
    steps = _kernels(net, nodes, setting, values, compile_subgraph, in_subgraph)
    return Compilation(end, with_waits(steps.made), steps.once, values, last, externals, hidden, setting)


def _kernels(
    net: Runner,
    nodes: list[Node],
    setting: Setting,
    values: list[Value],
    compile_subgraph: CompileSubgraph,
    in_subgraph: bool,
) -> StepList:
    steps = StepList(values, setting)
    lane_of = _Lanes(setting)
    image_order = choose_image_order(nodes, setting)
    waiting = deque(nodes)
    while waiting:
        node = waiting.popleft()
        instruction = node.first
        lane = lane_of(node)
        try:
            run = net.kernel_context(instruction)
            ctx = NodeContext(
                node, run, setting, setting.threads_of(lane), image_order, compile_subgraph, in_subgraph=in_subgraph
            )
            prepared = choose_kernel(node, ctx, setting)
            if prepared is None:
                waiting.extendleft(reversed(node.originals))
                continue
            steps.add(node, prepared, lane, ctx)
        except Exception as error:
            raise located(describe(net.name, instruction), error, in_subgraph=in_subgraph) from error
    return steps


class _Lanes:
    """Assigns nodes to lanes by device and role, devices in the order in which they are met."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._lanes: dict[tuple[int, int], int] = {}

    def __call__(self, node: Node) -> int:
        if self._setting.exchange_lane and node.role is Role.EXCHANGE:
            return self._setting.lanes
        device = node.first.device
        lane = self._lanes.get(device)
        if lane is None:
            lane = self._lanes[device] = len(self._lanes) % self._setting.lanes
        return lane
