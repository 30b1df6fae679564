// Shows one step of a schedule at a time: blocks, messages, and the tree of a sum.
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const find = (id) => document.getElementById(id);
const last = data.steps.length - 1;
const calm = matchMedia("(prefers-reduced-motion: reduce)");
const FLIGHT = 700, PAUSE = 900, SVG = "http://www.w3.org/2000/svg";
let at = 0, playing = null, flight = null;

const text = (term, chunk) => data.terms[term].text.replaceAll("#", chunk);
// A line can end before a +, but not within innermost brackets.
const pieces = (words) => {
  const cut = words.includes("(") ? /(?=\+\()|(?<=\))(?=\+)/ : /(?=\+)/;
  return words.split(cut).flatMap((piece) => [document.createElement("wbr"), piece]);
};
const held = (step, rank, chunk) => data.steps[step].held[rank * data.chunks + chunk];
const make = (name, attributes, parent) => {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  parent.append(made);
  return made;
};

// The table: a column for each rank, a row for each chunk.
const blocks = find("blocks"), cells = [];
const head = blocks.createTHead().insertRow();
data.ranks.forEach((name) => {
  const cell = document.createElement("th");
  cell.scope = "col";
  cell.textContent = name;
  head.append(cell);
});
// Above each row is room for the arrows of any step, so that blocks stay where they are.
const GAP = 10, LEVEL = 7;
const body = blocks.createTBody();
for (let chunk = 0; chunk < data.chunks; chunk += 1) {
  const levels = data.steps.map((step) => step.arrows[chunk]?.levels ?? 0), gap = body.insertRow(), row = body.insertRow();
  gap.className = "gap";
  const room = gap.insertCell();
  room.colSpan = data.ranks.length;
  room.style.height = `${GAP + LEVEL * Math.max(...levels)}px`;
  row.className = "row";
  cells.push(data.ranks.map(() => row.insertCell()));
}

function showBlocks(step) {
  cells.forEach((row, chunk) => row.forEach((cell, rank) => {
    const term = held(step, rank, chunk);
    const isNew = step > 0 && term !== held(step - 1, rank, chunk);
    cell.replaceChildren(...(term === null ? [] : pieces(text(term, chunk))));
    cell.className = term === null ? "" : `held ${data.terms[term].look}${isNew ? " new" : ""}`;
  }));
}

// A block's place in the stage, in pixels.
function box(chunk, rank) {
  const cell = cells[chunk][rank], left = cell.offsetLeft + blocks.offsetLeft, top = cell.offsetTop + blocks.offsetTop;
  return { left, top, right: left + cell.offsetWidth, wide: cell.offsetWidth, centre: [left + cell.offsetWidth / 2, top + cell.offsetHeight / 2] };
}

// The arrows of one row: between neighbours straight, others over a level above the row.
function ways(chunk, { short, buses }) {
  const straight = short.map(([from, to, shift]) => {
    const one = box(chunk, from), other = box(chunk, to), y = one.centre[1] + 4 * shift;
    const [x, end] = to > from ? [one.right + 2, other.left - 2] : [one.left - 2, other.right + 2];
    return `M${x} ${y}H${end}`;
  });
  const over = buses.flatMap(({ isSent, level, ports }) => {
    const places = ports.map(([rank, part]) => {
      const { left, top, wide } = box(chunk, rank);
      return { x: left + wide * part, top };
    });
    const [hub, ...ends] = places, up = hub.top - 8 - LEVEL * level;
    return ends.map((end) => {
      const [from, to] = isSent ? [hub, end] : [end, hub];
      return `M${from.x} ${from.top - 1}V${up}H${to.x}V${to.top - 2}`;
    });
  });
  return [...straight, ...over];
}

function showWires(step) {
  const wires = find("wires");
  wires.replaceChildren();
  const marker = make("marker", { id: "tip", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 5, markerHeight: 5, orient: "auto" }, wires);
  make("path", { d: "M0 0L8 4L0 8Z" }, marker);
  for (const [chunk, arrows] of Object.entries(data.steps[step].arrows)) {
    ways(chunk, arrows).forEach((d) => make("path", { d, "marker-end": "url(#tip)" }, wires));
  }
  find("messages").replaceChildren(...data.steps[step].messages.map(([from, to, chunk, term]) => {
    const item = document.createElement("li");
    item.textContent = `${data.ranks[from]} \u2192 ${data.ranks[to]}: ${text(term, chunk)}`;
    return item;
  }));
}

// The tree of a sum: each term below the one that it becomes part of, with the first step after which it is known.
const bare = (term) => (data.terms[term].kind === "result" ? bare(data.terms[term].of[0]) : term);
function treeOf(chunk) {
  const ends = data.ranks.map((_, rank) => held(last, rank, chunk)).filter((term) => term !== null);
  const end = ends.find((term) => data.terms[term].look === "result");
  if (end === undefined) return null;
  const first = new Map();
  data.steps.forEach((_, step) => data.ranks.forEach((_, rank) => {
    const term = held(step, rank, chunk);
    if (term !== null && !first.has(bare(term))) first.set(bare(term), step);
  }));
  let leaves = 0;
  const grow = (term, parent) => {
    const born = Math.min(first.get(term) ?? last, parent);
    const below = data.terms[term].of.map((of) => grow(of, born));
    const high = below.length ? 1 + Math.max(...below.map((node) => node.high)) : 0;
    const x = below.length ? below.reduce((sum, node) => sum + node.x, 0) / below.length : leaves++;
    return { term, born: below.length ? born : 0, below, high, x };
  };
  const root = grow(bare(end), last);
  return { ...root, end, leaves, chunk };
}

