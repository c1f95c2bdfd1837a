"""The order of a plan's steps: which ones a step waits for, and which are over when it begins."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np

from netbuilder.runtime.plan.values import Step, Value

__all__ = ["Schedule", "dependencies"]


def dependencies(steps: Sequence[Step], key: Callable[[Value], int]) -> list[set[int]]:
    """Return for each step the earlier ones it has to follow: by buffers read and written, and control inputs."""
    writer: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    named: dict[str, int] = {}
    result: list[set[int]] = []
    for index, step in enumerate(steps):
        after: set[int] = set()
        reads = {key(v) for v in step.inputs if v is not None}
        writes = {key(v) for v in step.outputs if v is not None}
        for buffer in reads | writes:
            if buffer in writer:
                after.add(writer[buffer])
        for buffer in writes:
            after.update(readers.pop(buffer, ()))
        for part in step.node.parts:
            if part.control:
                after.update(named[name] for name in part.control if name in named)
        for value in step.node.inputs:  # a kernel may use what its inputs' producer published
            if value.published and value.producer is not None:
                after.add(named.get(value.name, index))
        for buffer in reads - writes:
            readers.setdefault(buffer, []).append(index)
        for buffer in writes:
            writer[buffer] = index
        for out in step.outputs:
            if out is not None:
                named[out.name] = index
        after.discard(index)
        result.append(after)
    return result


class Schedule:
    """Which steps of a plan are over when another one begins.

    Args:
        steps: in order; those of one lane run in this order, those of several lanes at the same time.
        after: for each step, the earlier ones that it waits for; not needed with a single lane.
    """

    def __init__(self, steps: Sequence[Step], after: Sequence[Collection[int]] | None) -> None:
        self._lanes = [step.lane for step in steps]
        self._count = len(steps)
        if after is None:
            return
        lanes = max(self._lanes, default=0) + 1
        done = np.full((len(steps), lanes), -1, np.int64)  # the last step of each lane that is over before a step
        last = [-1] * lanes
        for index, lane in enumerate(self._lanes):
            latest = {lane: last[lane]} if last[lane] >= 0 else {}  # of each lane: what it waits for is over before it
            for source in after[index]:
                other = self._lanes[source]
                latest[other] = max(latest.get(other, source), source)
            if len(latest) == 1:
                done[index] = done[next(iter(latest.values()))]
            elif latest:
                done[index] = done[[*latest.values()]].max(axis=0)
            done[index, lane] = index
            last[lane] = index
        self._of_lane = [np.flatnonzero(np.array(self._lanes) == lane) for lane in range(lanes)]
        self._done = [done[of_lane] for of_lane in self._of_lane]

    def end(self, lane: int, touched: Iterable[int]) -> int:
        """Return the first step of a lane at which all steps ``touched`` are over or which is the last of them.

        Without such a step it is the end of the plan.
        """
        result = 0
        for index in touched:
            if self._lanes[index] == lane:
                result = max(result, index)
                continue
            steps = self._of_lane[lane]
            at = int(np.searchsorted(self._done[lane][:, self._lanes[index]], index))
            result = max(result, int(steps[at]) if at < len(steps) else self._count)
        return result
