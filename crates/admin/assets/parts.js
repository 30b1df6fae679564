// The parts of the page around the map, as descriptions of elements.

import { h } from "./dom.js";
import { clean, listed, names, quantity, rate, seconds } from "./words.js";

/** Rows of a table that are shown at once. */
const ROWS = 64;
const BRIEF = 40;
/** Seconds that a chart shows. */
export const WINDOW = 300;
const WORDS = { works: "works", late: "! late", silent: "? no answer", lost: "× lost", absent: "not here" };

/** Who keeps the job waiting, in red; a check mark if nobody does. */
export function lateOf(late) {
  if (!late.length) return [h("li", { class: "fine" }, "✓ nobody is late")];
  const more = late.length - 16;
  return [
    ...late.slice(0, 16).map((entry) => h("li", { class: "alarm" }, h("strong", {}, `▲ ${entry.word.toUpperCase()}`), " ", h("span", { class: "told" }, entry.text))),
    more > 0 && h("li", { class: "alarm" }, `and ${more} more`),
  ];
}

/** The running operation, the present rates, and their history. */
export function nowOf(picture, pace, points, width) {
  const moved = picture.members.some((member) => member.sent != null) ? picture.members.reduce((sum, member) => sum + (member.sent ?? 0), 0) : null;
  const figures = [
    (moved != null || !picture.servers.length) && ["bytes sent, all members", rate(moved) || "not measured yet"],
    picture.issued > 0 && ["operations", pace == null ? picture.issued.toLocaleString("en") : `${picture.issued.toLocaleString("en")}, ${pace.toFixed(1)}/s`],
    ["members that answer", `${picture.members.filter((member) => member.answers).length} of ${picture.members.length}`],
  ];
  return [
    h("p", { class: "runs" }, running(picture)),
    h("dl", { class: "figures" }, figures.filter(Boolean).map(([term, value]) => h("div", {}, h("dt", {}, term), h("dd", {}, value)))),
    points.some(([, value]) => value != null) && chart(points, "bytes per second sent by all members", { width, height: 96, isLarge: true }),
  ];
}

function running(picture) {
  const [oldest, ...more] = picture.running;
  if (!oldest) return picture.servers.length ? "Table servers answer pulls and pushes; they run no operations." : "No operation right now.";
  const rest = more.length ? `; ${more.length} more` : "";
  return [h("span", { class: "data" }, oldest.name), oldest.group === "world" ? "" : ` in ${oldest.group}`, oldest.seconds < 0.1 ? "" : ` for ${seconds(oldest.seconds)}`, `, on ${names(oldest.members)}${rest}`];
}

/** Bytes per second over the last minutes. `points`: pairs of seconds ago and a rate. */
export function chart(points, called, { width, height, isLarge }) {
  const known = points.filter(([ago, value]) => ago <= WINDOW && value != null);
  const most = Math.max(0, ...known.map(([, value]) => value));
  const top = scaleOf(most);
  const floor = height - (isLarge ? 16 : 2);
  const at = ([ago, value]) => [(width * (1 - ago / WINDOW)).toFixed(1), (floor - (value / top) * (floor - (isLarge ? 16 : 2))).toFixed(1)];
  const line = known.map(at).join("L");
  const last = known.at(-1)?.[1];
  const label = known.length ? `${called}: now ${rate(last)}, at most ${rate(most)} in the last ${Math.round(WINDOW / 60)} minutes` : `${called}: nothing known yet`;
  const text = (x, y, anchor, words) => h("svg:text", { x, y, "text-anchor": anchor, class: "small" }, words);
  return h(
    "svg:svg",
    { viewBox: `0 0 ${width} ${height}`, class: isLarge ? "chart large" : "chart", role: "img", "aria-label": label },
    h("svg:path", { class: "axis", d: `M0 ${floor}H${width}` }),
    isLarge && h("svg:path", { class: "grid", d: `M0 16H${width}` }),
    known.length > 0 && h("svg:path", { class: "area", d: `M${at([known[0][0], 0])}L${line}L${at([known.at(-1)[0], 0])}Z` }),
    known.length > 0 && h("svg:path", { class: "curve", d: `M${line}` }),
    isLarge && [text(0, 11, "start", rate(top)), text(0, height - 3, "start", "5 minutes ago"), text(width, height - 3, "end", "now")],
  );
}

