"""profile: runs a net with its calls timed, and measures the limits of the machine."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from netbuilder.ops.core.instructions import Role
from netbuilder.ops.core.precision import PRECISIONS
from netbuilder.proto import NetError
from netbuilder.runtime.execute.net import RuntimeNet
from netbuilder.runtime.execute.workspace import Workspace
from netbuilder.runtime.profile.call import (
    CallProfile,
    describe_alone,
    describe_step,
    device_text,
    step_text,
)
from netbuilder.runtime.profile.memory import memory_of
from netbuilder.runtime.profile.record import LaneProfile, Profile, WaitProfile
from netbuilder.runtime.profile.roofline import Limits, measure_gpu_limits, measure_limits
from netbuilder.runtime.profile.timing import Recorder, Span, TimedCall, TimedPlan, clock

__all__ = ["Profile", "profile", "profile_of"]


def profile(
    workspace: Workspace,
    net_name: Any,
    *,
    runs: int = 10,
    warmup: int = 2,
    parameters: Collection[str] = (),
    limits: Mapping[str, Limits] | None = None,
) -> Profile:
    """Run a created net alternately with every call timed and without, and measure the limits of the machine.

    The runs have their usual effects: counters advance, and parameters are updated. On GPUs each timed call is waited
    for, so that times are those of single calls, and nothing overlaps.

    Args:
        workspace: where the net was created; its inputs must have been fed.
        net_name: of the net.
        runs: number of runs with timed calls; as many without alternate with them.
        warmup: number of runs before these; the first one compiles the plan.
        parameters: blobs that count as parameters in ``Memory``, such as those that the init net makes.
        limits: the limits of the machine, by the kind of device ("CPU", "GPU"); None: they are measured at the end,
            with the number of threads of the workspace.

    Raises:
        NetError: there is no such net, a number of runs is less than 1, or an operator failed.

    >>> from netbuilder.graph import Net
    >>> workspace, net = Workspace(), Net("example")
    >>> workspace.feed("x", np.ones((64, 64), np.float32))
    >>> net.MatMul(["x", "x"], "y")
    BlobReference("y")
    >>> found = profile(workspace, workspace.create_net(net), runs=3)
    >>> [(call.kind, call.output, call.flops, call.nbytes) for call in found.calls]
    [('MatMul', 'y', 524288, 32768)]
    """
    if runs < 1 or warmup < 1:
        raise NetError(
            f"profile of net {str(net_name)!r}: runs must be 1 or more, and so must warmup, because the first run "
            f"compiles the plan; got runs={runs}, warmup={warmup}"
        )
    net = workspace.net(net_name)
    for _ in range(warmup):
        net.run()
        net.finish()
    recorder = Recorder(net)
    recorder.run(keep=False)
    plain, issued = [], []
    for _ in range(runs):
        began = clock()
        net.run()
        issued.append(clock() - began)
        net.finish()
        plain.append(clock() - began)
        recorder.run()
    found = dict(limits) if limits is not None else _measured(net)
    return _summary(net, recorder, plain, issued, found, parameters)


def profile_of(net: RuntimeNet, recorder: Recorder) -> Profile:
    """Return the profile of runs that were recorded in a program of one's own, without limits of the machine."""
    took = [ended - began for _, began, ended in recorder.runs]
    return _summary(net, recorder, took, took, {}, ())


def _measured(net: RuntimeNet) -> dict[str, Limits]:
    precision = net.options.dtype
    limits = {"CPU": measure_limits(net.options.threads, bfloat16=precision == "bfloat16")}
    if net.gpus:
        allowed = net.options.allow_tf32
        limits["GPU"] = measure_gpu_limits(net.gpus[0], bfloat16=precision != PRECISIONS[0], allow_tf32=allowed)
    return limits


