"""Profile: the step of a net split into calls, waits and lanes, with the limits of the machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from netbuilder.ops.core.instructions import Role
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.runtime.profile.call import CallProfile, share_again
from netbuilder.runtime.profile.memory import Memory
from netbuilder.runtime.profile.roofline import Limits
from netbuilder.runtime.profile.timing import Span

__all__ = ["ByNumPy", "Kind", "LaneProfile", "Profile", "WaitProfile"]


@dataclass(frozen=True)
class WaitProfile:
    """A lane's wait for a call of another lane.

    Args:
        lane, device: of the lane that waits.
        before: the operator that waits, its type and first output.
        after: the operator that it waits for.
        seconds: time per step.
        spans: the times of each wait, see ``timing.Span``.
    """

    lane: int
    device: str
    before: str
    after: str
    seconds: float
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class LaneProfile:
    """How one lane spends the time of a step, in seconds; the times add up to the step.

    Args:
        lane: its number.
        role: "compute", or "exchange" for the lane that exchanges values between devices.
        busy: time in calls.
        waiting: time waiting for calls of other lanes.
        idle: time before its first call and after its last one, while other lanes work.
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
    """All calls of one kind (see ``CallProfile.kind``)."""

    kind: str
    calls: float
    seconds: float
    flops: float
    nbytes: float
    limit_seconds: float


@dataclass(frozen=True)
class ByNumPy:
    """All calls of one kind that run by NumPy.

    Args:
        kind: see ``CallProfile.kind``.
        kernel: what of NumPy; "plain": the plain kernel.
        calls: per step.
        seconds: per step.
        places: the first output of each call, and the line of the user's program that added the operator.
    """

    kind: str
    kernel: str
    calls: float
    seconds: float
    places: tuple[str, ...]


