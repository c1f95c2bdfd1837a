"""The plan compiler: from a net's operators and the specs of its inputs to steps over values.

A plan covers the operators from ``start`` up to the first one whose output shapes depend on data. The phases:
shapes and values (each write makes a new version; ``runtime.static_run``), fusion, kernels with their layouts
(``runtime.kernel_choice``, ``runtime.step_list``), buffers, binding.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from netbuilder.ops.engines.engine import engine_names, find_engine, library_engines
from netbuilder.runtime.demand import note_demand
from netbuilder.runtime.fuse_updates import join_updates
from netbuilder.runtime.fusion import fuse
from netbuilder.runtime.kernel_choice import choose_image_order, choose_kernel
from netbuilder.runtime.node_context import NodeContext
from netbuilder.runtime.program import describe, located
from netbuilder.runtime.runner import Runner
from netbuilder.runtime.setting import Setting
from netbuilder.runtime.small_plans import setting_for
from netbuilder.runtime.static_run import static_run, values_of
from netbuilder.runtime.step_list import StepList
from netbuilder.runtime.values import Node, Step, Value

__all__ = ["Compilation", "compile_steps"]


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


def compile_steps(net: Runner, start: int, setting: Setting) -> Compilation | None:
    """Compile the longest static run of operators from ``start``; None if the first is not static."""
    for name in engine_names():
        if setting.allows(name):
            engine = find_engine(name)
            engine.register_kernels()
            engine.check_precision(setting.precision)
    specs, end = static_run(net, start, setting)
    if end == start:
        return None
    nodes, last, externals, values = values_of(net, start, end, specs)
    setting = setting_for(nodes, setting)
    for name in setting.constants.intersection(externals) if setting.does("constants") else ():
        externals[name].constant = externals[name].blob
    hidden = frozenset(name for name in last if name not in externals and net.hides(name, start, end))
    engines = library_engines(setting.allows)
    nodes = fuse(nodes, last, [fusion for engine in engines for fusion in engine.fusions()], hidden, setting.does)
    if setting.does("joined_updates"):
        nodes = join_updates(nodes, last, hidden)
    if setting.does("unread_outputs"):
        note_demand(nodes, last, hidden, [*net.program[:start], *net.program[end:]])
    steps = _kernels(net, nodes, setting, values)
    return Compilation(end, steps.made, steps.once, values, last, externals, hidden, setting)


def _kernels(net: Runner, nodes: list[Node], setting: Setting, values: list[Value]) -> StepList:
    steps = StepList(values, setting)
    lane_of = _Lanes(setting.lanes)
    image_order = choose_image_order(nodes, setting)
    waiting = deque(nodes)
    while waiting:
        node = waiting.popleft()
        instruction = node.first
        lane = lane_of(instruction.device)
        try:
            run = net.kernel_context(instruction)
            ctx = NodeContext(
                instruction, run, setting.lane_threads, setting.precision, node.inputs, node.outputs, setting.does,
                image_order, setting.allows,
            )  # fmt: skip
            prepared = choose_kernel(node, ctx, setting)
            if prepared is None:
                waiting.extendleft(reversed(node.originals))
                continue
            steps.add(node, prepared, lane, ctx)
        except Exception as error:
            raise located(describe(net.name, instruction), error) from error
    return steps


class _Lanes:
    """Deals devices out over lanes, in the order in which they are met."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._lanes: dict[tuple[int, int], int] = {}

    def __call__(self, device: tuple[int, int]) -> int:
        lane = self._lanes.get(device)
        if lane is None:
            lane = self._lanes[device] = len(self._lanes) % self._count
        return lane
