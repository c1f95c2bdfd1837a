"use strict";
const net = JSON.parse(document.getElementById("data").textContent);
const WIDE = 230, HIGH = 34, LINE = 13, GAP = 22, TOP = 34, APART = 70;
const READERS = 8;  // a blob with more readers in its column is drawn to the next ones only when they are asked for
const MOST = 400;   // nodes that are laid out at once
const svg = document.getElementById("net"), panel = document.getElementById("panel");
const view = document.getElementById("view"), search = document.getElementById("search");
const map = document.getElementById("map");
const FEW = 60;     // nodes up to which name scopes are unfolded at first
const readers = net.blobs.map(() => []);
let folds, foldsOf, folded, byScope = Boolean(net.by_scope);  // foldsOf: of each box, outer folds first
let nodes = new Map(), edges = [], width = 0, height = 0;  // of the current drawing
let byBytes = Boolean(net.by_bytes), all = false;
let scale = 1, matches = [], current = -1, chosen = -1;

net.boxes.forEach((box, i) => new Set(box.inputs).forEach(blob => readers[blob].push(i)));

function useFolds() {
  folds = byScope ? net.scopes : net.folds;
  foldsOf = net.boxes.map(() => []);
  folds.forEach((fold, f) => fold.others.forEach(i => foldsOf[i].push(f)));
  folded = folds.map(() => true);
  if (byScope) unfoldOuter();
}
// Outer scopes are unfolded, a level of a part at a time, as long as few nodes are seen.
function unfoldOuter() {
  const depth = fold => fold.scope.split("/").length, part = fold => net.boxes[fold.others[0]].part;
  const deepest = folds.reduce((deep, fold) => Math.max(deep, depth(fold)), 0);
  net.parts.forEach((_, p) => {
    for (let level = 1; level <= deepest; level++) {
      const own = folds.map((_, f) => f).filter(f => part(folds[f]) === p && depth(folds[f]) === level);
      own.forEach(f => { folded[f] = false; });
      if (new Set(net.boxes.map((_, i) => keyOf(i))).size <= FEW) continue;
      own.forEach(f => { folded[f] = true; });
      break;
    }
  });
}
function anchor(fold) { return fold.first.length ? fold.first[0] : fold.others[0]; }

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
  button.setAttribute("aria-pressed", byBytes);
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
function shapeText(shape) { return shape.replace(" float32", "").replace(/ x /g, "\u00d7"); }
function withShape(blob) { return blob.name + (blob.shape ? "  " + shapeText(blob.shape) : ""); }
function holder(i) { return foldsOf[i].find(f => folded[f]); }  // undefined: it is seen
function hidden(i) { return holder(i) !== undefined; }
function column(box) { return (net.columns ? box.lane * net.parts.length : 0) + box.part; }
function parameters(box) {
  return [...new Set(box.inputs)].map(b => net.blobs[b]).filter(blob => blob.writer < 0 && !blob.fed);
}

// Nodes are operators, folded blocks, and inputs of the net; their keys are "o5", "f2" and "b7".
function keyOf(i) { return hidden(i) ? "f" + holder(i) : "o" + i; }
function makeNodes() {
  nodes = new Map();
  const add = (key, kind, at, box, high) =>
    nodes.set(key, {key, kind, at, column: column(box), order: nodes.size, width: WIDE, height: high});
  net.boxes.forEach((box, i) => {
    box.inputs.forEach(b => {
      if (net.blobs[b].fed && !nodes.has("b" + b)) add("b" + b, "fed", b, box, HIGH);
    });
    if (!nodes.has(keyOf(i)))
      add(keyOf(i), hidden(i) ? "fold" : "box", hidden(i) ? holder(i) : i, box,
        HIGH + (!hidden(i) && parameters(box).length ? LINE : 0));
  });
}
// Edges join the writer of a blob and its readers. Far ones, to other columns and those of a blob with many readers, take
// no part in the layout, and are drawn when they or the nodes that they join are asked for.
function makeEdges() {
  const found = new Map();
  net.blobs.forEach((blob, b) => {
    if (blob.writer < 0 && !blob.fed) return;
    const from = nodes.get(blob.writer < 0 ? "b" + b : keyOf(blob.writer));
    if (!from) return;
    const to = [...new Set(readers[b].map(keyOf))].map(key => nodes.get(key)).filter(node => node !== from);
    const many = to.filter(node => node.column === from.column).length > READERS;
    to.forEach((node, k) => {
      const far = node.column !== from.column || node.order < from.order || (many && k > 0);
      const key = from.key + " " + node.key, known = found.get(key);
      if (known) {
        known.blobs.push(b);
        known.far = known.far && far;
      } else found.set(key, {from, to: node, far, blobs: [b]});
    });
  });
  edges = [...found.values()];
}

