"""The record of a profile: a net's step taken apart into calls, waits and lanes, and what the machine can do."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from netbuilder.ops.core.instructions import Role
from netbuilder.runtime.profile.call import CallProfile
from netbuilder.runtime.profile.memory import Memory
from netbuilder.runtime.profile.roofline import Limits
from netbuilder.runtime.profile.timing import Span

__all__ = ["Kind", "LaneProfile", "Profile", "WaitProfile"]


@dataclass(frozen=True)
class WaitProfile:
    """A lane's wait for a call of another lane.

    Args:
        lane, device: that waits.
        before: the operator that waits, its type and first output.
        after: the one that it waits for.
        seconds: a step.
        spans: each wait, see ``timing.Span``.
    """

    lane: int
    device: str
    before: str
    after: str
    seconds: float
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class LaneProfile:
    """Seconds of a step on one lane, which together make the step.

    Args:
        role: "compute", or "exchange" for the lane that exchanges values between devices.
        busy: in calls.
        waiting: for calls of other lanes.
        idle: before its first call, after its last, while other lanes are at work.
        interpreter: the rest: Python between the calls.
    """

    lane: int
    role: str
    busy: float
    waiting: float
    idle: float
    interpreter: float


@dataclass(frozen=True)
class Kind:
    """All calls of one kind: an operator's type, several joined by "+", or a copy that the plan put in."""

    kind: str
    calls: float
    seconds: float
    flops: float
    nbytes: float
    limit_seconds: float


