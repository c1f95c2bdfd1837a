"""The drawing of a net as a self-contained HTML page."""

from __future__ import annotations

import html
import json
from dataclasses import asdict

from netbuilder.tools.drawing.drawing import Drawing

__all__ = ["page"]

_STYLE = """
body { margin: 0; font: 13px system-ui, sans-serif; color: #222; display: flex; flex-direction: column; height: 100vh }
header { display: flex; gap: 12px; align-items: center; padding: 6px 12px; border-bottom: 1px solid #ccc }
h1 { font-size: 15px; margin: 0 } #search { flex: 1; max-width: 480px; padding: 4px 8px; font: inherit }
main { display: flex; flex: 1; min-height: 0 } #view { flex: 1; overflow: auto }
#map { width: 110px; border-left: 1px solid #ccc; cursor: pointer }
#panel { width: 340px; overflow: auto; border-left: 1px solid #ccc; padding: 8px 12px; overflow-wrap: anywhere }
#panel h2 { font-size: 15px; margin: 4px 0 } #panel h3 { font-size: 12px; margin: 12px 0 2px; color: #666 }
#panel a { color: #0645ad; cursor: pointer } #panel div { margin: 2px 0; white-space: pre-wrap }
text { font: 12px system-ui, sans-serif; pointer-events: none } .small { font-size: 10px; fill: #666 }
.lane { fill: #f6f6f6 } .title { font-weight: bold }
.box rect { fill: #e3eefb; stroke: #6f94c4; cursor: pointer } .backward rect { fill: #fbeee3; stroke: #c4946f }
.fold rect { fill: #eee; stroke: #888; stroke-dasharray: 4 3; cursor: pointer }
.frame { fill: none; stroke: #888; stroke-dasharray: 4 3; pointer-events: none }
.times { fill: #555; font-weight: bold; pointer-events: auto; cursor: pointer }
.edge { fill: none; stroke: #999; stroke-width: 1; opacity: .5 } .across { stroke: #b33 }
.edge.near { stroke: #111; stroke-width: 2; opacity: 1 }
.found rect { stroke: #090; stroke-width: 3 } .chosen rect { stroke: #111; stroke-width: 3 }
.searching .box:not(.found) { opacity: .35 }
#legend { display: flex; align-items: center; gap: 4px } #legend[hidden] { display: none }
#legend i { width: 14px; height: 14px; border: 1px solid #888 }
"""

