// The map: members in boxes by host, and what moves between them. Few members are drawn one by one with their links; of more, links
// go from host to host; of very many, a host is one cell.

import { h } from "./dom.js";
import { clean, counted, quantity, rate, short } from "./words.js";

/** Up to how many members each has its own links, and up to how many its own mark. */
const EACH = 24, MARKS = 256;
/** Links that are drawn, the fastest first. */
const LINKS = 150;
/** The rates in bytes per second from which lines have the width of a class. */
const CLASSES = [1, 1e6, 1e7, 1e8, 1e9];
const MARK = { late: "!", silent: "?", lost: "×", absent: "", works: "" };
const WORDS = { late: "late", silent: "no answer", lost: "lost", absent: "not here", works: "" };

/** @returns the map's elements for a width in pixels. */
export function mapOf(picture, width) {
  const hosts = hostsOf(picture);
  const level = picture.all.length <= EACH ? "each" : picture.all.length <= MARKS ? "marks" : "cells";
  const boxes = hosts.map((host) => ({ ...host, ...sizeOf(host, level, hosts.length, width) }));
  const height = place(boxes, level, width);
  const spots = new Map();
  for (const box of boxes) spread(box, level, spots);
  const { links, left } = linksOf(picture, boxes, spots, level);
  const parts = [links.map(line), boxes.map((box) => drawn(box, level, spots))];
  const order = level === "each" ? [boxes.map(frame), parts[0], boxes.map((box) => box.members.map((member) => node(member, spots)))] : parts;
  return [
    h("svg:svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": inWords(picture, hosts) }, arrows(), order),
    left > 0 && h("p", { class: "more" }, `the ${links.length} fastest of ${counted(links.length + left, "link")}`),
  ];
}

/** Members by host. One that has never said its host is at its address. */
function hostsOf(picture) {
  const hosts = new Map();
  for (const member of picture.all) {
    const name = member.host || member.address.replace(/:\d+$/, "");
    const there = hosts.get(name);
    if (there) there.push(member);
    else hosts.set(name, [member]);
  }
  const label = labelsOf([...hosts.keys()]);
  return [...hosts].map(([name, members]) => ({ name, label: label(name), members }));
}

/** Names of hosts without the domain, if all that have one are in the same. */
function labelsOf(names) {
  const domains = new Set(names.filter((name) => /^[a-z].*\./i.test(name)).map((name) => name.slice(name.indexOf("."))));
  const [domain] = domains;
  return (name) => (domains.size === 1 && name.endsWith(domain) ? name.slice(0, -domain.length) : name);
}

function sizeOf(host, level, hosts, width) {
  const count = host.members.length;
  if (level === "cells") return { width: 84, height: 46 };
  if (level === "each" && hosts === 1) return { width, height: count > 1 ? Math.max(300, Math.min(560, count * 40)) : 150, isRing: true };
  const [cell, row] = level === "each" ? [count > 1 ? 84 : 120, host.members.some((member) => member.role !== "worker") ? 76 : 62] : [30, 28];
  const most = Math.max(1, Math.floor((width / (width < 640 ? 2.4 : 3) - 16) / cell));
  const columns = Math.min(count, most, Math.max(2, Math.ceil(Math.sqrt(count * 1.6))));
  const rows = Math.ceil(count / columns);
  return { width: Math.max(96, columns * cell + 16), height: 26 + rows * row + (level === "marks" ? 18 : 6), columns, cell, row };
}

/** Gives each box its place; returns the height of all. */
function place(boxes, level, width) {
  if (boxes.length === 1) {
    Object.assign(boxes[0], { x: (width - boxes[0].width) / 2, y: 0 });
    return boxes[0].height;
  }
  if (level === "cells" || boxes.length > 16) return inRows(boxes, width);
  return width < 640 ? inColumns(boxes, width) : onEllipse(boxes, width);
}

function inRows(boxes, width) {
  const [wide, high] = [Math.max(...boxes.map((box) => box.width)) + 14, Math.max(...boxes.map((box) => box.height)) + 14];
  const columns = Math.max(1, Math.floor((width + 14) / wide));
  const left = (width - Math.min(columns, boxes.length) * wide + 14) / 2;
  boxes.forEach((box, at) => Object.assign(box, { x: left + (at % columns) * wide, y: Math.floor(at / columns) * high }));
  return Math.ceil(boxes.length / columns) * high - 14;
}

