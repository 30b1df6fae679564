//! The answers of table servers: places of ranges, tables, slow workers, hot keys.

use super::words::{counted, quantity, shown};
use crate::table;
use herringbone::status::{Activity, RangeStatus, TableServerStatus, TableStatus, TableWorker};
use herringbone_admin::ask::Round;
use std::collections::BTreeMap;

/// How many workers of a table are named that are behind.
const BEHIND: usize = 3;
/// How many rows a table of people shows.
const LINES: usize = 32;

/// The table servers that have answered, each with its address.
pub(super) fn answers(round: &Round) -> impl Iterator<Item = (&str, &TableServerStatus)> {
    round.members.iter().filter_map(|member| match &member.heard.as_ref().ok()?.answer.status.activity {
        Activity::Serves { tables, .. } => Some((member.address.as_str(), tables.as_ref()?)),
        _ => None,
    })
}

/// What there is to say of all servers together, if any keeps tables.
pub(super) fn head(round: &Round) -> Option<String> {
    let (_, any) = answers(round).next()?;
    let copies = format!("{} copies", any.replicas);
    let copies = match any.servers.is_empty() {
        true => "no copies".to_owned(),
        false => format!("{} of each range", if any.replicas == 1 { "1 copy" } else { &copies }),
    };
    let answered = answers(round).count();
    let (used, limit) = answers(round).fold((0, 0), |(used, limit), (_, server)| {
        (server.used.saturating_add(used), server.limit.saturating_add(limit))
    });
    Some(format!(
        "a parameter server: {answered} of {} {}{}, {copies}; {} of {} in use",
        counted(round.members.len(), "server"),
        if round.members.len() == 1 { "answers" } else { "answer" },
        if answered == round.members.len() { "" } else { " (without the ranges of the others)" },
        quantity(used as f64),
        quantity(limit as f64)
    ))
}

/// All tables about tables.
pub(super) fn parts(round: &Round) -> Vec<String> {
    [servers(round), ranges(round), tables(round), hot(round)].into_iter().flatten().collect()
}

fn servers(round: &Round) -> Option<String> {
    let rows: Vec<_> = answers(round)
        .map(|(address, server)| {
            let has = |is_meant: &dyn Fn(&RangeStatus) -> bool| {
                let ranges: Vec<String> = server
                    .ranges
                    .iter()
                    .filter(|range| is_meant(range))
                    .map(|r| r.range.to_string())
                    .collect();
                ranges.join(", ")
            };
            let owns = match server.ranges.is_empty() {
                true => own_ranges(server),
                false => has(&|range| range.owner == Some(server.place)),
            };
            let copies = has(&|range| range.copies.contains(&server.place));
            [
                address.to_owned(),
                quantity(server.used as f64),
                quantity(server.limit as f64) + beyond(server),
                counted(server.tables.len() + server.unlisted as usize, "range") + " of tables",
                owns,
                copies,
            ]
        })
        .collect();
    let columns = ["server", "memory", "of", "has", "owns ranges", "has copies of"];
    (!rows.is_empty()).then(|| shown(&table::text(&columns, &columns[1..3], rows)))
}

/// Copies take what their owners have taken, whatever their memory.
fn beyond(server: &TableServerStatus) -> &'static str {
    if server.used > server.limit { ", beyond it" } else { "" }
}

