"""A profile as trace events in the JSON format of Chrome's tracing, which Perfetto opens."""

from __future__ import annotations

from typing import Any

from netbuilder.ops.core.instructions import Role
from netbuilder.runtime.profile.call import CallProfile
from netbuilder.runtime.profile.record import Profile, WaitProfile
from netbuilder.runtime.profile.timing import Span

__all__ = ["chrome_trace"]

_PROCESS = 1
_STEPS = 0  # the track of whole steps; those of lanes follow


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
    start = profile.runs[0][1]
    pairs = sorted(
        {*((call.lane, call.device) for call in profile.calls), *((wait.lane, wait.device) for wait in profile.waits)}
    )
    tracks = {pair: number for number, pair in enumerate(pairs, _STEPS + 1)}
    slices = [_slice(f"step {span[0]}", "step", _STEPS, span, start, {}) for span in profile.runs]
    for call in profile.calls:
        args = _call_args(call)
        track = tracks[call.lane, call.device]
        slices += [_slice(call.name, call.category, track, span, start, args) for span in call.spans]
    for wait in profile.waits:
        track = tracks[wait.lane, wait.device]
        slices += [_slice(f"wait for {wait.after}", "wait", track, s, start, _wait_args(wait)) for s in wait.spans]
    slices.sort(key=lambda event: (event["tid"], event["ts"]))
    names = [_named("process_name", _STEPS, f"net {profile.net}"), *_track_name(_STEPS, "steps")]
    for (lane, device), track in tracks.items():
        role = profile.lanes[lane].role
        note = "" if role == Role.COMPUTE.value else f", {role}"
        names += _track_name(track, f"{device}, lane {lane}{note}")
    return {"traceEvents": names + slices, "displayTimeUnit": "ms", "otherData": _about(profile)}


def _named(what: str, track: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": _PROCESS, "tid": track, "args": {"name": name}}


def _track_name(track: int, name: str) -> list[dict[str, Any]]:
    order = {"ph": "M", "name": "thread_sort_index", "pid": _PROCESS, "tid": track, "args": {"sort_index": track}}
    return [_named("thread_name", track, name), order]


def _slice(name: str, category: str, track: int, span: Span, start: int, args: dict[str, Any]) -> dict[str, Any]:
    _, began, ended = span
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": _PROCESS,
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
