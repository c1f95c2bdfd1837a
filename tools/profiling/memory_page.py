"""The memory of a net as a self-contained HTML page: the arena over the steps, and what is outside."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from netbuilder.proto.errors import bytes_text
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.runtime.profile.arena_map import ArenaMap, ArenaValue
from netbuilder.runtime.profile.memory import KINDS
from netbuilder.tools.profiling.net_memory import NetMemory

__all__ = ["DRAWN", "memory_page"]

_WIDE, _HIGH, _CURVE = 1200, 600, 80  # of the drawing, in pixels
DRAWN = 6000  # values that get a rectangle of their own; the others are drawn together
_CELL = (24, 6)  # pixels, width and height: small values that begin in the same cell are one rectangle
_LISTED = 200  # rows of a table
_PICTURES = 8  # plans that are drawn
_POINTS = 1200  # of the curve

_COLORS = {
    "forward": ("#7fa6d6", "made by the forward pass"),
    "backward": ("#e0a06a", "made by the backward pass and updates"),
    "recompute": ("#c98fd0", "made a second time, to keep to the memory budget"),
    "copy": ("#8fbf7f", "copy inserted by the plan, mostly in another layout"),
    "scratch": ("#b9a3cf", "scratch memory of a step"),
    "small": ("#bbb", "several small values"),
}

_STYLE = """
body { margin: 0 auto; max-width: 1280px; padding: 8px 16px; font: 13px system-ui, sans-serif; color: #222 }
h1 { font-size: 18px } h2 { font-size: 15px; margin: 24px 0 4px } p { margin: 4px 0 }
.plot { overflow: auto; border: 1px solid #ccc; max-height: 720px } .plot svg { display: block }
.plot rect { stroke: #fff; stroke-width: .3; vector-effect: non-scaling-stroke }
.plot rect:hover, .plot rect.shown { stroke: #000; stroke-width: 2 }
.peak { stroke: #c00; stroke-width: 1.5; stroke-dasharray: 5 3; vector-effect: non-scaling-stroke }
.curve { fill: #ddd; stroke: #666; vector-effect: non-scaling-stroke }
.about { min-height: 3.2em; white-space: pre-wrap; overflow-wrap: anywhere; background: #f6f6f6; padding: 4px 8px }
.key { display: inline-block; width: 12px; height: 12px; margin: 0 4px 0 12px; vertical-align: -2px }
table { border-collapse: collapse; margin: 4px 0 } td, th { padding: 1px 10px 1px 0; text-align: left }
td { overflow-wrap: anywhere; vertical-align: top } td.n { text-align: right; white-space: nowrap }
tr[data-r]:hover { background: #eef } button { font: inherit }
"""

_SCRIPT = """
"use strict";
document.querySelectorAll(".plan").forEach(plan => {
  const svg = plan.querySelector("svg"), about = plan.querySelector(".about");
  const first = about.textContent;
  let wide = 1, high = 1;
  svg.addEventListener("mouseover", event => {
    const title = event.target.querySelector && event.target.querySelector("title");
    about.textContent = title ? title.textContent : first;
  });
  plan.querySelectorAll("button").forEach(button => button.addEventListener("click", () => {
    wide = Math.min(64, Math.max(1, wide * Number(button.dataset.x)));
    high = Math.min(64, Math.max(1, high * Number(button.dataset.y)));
    svg.setAttribute("width", WIDE * wide);
    svg.setAttribute("height", HIGH * high);
  }));
  plan.querySelectorAll("tr[data-r]").forEach(row => ["mouseenter", "mouseleave"].forEach(name =>
    row.addEventListener(name, () => {
      const rect = document.getElementById(row.dataset.r);
      if (rect) rect.classList.toggle("shown", name === "mouseenter");
    })));
});
"""


@dataclass(frozen=True)
class _Rectangle:
    """A rectangle of the drawing, in steps and bytes."""

    start: int
    end: int
    low: int
    high: int
    kind: str
    title: str
    name: str = ""


def memory_page(found: NetMemory) -> str:
    """Return the page."""
    title = _text(f"Memory of net {found.net}")
    drawn = sorted(range(len(found.maps)), key=lambda i: -found.maps[i].nbytes)[:_PICTURES]
    count = max((arena.plan for arena in found.maps), default=1)
    plans = [_plan(found.maps[i], i, count) for i in sorted(drawn)]
    left = len(found.maps) - len(drawn)
    more = f"<p>{left} smaller ones are not drawn.</p>" if left else ""
    script = _SCRIPT.replace("WIDE", str(_WIDE)).replace("HIGH", str(_HIGH))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>{title}</h1>
<p>{_text(_planned(found))}</p>
{_totals(found)}
{"".join(plans)}{more}
{_outside(found)}
<script>{script}</script>
</body>
</html>
"""


def _text(text: str) -> str:
    """Return text for HTML, with the characters that XML does not allow replaced."""
    shown = "".join(c if c.isprintable() or c in " \n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)
    return html.escape(shown, quote=True)


def _planned(found: NetMemory) -> str:
    text = f"{bytes_text(found.memory.total)} planned."
    if not found.memory.whole:
        text += " The operators that follow one whose output shapes depend on data are not included."
    return text


def _totals(found: NetMemory) -> str:
    named = {"arena": "what shares memory: values that nobody can fetch, copies in other layouts, scratch memory"}
    rows = [
        (bytes_text(getattr(found.memory, kind)), kind, text)
        for kind, text in {**named, **KINDS}.items()
        if getattr(found.memory, kind)
    ]
    return _table(("bytes", "kind", "what"), rows)


def _plan(arena: ArenaMap, number: int, count: int) -> str:
    name = "The arena" if arena.gpu is None else f"The arena on GPU {arena.gpu}"
    name += f" in plan {arena.plan} of {count}" if count > 1 else ""
    if not arena.values:
        return f"<h2>{name}</h2><p>{len(arena.steps)} steps have nothing in the arena.</p>"
    waste = arena.nbytes / max(arena.live, 1) - 1
    peak = f"step {arena.peak}, {_text(arena.steps[arena.peak])}"
    about = (
        f"{bytes_text(arena.nbytes)} for {len(arena.values)} values over {len(arena.steps)} steps. At most "
        f"{bytes_text(arena.live)} are needed at the same time, first in {peak}: the dashed line. "
        f"The arena is {waste:.1%} larger."
    )
    rectangles = _rectangles(arena)
    ids = {(each.name, each.start, each.low): f"p{number}_{i}" for i, each in enumerate(rectangles) if each.name}
    return f"""<section class="plan"><h2>{name}</h2>
<p>{about}</p>
<p>From left to right: the steps; from top to bottom: the offset in the arena. {_legend(rectangles)}
<button data-x="2" data-y="1">wider</button> <button data-x="0.5" data-y="1">narrower</button>
<button data-x="1" data-y="2">higher</button> <button data-x="1" data-y="0.5">lower</button></p>
<div class="plot">{_drawing(arena, rectangles, number)}</div>
<div class="about">Point at a rectangle to see what it is.</div>
{_alive(arena, ids)}</section>
"""


def _legend(rectangles: Iterable[_Rectangle]) -> str:
    present = {each.kind for each in rectangles}
    return " ".join(
        f'<span class="key" style="background:{color}"></span>{text}'
        for kind, (color, text) in _COLORS.items()
        if kind in present
    )


def _drawing(arena: ArenaMap, rectangles: Sequence[_Rectangle], number: int) -> str:
    """Return the drawing: below the curve of what is needed, a rectangle for each value."""
    wide, high = _WIDE / max(len(arena.steps), 1), (_HIGH - _CURVE) / max(arena.nbytes, 1)
    parts = []
    for i, each in enumerate(rectangles):
        x, y = each.start * wide, _CURVE + each.low * high
        parts.append(
            f'<rect id="p{number}_{i}" x="{x:.2f}" y="{y:.2f}" width="{(each.end - each.start + 1) * wide:.2f}" '
            f'height="{(each.high - each.low) * high:.3f}" fill="{_COLORS[each.kind][0]}">'
            f"<title>{_text(each.title)}</title></rect>"
        )
    at = (arena.peak + 0.5) * wide
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDE}" height="{_HIGH}" viewBox="0 0 {_WIDE} {_HIGH}" '
        f'preserveAspectRatio="none">\n<polygon class="curve" points="{_curve(arena)}"><title>bytes that are needed, '
        f"at most {bytes_text(arena.live)}</title></polygon>\n"
        + "\n".join(parts)
        + f'\n<line class="peak" x1="{at:.2f}" x2="{at:.2f}" y1="0" y2="{_HIGH}"/></svg>'
    )


def _curve(arena: ArenaMap) -> str:
    """Return the points of the curve of what is needed; of many steps the greatest in each stretch."""
    count = len(arena.load)
    stretch = -(-count // _POINTS)
    points = [(0.0, _CURVE - 4.0)]
    for begin in range(0, count, stretch):
        part = arena.load[begin : begin + stretch]
        y = (_CURVE - 4) * (1 - max(part) / max(arena.live, 1))
        points += [(begin * _WIDE / count, y), ((begin + len(part)) * _WIDE / count, y)]
    points.append((float(_WIDE), _CURVE - 4.0))
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _rectangles(arena: ArenaMap) -> list[_Rectangle]:
    """Return a rectangle for each of the values with the largest areas, and one for several of the others."""
    values = sorted(arena.values, key=lambda value: -value.nbytes * (value.end - value.start + 1))
    drawn = [
        _Rectangle(value.start, value.end, value.offset, value.offset + value.nbytes, value.kind, _about(value),
                   value.title)
        for value in values[:DRAWN]
    ]  # fmt: skip
    wide, high = _WIDE / max(len(arena.steps), 1), (_HIGH - _CURVE) / max(arena.nbytes, 1)
    cells: dict[tuple[int, int], list[ArenaValue]] = {}
    for value in values[DRAWN:]:
        cell = int(value.start * wide / _CELL[0]), int(value.offset * high / _CELL[1])
        cells.setdefault(cell, []).append(value)
    return [_together(group) for group in cells.values()] + drawn


def _together(values: Sequence[ArenaValue]) -> _Rectangle:
    largest = max(values, key=lambda value: value.nbytes)
    return _Rectangle(
        min(value.start for value in values),
        max(value.end for value in values),
        min(value.offset for value in values),
        max(value.offset + value.nbytes for value in values),
        "small",
        f"{len(values)} small values, {bytes_text(sum(value.nbytes for value in values))} one after another\n"
        f"the largest: {_about(largest)}",
    )


def _about(value: ArenaValue) -> str:
    line = f"\nadded in {value.line}" if value.line else ""
    return (
        f"{value.title}: {bytes_text(value.nbytes)} ({value.nbytes:,} bytes) at {value.offset:,}, {value.kind}\n"
        f"steps {value.start} to {value.end}, made by {value.made_by} on {value.device}{line}"
    )


def _alive(arena: ArenaMap, ids: dict[tuple[str, int, int], str]) -> str:
    alive = arena.alive(arena.peak)
    rows = [
        (bytes_text(value.nbytes), value.title, value.kind, value.made_by, f"{value.start} to {value.end}")
        for value in alive[:_LISTED]
    ]
    marks = [ids.get((value.title, value.start, value.offset), "") for value in alive[:_LISTED]]
    rest = alive[_LISTED:]
    more = f"<p>and {len(rest)} more, {bytes_text(sum(value.nbytes for value in rest))}</p>" if rest else ""
    title = f"<h2>Needed at the peak: {len(alive)} values, {bytes_text(arena.live)}</h2>"
    return title + _table(("bytes", "value", "kind", "made by", "steps"), rows, marks) + more


def _outside(found: NetMemory) -> str:
    if not found.held:
        return ""
    rows = [(bytes_text(held.nbytes), held.name, held.kind) for held in found.held[:_LISTED]]
    rest = found.held[_LISTED:]
    more = f"<p>and {len(rest)} more, {bytes_text(sum(held.nbytes for held in rest))}</p>" if rest else ""
    return f"<h2>Outside the arena</h2>{_table(('bytes', 'value', 'kind'), rows)}{more}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], marks: Sequence[str] = ()) -> str:
    """Return a table; the first column holds sizes. ``marks``: for each row the id of a rectangle, or ""."""
    lines = ["<table><tr>" + "".join(f"<th>{_text(cell)}</th>" for cell in head) + "</tr>"]
    for i, row in enumerate(rows):
        mark = f' data-r="{marks[i]}"' if marks and marks[i] else ""
        cells = "".join(f"<td>{_text(cell)}</td>" for cell in row[1:])
        lines.append(f'<tr{mark}><td class="n">{_text(row[0])}</td>{cells}</tr>')
    return "\n".join(lines) + "</table>"