/** The next of 1, 2, 5, 10, 20, ... */
function scaleOf(most) {
  if (most < 1) return 1;
  const power = 10 ** Math.floor(Math.log10(most));
  return power * [1, 2, 5, 10].find((step) => step * power >= most);
}

/** A table that the keyboard can scroll. `numbers`: the places of columns that are aligned to the right. */
function table(called, columns, rows, numbers = [], classes = () => null) {
  const kind = (at) => (numbers.includes(at) ? "number" : null);
  return h(
    "div",
    { class: "scroll", role: "region", tabindex: "0", "aria-label": `${called}: a table` },
    h(
      "table",
      {},
      h("thead", {}, h("tr", {}, columns.map((column, at) => h("th", { scope: "col", class: kind(at) }, column)))),
      h("tbody", {}, rows.map((row, number) => h("tr", { class: classes(number) }, row.map((cell, at) => h(at ? "td" : "th", { class: kind(at), scope: at ? null : "row" }, cell))))),
    ),
  );
}

/** A name of the network: in one line if it is not too long. */
const data = (name) => h("span", { class: name.length > BRIEF ? "data" : "data brief" }, name);

/** Each member: what it does and since when. Those in trouble come first. */
export function membersOf(picture, departed, histories, search) {
  const wanted = search.trim().toLowerCase();
  const rank = { lost: 0, silent: 0, late: 1, works: 2, absent: 3 };
  const all = [...picture.members, ...picture.guests, ...departed].filter((member) => !wanted || [member.name, member.host].some((text) => `${text} `.toLowerCase().includes(/^rank \d+$/.test(wanted) ? `${wanted} ` : wanted)));
  const sorted = all.map((member, at) => [rank[member.state], at, member]).sort((one, other) => one[0] - other[0] || one[1] - other[1]).map((entry) => entry[2]);
  const shown = sorted.slice(0, ROWS);
  const rows = shown.map((member) => [
    [data(member.name), member.own ? " (this page)" : ""],
    h("span", { class: `state ${member.state}` }, WORDS[member.state]),
    data(member.process == null ? member.host ?? "" : `${member.host}:${member.process}`),
    h("span", { class: "data long" }, member.does ?? member.error ?? ""),
    member.operation ? seconds(member.operation.seconds) : "",
    h("span", { class: "long" }, names(member.operation?.waits ?? [])),
    rate(member.sent),
    rate(member.received),
    histories.get(member.key)?.some(([, value]) => value != null) ? chart(histories.get(member.key), `bytes per second sent by ${member.name}`, { width: 100, height: 20 }) : "",
  ]);
  const columns = ["member", "state", "process", "does", "for", "waits for", "sends", "receives", "5 minutes"];
  const more = sorted.length - shown.length;
  return [
    table("Members", columns, rows, [4, 6, 7], (at) => shown[at].state),
    more > 0 && h("p", { class: "more" }, `and ${more.toLocaleString("en")} more; those in trouble are shown first`),
    picture.gone.length > 0 && h("p", { class: "more" }, `Lost before: ${listed(picture.gone.slice(0, 8).map((gone) => `${gone.name}${gone.reason ? ` (${gone.reason})` : ""}`))}.`),
  ];
}

/** The jobs that a process can show, to choose from. */
export const chooserOf = (jobs) => [h("option", { value: "" }, "any"), ...jobs.map((job) => h("option", { value: job }, job))];

/** The jobs of all reducers. */
export function jobsOf(picture) {
  const rows = picture.served.slice(0, ROWS).map((row) => {
    if (row.more) return [row.reducer, `${row.more} more`, "", "", "", "", ""];
    const job = row.job === picture.job ? "this one" : row.job;
    const lost = row.lost ? `, ${row.lost} lost` : "";
    return [row.reducer, job, `${row.here} of ${row.world}${lost}`, `${(row.issued ?? 0).toLocaleString("en")} (${row.now} now)`, quantity(row.received), quantity(row.sent)];
  });
  return table("Jobs of the reducers", ["reducer", "job", "workers here", "operations", "received", "sent"], rows, [2, 3, 4, 5]);
}

