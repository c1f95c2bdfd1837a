"""A profile as text: the step and its limit, then tables by kind, by call, and of copies and waits."""

from __future__ import annotations

from netbuilder.proto.errors import bytes_text
from netbuilder.runtime.profile.call import CallProfile
from netbuilder.runtime.profile.record import Kind, Profile
from netbuilder.runtime.profile.roofline import Limits
from netbuilder.runtime.profile.text_table import Report, TextTable, report_text

__all__ = ["again_text", "profile_report", "profile_table"]

_HEAD = ("time ms", "share", "GFLOP/s", "GB/s", "limit ms", "of limit")
_PLACES = 3  # that are listed
_VISIBLE = 0.5e-6  # seconds: less is shown as 0.000 ms


def profile_table(profile: Profile, top: int = 20) -> str:
    """Return a profile as text, see ``profile_report``."""
    return report_text(profile_report(profile, top))


def profile_report(profile: Profile, top: int = 20) -> Report:
    """Return a profile as tables, after a summary.

    Args:
        profile: the profile.
        top: how many calls, copies and waits to list, the longest first.
    """
    tables = [_kinds(profile), *(table(profile, top) for table in (_calls, _by_numpy, _copies, _waits, _not_captured))]
    return [_summary(profile), *(table for table in tables if table is not None)]


def _summary(profile: Profile) -> str:
    counted = f"{len(profile.counted)} of {len(profile.runs)} runs"
    lanes = f", {len(profile.lanes)} lanes" if len(profile.lanes) > 1 else ""
    lines = [
        f"net {profile.net!r}: {_plural(profile.threads, 'thread')}{lanes}; means over {counted}",
        f"step {_ms(profile.plain_seconds)} ms; with timed calls {_ms(profile.step_seconds)} ms, "
        f"of which {_share(profile.interpreter_share)} is Python between them",
        f"limit {_ms(profile.limit_seconds)} ms, {profile.fraction:.2f} of the step, by the operators' formulas",
    ]
    if profile.kernel_limit_seconds != profile.limit_seconds:
        lines.append(
            f"limit {_ms(profile.kernel_limit_seconds)} ms, {profile.kernel_fraction:.2f} of the step, by the "
            "operations that the kernels do"
        )
    outside = sum(bool(call.why_no_graph) for call in profile.calls)
    if profile.graphs or outside:
        lines.append(
            f"GPUs: the host begins a step in {_ms(profile.host_seconds)} ms, {_share(profile.host_share)} of it; "
            f"{len(profile.calls) - outside} of {_plural(len(profile.calls), 'call')} are in "
            f"{_plural(profile.graphs, 'CUDA graph')}"
        )
    shares = [f"{name} {_share(profile.share_of(seconds))}" for name, seconds in profile.categories().items()]
    lines.append("by category: " + ", ".join(shares))
    for kind, limits in profile.limits.items():
        on = f" on {_plural(limits.threads, 'thread')}" if limits.threads else ""
        lines.append(
            f"{kind}{on}: {limits.matrix_rate / 1e9:.1f} GFLOP/s ({limits.matrix_by}), {_rounded(limits)}"
            f"copy {limits.copy_bandwidth / 1e9:.1f} GB/s"
        )
    if len(profile.lanes) > 1:
        for lane in profile.lanes:
            lines.append(
                f"lane {lane.lane}, {lane.role}: in calls {_ms(lane.busy)} ms, waiting {_ms(lane.waiting)} ms, "
                f"idle {_ms(lane.idle)} ms, Python {_ms(lane.interpreter)} ms"
            )
    if profile.exchange_seconds:
        share = profile.overlap_seconds / profile.exchange_seconds
        lines.append(
            f"exchange {_ms(profile.exchange_seconds)} ms, {_ms(profile.overlap_seconds)} ms of it ({_share(share)}) "
            "while another lane computes"
        )
    memory = profile.memory
    if again := again_text(memory.predicted_again, profile.measured_again):
        lines.append(f"computed again: {again}")
    lines.append(
        f"memory {memory}; scratch {bytes_text(memory.scratch)}; peak of the process {bytes_text(memory.peak_resident)}"
    )
    return "\n".join(lines)


_LEAST = 0.01  # share of the time that is mentioned


def again_text(predicted: float, measured: float | None = None) -> str:
    """Return the time to compute values again, to save memory; "" if that is less than one percent.

    >>> again_text(0.251, 0.3), again_text(0.25), again_text(0.004, 0.001)
    ('25 % more time predicted, 30 % measured', '25 % more time predicted', '')
    """
    if max(predicted, measured or 0.0) < _LEAST:
        return ""
    text = f"{_percent(predicted)} more time predicted"
    return text if measured is None else f"{text}, {_percent(measured)} measured"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= _LEAST else "less than 1 %"


