"""The drawing of a net as a self-contained HTML page."""

from __future__ import annotations

import html
import json
from dataclasses import asdict
from pathlib import Path

from netbuilder.graph.drawing.boxes import PARTS
from netbuilder.graph.drawing.drawing import Drawing
from netbuilder.proto.errors import counted

__all__ = ["page"]


def page(drawing: Drawing, *, by_bytes: bool = False) -> str:
    """Return the page: layers of operators, blocks folded, an overview, and a search field.

    The layout is computed by dagre where the page is opened, since folding changes it; nothing is loaded.

    Args:
        drawing: what is drawn.
        by_bytes: color operators by the bytes of what they write, and not by pass; a button of the page changes it.
    """
    title = html.escape(f"Net {drawing.name}")
    content = {**asdict(drawing), "parts": PARTS, "by_bytes": by_bytes}
    # In a script element only "</" and "<!--" could end the data.
    data = json.dumps(content, separators=(",", ":")).replace("<", "\\u003c")
    counts = f"{counted(drawing.operators, 'operator')}, {counted(len(drawing.lanes), 'device')}"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
{_asset("page.css")}</style>
</head>
<body>
<header>
<h1>{title}</h1><span id="counts">{counts}</span>
<input id="search" type="search" placeholder="type, blob, argument or line; Enter: the next">
<span id="found"></span>
<button id="fold" title="fold or unfold all blocks">unfold all</button>
<button id="scopes" title="fold name scopes, or repeated blocks">by scope</button>
<button id="all" title="draw the edges between columns, and all edges of blobs with many readers">all edges</button>
<button id="bytes" title="color operators by the bytes that they write, or by pass">bytes</button>
<span id="legend" title="bytes of what an operator writes" hidden></span>
<button id="about" title="parts of the net">overview</button>
<button id="smaller" title="smaller">&minus;</button><button id="larger" title="larger">+</button>
</header>
<main><div id="view"><svg id="net" xmlns="http://www.w3.org/2000/svg"></svg></div>
<canvas id="map" title="the whole net; click to go there"></canvas><aside id="panel"></aside></main>
<noscript>The drawing needs JavaScript.</noscript>
<script id="data" type="application/json">{data}</script>
<script>
{_asset("dagre.min.js")}</script>
<script>
{_asset("page.js")}</script>
</body>
</html>
"""


def _asset(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")
