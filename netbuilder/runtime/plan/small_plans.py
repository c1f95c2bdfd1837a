"""Plans of small operators: for a few microseconds of work, another thread costs more than it gains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from netbuilder.ops.core.instructions import Role
from netbuilder.runtime.plan.options import Setting
from netbuilder.runtime.plan.values import Node

__all__ = ["setting_for"]

_SMALL = 8_000_000
"""Operations of an operator that one thread does in some 100 microseconds.

Several threads would gain some of these on an idle machine. On a busy one they lose a time slice of the scheduler, some
milliseconds, whenever one of them waits for a core while the others wait for it.
"""

_PER_ELEMENT = 32  # operations that take as long as reading or writing an element


def setting_for(nodes: Sequence[Node], setting: Setting) -> Setting:
    """Return the setting for a plan of these operators: with the lanes and threads that they are worth.

    Where no exchange takes long, handing it to a lane of its own and waiting for that lane takes longer.
    """
    if setting.exchange_lane and not any(_is_large(node) for node in nodes if node.role is Role.EXCHANGE):
        setting = replace(setting, exchange_lane=False)
    if setting.lane_threads == 1 or not setting.does("threads_by_work") or any(map(_is_large, nodes)):
        return setting
    return replace(setting, threads=setting.lanes)


def _is_large(node: Node) -> bool:
    inputs = [value.spec.plain for value in node.inputs if value.spec is not None]
    elements = sum(spec.size for spec in inputs) + sum(value.spec.size for value in node.outputs if value.spec)
    if _PER_ELEMENT * elements > _SMALL:
        return True
    try:
        return int(node.first.op.flops(*inputs)) > _SMALL
    except Exception:  # a formula for shapes that only a run can tell
        return True