def _rounded(limits: Limits) -> str:
    rate = limits.bfloat16_rate
    return f"in 16 bits {rate / 1e9:.1f} GFLOP/s ({limits.bfloat16_by}), " if rate else ""


def _kinds(profile: Profile) -> TextTable:
    rows = [
        (*_figures(profile, kind, kind.flops, kind.nbytes, kind.limit_seconds), f"{kind.calls:g}", kind.kind)
        for kind in profile.kinds()
    ]
    return TextTable("by kind", (*_HEAD, "calls", "kind"), rows)


def _calls(profile: Profile, top: int) -> TextTable:
    slowest = sorted(profile.calls, key=lambda call: -call.seconds)[:top]
    several = len({(call.lane, call.device) for call in profile.calls}) > 1
    rows = []
    for call in slowest:
        figures = _figures(profile, call, call.count * call.flops, call.count * call.nbytes, profile.limit_of(call))
        where = f"{call.device}: " if several else ""
        rows.append((*figures, f"{where}{call.name}", _shapes(call), call.kernel))
    title = f"by call, the {len(rows)} that take longest of {len(profile.calls)}"
    return TextTable(title, (*_HEAD, "call", "first input, first output", "kernel"), rows)


def _by_numpy(profile: Profile, top: int) -> TextTable | None:
    """Return what runs by NumPy, with the places of the first calls."""
    found = profile.by_numpy()
    rows = []
    for each in found[:top]:
        more = f", and {len(each.places) - _PLACES} more" if len(each.places) > _PLACES else ""
        places = ", ".join(each.places[:_PLACES]) + more
        rows.append((_ms(each.seconds), f"{each.calls:g}", each.kind, each.kernel, places))
    if not rows:
        return None
    seconds = sum(each.seconds for each in found)
    calls = sum(each.calls for each in found)
    title = f"by NumPy: {calls:g} calls, {_ms(seconds)} ms, {profile.share_of(seconds):.1%}"
    return TextTable(title, ("time ms", "calls", "kind", "kernel", "places"), rows)


def _copies(profile: Profile, top: int) -> TextTable | None:
    copies = sorted((call for call in profile.calls if call.category == "copy"), key=lambda call: -call.seconds)
    if not copies:
        return None
    seconds = sum(call.seconds for call in copies)
    rows = [(_ms(call.seconds), call.name, call.reason) for call in copies[:top]]
    share = f"{_ms(seconds)} ms, {profile.share_of(seconds):.1%}"
    return TextTable(f"copies inserted by the plan: {len(copies)}, {share}", ("time ms", "copy of", "because"), rows)


def _waits(profile: Profile, top: int) -> TextTable | None:
    waits = sorted((wait for wait in profile.waits if wait.seconds > _VISIBLE), key=lambda wait: -wait.seconds)[:top]
    rows = [(_ms(wait.seconds), str(wait.lane), wait.before, wait.after) for wait in waits]
    return TextTable("waits of lanes for one another", ("time ms", "lane", "before", "for"), rows) if rows else None


def _not_captured(profile: Profile, top: int) -> TextTable | None:
    """Return the calls that are in no CUDA graph, with what prevents it; those that take longest first."""
    calls = sorted((call for call in profile.calls if call.why_no_graph), key=lambda call: -call.seconds)
    rows = [(_ms(call.seconds), call.device, call.name, call.why_no_graph) for call in calls[:top]]
    head = ("time ms", "device", "call", "because")
    return TextTable(f"calls in no CUDA graph: {len(calls)}", head, rows) if rows else None


def _figures(profile: Profile, row: CallProfile | Kind, flops: float, nbytes: float, limit: float) -> tuple[str, ...]:
    seconds = row.seconds
    if not seconds:
        return (_ms(0), _share(0), "", "", _ms(limit), "")
    return (
        _ms(seconds),
        _share(profile.share_of(seconds)),
        f"{flops / seconds / 1e9:.1f}" if flops else "",
        f"{nbytes / seconds / 1e9:.1f}" if nbytes else "",
        _ms(limit),
        f"{limit / seconds:.2f}" if limit else "",
    )


def _shapes(call: CallProfile) -> str:
    firsts = [" ".join(str(each[0]).split(" ")[1:]) if each else "nothing" for each in (call.inputs, call.outputs)]
    return " -> ".join(firsts)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3f}"


def _share(share: float) -> str:
    return f"{100 * share:.1f}%"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
