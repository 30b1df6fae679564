// Asks for the job every second and shows it. All parts of the page come from the process that serves it. See docs/live-page.md.

import { fill } from "./dom.js";
import { legendOf, mapOf } from "./map.js";
import { newsOf } from "./news.js";
import { chooserOf, eventsOf, jobsOf, lateOf, membersOf, nowOf, saidOf, tablesOf, WINDOW } from "./parts.js";
import { pictureOf } from "./picture.js";
import { clean, names, seconds } from "./words.js";

const TOKEN = "herringbone-admin-token";
/** Milliseconds between questions, and for one answer. */
const PAUSE = 1000, PATIENCE = 10_000;
/** Milliseconds without an answer after which the page says so. */
const QUIET = 4000;
const EVENTS = 200;
/** Up to how many members have charts of their own, and for how many milliseconds one that is lost stays in sight. */
const CHARTS = 64, REMEMBERED = 60_000;

const part = (id) => document.getElementById(id);
const state = { job: new URLSearchParams(location.search).get("job") ?? "", jobs: [], picture: null, heard: null, failure: "", told: [], departed: [], rates: new Map(), paces: [], search: "", isQuiet: false, shownSince: 0, asks: false, timer: 0 };

async function answer() {
  const token = sessionStorage.getItem(TOKEN);
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const response = await fetch(state.job ? `job.json?job=${encodeURIComponent(state.job)}` : "job.json", { headers, cache: "no-store", signal: AbortSignal.timeout(PATIENCE) });
  if (response.status === 401) return null;
  // The job is over: the process shows another one.
  if (response.status === 404 && state.job) choose("");
  if (!response.ok) throw new Error(clean((await response.text()).trim()) || `status ${response.status}`);
  return response.json();
}

/** One question, and the next after a second. Nothing is asked while the page is hidden, or while it asks for a token. */
async function ask() {
  clearTimeout(state.timer);
  if (state.asks || document.hidden || !part("login").hidden) return;
  const began = performance.now();
  const { job } = state;
  state.asks = true;
  try {
    const heard = await answer();
    if (heard === null) askForToken();
    // Another job was chosen meanwhile.
    else if (job !== state.job) state.failure = "";
    // A process that cannot ask the others gives its last answer again.
    else if (heard.asked_at !== state.picture?.at) take(heard);
  } catch (error) {
    state.failure = error.name === "TimeoutError" ? "" : String(error.message);
    stale();
  }
  state.asks = false;
  // A large job gets a slower page, not a busy browser.
  const spent = performance.now() - began;
  state.timer = setTimeout(ask, Math.max(PAUSE - spent, PAUSE / 4, Math.min(spent, 5 * PAUSE)));
}

/** Shows another job of this process; "" for the one that the process chooses. The history of the previous job is dropped. */
function choose(job) {
  Object.assign(state, { job, picture: null, departed: [], rates: new Map(), paces: [] });
  const place = new URL(location.href);
  if (job) place.searchParams.set("job", job);
  else place.searchParams.delete("job");
  history.replaceState(null, "", place);
}

function askForToken() {
  const token = sessionStorage.getItem(TOKEN);
  part("refused").textContent = token ? "The process refuses this token." : "";
  sessionStorage.removeItem(TOKEN);
  part("login").hidden = false;
  part("main").hidden = true;
  part("fresh").textContent = "";
  part("token").focus();
}

function take(heard) {
  const picture = pictureOf(heard, state.picture);
  const now = performance.now();
  const news = newsOf(state.picture, picture);
  if (state.isQuiet) news.unshift(["again", "the process that serves this page answers again"]);
  state.isQuiet = false;
  keep(picture, now);
  for (const [kind, text, member] of news) {
    tell(kind, text);
    if (member) state.departed.push({ ...member, state: kind === "lost" ? "lost" : "absent", does: member.error || "has left", text, sent: null, received: null, operation: null, until: now + REMEMBERED });
  }
  const here = new Set(picture.all.map((member) => member.key));
  state.departed = state.departed.filter((member) => member.until > now && !here.has(member.key));
  Object.assign(state, { picture, heard: now, failure: "" });
  part("login").hidden = true;
  part("main").hidden = false;
  show();
}

/** Keeps the points of charts: the process's history, or else the points that this page has seen. */
function keep(picture, now) {
  const add = (key, value) => {
    const kept = (state.rates.get(key) ?? []).filter(([when]) => now - when < WINDOW * 1000);
    state.rates.set(key, [...kept, [now, value]]);
  };
  for (const member of picture.members) add(member.key, member.sent);
  add("", picture.members.some((member) => member.sent != null) ? picture.members.reduce((sum, member) => sum + (member.sent ?? 0), 0) : null);
  state.paces = [...state.paces.filter(([when, issued, job]) => now - when < 10_000 && job === picture.job && issued <= picture.issued), [now, picture.issued, picture.job]];
  for (const key of state.rates.keys()) if (state.rates.get(key).at(-1)[0] < now - WINDOW * 1000) state.rates.delete(key);
}