function inColumns(boxes, width) {
  const heights = [0, 0];
  boxes.forEach((box, at) => {
    const column = at % 2;
    Object.assign(box, { x: column ? width - box.width : 0, y: heights[column] });
    heights[column] += box.height + 24;
  });
  return Math.max(...heights) - 24;
}

/** The smallest ellipse on which no two boxes touch. */
function onEllipse(boxes, width) {
  const [wide, high] = [Math.max(...boxes.map((box) => box.width)), Math.max(...boxes.map((box) => box.height))];
  const across = (Math.min(width, Math.max(560, boxes.length * (wide + 60) * 0.6)) - wide) / 2;
  for (let height = high * 2 + 80; ; height += 20) {
    boxes.forEach((box, at) => {
      const angle = (2 * Math.PI * at) / boxes.length - (boxes.length === 2 ? Math.PI : Math.PI / 2);
      box.x = width / 2 + across * Math.cos(angle) - box.width / 2;
      box.y = height / 2 + ((height - high) / 2) * Math.sin(angle) - box.height / 2;
    });
    const apart = (one, other) => Math.abs(one.x + one.width / 2 - other.x - other.width / 2) > (one.width + other.width) / 2 + 24 || Math.abs(one.y + one.height / 2 - other.y - other.height / 2) > (one.height + other.height) / 2 + 24;
    if (height > 4000 || boxes.every((box, at) => boxes.slice(at + 1).every((other) => apart(box, other)))) return cut(boxes);
  }
}

/** Moves all boxes up to the upper edge; returns the height. */
function cut(boxes) {
  const top = Math.min(...boxes.map((box) => box.y));
  for (const box of boxes) box.y -= top;
  return Math.max(...boxes.map((box) => box.y + box.height));
}

/** Where the members of a box are. */
function spread(box, level, spots) {
  if (level === "cells") return;
  const count = box.members.length;
  box.members.forEach((member, at) => {
    const angle = (2 * Math.PI * at) / count - Math.PI / 2;
    const [across, down] = [Math.min(box.width / 2 - 60, 320), box.height / 2 - 52];
    const ring = count > 1 ? [across * Math.cos(angle), down * Math.sin(angle)] : [0, 0];
    const x = box.isRing ? box.x + box.width / 2 + ring[0] : box.x + (box.width - box.columns * box.cell) / 2 + (at % box.columns + 0.5) * box.cell;
    const y = box.isRing ? box.y + box.height / 2 - 4 + ring[1] : box.y + 26 + (Math.floor(at / box.columns) + 0.5) * box.row - (level === "each" ? (box.row - 50) / 2 : 0);
    spots.set(member.name, { x, y, radius: level === "each" ? 16 : 11 });
  });
}

/** The links to draw: from member to member, or all links between two hosts as one. */
function linksOf(picture, boxes, spots, level) {
  if (level === "each") return fastest(picture.links.map((link) => ({ ...link, start: spots.get(link.from), end: spots.get(link.to) })));
  const boxOf = new Map(boxes.flatMap((box) => box.members.map((member) => [member.name, box])));
  const between = new Map();
  for (const link of picture.links) {
    const [from, to] = [boxOf.get(link.from), boxOf.get(link.to)];
    if (from === to) {
      from.inside = (from.inside ?? 0) + (link.rate ?? 0);
      continue;
    }
    from.out = (from.out ?? 0) + (link.rate ?? 0);
    const key = `${boxes.indexOf(from)} ${boxes.indexOf(to)}`;
    const ends = [from, to].map((box) => ({ x: box.x + box.width / 2, y: box.y + box.height / 2, box }));
    const sum = between.get(key) ?? { from: from.name, to: to.name, by: link.by, reason: link.reason, rate: null, start: ends[0], end: ends[1] };
    if (link.rate != null) sum.rate = (sum.rate ?? 0) + link.rate;
    if (link.by !== "lost") sum.by = link.by;
    between.set(key, sum);
  }
  return fastest([...between.values()]);
}

function fastest(links) {
  const sorted = links.filter((link) => link.start && link.end).sort((one, other) => (other.rate ?? -1) - (one.rate ?? -1));
  return { links: sorted.slice(0, LINKS).reverse(), left: Math.max(0, sorted.length - LINKS) };
}

