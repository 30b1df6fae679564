// What changes from one picture to the next, in words.

import { counted } from "./words.js";

/** @returns pairs: what kind of news it is, and a sentence; of members that are gone, these, too. */
export function newsOf(before, now) {
  if (!before) return [["seen", `first answer: ${now.head}`]];
  const news = [];
  if (before.job !== now.job) return [["job", now.job == null ? `job ${before.job} is over: ${now.head}` : now.head]];
  const [old, current] = [before, now].map((picture) => new Map(picture.all.map((member) => [member.key, member])));
  for (const [key, member] of current) news.push(...newsOfMember(old.get(key), member));
  for (const [key, member] of old) if (!current.has(key)) news.push(departure(member, before, now));
  if (before.epoch !== now.epoch) news.push(["job", `the job is re-formed: epoch ${now.epoch}, ${counted(now.members.length, "member")}`]);
  const [lateBefore, lateNow] = [before, now].map((picture) => new Map(picture.late.map((entry) => [entry.key, entry])));
  for (const [key, entry] of lateNow) if (!lateBefore.has(key) && entry.word !== "lost" && entry.word !== "no answer") news.push(["late", entry.text]);
  for (const [key, entry] of lateBefore) if (!lateNow.has(key) && entry.word === "late") news.push(["again", `no longer: ${key}`]);
  return [...news, ...newsOfJobs(before, now)];
}

function newsOfMember(before, now) {
  if (!before) return now.state === "absent" ? [] : [["joined", `${now.name} has joined`]];
  if (before.name !== now.name && before.rank != null) return [["joined", `${before.name} is ${now.name} now`]];
  const [was, is] = [before.state, now.state].map((state) => (state === "late" ? "works" : state));
  if (was === is) return before.process && now.process && before.process !== now.process ? [["joined", `${now.name} is a new process`]] : [];
  if (is === "works") return [was === "absent" ? ["joined", `${now.name} has joined`] : ["again", `${now.name} answers again`]];
  if (is === "absent") return [["left", `${now.name} has left`]];
  const error = now.error ? `: ${now.error}` : "";
  return [is === "lost" ? ["lost", `${now.name} is lost${error}`] : ["silent", `${now.name} does not answer${error}`]];
}

/** The state of a member that has left the job: lost, if others have lost their links to it or it had not answered; else it has left. */
function departure(member, before, now) {
  const known = new Set(before.gone.map((gone) => gone.name));
  const fresh = now.gone.filter((gone) => !known.has(gone.name));
  const link = fresh.find((gone) => gone.name === `member ${member.number}`) ?? (member.number == null ? fresh[0] : undefined);
  if (link || !member.answers) return ["lost", `${member.name} is lost${link?.reason ? `: ${link.reason}` : ""}`, { ...member, error: link?.reason ?? member.error }];
  return ["left", `${member.name} has left`, member];
}

function newsOfJobs(before, now) {
  const [old, current] = [before, now].map((picture) => new Map(picture.served.filter((row) => row.job && row.job !== now.job).map((row) => [`job ${row.job} at reducer ${row.reducer}`, row])));
  const come = [...current].filter(([key]) => !old.has(key)).map(([key, row]) => ["joined", `${key} has come, of ${counted(row.world, "worker")}`]);
  return [...come, ...[...old.keys()].filter((key) => !current.has(key)).map((key) => ["left", `${key} is over`])];
}