@dataclass(frozen=True)
class Profile:
    """The step of a net, taken apart.

    All times are means, in seconds of a step, over the runs that are kept: those that took no longer than the median
    run. So what is seconds of a step adds up: calls, waits, idle time and interpreter over all lanes make
    ``len(lanes) * step_seconds``.

    Args:
        net: its name.
        threads: of all lanes that compute together.
        runs: when each run began and ended.
        kept: the numbers of the runs that count.
        step_seconds: of a run with all calls timed.
        plain_seconds: of a run without, between those; kept in the same way.
        calls: in the order of the net.
        waits: of lanes for one another.
        lanes: one for each lane; lane 0 is the caller's thread, a lane for the exchange is the last one.
        limits: what the machine can do, by the kind of device ("CPU", "GPU").
        memory: in bytes.
    """

    net: str
    threads: int
    runs: tuple[Span, ...]
    kept: frozenset[int]
    step_seconds: float
    plain_seconds: float
    calls: tuple[CallProfile, ...]
    waits: tuple[WaitProfile, ...]
    lanes: tuple[LaneProfile, ...]
    limits: Mapping[str, Limits]
    memory: Memory

    @property
    def interpreter_share(self) -> float:
        """Share of the lanes' time that goes to Python between the calls."""
        return sum(lane.interpreter for lane in self.lanes) / (len(self.lanes) * self.step_seconds)

    @property
    def limit_seconds(self) -> float:
        """The least time of a step: of each operator the greater of flops and bytes over what the machine can do.

        Copies that the plan put in count nothing: the net does not ask for them.
        """
        return sum(self.limit_of(call) for call in self.calls) / self._computing

    @property
    def fraction(self) -> float:
        """The limit's share of the time that a step takes when nothing is timed; 1 is a step that nothing can better.

        Values that stay in the caches between two operators can bring it beyond 1.
        """
        return self.limit_seconds / self.plain_seconds

    def limit_of(self, call: CallProfile) -> float:
        """Return the least seconds of a call in a step, on its lane's share of the threads."""
        if call.category == "copy":
            return 0.0
        kind = call.device.partition(" ")[0]
        lanes = self._computing if kind == "CPU" else 1
        return call.count * lanes * self.limits[kind].seconds(call.flops, call.nbytes, bfloat16=call.bfloat16)

    @property
    def _computing(self) -> int:
        """How many lanes share the threads; the one for the exchange has none of them."""
        return sum(lane.role == Role.COMPUTE.value for lane in self.lanes)

    @property
    def exchange_seconds(self) -> float:
        """Seconds of a step in which values are exchanged between devices."""
        return self.categories().get("exchange", 0.0)

    @property
    def overlap_seconds(self) -> float:
        """Seconds of a step in which one lane exchanges values while another one computes."""
        return sum(self._overlap_of(lane.lane) for lane in self.lanes) / len(self.kept) / 1e9

    def _overlap_of(self, lane: int) -> int:
        """Return the nanoseconds, over all kept runs, in which a lane exchanges while another one computes."""
        marks: list[tuple[int, bool, int]] = []
        for call in self.calls:
            exchanges = call.category == "exchange"
            if (call.lane == lane) == exchanges:
                for run, began, ended in call.spans:
                    if run in self.kept:
                        marks += (began, exchanges, 1), (ended, exchanges, -1)
        running, total, before = [0, 0], 0, 0
        for time, exchanges, change in sorted(marks):
            if all(running):
                total += time - before
            running[exchanges] += change
            before = time
        return total

    def share_of(self, seconds: float) -> float:
        """Return which share of the lanes' time that is."""
        return seconds / (len(self.lanes) * self.step_seconds)

    def categories(self) -> dict[str, float]:
        """Return the seconds of a step by category, those that take longest first."""
        sums: dict[str, float] = {}
        for call in self.calls:
            sums[call.category] = sums.get(call.category, 0.0) + call.seconds
        return dict(sorted(sums.items(), key=lambda entry: -entry[1]))

    def kinds(self) -> list[Kind]:
        """Return the calls summed by kind, the kind that takes longest first."""
        groups: dict[str, list[CallProfile]] = {}
        for call in self.calls:
            groups.setdefault(call.kind, []).append(call)
        sums = [
            Kind(
                kind,
                sum(call.count for call in calls),
                sum(call.seconds for call in calls),
                sum(call.count * call.flops for call in calls),
                sum(call.count * call.nbytes for call in calls),
                sum(self.limit_of(call) for call in calls),
            )
            for kind, calls in groups.items()
        ]
        return sorted(sums, key=lambda kind: -kind.seconds)

    def to_dict(self) -> dict[str, Any]:
        """Return all but the single spans as what JSON can hold: seconds, flops, bytes, and rates of them."""
        calls = []
        for call in self.calls:
            row = dataclasses.asdict(call)
            del row["spans"]
            calls.append({**row, "name": call.name, **self._rates(call.count, call), "limit": self.limit_of(call)})
        kinds = [{**dataclasses.asdict(kind), **self._rates(1, kind)} for kind in self.kinds()]
        waits = [dataclasses.asdict(wait) for wait in self.waits]
        for wait in waits:
            del wait["spans"]
        return {
            "net": self.net,
            "threads": self.threads,
            "runs": len(self.runs),
            "runs_kept": len(self.kept),
            "step_seconds": self.step_seconds,
            "plain_seconds": self.plain_seconds,
            "interpreter_share": self.interpreter_share,
            "limit_seconds": self.limit_seconds,
            "fraction_of_limit": self.fraction,
            "exchange_seconds": self.exchange_seconds,
            "overlap_seconds": self.overlap_seconds,
            "limits": {kind: dataclasses.asdict(limits) for kind, limits in self.limits.items()},
            "memory": dataclasses.asdict(self.memory),
            "categories": self.categories(),
            "lanes": [dataclasses.asdict(lane) for lane in self.lanes],
            "kinds": kinds,
            "calls": calls,
            "waits": waits,
        }

    def _rates(self, count: float, row: CallProfile | Kind) -> dict[str, float]:
        seconds = row.seconds or float("inf")
        return {
            "share": self.share_of(row.seconds),
            "flops_per_second": count * row.flops / seconds,
            "bytes_per_second": count * row.nbytes / seconds,
        }