export const classOf = (bytes) => (bytes == null || bytes < 1 ? 0 : CLASSES.filter((from) => bytes >= from).length);

function line(link) {
  const { start, end } = link;
  const [dx, dy] = [end.x - start.x, end.y - start.y];
  const length = Math.hypot(dx, dy) || 1;
  const bend = Math.min(40, length * 0.12);
  const middle = { x: (start.x + end.x) / 2 - (dy / length) * bend, y: (start.y + end.y) / 2 + (dx / length) * bend };
  const [from, to] = [edge(start, middle, 0), edge(end, middle, 5)];
  const kind = link.by === "lost" ? "lost" : `rate${classOf(link.rate)}`;
  const way = { shm: "shared memory", tcp: "TCP", lost: `lost: ${link.reason}` }[link.by] ?? clean(link.by);
  const d = `M${[from.x, from.y].map(round)}Q${[middle.x, middle.y].map(round)} ${[to.x, to.y].map(round)}`;
  return h("svg:path", { d, class: `link ${kind}`, "marker-end": `url(#to-${kind})` }, h("svg:title", {}, `${link.from} to ${link.to}: ${rate(link.rate) || "not measured yet"}, ${way}`));
}

/** Where a line from the middle meets a member's circle, or a host's box. */
function edge(spot, middle, gap) {
  const [dx, dy] = [middle.x - spot.x, middle.y - spot.y];
  const length = Math.hypot(dx, dy) || 1;
  const out = spot.box ? Math.min(spot.box.width / 2 / Math.max(1e-6, Math.abs(dx / length)), spot.box.height / 2 / Math.max(1e-6, Math.abs(dy / length))) : spot.radius;
  return { x: spot.x + (dx / length) * (out + gap), y: spot.y + (dy / length) * (out + gap) };
}

const round = (number) => number.toFixed(1);

function arrows() {
  const kinds = ["lost", ...[0, ...CLASSES].map((_, at) => `rate${at}`)];
  const marker = (kind) => h("svg:marker", { id: `to-${kind}`, viewBox: "0 0 10 10", refX: 5, refY: 5, markerWidth: 9, markerHeight: 9, markerUnits: "userSpaceOnUse", orient: "auto", class: `arrow ${kind}` }, h("svg:path", { d: "M0 1L9 5L0 9z" }));
  return h("svg:defs", {}, kinds.map(marker));
}

function frame(box) {
  return h("svg:g", {}, h("svg:rect", { class: "host", x: box.x + 0.5, y: box.y + 0.5, width: box.width - 1, height: box.height - 1, rx: 6 }), h("svg:text", { class: "name", x: box.x + 8, y: box.y + 17 }, short(box.label, Math.floor((box.width - 12) / 7.5)), h("svg:title", {}, box.name)));
}

/** A host whose links are drawn as one. */
function drawn(box, level, spots) {
  const bad = box.members.filter((member) => WORDS[member.state]);
  if (level === "marks") {
    const inside = box.inside ? `inside ${rate(box.inside)}` : "";
    return h("svg:g", {}, frame(box), box.members.map((member) => mark(member, spots)), h("svg:text", { class: "small", x: box.x + 8, y: box.y + box.height - 7 }, inside));
  }
  const says = bad.length ? `${MARK[bad[0].state]} ${bad.length} ${bad[0].state}` : counted(box.members.length, "rank");
  const at = { x: box.x + box.width / 2, "text-anchor": "middle" };
  return h(
    "svg:g",
    {},
    h("svg:rect", { class: `cell ${bad.length ? bad[0].state : `rate${classOf((box.out ?? 0) + (box.inside ?? 0))}`}`, x: box.x, y: box.y, width: box.width, height: box.height, rx: 4 }),
    h("svg:text", { ...at, class: "name", y: box.y + 15 }, short(box.label, 11)),
    h("svg:text", { ...at, class: `small ${bad.length ? "bad" : ""}`, y: box.y + 28 }, says),
    h("svg:text", { ...at, class: "small", y: box.y + 41 }, rate((box.out ?? 0) + (box.inside ?? 0))),
    h("svg:title", {}, `${box.name}: ${counted(box.members.length, "member")}, sends ${rate(box.out ?? 0)}${bad.map((member) => `; ${member.name}: ${WORDS[member.state]}`).slice(0, 8).join("")}`),
  );
}