/// The ranges of the tables of a single server.
fn own_ranges(server: &TableServerStatus) -> String {
    let mut ranges: Vec<u32> = server.tables.iter().map(|table| table.range).collect();
    ranges.sort_unstable();
    ranges.dedup();
    ranges.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

/// Who has which range, as its owner says, or else as anybody does.
fn ranges(round: &Round) -> Option<String> {
    let mut known: BTreeMap<u32, (bool, &RangeStatus)> = BTreeMap::new();
    let mut names: BTreeMap<u32, &str> = BTreeMap::new();
    for (_, server) in answers(round) {
        names.extend((0..).zip(server.servers.iter().map(String::as_str)));
        for range in &server.ranges {
            let is_owner = range.owner == Some(server.place);
            match known.get(&range.range) {
                Some((true, _)) => {}
                Some((false, _)) if !is_owner => {}
                _ => drop(known.insert(range.range, (is_owner, range))),
            }
        }
    }
    let name = |place: &u32| names.get(place).map_or_else(|| place.to_string(), |name| (*name).to_owned());
    let rows = known.values().take(LINES).map(|(_, range)| {
        let owner = range.owner.as_ref().map_or_else(|| "none: the range is lost".to_owned(), name);
        let copies: Vec<String> = range.copies.iter().map(name).collect();
        [range.range.to_string(), owner, copies.join(", "), range.unconfirmed.to_string()]
    });
    let columns = ["range", "owner", "copies", "changes missing on copies"];
    (!known.is_empty()).then(|| shown(&table::text(&columns, &[columns[0], columns[3]], rows)))
}

/// Each table once: what its ranges say together. Copies count in its memory only.
fn tables(round: &Round) -> Option<String> {
    let mut known: BTreeMap<&str, Vec<(bool, &TableStatus)>> = BTreeMap::new();
    for (_, server) in answers(round) {
        for table in &server.tables {
            known.entry(&table.name).or_default().push((is_copy(server, table.range), table));
        }
    }
    let rows = known.iter().take(LINES).map(|(name, parts)| {
        let owned: Vec<&TableStatus> =
            parts.iter().filter(|(is_copy, _)| !is_copy).map(|(_, table)| *table).collect();
        let sum = |of: fn(&TableStatus) -> u64| owned.iter().map(|table| of(table)).sum::<u64>();
        let bytes: u64 = parts.iter().map(|(_, table)| table.bytes).sum();
        let workers = owned.iter().map(|table| table.present).max().unwrap_or_default();
        [
            (*name).to_owned(),
            parts.first().map(|(_, table)| table.kind.clone()).unwrap_or_default(),
            format!("{} of {}", sum(|table| table.rows), sum(|table| table.keys)),
            quantity(bytes as f64),
            workers.to_string(),
            owned.iter().map(|table| table.version).min().unwrap_or_default().to_string(),
            behind(&owned),
            sum(|table| table.waiting).to_string(),
            sum(|table| table.not_numbers).to_string(),
        ]
    });
    let columns =
        ["table", "what", "rows", "memory", "workers", "steps", "behind the first", "pulls waiting", "NaN"];
    let right = ["rows", "memory", "workers", "steps", "pulls waiting", "NaN"];
    let unlisted: usize = answers(round).map(|(_, server)| server.unlisted as usize).sum();
    let more = match (known.len().saturating_sub(LINES), unlisted) {
        (0, 0) => String::new(),
        (more, 0) => format!("{more} more tables, see --json\n"),
        (more, unlisted) => {
            format!("{more} more tables, and {unlisted} ranges of tables that servers do not list\n")
        }
    };
    (!known.is_empty()).then(|| shown(&table::text(&columns, &right, rows)) + &more)
}

fn is_copy(server: &TableServerStatus, range: u32) -> bool {
    let owner = server.ranges.iter().find(|known| known.range == range);
    owner.is_some_and(|range| range.owner != Some(server.place))
}

/// The workers that are furthest behind the first one.
fn behind(ranges: &[&TableStatus]) -> String {
    let mut steps: BTreeMap<u32, u64> = BTreeMap::new();
    let there = |worker: &&TableWorker| !worker.has_left;
    for worker in ranges.iter().flat_map(|table| &table.workers).filter(there) {
        let step = steps.entry(worker.worker).or_insert(u64::MAX);
        *step = worker.step.min(*step);
    }
    let first = steps.values().copied().max().unwrap_or_default();
    let mut late: Vec<(u64, u32)> =
        steps.into_iter().map(|(worker, step)| (first - step, worker)).filter(|(by, _)| *by > 0).collect();
    late.sort_by_key(|(by, worker)| (std::cmp::Reverse(*by), *worker));
    let more = late.len().saturating_sub(BEHIND);
    let mut named: Vec<String> =
        late.iter().take(BEHIND).map(|(by, worker)| format!("rank {worker}: {by}")).collect();
    if more > 0 {
        named.push(format!("{more} more"));
    }
    named.join(", ")
}

fn hot(round: &Round) -> Option<String> {
    let mut rows: Vec<(u32, [String; 3])> = Vec::new();
    for (_, server) in answers(round) {
        for table in server.tables.iter().filter(|table| !is_copy(server, table.range)) {
            rows.extend(table.hot.iter().map(|hot| {
                let share = format!("{:.1} %", f64::from(hot.share) / 1e4);
                (hot.share, [table.name.clone(), hot.key.to_string(), share])
            }));
        }
    }
    rows.sort_by_key(|(share, _)| std::cmp::Reverse(*share));
    let columns = ["table", "hot key", "share of the requests in its range"];
    let rows: Vec<_> = rows.into_iter().take(LINES).map(|(_, row)| row).collect();
    (!rows.is_empty()).then(|| shown(&table::text(&columns, &columns[1..], rows)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use herringbone::status::{Answer, AskError, HotKey, Identity, Role, Status};
    use herringbone_admin::ask::{AnswerPair, AskedMember};
    use std::time::Duration;

    fn table(range: u32, steps: [u64; 2], hot: &[(u64, u32)]) -> TableStatus {
        let worker = |(worker, step)| TableWorker { worker, step, is_here: true, has_left: false };
        TableStatus {
            name: "weights".to_owned(),
            range,
            kind: "dense f32 x 16, bounded(4), sgd".to_owned(),
            keys: 50,
            rows: 50,
            bytes: 3200,
            version: steps[0].min(steps[1]),
            waiting: 1,
            not_numbers: 0,
            present: 2,
            workers: (0..).zip(steps).map(worker).collect(),
            hot: hot.iter().map(|(key, share)| HotKey { key: *key, share: *share }).collect(),
        }
    }

    /// The server at a place of two; both have both ranges.
    fn server(place: u32, owner_of_one: Option<u32>) -> TableServerStatus {
        let range = |range, owner| RangeStatus { range, owner, copies: vec![1 - range], unconfirmed: 0 };
        TableServerStatus {
            place,
            servers: vec!["a:1".to_owned(), "b:1".to_owned()],
            replicas: 1,
            used: 6400,
            limit: 1_000_000,
            ranges: vec![range(0, Some(0)), range(1, owner_of_one)],
            tables: vec![table(0, [9, 5], &[(3, 50_000)]), table(1, [9, 7], &[])],
            unlisted: 0,
        }
    }

    fn asked(address: &str, heard: Result<TableServerStatus, AskError>) -> AskedMember {
        let identity = Identity { role: Role::Reducer, job: 0, rank: 0, world: 1, incarnation: 5 };
        let heard = heard.map(|tables| {
            let activity =
                Activity::Serves { served: 0, jobs: Vec::new(), unlisted: 0, tables: Some(tables) };
            let status = Status { process: 7, host: "here".to_owned(), activity };
            AnswerPair { answer: Answer { identity, roster: None, status }, before: None }
        });
        let (name, role) = (address.to_owned(), Some(Role::TableServer));
        AskedMember { name: name.clone(), role, id: None, address: name, heard }
    }

    fn page(members: Vec<AskedMember>) -> String {
        super::super::text::page(&Round { job: 0, roster: None, members, silent_for: None })
    }

    #[test]
    fn a_table_is_shown_once_with_who_is_behind() {
        let page = page(vec![asked("a:1", Ok(server(0, Some(1)))), asked("b:1", Ok(server(1, Some(1))))]);
        assert!(
            page.starts_with(
                "a parameter server: 2 of 2 servers answer, 1 copy of each range; 12.8 kB of 2.00 MB in use"
            ),
            "{page}"
        );
        let row = page.lines().find(|line| line.starts_with(" weights  dense")).unwrap();
        let cells: Vec<&str> = row.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
        let expected = [
            "weights",
            "dense f32 x 16, bounded(4), sgd",
            "100 of 100",
            "12.8 kB",
            "2",
            "5",
            "rank 1: 4",
            "2",
            "0",
        ];
        assert_eq!(cells, expected, "{page}");
        assert!(page.contains(" weights        3"), "{page}");
        assert!(
            page.contains("5.0 %") && page.matches("5.0 %").count() == 1,
            "a copy has no facts about keys: {page}"
        );
    }

    #[test]
    fn a_server_that_does_not_answer_is_named_and_so_is_a_lost_range() {
        let silent = AskError::Silent(Duration::from_secs(1));
        let page = page(vec![asked("a:1", Ok(server(0, None))), asked("b:1", Err(silent))]);
        assert!(page.contains("1 of 2 servers answer (without the ranges of the others)"), "{page}");
        assert!(page.contains("no answer for 1 s"), "{page}");
        assert!(page.contains("none: the range is lost"), "{page}");
    }

    #[test]
    fn a_server_beyond_its_memory_is_told_and_one_server_answers() {
        let full =
            TableServerStatus { limit: 5000, servers: Vec::new(), ranges: Vec::new(), ..server(0, None) };
        let page = page(vec![asked("a:1", Ok(full))]);
        assert!(
            page.starts_with(
                "a parameter server: 1 of 1 server answers, no copies; 6.40 kB of 5.00 kB in use"
            ),
            "{page}"
        );
        assert!(page.contains("6.40 kB  5.00 kB, beyond it  2 ranges of tables"), "{page}");
    }
}