def _summary(
    net: RuntimeNet,
    recorder: Recorder,
    plain: Sequence[int],
    issued: Sequence[int],
    limits: Mapping[str, Limits],
    parameters: Collection[str],
) -> Profile:
    memory = memory_of(
        net, [timed.plan for timed in recorder.plans], [call.instruction for call in recorder.alone], parameters
    )
    took = [ended - began for _, began, ended in recorder.runs]
    kept = frozenset(run for run, time in enumerate(took) if time <= statistics.median_high(took))
    count = len(kept)

    def seconds(spans: Sequence[Span]) -> float:
        return sum(ended - began for run, began, ended in spans if run in kept) / count / 1e9

    step = sum(took[run] for run in kept) / count / 1e9
    quick = [run for run, time in enumerate(plain) if time <= statistics.median_high(plain)]
    calls = _calls(net, recorder, kept, seconds)
    waits = _waits(recorder, seconds)
    return Profile(
        net=net.name,
        threads=net.options.threads,
        runs=tuple(recorder.runs),
        counted=kept,
        step_seconds=step,
        plain_seconds=sum(plain[run] for run in quick) / len(quick) / 1e9,
        host_seconds=sum(issued[run] for run in quick) / len(quick) / 1e9,
        calls=calls,
        waits=waits,
        lanes=_lanes(net.options.lanes, step, calls, waits, recorder.plans, seconds),
        limits=limits,
        memory=memory,
    )


Seconds = Callable[[Sequence[Span]], float]


def _calls(net: RuntimeNet, recorder: Recorder, kept: Collection[int], seconds: Seconds) -> tuple[CallProfile, ...]:
    found: list[tuple[int, list[CallProfile]]] = []  # (index of the first operator, calls)
    graphs = 0

    def times(call: TimedCall) -> dict[str, Any]:
        count = sum(run in kept for run, _, _ in call.spans) / len(kept)
        return {"count": count, "seconds": seconds(call.spans), "spans": tuple(call.spans)}

    for plan in recorder.plans:
        captured = plan.plan.captured(graphs) if net.gpus else [None] * len(plan.calls)
        graphs = max((graphs, *(each.graph + 1 for each in captured if each is not None)))
        rows = [
            describe_step(call.step, graph, **times(call))
            for call, graph in zip(plan.calls, captured)
            if call.step is not None
        ]
        found.append((min(call.instruction.index for call in plan.calls), rows))
    for call in recorder.alone:
        found.append((call.instruction.index, [describe_alone(net, call.instruction, **times(call))]))
    return tuple(row for _, rows in sorted(found, key=lambda entry: entry[0]) for row in rows)


def _waits(recorder: Recorder, seconds: Seconds) -> tuple[WaitProfile, ...]:
    return tuple(
        WaitProfile(
            lane=wait.before.lane,
            device=device_text(wait.before.node.first.device),
            before=step_text(wait.before),
            after=step_text(wait.after),
            seconds=seconds(wait.spans),
            spans=tuple(wait.spans),
        )
        for plan in recorder.plans
        for wait in plan.waits
    )


def _lanes(
    computing: int,
    step: float,
    calls: Sequence[CallProfile],
    waits: Sequence[WaitProfile],
    plans: Sequence[TimedPlan],
    seconds: Seconds,
) -> tuple[LaneProfile, ...]:
    found = []
    count = max((len(plan.lanes) for plan in plans), default=computing)
    for lane in range(count):
        busy = sum(call.seconds for call in calls if call.lane == lane)
        waiting = sum(wait.seconds for wait in waits if wait.lane == lane)
        idle = 0.0
        if count > 1:
            # Lane 0 is the caller's thread, which also works between plans; the others are idle then.
            working = sum(seconds(plan.lanes[lane].spans) for plan in plans if lane < len(plan.lanes))
            idle = sum(seconds(_tail(plan)) for plan in plans) if lane == 0 else step - working
        role = Role.COMPUTE if lane < computing else Role.EXCHANGE
        found.append(LaneProfile(lane, role.value, busy, waiting, idle, step - busy - waiting - idle))
    return tuple(found)


def _tail(plan: TimedPlan) -> list[Span]:
    """Return the spans between the end of lane 0's work on a plan and the end of the plan."""
    return [(run, lane_0[2], ended) for lane_0, (run, _, ended) in zip(plan.lanes[0].spans, plan.whole.spans)]