/** Tables of a parameter server, each once: what its ranges say together, where copies count in memory only. */
export function tablesOf(servers) {
  const found = new Map();
  for (const server of servers) {
    for (const part of server.tables.tables ?? []) {
      const name = clean(part.name);
      found.set(name, [...(found.get(name) ?? []), { ...part, isCopy: isCopy(server.tables, part.range) }]);
    }
  }
  const parts = [...found].slice(0, ROWS);
  const hot = parts.flatMap(([name, all]) => all.filter((part) => !part.isCopy).flatMap((part) => (part.hot_keys ?? []).map((key) => [name, key])));
  hot.sort((one, other) => other[1].share - one[1].share);
  const used = servers.reduce((sum, server) => sum + server.tables.memory, 0);
  const limit = servers.reduce((sum, server) => sum + server.tables.memory_limit, 0);
  const columns = ["table", "what", "rows", "bytes", "workers", "steps", "behind the first", "pulls waiting", "NaN"];
  return [
    h("p", {}, `${quantity(used)} of ${quantity(limit)} in use`),
    found.size > 0 ? table("Tables", columns, parts.map(tableRow), [2, 3, 4, 5, 7, 8]) : h("p", {}, "no tables yet"),
    hot.length > 0 && [h("h3", {}, "Hot keys"), table("Hot keys", ["table", "key", "share of the requests in its range"], hot.slice(0, 16).map(([name, { key, share }]) => [name, String(key), `${(share * 100).toFixed(1)} %`]), [1, 2])],
    rangesOf(servers),
  ];
}

function isCopy(server, range) {
  const place = server.ranges?.find((each) => each.range === range);
  return place != null && place.owner !== server.place;
}

function tableRow([name, all]) {
  const owned = all.filter((part) => !part.isCopy);
  const sum = (field) => owned.reduce((total, part) => total + (part[field] ?? 0), 0);
  const bytes = all.reduce((total, part) => total + part.bytes, 0);
  const steps = owned.length ? Math.min(...owned.map((part) => part.steps)) : 0;
  return [h("span", { class: "data" }, name), clean(all[0].what), `${sum("rows").toLocaleString("en")} of ${sum("keys").toLocaleString("en")}`, quantity(bytes), Math.max(0, ...owned.map((part) => part.workers_connected)), steps, behind(owned), sum("pulls_waiting"), sum("pushes_with_nan")];
}

/** How many steps workers are behind the first one, the last of them first. */
function behind(owned) {
  const steps = new Map();
  for (const worker of owned.flatMap((part) => part.workers ?? [])) {
    if (worker.left) continue;
    steps.set(worker.rank, Math.min(worker.step, steps.get(worker.rank) ?? Infinity));
  }
  const first = Math.max(...steps.values());
  const late = [...steps].filter(([, step]) => step < first).sort((one, other) => one[1] - other[1]);
  const shown = late.slice(0, 3).map(([rank, step]) => `rank ${rank}: ${first - step}`);
  return [...shown, ...(late.length > 3 ? [`${late.length - 3} more`] : [])].join(", ") || "nobody";
}

function rangesOf(servers) {
  const known = new Map();
  const list = servers.find((server) => server.tables.servers?.length)?.tables.servers ?? [];
  for (const server of servers) {
    for (const range of server.tables.ranges ?? []) {
      if (!known.has(range.range) || range.owner === server.tables.place) known.set(range.range, range);
    }
  }
  if (!known.size) return null;
  const name = (place) => clean(list[place] ?? place);
  const rows = [...known.values()].slice(0, ROWS).map((range) => [
    String(range.range),
    range.owner == null ? h("span", { class: "state lost" }, "× none: the range is lost") : name(range.owner),
    listed((range.copies ?? []).map(name)),
    String(range.unconfirmed),
  ]);
  return [h("h3", {}, "Ranges"), table("Ranges", ["range", "owner", "copies", "changes missing on copies"], rows, [3])];
}

/** The events that the page has seen, the newest first. */
export function eventsOf(events) {
  const time = (date) => date.toLocaleTimeString([], { hour12: false });
  return events.map(({ kind, text, when }) => h("li", { class: kind }, h("time", { datetime: when.toISOString() }, time(when)), " ", h("span", { class: "told" }, text)));
}

/** The text for screen readers about late members, without the seconds, which change. */
export const saidOf = (late) => (late.length ? late.slice(0, 4).map((entry) => entry.key).join(". ") : "Nobody is late.");

