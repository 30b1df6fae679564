// Numbers and names for people.

const UNITS = ["B", "kB", "MB", "GB", "TB", "PB"];
const LONGEST = 200;
const REDUCER = "reducer ";

/** A number of bytes in three digits, as `herringbone status` has it. */
export function quantity(bytes) {
  let [value, unit] = [Number(bytes) || 0, 0];
  for (; value >= 999.5 && unit + 1 < UNITS.length; unit += 1) value /= 1e3;
  const digits = unit === 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return `${value.toFixed(digits)} ${UNITS[unit]}`;
}

/** Bytes in a second; nothing if they are not known yet. */
export const rate = (bytes) => (bytes == null ? "" : `${quantity(bytes)}/s`);

export const seconds = (count) => (count < 60 ? `${count.toFixed(1)} s` : `${Math.floor(count / 60)} min ${Math.floor(count % 60)} s`);

export const counted = (count, what) => `${count.toLocaleString("en")} ${what}${count === 1 ? "" : "s"}`;

/** A text of the network, without characters that are not seen or that turn the text around, and not too long. */
export function clean(text) {
  const seen = String(text ?? "").replace(/[\p{Cc}\p{Cf}\p{Co}\p{Cs}\u2028\u2029]/gu, "\ufffd");
  return seen.length > LONGEST ? `${seen.slice(0, LONGEST)}…` : seen;
}

/** The end of a long name, which differs more than its beginning. */
export const short = (text, length) => (text.length > length ? `…${text.slice(1 - length)}` : text);

/** "a, b and c". */
export const listed = (words) => (words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} and ${words.at(-1)}`);

const few = (words) => listed(words.length > 4 ? [...words.slice(0, 3), `${words.length - 3} more`] : words);

/** "0, 2-5 and 9". */
export function runs(numbers) {
  const sorted = [...new Set(numbers)].sort((one, other) => one - other);
  const found = [];
  for (const number of sorted) {
    const last = found.at(-1);
    if (last && last[1] === number - 1) last[1] = number;
    else found.push([number, number]);
  }
  return listed(found.flatMap(([from, to]) => (to - from > 1 ? [`${from}-${to}`] : from === to ? [from] : [from, to])));
}

/** Members, as people call them: "ranks 0-3 and reducer 10.0.0.5:7070". */
export function names(members) {
  const rank = /^rank (\d+)$/;
  const ranks = members.filter((name) => rank.test(name)).map((name) => Number(rank.exec(name)[1]));
  const reducers = members.filter((name) => name.startsWith(REDUCER)).map((name) => name.slice(REDUCER.length));
  const others = members.filter((name) => !rank.test(name) && !name.startsWith(REDUCER));
  const kinds = [[few(reducers), reducers, "reducer"], [runs(ranks), ranks, "rank"]];
  const said = kinds.filter(([, all]) => all.length).map(([text, all, what]) => `${what}${all.length === 1 ? "" : "s"} ${text}`);
  return listed([...said.reverse(), ...(others.length ? [few(others)] : [])]);
}