function extreme(of, values) { return values.reduce((a, b) => of(a, b)); }  // as arguments thousands may be too many

// A column is cut at the nodes that no edge passes by, so that its pieces are laid out one by one.
function pieces(own, joining) {
  const number = new Map(own.map((node, k) => [node, k])), change = new Array(own.length + 1).fill(0);
  joining.forEach(edge => {
    const a = number.get(edge.from), b = number.get(edge.to);
    if (b > a + 1) { change[a + 1] += 1; change[b] -= 1; }
  });
  const found = [];
  let begin = 0, passing = 0;
  own.forEach((node, k) => {
    passing += change[k];
    if (k && (!passing || k - begin >= MOST)) { found.push([begin, k]); begin = k; }
  });
  return {found, number};
}
function components(own, joining) {
  const above = new Map(own.map(node => [node, node]));
  const root = node => {
    while (above.get(node) !== node) { above.set(node, above.get(above.get(node))); node = above.get(node); }
    return node;
  };
  joining.forEach(edge => above.set(root(edge.to), root(edge.from)));
  const found = new Map();
  own.forEach(node => {
    const key = root(node);
    if (!found.has(key)) found.set(key, [[], []]);
    found.get(key)[0].push(node);
  });
  joining.forEach(edge => found.get(root(edge.from))[1].push(edge));
  return [...found.values()];
}
// What is not joined is drawn one below the other.
function layOutColumn(own, joining) {
  let low = 0;
  components(own, joining).forEach(([part, edges]) => {
    layOutComponent(part, edges);
    const top = extreme(Math.min, part.map(node => node.y - node.height / 2));
    part.forEach(node => { node.y += low - top; });
    edges.forEach(edge => (edge.points || []).forEach(q => { q[1] += low - top; }));
    low = extreme(Math.max, part.map(node => node.y + node.height / 2)) + (part.length > 1 ? GAP : GAP / 2);
  });
}
function layOutComponent(own, joining) {
  const {found, number} = pieces(own, joining);
  own[0].x = 0;
  own[0].y = 0;
  const within = found.map(() => []), pieceOf = new Map();
  found.forEach(([a, b], p) => { for (let k = a + 1; k <= b; k++) pieceOf.set(k, p); });
  joining.forEach(edge => {
    const p = pieceOf.get(number.get(edge.to));
    if (number.get(edge.from) >= found[p][0]) within[p].push(edge);
    else edge.points = null;
  });
  found.forEach(([a, b], p) => {
    const first = own[a], last = own[b];
    if (b === a + 1) {
      last.x = first.x;
      last.y = first.y + (first.height + last.height) / 2 + GAP;
      return;
    }
    const graph = new dagre.graphlib.Graph();
    graph.setGraph({nodesep: 24, ranksep: GAP, edgesep: 14, ranker: "network-simplex"});
    for (let k = a; k <= b; k++) graph.setNode(own[k].key, {width: own[k].width, height: own[k].height});
    within[p].forEach(edge => graph.setEdge(edge.from.key, edge.to.key, {weight: edge.to.order === edge.from.order + 1 ? 4 : 1}));
    dagre.layout(graph);
    const start = graph.node(first.key), dx = first.x - start.x;
    // Where nothing is above the first node of the piece, it keeps its place; else the piece goes below it.
    let top = Infinity;
    for (let k = a; k <= b; k++) top = Math.min(top, graph.node(own[k].key).y - own[k].height / 2);
    const above = start.y - start.height / 2 - top, dy = first.y - start.y + above;
    first.y += above;
    for (let k = a + 1; k <= b; k++) {
      const at = graph.node(own[k].key);
      own[k].x = at.x + dx;
      own[k].y = at.y + dy;
    }
    within[p].forEach(edge => {
      edge.points = graph.edge(edge.from.key, edge.to.key).points.map(q => [q.x + dx, q.y + dy]);
    });
    const end = Math.max(...own.slice(a, b).map(node => node.y + node.height / 2));
    if (last.y - last.height / 2 < end) last.y = end + GAP + last.height / 2;
    else if (last.x !== first.x) last.x = first.x;  // pieces are on one line
  });
}
function layOut() {
  makeNodes();
  makeEdges();
  const columns = new Map();
  nodes.forEach(node => {
    if (!columns.has(node.column)) columns.set(node.column, []);
    columns.get(node.column).push(node);
  });
  let left = APART / 2;
  height = TOP;
  titles.length = 0;
  [...columns.keys()].sort((a, b) => a - b).forEach(key => {
    const own = columns.get(key), joining = edges.filter(edge => !edge.far && edge.from.column === key);
    layOutColumn(own, joining);
    const points = joining.flatMap(edge => edge.points || []);
    const least = extreme(Math.min, [...own.map(n => n.x - n.width / 2), ...points.map(q => q[0])]);
    const most = extreme(Math.max, [...own.map(n => n.x + n.width / 2), ...points.map(q => q[0])]);
    const up = extreme(Math.min, own.map(n => n.y - n.height / 2));
    own.forEach(node => { node.x += left - least; node.y += TOP + 6 - up; });
    points.forEach(q => { q[0] += left - least; q[1] += TOP + 6 - up; });
    titles.push({x: left, width: most - least, key, first: own[0]});
    left += most - least + APART;
    height = Math.max(height, extreme(Math.max, own.map(n => n.y + n.height / 2)));
  });
  width = left;
  height += 24;
}
const titles = [];
function titleOf(key) {
  const part = net.parts[key % net.parts.length];
  return net.columns ? `${net.lanes[Math.floor(key / net.parts.length)]}: ${part}` : part;
}

