"""The drawing of a net as one page of HTML that needs nothing else."""

from __future__ import annotations

import html
import json
from dataclasses import asdict

from netbuilder.tools.drawing.layout import Drawing
from netbuilder.tools.drawing.script import SCRIPT, STYLE

__all__ = ["page"]


def page(drawing: Drawing) -> str:
    """Return the page: a lane for each device, repeated blocks folded, an overview, a field to search in; it needs no
    network.
    """
    title = html.escape(f"Net {drawing.name}")
    # In a script element only "</" and "<!--" could end the data.
    data = json.dumps(asdict(drawing), separators=(",", ":")).replace("<", "\\u003c")
    lanes = len(drawing.lanes)
    counts = f"{len(drawing.boxes)} operators, {lanes} device{'s' if lanes != 1 else ''}"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>{STYLE}</style>
</head>
<body>
<header>
<h1>{title}</h1><span>{counts}</span>
<input id="search" type="search" placeholder="type, blob, argument or line; Enter: the next" autofocus>
<span id="found"></span>
<button id="fold" title="fold or unfold all repeated blocks">unfold all</button>
<button id="about" title="what the net consists of">overview</button>
<button id="smaller" title="smaller">&minus;</button><button id="larger" title="larger">+</button>
</header>
<main><div id="view"><svg id="net" xmlns="http://www.w3.org/2000/svg"></svg></div>
<canvas id="map" title="the whole net; click to go there"></canvas><aside id="panel"></aside></main>
<noscript>The drawing is made by a script on this page.</noscript>
<script id="data" type="application/json">{data}</script>
<script>{SCRIPT}</script>
</body>
</html>
"""
