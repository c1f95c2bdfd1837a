"""The memory of a net that is ready to run: its arena over the steps, and what is outside."""

from __future__ import annotations

import dataclasses
from typing import Any

from netbuilder.proto.late_dataclass import dataclass
from netbuilder.runtime.profile.arena_map import ArenaMap, arena_maps
from netbuilder.runtime.profile.memory import Held, Memory, held_outside, memory_of, planned_memory
from netbuilder.runtime.profile.timing import Recorder
from netbuilder.tools.profiling.ready import Ready

__all__ = ["NetMemory", "net_memory"]


@dataclass(frozen=True)
class NetMemory:
    """The memory of a net.

    Args:
        net: its name.
        memory: the sums.
        maps: the arenas over the steps, for each plan: that on the host and those on GPUs.
        held: what is outside the arena, the largest first.
    """

    net: str
    memory: Memory
    maps: list[ArenaMap]
    held: list[Held]

    def to_dict(self) -> dict[str, Any]:
        """Return everything in types of JSON."""
        plans = [
            {"plan": arena.plan, "gpu": arena.gpu, "nbytes": arena.nbytes, "live": arena.live, "peak": arena.peak,
             "steps": list(arena.steps), "values": [dataclasses.asdict(value) for value in arena.values]}
            for arena in self.maps
        ]  # fmt: skip
        held = [{"name": each.name, "kind": each.kind, "nbytes": each.nbytes, "gpu": each.gpu} for each in self.held]
        return {"net": self.net, "memory": self.memory.to_dict(), "plans": plans, "held": held}


def net_memory(ready: Ready) -> NetMemory:
    """Return the memory of a net, which runs once if parts of it can be planned only after others have run.

    Raises:
        NetError, OperatorError, DeviceError: the net cannot be planned, or an operator failed.
    """
    net = ready.workspace.net(ready.name)
    memory = planned_memory(ready.workspace, ready.name, ready.parameters)
    plans, alone = net.plan_ahead(), []
    if not memory.whole:
        recorder = Recorder(net)
        recorder.run(keep=False)
        plans = [timed.plan for timed in recorder.plans]
        alone = [call.instruction for call in recorder.alone]
        memory = memory_of(net, plans, alone, ready.parameters)
    held = held_outside(net, plans, alone, ready.parameters)
    return NetMemory(net.name, memory, arena_maps(plans), held)