function path(edge) {
  const {from, to} = edge, x1 = from.x, y1 = from.y + from.height / 2, x2 = to.x, y2 = to.y - to.height / 2;
  if (edge.far) {
    if (from.column === to.column) {
      const out = Math.max(from.x, to.x) + WIDE / 2 + 14 + Math.min(40, Math.abs(to.y - from.y) / 40);
      return `M${x1 + WIDE / 2},${from.y} C${out},${from.y} ${out},${from.y} ${out},${from.y + 12 * Math.sign(to.y - from.y)} ` +
        `L${out},${to.y} L${x2 + WIDE / 2},${to.y}`;
    }
    const side = from.x < to.x ? 1 : -1, a = x1 + side * WIDE / 2, b = x2 - side * WIDE / 2;
    return `M${a},${from.y} C${a + side * 50},${from.y} ${b - side * 50},${to.y} ${b},${to.y}`;
  }
  const points = edge.points;
  if (!points || points.length < 3) return `M${x1},${y1} C${x1},${y1 + 12} ${x2},${y2 - 12} ${x2},${y2}`;
  const inner = points.slice(1, -1), last = inner[inner.length - 1];
  let text = `M${x1},${y1} C${x1},${y1 + 14} ${inner[0][0]},${inner[0][1] - 14} ${inner[0][0]},${inner[0][1]}`;
  for (let k = 1; k < inner.length; k++) {
    const [ax, ay] = inner[k - 1], [bx, by] = inner[k], middle = (ay + by) / 2;
    text += ` C${ax},${middle} ${bx},${middle} ${bx},${by}`;
  }
  return text + ` C${last[0]},${last[1] + 14} ${x2},${y2 - 14} ${x2},${y2}`;
}
function isSkip(edge) { return !edge.far && edge.to.y - edge.from.y > 2 * (HIGH + LINE + GAP); }
function drawEdge(edge) {
  const kind = edge.far ? "edge far" : isSkip(edge) ? "edge skip" : "edge";
  edge.group = make("g", {class: kind}, layer);
  const d = path(edge);
  make("path", {d, "marker-end": "url(#arrow)"}, edge.group);
  make("path", {d, class: "wide"}, edge.group);
  make("title", {}, edge.group, edge.blobs.slice(0, 8).map(b => withShape(net.blobs[b])).join("\n"));
  edge.group.addEventListener("click", () => tellEdge(edge));
}
let layer = svg, over = svg;
function draw() {
  layOut();
  svg.textContent = "";
  const arrow = make("marker", {id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 8, markerHeight: 8,
    markerUnits: "userSpaceOnUse", orient: "auto"}, make("defs", {}, svg));
  make("path", {d: "M0,1 L7,4 L0,7 z", fill: "#666"}, arrow);
  layer = make("g", {}, svg);
  if (titles.length > 1 || net.columns)
    titles.forEach(title => make("text", {x: title.x, y: 20, class: "title"}, svg, titleOf(title.key)));
  edges.forEach(edge => { if (!edge.far || all) drawEdge(edge); });
  nodes.forEach(node => {
    if (node.kind === "box") drawBox(node);
    else if (node.kind === "fed") drawFed(node);
  });
  folds.forEach(drawFold);
  over = make("g", {}, svg);
  markMore();
  mark();
  zoom(1);
}
// Small circles at the sides of nodes: edges that are not drawn.
function markMore() {
  if (all) return;
  const from = new Set(), to = new Set();
  edges.forEach(edge => { if (edge.far) { from.add(edge.from); to.add(edge.to); } });
  from.forEach(n => make("circle", {cx: n.x + n.width / 2, cy: n.y, r: 3.5, class: "more"}, over));
  to.forEach(n => make("circle", {cx: n.x - n.width / 2, cy: n.y, r: 3.5, class: "more"}, over));
}
function drawBox(node) {
  const i = node.at, box = net.boxes[i], first = net.blobs[box.outputs[0]], own = parameters(box);
  const group = make("g", {class: "box " + net.parts[box.part]}, svg);
  const x = node.x - WIDE / 2, y = node.y - node.height / 2;
  const area = make("rect", {x, y, width: WIDE, height: node.height, rx: 4}, group);
  if (byBytes) area.style.fill = colorOf(sizes[i]);
  const pale = byBytes && sizes[i] >= least(4) ? {style: "fill: #fff"} : {};
  const badge = [byBytes && sizes[i] ? bytesText(sizes[i]) : "",
    box.copies ? `${box.copies + 1} devices` : net.lanes.length > 1 && !net.columns ? net.lanes[box.lane] : ""];
  make("text", {x: x + 8, y: y + 14, ...pale}, group, short(box.type, 26));
  make("text", {x: x + WIDE - 8, y: y + 13, "text-anchor": "end", class: "badge", ...pale}, group,
    badge.filter(text => text).join(", "));
  const more = box.outputs.length > 1 ? `  +${box.outputs.length - 1}` : "";
  if (first) make("text", {x: x + 8, y: y + 28, class: "small", ...pale}, group, shapeLine(first, 34 - more.length) + more);
  if (own.length) make("text", {x: x + 8, y: y + 28 + LINE, class: "parameters", ...pale}, group, parameterLine(own, first));
  make("title", {}, group, [box.type, ...box.outputs.map(b => withShape(net.blobs[b])),
    ...own.map(blob => "reads " + withShape(blob))].join("\n"));
  area.addEventListener("click", () => choose(i, false));
  node.group = group;
}
// The name is cut and not the shape.
function shapeLine(blob, length) {
  const shape = blob.shape ? shapeText(blob.shape) : "";
  return short(blob.name, Math.max(8, length - shape.length)) + (shape ? "  " + shape : "");
}
// As many parameters as there is room for; what a name has in common with that of the output is left out.
function parameterLine(own, output) {
  let text = "";
  for (let k = 0; k < own.length; k++) {
    const {name, shape} = own[k], prefix = output ? output.name : "";
    const rest = prefix && name.startsWith(prefix) && /^[_/.]./.test(name.slice(prefix.length));
    const next = (k ? ", " : "") + (rest ? name.slice(prefix.length + 1) : short(name, 24)) + (shape ? " " + shapeText(shape) : "");
    if (k && (text + next).length > 36) return `${text} +${own.length - k}`;
    text += next;
  }
  return short(text, 44);
}
function drawFed(node) {
  const blob = net.blobs[node.at], group = make("g", {class: "fed"}, svg);
  const x = node.x - WIDE / 2, y = node.y - node.height / 2;
  make("rect", {x, y, width: WIDE, height: node.height, rx: HIGH / 2}, group).addEventListener("click", () => tellBlob(node.at));
  make("text", {x: x + 16, y: y + 14}, group, short(blob.name, 30));
  make("text", {x: x + 16, y: y + 28, class: "small"}, group, blob.shape ? shapeText(blob.shape) : "input");
  node.group = group;
}
// Whether a name scope is unfolded and seen: outer ones have smaller numbers.
function isOpen(f) {
  const at = holder(folds[f].others[0]);
  return !folded[f] && (at === undefined || at > f);
}
// How many levels of scopes are unfolded in this one: its frame is drawn around theirs.
function levels(fold) {
  const own = new Set(fold.others);
  return folds.filter((other, f) => other !== fold && isOpen(f) && own.has(other.others[0]) && other.others.length < own.size)
    .reduce((depth, other) => Math.max(depth, 1 + levels(other)), 0);
}
function drawFrame(own, fold, f) {
  const wider = fold.scope ? 5 + 4 * levels(fold) : 7;
  const left = extreme(Math.min, own.map(n => n.x - n.width / 2)) - wider;
  const right = extreme(Math.max, own.map(n => n.x + n.width / 2)) + wider;
  const top = extreme(Math.min, own.map(n => n.y - n.height / 2)) - wider;
  const low = extreme(Math.max, own.map(n => n.y + n.height / 2)) + wider;
  make("rect", {x: left, y: top, width: right - left, height: low - top, rx: 6, class: "frame"}, svg);
  const text = fold.scope ? `\u2212 ${fold.scope}` : `\u00d7 ${fold.times}`;
  make("text", {x: right + 4, y: top + 14, class: "times"}, svg, text).addEventListener("click", () => turn(f));
}
function drawFold(fold, f) {
  const keys = fold.scope ? (isOpen(f) ? fold.others.map(keyOf) : []) : fold.first.filter(i => !hidden(i)).map(keyOf);
  if (keys.length) drawFrame([...new Set(keys)].map(key => nodes.get(key)), fold, f);
  const node = nodes.get("f" + f);
  if (!node) return;
  const group = make("g", {class: "fold"}, svg), x = node.x - WIDE / 2, y = node.y - node.height / 2;
  const bar = make("rect", {x, y, width: WIDE, height: HIGH, rx: 4}, group);
  make("text", {x: x + 8, y: y + 14}, group, fold.scope ? short(fold.scope, 32) :
    fold.times > 2 ? `the same ${fold.times - 1} more times` : "the same once more");
  make("text", {x: x + 8, y: y + 28, class: "small"}, group, `${fold.others.length} operators; click to unfold`);
  bar.addEventListener("click", () => turn(f));
  node.group = group;
}
// The node that was clicked stays where it is in the window.
function turn(f) {
  const before = nodes.get(keyOf(anchor(folds[f]))), place = before && [before.x, before.y];
  folded[f] = !folded[f];
  draw();
  const after = nodes.get(keyOf(anchor(folds[f])));
  if (place && after) view.scrollBy((after.x - place[0]) * scale, (after.y - place[1]) * scale);
  tellFolds();
}
function tellFolds() {
  const button = document.getElementById("fold");
  button.textContent = folded.some(is => is) ? "unfold all" : "fold all";
  button.hidden = !folds.length;
  const scopes = document.getElementById("scopes");
  scopes.hidden = !net.scopes.length;
  scopes.setAttribute("aria-pressed", byScope);
  document.getElementById("all").hidden = !edges.some(edge => edge.far);
}
function mark() {
  const found = new Set(matches);
  nodes.forEach(node => {
    if (node.kind !== "box" || !node.group) return;
    node.group.classList.toggle("chosen", node.at === chosen);
    node.group.classList.toggle("found", found.has(node.at));
  });
  const at = chosen >= 0 ? nodes.get(keyOf(chosen)) : null;
  edges.forEach(edge => {
    const near = at && (edge.from === at || edge.to === at);
    if (near && !edge.group) drawEdge(edge);
    if (edge.far && !near && !all && edge.group) {
      edge.group.remove();
      edge.group = null;
    }
    if (edge.group) edge.group.classList.toggle("near", Boolean(near));
  });
}