@dataclass(frozen=True)
class Profile:
    """The step of a net, split into calls, waits and lanes.

    All times are means in seconds per step, over the runs that count: those that took no longer than the median run.
    So calls, waits, idle time and interpreter time of all lanes add up to ``len(lanes) * step_seconds``.

    Args:
        net: its name.
        threads: number of threads of all compute lanes together.
        runs: when each run began and ended.
        counted: the numbers of the runs that count.
        step_seconds: the time of a run with all calls timed.
        plain_seconds: the time of a run without timed calls; the mean is taken in the same way.
        host_seconds: how much of it the host takes to begin the work of GPUs; all of it if there are none.
        calls: the calls, in the order of the net.
        waits: the waits of lanes for one another.
        lanes: one for each lane; lane 0 is the caller's thread, an exchange lane is the last one.
        limits: the limits of the machine, by the kind of device ("CPU", "GPU").
        memory: in bytes.
    """

    net: str
    threads: int
    runs: tuple[Span, ...]
    counted: frozenset[int]
    step_seconds: float
    plain_seconds: float
    calls: tuple[CallProfile, ...]
    waits: tuple[WaitProfile, ...]
    lanes: tuple[LaneProfile, ...]
    limits: Mapping[str, Limits]
    memory: Memory
    host_seconds: float = 0.0

    @property
    def host_share(self) -> float:
        """The share of a step without timed calls that the host takes to begin the work of GPUs.

        Close to 1, the GPUs wait for the host; the smaller it is, the more of the step they have in their queues.
        """
        return self.host_seconds / self.plain_seconds

    @property
    def graphs(self) -> int:
        """The number of CUDA graphs of a step."""
        return len({call.graph for call in self.calls if call.graph >= 0})

    @property
    def interpreter_share(self) -> float:
        """Share of the lanes' time that Python takes between the calls."""
        return sum(lane.interpreter for lane in self.lanes) / (len(self.lanes) * self.step_seconds)

    @property
    def limit_seconds(self) -> float:
        """The least possible time of a step, by the roofline model.

        For each operator it is the time for its flops at the peak rate, or for its bytes at the peak bandwidth,
        whichever is greater. Copies that the plan inserted do not count: the net does not need them.
        """
        return sum(self.limit_of(call) for call in self.calls) / self._compute_lanes

    @property
    def kernel_limit_seconds(self) -> float:
        """The least possible time of a step with the operations that its kernels do, see ``CallProfile.kernel_flops``.

        It is less than ``limit_seconds`` where convolutions are computed by minimal filtering.
        """
        return sum(self.kernel_limit_of(call) for call in self.calls) / self._compute_lanes

    @property
    def kernel_fraction(self) -> float:
        """``kernel_limit_seconds`` divided by the time of a step without timed calls."""
        return self.kernel_limit_seconds / self.plain_seconds

    @property
    def fraction(self) -> float:
        """The least possible time divided by the time of a step without timed calls; 1 is optimal.

        It can exceed 1 if values stay in the caches between two operators.
        """
        return self.limit_seconds / self.plain_seconds

    def limit_of(self, call: CallProfile) -> float:
        """Return the least possible time of a call per step, with its lane's share of the threads."""
        return self._least_seconds(call, call.flops)

    def kernel_limit_of(self, call: CallProfile) -> float:
        """Return the same with the operations that its kernel does."""
        return self._least_seconds(call, call.kernel_flops)

    def _least_seconds(self, call: CallProfile, flops: int) -> float:
        if call.category == "copy":
            return 0.0
        kind = call.device.partition(" ")[0]
        lanes = self._compute_lanes if kind == "CPU" else 1
        return call.count * lanes * self.limits[kind].seconds(flops, call.nbytes, bfloat16=call.bfloat16)

    @property
    def _compute_lanes(self) -> int:
        """Number of compute lanes, which share the threads; the exchange lane has none of them."""
        return sum(lane.role == Role.COMPUTE.value for lane in self.lanes)

    @property
    def exchange_seconds(self) -> float:
        """Seconds of a step in which values are exchanged between devices."""
        return self.categories().get("exchange", 0.0)

    @property
    def overlap_seconds(self) -> float:
        """Seconds of a step in which one lane exchanges values while another one computes."""
        return sum(self._overlap_of(lane.lane) for lane in self.lanes) / len(self.counted) / 1e9

    def _overlap_of(self, lane: int) -> int:
        """Return the nanoseconds, over all kept runs, in which a lane exchanges while another one computes."""
        marks: list[tuple[int, bool, int]] = []
        for call in self.calls:
            exchanges = call.category == "exchange"
            if (call.lane == lane) == exchanges:
                for run, began, ended in call.spans:
                    if run in self.counted:
                        marks += (began, exchanges, 1), (ended, exchanges, -1)
        running, total, before = [0, 0], 0, 0
        for time, exchanges, change in sorted(marks):
            if all(running):
                total += time - before
            running[exchanges] += change
            before = time
        return total

    def share_of(self, seconds: float) -> float:
        """Return a time's share of the lanes' total time."""
        return seconds / (len(self.lanes) * self.step_seconds)

    @property
    def measured_again(self) -> float:
        """The time to compute values again, to save memory, as a fraction of that of all other calls."""
        return share_again((call.category == "recompute", call.runs_again, call.seconds) for call in self.calls)

    def categories(self) -> dict[str, float]:
        """Return the seconds of a step by category, the longest first."""
        sums: dict[str, float] = {}
        for call in self.calls:
            sums[call.category] = sums.get(call.category, 0.0) + call.seconds
        return dict(sorted(sums.items(), key=lambda entry: -entry[1]))

    def kinds(self) -> list[Kind]:
        """Return the calls summed by kind, the longest first."""
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

    def by_numpy(self) -> list[ByNumPy]:
        """Return what runs by NumPy, see ``CallProfile.by_numpy``, summed by kind and kernel; the longest first."""
        groups: dict[tuple[str, str], list[CallProfile]] = {}
        for call in self.calls:
            if call.by_numpy:
                groups.setdefault((call.kind, call.kernel), []).append(call)
        sums = [
            ByNumPy(
                kind,
                kernel,
                sum(call.count for call in calls),
                sum(call.seconds for call in calls),
                tuple(f"{call.output} ({call.line})" if call.line else call.output for call in calls),
            )
            for (kind, kernel), calls in groups.items()
        ]
        return sorted(sums, key=lambda each: -each.seconds)

    def to_dict(self) -> dict[str, Any]:
        """Return the profile, without single spans, in types of JSON: seconds, flops, bytes, and rates."""
        calls = []
        for call in self.calls:
            row = dataclasses.asdict(call)
            del row["spans"]
            calls.append(
                {
                    **row,
                    "name": call.name,
                    **self._rates(call.count, call),
                    "limit": self.limit_of(call),
                    "kernel_limit": self.kernel_limit_of(call),
                }
            )
        kinds = [{**dataclasses.asdict(kind), **self._rates(1, kind)} for kind in self.kinds()]
        waits = [dataclasses.asdict(wait) for wait in self.waits]
        for wait in waits:
            del wait["spans"]
        return {
            "net": self.net,
            "threads": self.threads,
            "runs": len(self.runs),
            "runs_kept": len(self.counted),
            "step_seconds": self.step_seconds,
            "plain_seconds": self.plain_seconds,
            "interpreter_share": self.interpreter_share,
            "host_seconds": self.host_seconds,
            "host_share": self.host_share,
            "cuda_graphs": self.graphs,
            "limit_seconds": self.limit_seconds,
            "fraction_of_limit": self.fraction,
            "kernel_limit_seconds": self.kernel_limit_seconds,
            "fraction_of_kernel_limit": self.kernel_fraction,
            "measured_again": self.measured_again,
            "exchange_seconds": self.exchange_seconds,
            "overlap_seconds": self.overlap_seconds,
            "limits": {kind: dataclasses.asdict(limits) for kind, limits in self.limits.items()},
            "memory": self.memory.to_dict(),
            "categories": self.categories(),
            "lanes": [dataclasses.asdict(lane) for lane in self.lanes],
            "kinds": kinds,
            "by_numpy": [dataclasses.asdict(each) for each in self.by_numpy()],
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