/** A member's shape: a circle for a rank, a hexagon for a reducer, a square for a table server. */
function shape(member, { x, y, radius: r }) {
  const attributes = { class: `member ${member.state}` };
  if (member.role === "worker") return h("svg:circle", { ...attributes, cx: round(x), cy: round(y), r });
  const corners = member.role === "reducer" ? [[-1, 0], [-0.5, -0.9], [0.5, -0.9], [1, 0], [0.5, 0.9], [-0.5, 0.9]] : [[-0.9, -0.9], [0.9, -0.9], [0.9, 0.9], [-0.9, 0.9]];
  return h("svg:polygon", { ...attributes, points: corners.map(([cx, cy]) => `${round(x + cx * r * 1.15)},${round(y + cy * r * 1.15)}`).join(" ") });
}

const letter = (member) => (member.rank != null ? member.rank : member.role === "reducer" ? "R" : member.role === "worker" ? "·" : "T");

function node(member, spots) {
  const spot = spots.get(member.name);
  const under = WORDS[member.state] || (member.role === "worker" ? "" : short(/:\d+$/.exec(member.address ?? "")?.[0] ?? member.name, 12));
  const moved = member.state === "works" && member.sent != null ? rate(member.sent) : "";
  return h(
    "svg:g",
    {},
    h("svg:title", {}, `${member.name}: ${WORDS[member.state] || member.does || ""}`),
    shape(member, spot),
    h("svg:text", { class: "in", x: round(spot.x), y: round(spot.y + 4.5), "text-anchor": "middle" }, letter(member)),
    badge(member, spot),
    h("svg:text", { class: `small ${WORDS[member.state] ? "bad" : ""}`, x: round(spot.x), y: round(spot.y + 31), "text-anchor": "middle" }, under || moved),
    under && moved && h("svg:text", { class: "small", x: round(spot.x), y: round(spot.y + 44), "text-anchor": "middle" }, moved),
  );
}

function mark(member, spots) {
  const spot = spots.get(member.name);
  return h("svg:g", {}, h("svg:title", {}, `${member.name}: ${WORDS[member.state] || member.does || ""}`), shape(member, spot), h("svg:text", { class: "in tiny", x: round(spot.x), y: round(spot.y + 3.5), "text-anchor": "middle" }, letter(member)), badge(member, spot));
}

/** A sign in addition to the colour. */
function badge(member, { x, y, radius }) {
  if (!MARK[member.state]) return null;
  const [cx, cy] = [x + radius * 0.8, y - radius * 0.8];
  return [h("svg:circle", { class: "badge", cx: round(cx), cy: round(cy), r: 7 }), h("svg:text", { class: "badge-sign", x: round(cx), y: round(cy + 4), "text-anchor": "middle" }, MARK[member.state])];
}

function inWords(picture, hosts) {
  const bad = picture.all.filter((member) => WORDS[member.state] && member.state !== "absent").slice(0, 8);
  const moved = picture.links.reduce((sum, link) => sum + (link.rate ?? 0), 0);
  return [`${counted(picture.all.length, "member")} on ${counted(hosts.length, "host")}`, `links move ${quantity(moved)}/s`, ...bad.map((member) => `${member.name}: ${WORDS[member.state]}`)].join("; ");
}

/** What lines and marks mean. */
export function legendOf() {
  const shown = ["0 or idle", "< 1 MB/s", "< 10 MB/s", "< 100 MB/s", "< 1 GB/s", "≥ 1 GB/s"];
  const lines = [...shown.map((text, at) => [text, `rate${at}`]), ["lost", "lost"]];
  const line = ([text, kind]) => h("li", {}, h("svg:svg", { width: 28, height: 12, "aria-hidden": "true" }, h("svg:path", { d: "M1 6H27", class: `link ${kind}` })), text);
  const sample = (member, text) => h("li", {}, h("svg:svg", { width: 30, height: 26, "aria-hidden": "true" }, shape(member, { x: 13, y: 14, radius: 9 }), badge(member, { x: 13, y: 14, radius: 9 })), text);
  const marks = [["works", "worker", "rank"], ["works", "reducer", "reducer"], ["works", "tables", "table server"], ["late", "worker", "late"], ["silent", "worker", "no answer"], ["lost", "worker", "lost"]];
  return [h("ul", {}, lines.map(line)), h("ul", {}, marks.map(([state, role, text]) => sample({ state, role }, text)))];
}