// The map: the whole net, with a frame around the visible part.
function mapScale() { return [map.clientWidth / width, Math.min(map.clientHeight / height, 0.5)]; }
function drawMap() {
  const wide = map.clientWidth, high = map.clientHeight, ratio = window.devicePixelRatio || 1;
  if (!wide) return;
  map.width = wide * ratio;
  map.height = high * ratio;
  const c = map.getContext("2d"), [fx, fy] = mapScale(), found = new Set(matches);
  c.setTransform(ratio, 0, 0, ratio, 0, 0);
  c.clearRect(0, 0, wide, high);
  const fills = ["#7fa6d6", "#d9a679", "#9dbf8c"];
  nodes.forEach(node => {
    const i = node.at;
    c.fillStyle = node.kind !== "box" ? "#aaa" : found.has(i) ? "#090" : i === chosen ? "#111" :
      byBytes ? colorOf(sizes[i]) : fills[net.boxes[i].part];
    c.fillRect((node.x - node.width / 2) * fx, (node.y - node.height / 2) * fy, node.width * fx, Math.max(1, node.height * fy));
  });
  c.strokeStyle = "#b33";
  const w = Math.min(width, view.clientWidth / scale), h = Math.min(height, view.clientHeight / scale);
  c.strokeRect(view.scrollLeft / scale * fx + 0.5, view.scrollTop / scale * fy + 0.5, w * fx - 1, h * fy - 1);
}
function fromMap(event) {
  const box = map.getBoundingClientRect(), [fx, fy] = mapScale();
  view.scrollTo({left: (event.clientX - box.left) / fx * scale - view.clientWidth / 2,
                 top: (event.clientY - box.top) / fy * scale - view.clientHeight / 2});
}
map.addEventListener("mousedown", fromMap);
map.addEventListener("mousemove", event => { if (event.buttons) fromMap(event); });
view.addEventListener("scroll", drawMap);
window.addEventListener("resize", () => shown ? drawMap() : show());
view.addEventListener("wheel", event => {
  if (!event.ctrlKey) return;
  event.preventDefault();
  zoom(event.deltaY < 0 ? 1.1 : 1 / 1.1);
}, {passive: false});