_SCRIPT = r"""
"use strict";
const net = JSON.parse(document.getElementById("data").textContent);
const WIDE = 260, HIGH = 34, GAP = 14, TOP = 34, LANE = WIDE + 120;
const svg = document.getElementById("net"), panel = document.getElementById("panel");
const view = document.getElementById("view"), search = document.getElementById("search");
const map = document.getElementById("map");
const readers = net.blobs.map(() => []), foldOf = net.boxes.map(() => -1);
const folded = net.folds.map(() => true);
let groups = [], edges = [], place = [], width = 0, height = 0;  // of the current drawing
let byBytes = Boolean(net.by_bytes);
let scale = 1, matches = [], current = -1, chosen = -1;

net.boxes.forEach((box, i) => box.inputs.forEach(blob => readers[blob].push(i)));
net.folds.forEach((fold, f) => fold.others.forEach(i => { foldOf[i] = f; }));

function make(name, attributes, parent, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const key in attributes) node.setAttribute(key, attributes[key]);
  if (text !== undefined) node.textContent = text;
  parent.appendChild(node);
  return node;
}
// Colors by bytes: of what an operator writes, on a logarithmic scale from a thousandth of the most to the most.
const COLORS = ["#fff7c8", "#fde391", "#fdbf5c", "#f98e3c", "#e8562a", "#b71d1d", "#6d0a1e"];
const sizes = net.boxes.map(box =>
  [...new Set(box.outputs)].reduce((sum, b) => sum + net.blobs[b].nbytes, 0));
const most = sizes.reduce((a, b) => Math.max(a, b), 0);
function bytesText(n) {
  if (n < 1024) return `${n} B`;
  const unit = Math.min(4, Math.floor(Math.log2(n) / 10));
  return `${(n / 1024 ** unit).toFixed(unit > 2 ? 2 : 1)} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`;
}
function least(k) { return most / 1000 ** (1 - k / COLORS.length); }
function colorOf(size) {
  if (!size) return "#fff";
  for (let k = COLORS.length - 1; k > 0; k--) if (size >= least(k)) return COLORS[k];
  return COLORS[0];
}
function tellBytes() {
  const legend = document.getElementById("legend"), button = document.getElementById("bytes");
  button.hidden = !most;
  button.textContent = byBytes ? "color by pass" : "color by bytes";
  legend.hidden = !byBytes || !most;
  legend.textContent = "";
  COLORS.forEach((color, k) => {
    const field = document.createElement("i"), text = document.createElement("span");
    field.style.background = color;
    text.textContent = k ? `\u2265 ${bytesText(Math.ceil(least(k)))}` : "less";
    legend.append(field, text);
  });
}

function short(text, length) { return text.length > length ? text.slice(0, length - 1) + "\u2026" : text; }
function left(i) { return net.boxes[i].lane * LANE + 60; }
function top_(i) { return TOP + place[i] * (HIGH + GAP); }
function hidden(i) { return foldOf[i] >= 0 && folded[foldOf[i]]; }

// An operator is drawn below the earlier ones in its lane, and below those that write its inputs; a folded block takes
// one row, that of its first hidden operator.
function layOut() {
  const free = net.lanes.map(() => 0);
  place = [];
  net.boxes.forEach((box, i) => {
    if (hidden(i) && net.folds[foldOf[i]].others[0] !== i) {
      place.push(place[net.folds[foldOf[i]].others[0]]);
      return;
    }
    let row = free[box.lane];
    box.inputs.forEach(blob => {
      const from = net.blobs[blob].writer;
      if (from >= 0) row = Math.max(row, place[from] + 1);
    });
    place.push(row);
    free[box.lane] = row + 1;
  });
  width = Math.max(1, net.lanes.length) * LANE;
  height = TOP + Math.max(0, ...free) * (HIGH + GAP) + 20;
}
function path(from, to) {
  const far = place[to] - place[from], x1 = left(from) + WIDE / 2, x2 = left(to) + WIDE / 2;
  const y1 = top_(from) + HIGH, y2 = top_(to);
  if (net.boxes[from].lane !== net.boxes[to].lane || far === 1)
    return `M${x1},${y1} C${x1},${y1 + 20} ${x2},${y2 - 20} ${x2},${y2}`;
  const out = left(to) - Math.min(54, 8 + 3 * Math.sqrt(Math.abs(far)));
  const ya = y1 - HIGH / 2, yb = y2 + HIGH / 2;
  return `M${left(from)},${ya} C${out},${ya} ${out},${ya} ${out},${ya + 12} L${out},${yb - 12} ` +
    `C${out},${yb} ${out},${yb} ${left(to)},${yb}`;
}
function draw() {
  layOut();
  svg.textContent = "";
  groups = net.boxes.map(() => null);
  edges = [];
  net.lanes.forEach((lane, i) => {
    make("rect", {x: i * LANE + 4, y: 0, width: LANE - 8, height: height, class: "lane"}, svg);
    make("text", {x: i * LANE + 60, y: 20, class: "title"}, svg, lane);
  });
  const shown = new Set();
  net.boxes.forEach((box, i) => new Set(box.inputs).forEach(blob => {
    const from = net.blobs[blob].writer;
    if (from < 0) return;
    const a = hidden(from) ? net.folds[foldOf[from]].others[0] : from;
    const b = hidden(i) ? net.folds[foldOf[i]].others[0] : i;
    if (a === b || shown.has(a + " " + b)) return;
    shown.add(a + " " + b);
    const across = net.boxes[a].lane !== net.boxes[b].lane;
    edges.push({line: make("path", {d: path(a, b), class: across ? "edge across" : "edge"}, svg), from: a, to: b});
  }));
  net.boxes.forEach((box, i) => { if (!hidden(i)) drawBox(box, i); });
  net.folds.forEach(drawFold);
  mark();
  zoom(1);
}
function drawBox(box, i) {
  const group = make("g", {class: box.backward ? "box backward" : "box"}, svg);
  const x = left(i), y = top_(i), first = net.blobs[box.outputs[0]];
  const area = make("rect", {x: x, y: y, width: WIDE, height: HIGH, rx: 4}, group);
  if (byBytes) area.style.fill = colorOf(sizes[i]);
  const pale = byBytes && sizes[i] >= least(4) ? {fill: "#fff"} : {};
  make("text", {x: x + 8, y: y + 14, ...pale}, group, short(box.type, 36));
  if (byBytes && sizes[i])
    make("text", {x: x + WIDE - 8, y: y + 14, "text-anchor": "end", ...pale}, group, bytesText(sizes[i]));
  const made = first ? first.name + (first.shape ? "  " + first.shape : "") : "";
  const name = make("text", {x: x + 8, y: y + 28, class: "small"}, group, short(made, 46));
  if (pale.fill) name.style.fill = pale.fill;
  area.addEventListener("click", () => choose(i, false));
  groups[i] = group;
}
function drawFold(fold, f) {
  const x = left(fold.first[0]), rows = fold.first.map(i => place[i]);
  const y = TOP + Math.min(...rows) * (HIGH + GAP), low = TOP + Math.max(...rows) * (HIGH + GAP) + HIGH;
  make("rect", {x: x - 6, y: y - 5, width: WIDE + 12, height: low - y + 10, rx: 6, class: "frame"}, svg);
  const sign = make("text", {x: x + WIDE + 10, y: y + 12, class: "times"}, svg, `\u00d7 ${fold.times}`);
  sign.addEventListener("click", () => turn(f));
  if (!folded[f]) return;
  const group = make("g", {class: "fold"}, svg), first = fold.others[0];
  const bar = make("rect", {x: x, y: top_(first), width: WIDE, height: HIGH, rx: 4}, group);
  make("text", {x: x + 8, y: top_(first) + 14}, group, `the same ${fold.times - 1} more times`);
  const last = fold.others[fold.others.length - 1];
  make("text", {x: x + 8, y: top_(first) + 28, class: "small"}, group,
    `${fold.others.length} operators, ${first} to ${last}; click to unfold`);
  bar.addEventListener("click", () => turn(f));
}
function turn(f) { folded[f] = !folded[f]; draw(); tellFolds(); }
function tellFolds() {
  const button = document.getElementById("fold");
  button.textContent = folded.some(is => is) ? "unfold all" : "fold all";
  button.hidden = !net.folds.length;
}
function mark() {
  groups.forEach((group, k) => {
    if (!group) return;
    group.classList.toggle("chosen", k === chosen);
    group.classList.toggle("found", matches.includes(k));
  });
  const at = chosen >= 0 && hidden(chosen) ? net.folds[foldOf[chosen]].others[0] : chosen;
  edges.forEach(edge => edge.line.classList.toggle("near", edge.from === at || edge.to === at));
}

// The map: the whole net, with a frame around the visible part.
function drawMap() {
  const wide = map.clientWidth, high = map.clientHeight, ratio = window.devicePixelRatio || 1;
  map.width = wide * ratio;
  map.height = high * ratio;
  const c = map.getContext("2d"), fx = wide / width, fy = Math.min(high / height, 0.5);
  c.setTransform(ratio, 0, 0, ratio, 0, 0);
  c.clearRect(0, 0, wide, high);
  net.boxes.forEach((box, i) => {
    if (hidden(i)) return;
    c.fillStyle = matches.includes(i) ? "#090" : i === chosen ? "#111" :
      byBytes ? colorOf(sizes[i]) : box.backward ? "#d9a679" : "#7fa6d6";
    c.fillRect(left(i) * fx, top_(i) * fy, WIDE * fx, Math.max(1, HIGH * fy));
  });
  c.fillStyle = "#aaa";
  net.folds.forEach((fold, f) => {
    if (folded[f]) c.fillRect(left(fold.others[0]) * fx, top_(fold.others[0]) * fy, WIDE * fx, Math.max(1, HIGH * fy));
  });
  c.strokeStyle = "#b33";
  const w = Math.min(width, view.clientWidth / scale), h = Math.min(height, view.clientHeight / scale);
  c.strokeRect(view.scrollLeft / scale * fx + 0.5, view.scrollTop / scale * fy + 0.5, w * fx - 1, h * fy - 1);
}
function fromMap(event) {
  const box = map.getBoundingClientRect();
  const fx = map.clientWidth / width, fy = Math.min(map.clientHeight / height, 0.5);
  view.scrollTo({left: (event.clientX - box.left) / fx * scale - view.clientWidth / 2,
                 top: (event.clientY - box.top) / fy * scale - view.clientHeight / 2});
}
map.addEventListener("mousedown", fromMap);
map.addEventListener("mousemove", event => { if (event.buttons) fromMap(event); });
view.addEventListener("scroll", drawMap);
window.addEventListener("resize", drawMap);

function words(i) {
  const box = net.boxes[i], names = [...box.inputs, ...box.outputs].map(b => net.blobs[b].name);
  const pairs = Object.entries(box.arguments).map(pair => pair.join("="));
  return [box.type, box.name, box.line, ...names, ...pairs].join(" ").toLowerCase();
}
const texts = net.boxes.map((_, i) => words(i));
function zoom(factor) {
  scale = Math.min(3, Math.max(0.1, scale * factor));
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("width", width * scale);
  svg.setAttribute("height", height * scale);
  drawMap();
}
function line(parent, text, action) {
  const row = document.createElement("div");
  const node = document.createElement(action === undefined ? "span" : "a");
  node.textContent = text;
  if (action !== undefined) node.addEventListener("click", action);
  row.appendChild(node);
  parent.appendChild(row);
}
function head(text, kind) {
  const node = document.createElement(kind);
  node.textContent = text;
  panel.appendChild(node);
}
function blobText(blob) {
  const size = blob.nbytes ? ", " + bytesText(blob.nbytes) : "";
  return blob.name + (blob.shape ? "  (" + blob.shape + size + ")" : "");
}

function runs(types) {
  const found = [];
  types.forEach((type, k) => {
    if (k && type === types[k - 1]) found[found.length - 1].count += 1;
    else found.push({type, count: 1});
  });
  return found.map(run => run.count > 1 ? `${run.count} ${run.type}` : run.type);
}
function overview() {
  chosen = -1;
  mark();
  drawMap();
  panel.textContent = "";
  head("Overview", "h2");
  const back = net.boxes.filter(box => box.backward).length;
  line(panel, `${net.boxes.length} operators` + (back ? `, ${back} of them in the backward pass` : ""));
  net.lanes.forEach((lane, k) => line(panel, `${lane}: ${net.boxes.filter(box => box.lane === k).length}`));
  if (net.folds.length) head("repeated blocks", "h3");
  net.folds.forEach(fold => {
    const text = short(runs(fold.first.map(i => net.boxes[i].type)).join(", "), 120);
    line(panel, `${fold.times} \u00d7 (${text}), from operator ${fold.first[0]}`, () => choose(fold.first[0], true));
  });
  head("external inputs", "h3");
  const outside = net.blobs.filter(blob => blob.writer < 0);
  outside.slice(0, 200).forEach(blob => line(panel, blobText(blob)));
  if (outside.length > 200) line(panel, `and ${outside.length - 200} more`);
  head("outputs that no operator reads", "h3");
  const ends = net.blobs.map((blob, b) => b).filter(b => net.blobs[b].writer >= 0 && !readers[b].length);
  ends.slice(0, 200).forEach(b => line(panel, blobText(net.blobs[b]), () => choose(net.blobs[b].writer, true)));
  if (ends.length > 200) line(panel, `and ${ends.length - 200} more`);
  head("operators by type", "h3");
  const counts = new Map();
  net.boxes.forEach(box => counts.set(box.type, (counts.get(box.type) || 0) + 1));
  [...counts].sort((a, b) => b[1] - a[1]).forEach(([type, count]) => line(panel, `${count}  ${type}`, () => {
    search.value = type;
    find();
  }));
}
function choose(i, go) {
  const box = net.boxes[i];
  chosen = i;
  if (hidden(i)) turn(foldOf[i]);
  mark();
  drawMap();
  panel.textContent = "";
  head(box.type, "h2");
  line(panel, `operator ${i} on ${net.lanes[box.lane]}` + (box.name ? `, ${box.name}` : ""));
  if (box.line) line(panel, box.line);
  head("reads", "h3");
  box.inputs.forEach(b => {
    const blob = net.blobs[b], from = blob.writer;
    if (from < 0) line(panel, blobText(blob) + " (external input)");
    else line(panel, blobText(blob) + ` from ${from} ${net.boxes[from].type}`, () => choose(from, true));
  });
  head("writes", "h3");
  box.outputs.forEach(b => {
    line(panel, blobText(net.blobs[b]));
    [...new Set(readers[b])].forEach(k => line(panel, `\u2192 ${k} ${net.boxes[k].type}`, () => choose(k, true)));
  });
  head("arguments", "h3");
  Object.entries(box.arguments).forEach(pair => line(panel, pair.join(" = ")));
  if (go) view.scrollTo({
    left: scale * (left(i) + WIDE / 2) - view.clientWidth / 2,
    top: scale * top_(i) - view.clientHeight / 2, behavior: "smooth"});
}
function find() {
  const wanted = search.value.trim().toLowerCase().split(/\s+/).filter(word => word);
  matches = wanted.length ? texts.flatMap((text, i) => wanted.every(word => text.includes(word)) ? [i] : []) : [];
  current = -1;
  svg.classList.toggle("searching", wanted.length > 0);
  mark();
  drawMap();
  document.getElementById("found").textContent = wanted.length ? `${matches.length} found` : "";
}
search.addEventListener("input", find);
search.addEventListener("keydown", event => {
  if (event.key !== "Enter" || !matches.length) return;
  const back = current < 0 ? 0 : matches.length - 1;
  current = (Math.max(current, 0) + (event.shiftKey ? back : current < 0 ? 0 : 1)) % matches.length;
  choose(matches[current], true);
});
document.getElementById("fold").addEventListener("click", () => {
  folded.fill(!folded.some(is => is));
  draw();
  tellFolds();
});
document.getElementById("bytes").addEventListener("click", () => {
  byBytes = !byBytes;
  draw();
  tellBytes();
});
document.getElementById("about").addEventListener("click", overview);
document.getElementById("smaller").addEventListener("click", () => zoom(1 / 1.25));
document.getElementById("larger").addEventListener("click", () => zoom(1.25));
draw();
tellFolds();
tellBytes();
overview();
"""


