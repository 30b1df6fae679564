// Turns a round of answers (the JSON of `herringbone status --json`) into a picture: members, links, who is late. Pure.

import { clean, counted, names, runs, seconds } from "./words.js";

/** Seconds after which a wait is shown in red: with a reason, and without one, as the engine's own warning has it. */
const LATE = { known: 1, unknown: 3 };
/** Jobs of a reducer that the map shows. */
const JOBS = 12;

/** @returns the picture of one answer; `before`: the one before it, which knows the hosts of members that do not answer now. */
export function pictureOf(answer, before) {
  const members = (answer.members ?? []).map((member) => memberOf(member, answer));
  giveHosts(members, before);
  nameGroups(members);
  const guests = answer.job == null ? members.flatMap(guestsOf) : [];
  const all = [...members, ...guests];
  const byName = new Map(all.map((member) => [member.name, member]));
  const links = all.flatMap((member) => linksOf(member, byName));
  // A process whose links others have lost, and that the job no longer has.
  const gone = [...new Map(links.filter((link) => link.by === "lost" && !byName.has(link.to)).map((link) => [link.to, link.reason]))];
  const late = lateOf(answer, members);
  for (const entry of late) if (entry.about && byName.get(entry.about)?.state === "works") byName.get(entry.about).state = "late";
  return {
    job: answer.job ?? null,
    epoch: answer.epoch,
    head: headOf(answer, members),
    at: answer.asked_at,
    members,
    guests,
    all,
    gone: gone.map(([name, reason]) => ({ name, reason })),
    links: links.filter((link) => byName.has(link.from) && byName.has(link.to)),
    late,
    running: runningOf(members),
    issued: Math.max(0, ...members.map((member) => member.issued)),
    served: members.flatMap(servedBy),
    jobs: (answer.jobs ?? []).map(clean),
    servers: members.filter((member) => member.tables),
    silent: answer.silent_seconds ?? null,
  };
}

function memberOf(member, answer) {
  const jobs = (member.jobs ?? []).map((job) => ({ ...job, job: clean(job.job) }));
  const own = member.role === "worker" ? member : jobs.find((job) => job.job === answer.job);
  const address = clean(member.address);
  const name = nameOf(member, address);
  const operations = [...(own?.operations ?? [])].sort((one, other) => other.seconds - one.seconds).map(operationOf);
  const waits = operations.flatMap((operation) => operation.waits);
  // A job that is re-formed continues in a new group.
  const lost = own?.groups?.length && own.groups.every((group) => group.lost) ? own.groups.at(-1).lost : null;
  return {
    key: address,
    name,
    address,
    role: member.role ?? null,
    rank: member.rank ?? (member.forms ? 0 : null),
    number: member.member ?? null,
    host: clean(member.host ?? ""),
    process: member.process ?? null,
    answers: member.answers === true,
    own: member.address === answer.own,
    state: stateOf(member),
    error: clean(member.error ?? ""),
    lost: lost ? clean(lost) : "",
    forms: member.forms === true,
    does: doesOf(member, own, operations, lost),
    operation: operations[0] ?? null,
    operations,
    waits: [...new Set(waits)],
    issued: own?.issued ?? 0,
    raw: own?.links ?? [],
    groups: own?.groups ?? [],
    ...ratesOf(own ? [own] : jobs),
    jobs,
    served: member.jobs_served ?? 0,
    unlisted: member.jobs_unlisted ?? 0,
    tables: member.tables ?? null,
    history: historyOf(answer.history?.[member.address], answer.asked_at),
  };
}

/** What a member has sent in a second: pairs of seconds ago and bytes, oldest first. */
const historyOf = (kept, now) => (kept?.at ?? []).map((at, place) => [now - at, kept.sent?.[place] ?? null]);

/** A member that does not answer is where it was, or where others with its address are. */
function giveHosts(members, before) {
  const ip = (member) => member.address.replace(/:\d+$/, "");
  const hosts = new Map(members.filter((member) => member.host).map((member) => [ip(member), member.host]));
  const known = new Map((before?.members ?? []).map((member) => [member.key, member.host]));
  for (const member of members) member.host ||= known.get(member.key) || hosts.get(ip(member)) || "";
}

/** A reducer knows a group by its number; the group's ranks know its name. */
function nameGroups(members) {
  const named = members.flatMap((member) => member.groups).map((group) => [`group ${group.group}`, clean(group.name)]);
  const known = new Map(named.filter(([number, name]) => number !== name));
  for (const operation of members.flatMap((member) => member.operations)) operation.group = known.get(operation.group) ?? operation.group;
}

function nameOf(member, address) {
  if (member.role === "worker" && member.rank != null) return `rank ${member.rank}`;
  if (member.role === "worker") return member.forms ? "rank 0" : `the worker at ${address}`;
  if (member.role === "reducer") return `reducer ${address}`;
  return member.role ? `${clean(member.role)} ${address}` : address;
}