function words(i) {
  const box = net.boxes[i], names = [...box.inputs, ...box.outputs].map(b => net.blobs[b].name);
  const pairs = Object.entries(box.arguments).map(pair => pair.join("="));
  return [box.type, box.name, box.line, ...names, ...pairs].join(" ").toLowerCase();
}
const texts = net.boxes.map((_, i) => words(i));
// The middle of the window stays where it is.
function zoom(factor) {
  const before = scale;
  scale = Math.min(3, Math.max(0.1, scale * factor));
  const x = (view.scrollLeft + view.clientWidth / 2) / before, y = (view.scrollTop + view.clientHeight / 2) / before;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("width", width * scale);
  svg.setAttribute("height", height * scale);
  if (scale !== before) view.scrollTo(x * scale - view.clientWidth / 2, y * scale - view.clientHeight / 2);
  drawMap();
}
// At first as much of the forward pass is seen as can be read; a page in a closed element is shown when it has a size.
let shown = false;
function show() {
  const first = titles[0];
  if (!first || !view.clientWidth) return;
  shown = true;
  scale = Math.min(1, Math.max(0.6, view.clientWidth / (first.width + APART)));
  zoom(1);
  view.scrollTo((first.first.x) * scale - view.clientWidth / 2, 0);
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
function counted(count, noun) { return `${count} ${noun}${count === 1 ? "" : "s"}`; }
function boxText(i) { return `${net.boxes[i].index} ${net.boxes[i].type}`; }

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
  line(panel, counted(net.operators, "operator") +
    (net.boxes.length < net.operators ? `, of which ${net.boxes.length} are drawn: the others do the same on other devices` : ""));
  if (net.problem) line(panel, `drawn without shapes, since they contradict each other: ${net.problem}`);
  net.parts.forEach((part, p) => {
    const count = net.boxes.filter(box => box.part === p).length;
    if (count && count < net.boxes.length) line(panel, `${part}: ${count}`);
  });
  if (net.lanes.length > 1) line(panel, `devices: ${net.lanes.join(", ")}`);
  if (folds.length) head(byScope ? "name scopes" : "repeated blocks", "h3");
  folds.slice(0, 200).forEach(fold => {
    const text = short(runs(fold.first.map(i => net.boxes[i].type)).join(", "), 120);
    const what = fold.scope ? `${fold.scope}: ${counted(fold.others.length, "operator")}` : `${fold.times} \u00d7 (${text})`;
    line(panel, `${what}, from operator ${net.boxes[anchor(fold)].index}`, () => choose(anchor(fold), true));
  });
  if (folds.length > 200) line(panel, `and ${folds.length - 200} more`);
  const outside = net.blobs.map((_, b) => b).filter(b => net.blobs[b].writer < 0);
  [["inputs", outside.filter(b => net.blobs[b].fed)], ["parameters and state", outside.filter(b => !net.blobs[b].fed)]]
    .forEach(([title, found]) => {
      if (!found.length) return;
      head(title, "h3");
      found.slice(0, 200).forEach(b => line(panel, blobText(net.blobs[b]), () => tellBlob(b)));
      if (found.length > 200) line(panel, `and ${found.length - 200} more`);
    });
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
function tellBlob(b) {
  const blob = net.blobs[b];
  panel.textContent = "";
  head(blob.name, "h2");
  line(panel, blobText(blob));
  if (blob.writer >= 0) line(panel, "written by " + boxText(blob.writer), () => choose(blob.writer, true));
  head("read by", "h3");
  readers[b].slice(0, 200).forEach(k => line(panel, boxText(k), () => choose(k, true)));
}
// What an edge carries, and a way to either end.
function tellEdge(edge) {
  const end = node => {
    if (node.kind === "fed") return () => tellBlob(node.at);
    return () => choose(node.kind === "fold" ? folds[node.at].others[0] : node.at, true);
  };
  const nameOf = node => node.kind === "box" ? boxText(node.at) : node.kind === "fed" ? net.blobs[node.at].name : folds[node.at].scope || "folded block";
  panel.textContent = "";
  head("Edge", "h2");
  line(panel, "from " + nameOf(edge.from), end(edge.from));
  line(panel, "to " + nameOf(edge.to), end(edge.to));
  head("carries", "h3");
  edge.blobs.forEach(b => line(panel, blobText(net.blobs[b])));
  edges.forEach(other => { if (other.group) other.group.classList.toggle("near", other === edge); });
}
function choose(i, go) {
  const box = net.boxes[i];
  chosen = i;
  while (hidden(i)) turn(holder(i));
  mark();
  drawMap();
  panel.textContent = "";
  head(box.type, "h2");
  const place = box.copies ? `${net.lanes[box.lane]} and ${counted(box.copies, "more device")}` : net.lanes[box.lane];
  line(panel, `operator ${box.index} on ${place}` + (box.name ? `, ${box.name}` : ""));
  if (box.line) line(panel, box.line);
  head("reads", "h3");
  box.inputs.forEach(b => {
    const blob = net.blobs[b], from = blob.writer;
    if (from < 0) line(panel, blobText(blob) + (blob.fed ? " (input)" : " (external input)"), () => tellBlob(b));
    else line(panel, blobText(blob) + ` from ${boxText(from)}`, () => choose(from, true));
  });
  head("writes", "h3");
  box.outputs.forEach(b => {
    line(panel, blobText(net.blobs[b]));
    readers[b].forEach(k => line(panel, `\u2192 ${boxText(k)}`, () => choose(k, true)));
  });
  head("arguments", "h3");
  Object.entries(box.arguments).forEach(pair => line(panel, pair.join(" = ")));
  const node = nodes.get("o" + i);
  if (go) view.scrollTo({left: scale * node.x - view.clientWidth / 2, top: scale * node.y - view.clientHeight / 2,
    behavior: "smooth"});
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
function pressed(id, action) { document.getElementById(id).addEventListener("click", action); }
pressed("fold", () => {
  folded.fill(!folded.some(is => is));
  draw();
  tellFolds();
});
pressed("scopes", () => {
  byScope = !byScope;
  useFolds();
  draw();
  tellFolds();
  overview();
});
pressed("bytes", () => {
  byBytes = !byBytes;
  draw();
  tellBytes();
});
pressed("all", () => {
  all = !all;
  document.getElementById("all").setAttribute("aria-pressed", all);
  draw();
});
pressed("about", overview);
pressed("smaller", () => zoom(1 / 1.25));
pressed("larger", () => zoom(1.25));
useFolds();
draw();
tellFolds();
tellBytes();
overview();
show();
