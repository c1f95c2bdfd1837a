"""Style and script of the page that draws a net."""

from __future__ import annotations

__all__ = ["SCRIPT", "STYLE"]

STYLE = """
body { margin: 0; font: 13px system-ui, sans-serif; color: #222; display: flex; flex-direction: column; height: 100vh }
header { display: flex; gap: 12px; align-items: center; padding: 6px 12px; border-bottom: 1px solid #ccc }
h1 { font-size: 15px; margin: 0 } #search { flex: 1; max-width: 480px; padding: 4px 8px; font: inherit }
main { display: flex; flex: 1; min-height: 0 } #view { flex: 1; overflow: auto }
#panel { width: 340px; overflow: auto; border-left: 1px solid #ccc; padding: 8px 12px; overflow-wrap: anywhere }
#panel h2 { font-size: 15px; margin: 4px 0 } #panel h3 { font-size: 12px; margin: 12px 0 2px; color: #666 }
#panel a { color: #0645ad; cursor: pointer } #panel div { margin: 2px 0; white-space: pre-wrap }
text { font: 12px system-ui, sans-serif; pointer-events: none } .small { font-size: 10px; fill: #666 }
.lane { fill: #f6f6f6 } .title { font-weight: bold }
.box rect { fill: #e3eefb; stroke: #6f94c4; cursor: pointer } .backward rect { fill: #fbeee3; stroke: #c4946f }
.edge { fill: none; stroke: #999; stroke-width: 1; opacity: .5 } .across { stroke: #b33 }
.edge.near { stroke: #111; stroke-width: 2; opacity: 1 }
.found rect { stroke: #090; stroke-width: 3 } .chosen rect { stroke: #111; stroke-width: 3 }
.searching .box:not(.found) { opacity: .35 }
"""

