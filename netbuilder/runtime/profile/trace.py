"""A profile as trace events in the JSON format of Chrome's tracing, which Perfetto opens."""

from __future__ import annotations

from typing import Any

from netbuilder.ops.core.instructions import Role
from netbuilder.runtime.profile.call import CallProfile
from netbuilder.runtime.profile.record import Profile, WaitProfile
from netbuilder.runtime.profile.timing import Span

__all__ = ["chrome_trace", "trace_events"]


def chrome_trace(profile: Profile) -> dict[str, Any]:
    """Return the trace of all runs: one track for the steps, and one for each device on each lane.

    A slice is a call, named by operator type and first output, or a wait of a lane for another one; its category is
    "operator", "gradient", "exchange", "input", "copy" or "wait". Times are in microseconds since the first run began.

    >>> from netbuilder.graph import Net
    >>> from netbuilder.runtime import Workspace
    >>> from netbuilder.runtime.profile.profiling import profile
    >>> workspace, net = Workspace(), Net("example")
    >>> workspace.feed("x", np.ones((8, 8), np.float32))
    >>> net.Relu("x", "y")
    BlobReference("y")
    >>> trace = chrome_trace(profile(workspace, workspace.create_net(net), runs=1))
    >>> [event["name"] for event in trace["traceEvents"] if event["ph"] == "X"]
    ['step 0', 'Relu y']
    """
    events = trace_events(profile, profile.runs[0][1], f"net {profile.net}")
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": _about(profile)}


def trace_events(
    profile: Profile, start: int, title: str, *, process: int = 1, first_track: int = 0
) -> list[dict[str, Any]]:
    """Return the events of one profile, which may be a part of a trace of several nets or processes.

    Args:
        start: the moment, in nanoseconds of this process's clock, from which times count.
        title: of the process.
        process: its number.
        first_track: the number of the first track, of the steps; those of lanes follow.
    """
    pairs = sorted(
        {*((call.lane, call.device) for call in profile.calls), *((wait.lane, wait.device) for wait in profile.waits)}
    )
    tracks = {pair: number for number, pair in enumerate(pairs, first_track + 1)}
    slices = [_slice(f"step {span[0]}", "step", first_track, span, start, {}) for span in profile.runs]
    for call in profile.calls:
        args = _call_args(call)
        track = tracks[call.lane, call.device]
        slices += [_slice(call.name, call.category, track, span, start, args) for span in call.spans]
    for wait in profile.waits:
        track = tracks[wait.lane, wait.device]
        slices += [_slice(f"wait for {wait.after}", "wait", track, s, start, _wait_args(wait)) for s in wait.spans]
    slices.sort(key=lambda event: (event["tid"], event["ts"]))
    names = [
        _named("process_name", first_track, title),
        *_track_name(first_track, f"steps of {profile.net}" if first_track else "steps"),
    ]
    for (lane, device), track in tracks.items():
        role = profile.lanes[lane].role
        note = "" if role == Role.COMPUTE.value else f", {role}"
        names += _track_name(track, f"{device}, lane {lane}{note}")
    return [{**event, "pid": process} for event in (*names, *slices)]


def _named(what: str, track: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "tid": track, "args": {"name": name}}


def _track_name(track: int, name: str) -> list[dict[str, Any]]:
    order = {"ph": "M", "name": "thread_sort_index", "tid": track, "args": {"sort_index": track}}
    return [_named("thread_name", track, name), order]


def _slice(name: str, category: str, track: int, span: Span, start: int, args: dict[str, Any]) -> dict[str, Any]:
    _, began, ended = span
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "tid": track,
        "ts": (began - start) / 1000,
        "dur": (ended - began) / 1000,
        "args": args,
    }


def _call_args(call: CallProfile) -> dict[str, Any]:
    args = {
        "operators": ", ".join(call.operators),
        "reads": [str(operand) for operand in call.inputs],
        "writes": [str(operand) for operand in call.outputs],
        "kernel": call.kernel,
        "flops": call.flops,
        "bytes": call.nbytes,
        "reason": call.reason,
        "line": call.line,
    }
    return {key: value for key, value in args.items() if value not in ("", [])}


def _wait_args(wait: WaitProfile) -> dict[str, Any]:
    return {"before": wait.before, "after": wait.after}


def _about(profile: Profile) -> dict[str, Any]:
    return {
        "net": profile.net,
        "threads": profile.threads,
        "step_seconds": profile.step_seconds,
        "fraction_of_limit": profile.fraction,
    }