/** A process that is asked in vain might be stopped; one where nothing listens any more has ended. */
function stateOf(member) {
  if (member.answers) return "works";
  return /^no answer/.test(member.error ?? "") ? "silent" : "lost";
}

function operationOf(operation) {
  return {
    name: clean(operation.name),
    group: clean(operation.group ?? "world"),
    sequence: operation.sequence ?? null,
    seconds: Number(operation.seconds) || 0,
    runs: operation.runs,
    waits: (operation.waits_for ?? []).map(clean),
  };
}

function doesOf(member, own, operations, lost) {
  if (!member.answers) return clean(member.error ?? "no answer");
  if (member.forms) return "waits for the other ranks";
  if (operations.length) {
    const more = operations.length - 1 + (own.unlisted?.operations ?? 0);
    return operations[0].name + (more > 0 ? `, and ${more} more` : "");
  }
  if (lost) return `cannot continue: ${clean(lost)}`;
  const jobs = member.jobs?.length ?? 0;
  if (!own) return member.tables ? "keeps tables" : `serves ${counted(jobs, "job")}`;
  // A job that is re-formed counts on in a new group of that name.
  const over = Math.max(-1, ...(own.groups ?? []).filter((group) => group.name === "world").map((group) => group.over ?? -1));
  if (over >= 0) return `nothing since operation ${over}`;
  return own.issued ? `nothing; ${counted(own.issued, "operation")} before` : "nothing yet";
}

function ratesOf(stands) {
  const sum = (of) => {
    const known = stands.flatMap((stand) => stand.links ?? []).map(of).filter((value) => value != null);
    return known.length ? known.reduce((one, other) => one + other, 0) : null;
  };
  return { sent: sum((link) => link.sent_per_second), received: sum((link) => link.received_per_second) };
}

/** The workers that a reducer knows of each of its jobs, where only the reducer is asked. */
function guestsOf(reducer) {
  return reducer.jobs.slice(0, JOBS).flatMap((job) => {
    const known = new Map((job.links ?? []).map((link) => [clean(link.to), link]));
    const ranks = Array.from({ length: Math.min(job.world ?? 0, 4096) }, (_, rank) => `rank ${rank}`);
    return [...new Set([...ranks, ...known.keys()])].map((called) => {
      const link = known.get(called);
      const rank = /^rank (\d+)$/.exec(called)?.[1];
      return {
        key: `${reducer.key} ${job.job} ${called}`,
        name: `${called} of job ${job.job}`,
        role: "worker",
        rank: rank == null ? null : Number(rank),
        host: `job ${job.job}`,
        state: link?.by === "lost" ? "lost" : link && link.by !== "wanted" ? "works" : "absent",
        error: clean(link?.reason ?? ""),
        answers: true,
        operations: [],
        raw: [],
        sent: link?.received_per_second ?? null,
        received: link?.sent_per_second ?? null,
        link: link ? { ...link, reducer: reducer.name } : null,
      };
    });
  });
}

/** Each direction of each link once: as its sender says, or as its receiver does of a sender that does not. */
function linksOf(member, byName) {
  const way = (from, to, link, moved, total) => ({ from, to, by: link.by, reason: clean(link.reason ?? ""), rate: moved ?? null, bytes: total });
  const both = (name, other, link) => [
    way(name, other, link, link.sent_per_second, link.sent),
    way(other, name, link, link.received_per_second, link.received),
  ];
  if (member.link) return member.link.by === "wanted" ? [] : both(member.link.reducer, member.name, member.link);
  return member.raw
    .filter((link) => link.by !== "wanted")
    .flatMap((link) => {
      const [sent, received] = both(member.name, clean(link.to), link);
      const other = byName.get(sent.to);
      return other?.raw.some((back) => clean(back.to) === member.name) ? [sent] : [sent, received];
    });
}

/** Why the job stands still, the causes before what follows from them. */
function lateOf(answer, members) {
  const waits = (answer.waits ?? []).map((wait) => ({ ...wait, for: clean(wait.for), by: wait.by.map(clean), why: wait.why && clean(wait.why) }));
  const waiting = new Set(waits.flatMap((wait) => wait.by));
  const long = waits.filter((wait) => wait.seconds >= (wait.why ? LATE.known : LATE.unknown));
  const causes = long.filter((wait) => !waiting.has(wait.for) || wait.why);
  const late = causes.map((wait) => ({
    word: "late",
    about: wait.for,
    key: `${wait.for} keeps ${names(behind(wait, waits))} waiting`,
    text: `${wait.for} keeps ${names(behind(wait, waits))} waiting: ${seconds(wait.seconds)} in ${called(wait)}${wait.why ? `; ${wait.why}` : ""}`,
  }));
  if (!late.length && long.length) {
    const [oldest] = [...long].sort((one, other) => other.seconds - one.seconds);
    const all = names([...new Set(long.flatMap((wait) => [wait.for, ...wait.by]))]);
    const key = `${all} wait for each other`;
    late.push({ word: "stuck", key, text: `${key}: ${seconds(oldest.seconds)} in ${called(oldest)}` });
  }
  const named = new Set(late.map((entry) => entry.about));
  return [...late, ...troubles(members.filter((member) => !named.has(member.name))), ...members.flatMap(lateGuests)];
}