SCRIPT = r"""
"use strict";
const net = JSON.parse(document.getElementById("data").textContent);
const WIDE = 260, HIGH = 34, GAP = 14, TOP = 34, LANE = WIDE + 120;
const svg = document.getElementById("net"), panel = document.getElementById("panel");
const view = document.getElementById("view"), search = document.getElementById("search");
const boxes = [], edges = [], readers = net.blobs.map(() => []);
let scale = 1, matches = [], place = -1;

function make(name, attributes, parent, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const key in attributes) node.setAttribute(key, attributes[key]);
  if (text !== undefined) node.textContent = text;
  parent.appendChild(node);
  return node;
}
function short(text, length) { return text.length > length ? text.slice(0, length - 1) + "\u2026" : text; }
function left(box) { return box.lane * LANE + 60; }
function top_(box) { return TOP + box.row * (HIGH + GAP); }

const rows = Math.max(0, ...net.boxes.map(box => box.row + 1));
const width = Math.max(1, net.lanes.length) * LANE, height = TOP + rows * (HIGH + GAP) + 20;
net.lanes.forEach((lane, i) => {
  make("rect", {x: i * LANE + 4, y: 0, width: LANE - 8, height: height, class: "lane"}, svg);
  make("text", {x: i * LANE + 60, y: 20, class: "title"}, svg, lane);
});
net.boxes.forEach((box, i) => box.inputs.forEach(blob => readers[blob].push(i)));
net.boxes.forEach((box, i) => new Set(box.inputs).forEach(blob => {
  const from = net.blobs[blob].writer;
  if (from < 0) return;
  const a = net.boxes[from], across = a.lane !== box.lane, far = box.row - a.row;
  let path;
  const x1 = left(a) + WIDE / 2, y1 = top_(a) + HIGH, x2 = left(box) + WIDE / 2, y2 = top_(box);
  if (across || far === 1) path = `M${x1},${y1} C${x1},${y1 + 20} ${x2},${y2 - 20} ${x2},${y2}`;
  else {
    const out = left(box) - Math.min(54, 8 + 3 * Math.sqrt(far)), ya = y1 - HIGH / 2, yb = y2 + HIGH / 2;
    path = `M${left(a)},${ya} C${out},${ya} ${out},${ya} ${out},${ya + 12} L${out},${yb - 12} ` +
      `C${out},${yb} ${out},${yb} ${left(box)},${yb}`;
  }
  const line = make("path", {d: path, class: across ? "edge across" : "edge"}, svg);
  edges.push({line, from, to: i});
}));
net.boxes.forEach((box, i) => {
  const group = make("g", {class: box.backward ? "box backward" : "box"}, svg);
  const x = left(box), y = top_(box), first = net.blobs[box.outputs[0]];
  const area = make("rect", {x: x, y: y, width: WIDE, height: HIGH, rx: 4}, group);
  make("text", {x: x + 8, y: y + 14}, group, short(box.type, 36));
  const made = first ? first.name + (first.shape ? "  " + first.shape : "") : "";
  make("text", {x: x + 8, y: y + 28, class: "small"}, group, short(made, 46));
  area.addEventListener("click", () => choose(i, false));
  boxes.push(group);
});

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
}
function line(parent, text, target) {
  const row = document.createElement("div");
  const node = document.createElement(target === undefined ? "span" : "a");
  node.textContent = text;
  if (target !== undefined) node.addEventListener("click", () => choose(target, true));
  row.appendChild(node);
  parent.appendChild(row);
}
function head(text, kind) {
  const node = document.createElement(kind);
  node.textContent = text;
  panel.appendChild(node);
}
function blobText(blob) { return blob.name + (blob.shape ? "  (" + blob.shape + ")" : ""); }
function choose(i, go) {
  const box = net.boxes[i];
  boxes.forEach((group, k) => group.classList.toggle("chosen", k === i));
  edges.forEach(edge => edge.line.classList.toggle("near", edge.from === i || edge.to === i));
  panel.textContent = "";
  head(box.type, "h2");
  line(panel, `operator ${i} on ${net.lanes[box.lane]}` + (box.name ? `, ${box.name}` : ""));
  if (box.line) line(panel, box.line);
  head("reads", "h3");
  box.inputs.forEach(b => {
    const blob = net.blobs[b];
    if (blob.writer < 0) line(panel, blobText(blob) + " from outside");
    else line(panel, blobText(blob) + ` from ${blob.writer} ${net.boxes[blob.writer].type}`, blob.writer);
  });
  head("writes", "h3");
  box.outputs.forEach(b => {
    line(panel, blobText(net.blobs[b]));
    [...new Set(readers[b])].forEach(k => line(panel, `\u2192 ${k} ${net.boxes[k].type}`, k));
  });
  head("arguments", "h3");
  Object.entries(box.arguments).forEach(pair => line(panel, pair.join(" = ")));
  if (go) view.scrollTo({
    left: scale * (left(box) + WIDE / 2) - view.clientWidth / 2,
    top: scale * top_(box) - view.clientHeight / 2, behavior: "smooth"});
}
function find() {
  const wanted = search.value.trim().toLowerCase().split(/\s+/).filter(word => word);
  matches = wanted.length ? texts.flatMap((text, i) => wanted.every(word => text.includes(word)) ? [i] : []) : [];
  place = -1;
  svg.classList.toggle("searching", wanted.length > 0);
  boxes.forEach(group => group.classList.remove("found"));
  matches.forEach(i => boxes[i].classList.add("found"));
  document.getElementById("found").textContent = wanted.length ? `${matches.length} found` : "";
}
search.addEventListener("input", find);
search.addEventListener("keydown", event => {
  if (event.key !== "Enter" || !matches.length) return;
  place = (place + (event.shiftKey ? matches.length - 1 : 1)) % matches.length;
  choose(matches[place], true);
});
document.getElementById("smaller").addEventListener("click", () => zoom(1 / 1.25));
document.getElementById("larger").addEventListener("click", () => zoom(1.25));
zoom(1);
if (net.boxes.length) choose(0, false);
"""