def page(drawing: Drawing, *, by_bytes: bool = False) -> str:
    """Return the page: a lane for each device, repeated blocks folded, an overview, and a search field.

    Args:
        drawing: what is drawn.
        by_bytes: color operators by the bytes of what they write, and not by pass; a button of the page changes it.
    """
    title = html.escape(f"Net {drawing.name}")
    # In a script element only "</" and "<!--" could end the data.
    data = json.dumps({**asdict(drawing), "by_bytes": by_bytes}, separators=(",", ":")).replace("<", "\\u003c")
    lanes = len(drawing.lanes)
    counts = f"{len(drawing.boxes)} operators, {lanes} device{'s' if lanes != 1 else ''}"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>{_STYLE}</style>
</head>
<body>
<header>
<h1>{title}</h1><span>{counts}</span>
<input id="search" type="search" placeholder="type, blob, argument or line; Enter: the next" autofocus>
<span id="found"></span>
<button id="fold" title="fold or unfold all repeated blocks">unfold all</button>
<button id="bytes" title="color operators by the bytes that they write, or by pass">color by bytes</button>
<span id="legend" title="bytes of what an operator writes" hidden></span>
<button id="about" title="parts of the net">overview</button>
<button id="smaller" title="smaller">&minus;</button><button id="larger" title="larger">+</button>
</header>
<main><div id="view"><svg id="net" xmlns="http://www.w3.org/2000/svg"></svg></div>
<canvas id="map" title="the whole net; click to go there"></canvas><aside id="panel"></aside></main>
<noscript>The drawing needs JavaScript.</noscript>
<script id="data" type="application/json">{data}</script>
<script>{_SCRIPT}</script>
</body>
</html>
"""