/** All members that wait for a member, directly or through others, in one operation. */
function behind(wait, waits) {
  const same = waits.filter((other) => other.sequence === wait.sequence && other.group === wait.group);
  const found = new Set([wait.for]);
  for (const name of found) for (const other of same) if (other.for === name) other.by.forEach((by) => found.add(by));
  found.delete(wait.for);
  return [...found];
}

/** An operation, as all ranks call it: "all_reduce #17". */
function called(operation) {
  const name = clean(operation.name ?? operation.operation);
  const group = operation.group && operation.group !== "world" ? ` of ${clean(operation.group)}` : "";
  const more = operation.more ? ` and ${operation.more} more` : "";
  return (operation.sequence == null ? name : `${name.split(" ")[0]} #${operation.sequence}`) + group + more;
}

/** Members that do not answer or cannot continue; members with the same problem share a line. */
function troubles(members) {
  const same = new Map();
  for (const member of members) {
    const [word, does] = member.answers ? ["stuck", member.lost && "cannot continue"] : trouble(member);
    if (!does) continue;
    const why = member.answers ? member.lost : member.error;
    const at = `${word}${does}${why}`;
    same.set(at, [...(same.get(at) ?? []), { word, does, why, name: member.name }]);
  }
  return [...same.values()].map((entries) => {
    const [{ word, does, why }] = entries;
    const several = { "is lost": "are lost", "does not answer": "do not answer" };
    const key = `${names(entries.map((entry) => entry.name))} ${(entries.length > 1 && several[does]) || does}`;
    return { word, key, text: why ? `${key}: ${why}` : key };
  });
}

const trouble = (member) => (member.state === "lost" ? ["lost", "is lost"] : ["no answer", "does not answer"]);

/** A reducer that is asked alone knows how long its jobs' operations take, and whose part it lacks. */
function lateGuests(reducer) {
  return reducer.jobs.flatMap((job) => {
    if (reducer.raw.length) return [];
    const oldest = (job.operations ?? []).map(operationOf).sort((one, other) => other.seconds - one.seconds)[0];
    if (!oldest || oldest.seconds < LATE.unknown) return [];
    const key = `job ${job.job} waits for ${names(oldest.waits) || "memory"}`;
    return [{ word: "late", key, text: `${key}: ${seconds(oldest.seconds)} in ${called(oldest)}` }];
  });
}

/** The operations that run now, in descending order of their members. */
function runningOf(members) {
  const found = new Map();
  for (const member of members) {
    for (const operation of member.operations) {
      const at = `${operation.group} ${operation.sequence ?? operation.name}`;
      const same = found.get(at) ?? { ...operation, members: [] };
      same.members.push(member.name);
      same.seconds = Math.max(same.seconds, operation.seconds);
      found.set(at, same);
    }
  }
  return [...found.values()].sort((one, other) => other.seconds - one.seconds);
}

function servedBy(reducer) {
  const rows = reducer.jobs.map((job) => {
    const links = job.links ?? [];
    const sum = (field) => links.reduce((total, link) => total + (link[field] ?? 0), 0);
    return {
      reducer: reducer.address,
      job: job.job,
      world: job.world,
      here: links.filter((link) => link.by === "tcp" || link.by === "shm").length,
      lost: links.filter((link) => link.by === "lost").length,
      issued: job.issued,
      now: (job.operations ?? []).length + (job.unlisted?.operations ?? 0),
      received: sum("received"),
      sent: sum("sent"),
    };
  });
  return reducer.unlisted ? [...rows, { reducer: reducer.address, more: reducer.unlisted }] : rows;
}

function headOf(answer, members) {
  const answering = members.filter((member) => member.answers).length;
  const [first] = members;
  if (answer.job != null) {
    const reducers = members.filter((member) => member.role === "reducer").length;
    const parts = [counted(answer.world ?? 0, "worker"), counted(reducers, "reducer"), `${answering} of ${counted(members.length, "member")} answer`];
    return `job ${clean(answer.job)}: ${parts.join(", ")}, epoch ${answer.epoch}`;
  }
  if (first?.forms && members.length === 1) return formingHead(answer);
  const servers = members.filter((member) => member.tables);
  if (servers.length) return `a parameter server: ${answering} of ${counted(members.length, "server")} answer, ${copies(servers[0].tables)}`;
  if (first?.role === "reducer") return `a reducer: ${counted(first.jobs.length, "job")} now, ${first.served} since its start`;
  return "a process of a job";
}

function formingHead(answer) {
  const [{ world, missing }] = answer.members;
  return `a job of ${counted(world ?? 0, "rank")} is forming: ${missing?.length ? `${missing.length > 1 ? "ranks" : "rank"} ${runs(missing)} missing` : "all ranks are here"}`;
}

const copies = (tables) => (tables.servers?.length ? `${counted(tables.replicas, "copy").replace("copys", "copies")} of each range` : "no copies");