/** Points of a chart: seconds ago, and a rate. The process's history comes first, then the points that this page has seen. */
function points(key, history) {
  const own = (state.rates.get(key) ?? []).map(([when, value]) => [(state.heard - when) / 1000, value]);
  const first = own.length ? own[0][0] : 0;
  return [...history.filter(([ago]) => ago > first), ...own];
}

/** The sum of all members' histories, in steps of a second. */
function sums(members) {
  const found = new Map();
  for (const [ago, sent] of members.flatMap((member) => member.history)) found.set(Math.round(ago), (found.get(Math.round(ago)) ?? 0) + sent);
  return [...found].sort(([one], [other]) => other - one);
}

function tell(kind, text) {
  state.told.unshift({ kind, text, when: new Date() });
  state.told.length = Math.min(state.told.length, EVENTS);
}

function show() {
  const { picture } = state;
  const lost = state.departed.filter((member) => member.state === "lost");
  const late = [...picture.late, ...(lost.length ? [{ word: "lost", key: `${names(lost.map((member) => member.name))} lost`, text: lost.map((member) => member.text).join("; ") }] : [])];
  const wide = Math.max(280, Math.floor(part("map").clientWidth));
  const charts = picture.members.length <= CHARTS ? picture.members : [];
  const [[began, issued], [ended, last]] = [state.paces[0], state.paces.at(-1)];
  part("head").textContent = picture.head;
  // A list that is open is not taken from under the mouse.
  if (String(state.jobs) !== String(picture.jobs)) fill(part("job"), chooserOf(picture.jobs));
  state.jobs = picture.jobs;
  part("job").value = state.job || (picture.jobs.includes(picture.job) ? picture.job : "");
  part("job-part").hidden = picture.jobs.length < 2;
  document.title = `${late.length ? "▲ " : ""}Herringbone: ${picture.head}`;
  fill(part("late"), lateOf(late));
  const said = saidOf(late);
  if (part("said").textContent !== said) part("said").textContent = said;
  fill(part("now"), nowOf(picture, ended > began ? (last - issued) / ((ended - began) / 1000) : null, points("", sums(picture.members)), wide));
  fill(part("map"), mapOf({ ...picture, all: [...picture.all, ...lost] }, wide));
  fill(part("members"), membersOf(picture, state.departed, new Map(charts.map((member) => [member.key, points(member.key, member.history)])), state.search));
  part("search-part").hidden = picture.all.length <= CHARTS;
  part("jobs-part").hidden = !picture.served.length;
  fill(part("jobs"), picture.served.length ? jobsOf(picture) : []);
  part("tables-part").hidden = !picture.servers.length;
  fill(part("tables"), picture.servers.length ? tablesOf(picture.servers) : []);
  fill(part("events"), eventsOf(state.told));
  stale();
}

/** Shows whether the picture is up to date. */
function stale() {
  if (document.hidden || !part("login").hidden) return;
  const quiet = performance.now() - Math.max(state.heard ?? 0, state.shownSince);
  const isQuiet = quiet > QUIET;
  if (isQuiet && !state.isQuiet && state.heard !== null) tell("silent", "the process that serves this page does not answer");
  if (isQuiet && !state.isQuiet) fill(part("events"), eventsOf(state.told));
  state.isQuiet = isQuiet;
  const silent = state.picture?.silent;
  const failure = state.failure ? `: ${state.failure}` : "";
  const words = isQuiet ? `▲ no answer for ${Math.floor(quiet / 1000)} s${failure}` : silent ? `▲ no member answers for ${seconds(silent)}` : state.heard === null ? "asking for the job" : "live, asked every second";
  const fresh = part("fresh");
  if (fresh.textContent !== words) fresh.textContent = words;
  fresh.className = isQuiet || silent ? "alarm" : "";
  part("main").classList.toggle("old", isQuiet);
}

part("login").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(TOKEN, part("token").value);
  part("token").value = "";
  part("login").hidden = true;
  ask();
});
part("job").addEventListener("change", (event) => {
  choose(event.target.value);
  ask();
});
part("search").addEventListener("input", (event) => {
  state.search = event.target.value;
  if (state.picture) show();
});
document.addEventListener("visibilitychange", () => {
  state.shownSince = performance.now();
  ask();
});
new ResizeObserver(() => state.picture && show()).observe(part("main"));
setInterval(stale, 1000);
fill(part("legend"), legendOf());
ask();