function showTree(step) {
  const chunk = Number(find("chunk").value), tree = treeOf(chunk), svg = find("tree");
  svg.replaceChildren();
  if (!tree) return;
  const ACROSS = 52, DOWN = 46, R = 15, width = tree.leaves * ACROSS, height = (tree.high + 1) * DOWN;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("width", width);
  svg.setAttribute("height", height);
  const place = (node) => [(node.x + 0.5) * ACROSS, height - (node.high + 0.5) * DOWN];
  const isKnown = (node) => node.born <= step;
  const lines = (node) => node.below.forEach((other) => {
    const [[x1, y1], [x2, y2]] = [place(node), place(other)];
    make("line", { x1, y1, x2, y2, class: isKnown(node) ? "known" : "" }, svg);
    lines(other);
  });
  let known = 0, sums = 0;
  const nodes = (node) => {
    node.below.forEach(nodes);
    const { kind, look } = data.terms[node.term], [x, y] = place(node);
    const name = node === root ? "result" : look, isSum = node.below.length > 0;
    sums += isSum ? 1 : 0;
    known += isSum && isKnown(node) ? 1 : 0;
    const state = isKnown(node) ? ` known${isSum && step > 0 && node.born === step ? " new" : ""}` : "";
    const group = make("g", { class: name + state }, svg);
    make("title", {}, group).textContent = text(node.term, chunk);
    make("circle", { cx: x, cy: y, r: R }, group);
    make("text", { x, y: y + 4.5 }, group).textContent = { input: text(node.term, chunk), code: "q", sum: "+" }[kind];
  };
  const root = tree;
  lines(root);
  nodes(root);
  svg.setAttribute("aria-label", `The tree of ${text(tree.end, chunk)}`);
  find("ready").textContent = `${known} of ${sums} additions are done: ${text(tree.end, chunk)}`;
}

function show(step) {
  at = step;
  showBlocks(step);
  showWires(step);
  showTree(step);
  find("where").textContent = step === 0 ? `start, ${last} ${last === 1 ? "step follows" : "steps follow"}` : `step ${step} of ${last}`;
  find("slider").value = step;
  for (const id of ["first", "back"]) find(id).disabled = step === 0;
  for (const id of ["next", "last"]) find(id).disabled = step === last;
}

function land() {
  flight?.forEach((flying) => flying.remove());
  flight = null;
}

// Goes to a step. The next one begins with its messages on their way, unless the reader wants no motion.
async function go(step) {
  const to = Math.max(0, Math.min(last, step));
  if (flight !== null) {
    land();
    show(at);
  }
  if (to !== at + 1 || calm.matches || data.steps[to].messages.length > 400) {
    show(to);
    return;
  }
  showWires(to);
  const own = data.steps[to].messages.map(([sender, receiver, chunk, term]) => {
    const [from, end] = [sender, receiver].map((rank) => box(chunk, rank).centre), pill = document.createElement("div");
    pill.className = "flying";
    pill.textContent = text(term, chunk);
    find("stage").append(pill);
    const put = ([x, y]) => `translate(calc(${x}px - 50%), calc(${y}px - 50%))`;
    const motion = pill.animate([{ transform: put(from) }, { transform: put(end) }], { duration: FLIGHT, easing: "ease-in-out", fill: "both" });
    return { remove: () => { motion.cancel(); pill.remove(); }, over: motion.finished.catch(() => {}) };
  });
  flight = own;
  at = to;
  await Promise.all(own.map((flying) => flying.over));
  if (flight !== own) return;
  land();
  show(to);
}

function stop() {
  clearTimeout(playing);
  playing = null;
  find("play").textContent = "Play";
}

async function play() {
  if (at === last) show(0);
  find("play").textContent = "Pause";
  const next = async () => {
    await go(at + 1);
    if (playing === null) return;
    if (at === last) stop();
    else playing = setTimeout(next, PAUSE);
  };
  playing = setTimeout(next, PAUSE / 3);
}

const actions = {
  first: () => go(0),
  back: () => go(at - 1),
  next: () => go(at + 1),
  last: () => go(last),
};
const toggle = () => (playing === null ? play() : stop());
for (const [id, action] of Object.entries(actions)) {
  find(id).addEventListener("click", () => { stop(); action(); });
}
find("play").addEventListener("click", toggle);
find("slider").max = last;
find("slider").addEventListener("input", (event) => { stop(); land(); show(Number(event.target.value)); });
const keys = { ArrowLeft: "back", ArrowRight: "next", Home: "first", End: "last" };
document.addEventListener("keydown", (event) => {
  if (event.altKey || event.ctrlKey || event.metaKey || event.target.matches("select")) return;
  // A control that has the focus keeps its own keys: a button is pressed by space, and the slider moved by arrows.
  const action = event.target.matches("input") ? undefined : keys[event.key];
  if (action) { stop(); actions[action](); } else if (event.key === " " && !event.target.matches("button")) toggle(); else return;
  event.preventDefault();
});
for (let chunk = 0; chunk < data.chunks; chunk += 1) find("chunk").add(new Option(chunk, chunk));
find("chunk").addEventListener("change", () => showTree(at));
find("grown").hidden = !data.folds;
addEventListener("resize", () => { land(); show(at); });
show(0);
