//! All figures of a process, in series.

use super::series;
use super::text::Family;
use crate::events::{EventCounts, OperationCount, now};
use crate::json;
use crate::outlook::{Outlook, SeenPlace, ShownServer};
use herringbone::server::{ServedFigures, ServerFigures};
use herringbone::status::{JobStatus, TableServerStatus, Way};
use herringbone::{Moved, Stats};
use std::collections::BTreeMap;
use std::time::Duration;

/// All series that this process has values for.
pub(super) fn families(outlook: &Outlook) -> Vec<Family> {
    let mut families = vec![Family::of(&series::BUILD).with([env!("CARGO_PKG_VERSION").to_owned()], 1.0)];
    families.push(Family::of(&series::UNWRITTEN).with([], outlook.unwritten() as f64));
    let places = outlook.look();
    if !places.is_empty() {
        let present = places.iter().rev().find(|place| !place.view.is_over());
        families.extend(present.into_iter().flat_map(of_job));
        families.extend(counted(&outlook.counted(&places)));
        families.push(operations(&outlook.events().read()));
        families.extend(heard_in(outlook));
    }
    let server = outlook.look_at_server();
    families.extend(server.iter().flat_map(of_server));
    // A process that is a rank and a server at once shows these of the rank.
    if let Some(server) = server.filter(|_| places.is_empty()) {
        families.extend(of_jobs_of_server(&server));
        families.extend(heard_in(outlook));
    }
    families
}

/// How a rank stands in its job.
fn of_job(place: &SeenPlace) -> Vec<Family> {
    let there = place.view.place();
    let name = there.names.first().cloned().unwrap_or_default();
    // Until the group of the remaining ranks has formed, only the job's ranks are known.
    let whole = place.known.as_ref().and_then(|known| known.figures.whole.as_ref());
    let ranks = whole.map_or(there.roster.world(), |whole| whole.ranks);
    let mut families = vec![
        Family::of(&series::JOB).with([json::number(there.job), name, there.rank.to_string()], 1.0),
        Family::of(&series::RANKS).with([], f64::from(ranks)),
        Family::of(&series::REDUCERS).with([], there.roster.reducers().count() as f64),
    ];
    let Some(known) = &place.known else { return families };
    families.extend([
        Family::of(&series::GROUPS)
            .with([], (known.figures.status.groups.len() + known.figures.status.unlisted[0] as usize) as f64),
        Family::of(&series::GENERATION).with([], whole.map_or(0.0, |whole| f64::from(whole.generation))),
        Family::of(&series::FIGURES_AGE).with([], known.age().as_secs_f64()),
    ]);
    families.extend(of_engines(&[&known.figures.status], known.figures.staged, known.figures.staging));
    families
}

/// The state of engines: a rank's, or one for each job of a reducer.
fn of_engines(engines: &[&JobStatus], staged: u64, staging: u64) -> Vec<Family> {
    let in_flight = |status: &&JobStatus| status.operations.len() + status.unlisted[1] as usize;
    let oldest = engines.iter().flat_map(|status| &status.operations).map(|operation| operation.age).max();
    let mut states = BTreeMap::from(["shm", "tcp", "wanted", "lost"].map(|state| (state, 0)));
    for link in engines.iter().flat_map(|status| &status.links) {
        let state = match link.way {
            Way::Shm => "shm",
            Way::Tcp => "tcp",
            Way::Wanted => "wanted",
            Way::Lost { .. } => "lost",
        };
        *states.entry(state).or_default() += 1;
    }
    let mut links = Family::of(&series::LINKS);
    states.into_iter().for_each(|(state, count)| links.add([state.to_owned()], f64::from(count)));
    vec![
        Family::of(&series::IN_FLIGHT).with([], engines.iter().map(in_flight).sum::<usize>() as f64),
        Family::of(&series::OLDEST).with([], oldest.unwrap_or_default() as f64 / 1e3),
        Family::of(&series::STAGED).with([], staged as f64),
        Family::of(&series::STAGING).with([], staging as f64),
        links,
    ]
}

/// What a rank has counted.
fn counted(stats: &Stats) -> Vec<Family> {
    let mut bytes = Family::of(&series::BYTES);
    let ways = [
        ("shm", "workers", stats.workers_shm),
        ("tcp", "workers", stats.workers_tcp),
        ("tcp", "reducers", stats.reducers_tcp),
    ];
    ways.into_iter().for_each(|(transport, peers, moved)| add_moved(&mut bytes, transport, peers, moved));
    vec![
        Family::of(&series::FAILED).with([], stats.failed as f64),
        bytes,
        Family::of(&series::WAITING).with([], stats.waiting.as_secs_f64()),
        Family::of(&series::BUSY).with([], stats.in_flight.as_secs_f64()),
        Family::of(&series::CONNECTIONS).with([], stats.connections as f64),
        Family::of(&series::REBALANCED).with([], stats.rebalanced as f64),
    ]
}

/// Successful operations and messages, as listeners counted them, so that no scrape misses a job that is over.
fn operations(events: &EventCounts) -> Family {
    let mut family = Family::of(&series::OPERATIONS);
    for OperationCount { collective, algorithm, seconds } in &events.operations {
        // A kind without a successful operation has no series yet.
        if seconds.count() > 0 {
            family.add([(*collective).to_owned(), algorithm.clone()], seconds.count() as f64);
        }
    }
    family
}

/// The sums of events.
fn heard_in(outlook: &Outlook) -> Vec<Family> {
    // The moment comes first: a wait that ends meanwhile is shorter than it was shown before, and sums would go back.
    let at = now();
    heard(&outlook.events().read(), at)
}

fn heard(events: &EventCounts, at: Duration) -> Vec<Family> {
    let mut seconds = Family::of(&series::SECONDS);
    for OperationCount { collective, algorithm, seconds: histogram } in &events.operations {
        seconds.add_histogram([(*collective).to_owned(), algorithm.clone()], histogram);
    }
    let (mut sums, mut spread) = (Family::of(&series::PEER_WAITS), Family::of(&series::PEER_WAIT));
    events.waited(at).into_iter().for_each(|(peer, seconds)| sums.add([peer], seconds));
    for (peer, histogram) in &events.waits {
        spread.add_histogram([peer.clone()], histogram);
    }
    let mut faults = Family::of(&series::FAULTS);
    let failures = events.failures.iter().map(|(kind, count)| (*kind, *count));
    let usual = ["suspected", "lost", "fenced"].map(|kind| (kind, events.faults.get(kind).copied()));
    for (kind, count) in
        usual.map(|(kind, count)| (kind, count.unwrap_or_default())).into_iter().chain(failures)
    {
        faults.add([kind.to_owned()], count as f64);
    }
    vec![seconds, sums, spread, faults]
}

fn add_moved(family: &mut Family, transport: &str, peers: &str, moved: Moved) {
    for (direction, bytes) in [("sent", moved.sent), ("received", moved.received)] {
        family.add([transport, peers, direction].map(str::to_owned), bytes as f64);
    }
}

/// A server's figures of its jobs and tables.
fn of_server(server: &ShownServer) -> Vec<Family> {
    let mut families: Vec<Family> = server.view.tables().iter().flat_map(of_tables).collect();
    if let Some(known) = &server.known {
        let stats = &known.figures.stats;
        families.push(Family::of(&series::SERVED_NOW).with([], stats.jobs as f64));
        families.push(Family::of(&series::SERVED).with([], stats.served as f64));
    }
    families
}

/// The figures of a server's engines, which a rank's engine also has.
fn of_jobs_of_server(server: &ShownServer) -> Vec<Family> {
    let Some(known) = &server.known else { return Vec::new() };
    let ServerFigures { stats, jobs, .. } = &*known.figures;
    let engines: Vec<&JobStatus> = jobs.iter().map(|job| &job.status).collect();
    let sum = |bytes: fn(&ServedFigures) -> u64| jobs.iter().map(bytes).sum();
    let mut bytes = Family::of(&series::BYTES);
    add_moved(&mut bytes, "tcp", "workers", Moved { sent: stats.sent, received: stats.received });
    let mut families = vec![bytes, Family::of(&series::FIGURES_AGE).with([], known.age().as_secs_f64())];
    families.extend(of_engines(&engines, sum(|job| job.staged), sum(|job| job.staging)));
    families
}

fn of_tables(server: &TableServerStatus) -> Vec<Family> {
    let all = [
        &series::TABLE_KEYS,
        &series::TABLE_ROWS,
        &series::TABLE_BYTES,
        &series::TABLE_WAITING,
        &series::TABLE_NAN,
    ];
    let mut families = all.map(Family::of);
    let mut steps = Family::of(&series::TABLE_STEP);
    for table in &server.tables {
        let labels = || [table.name.clone(), table.range.to_string()];
        let values = [
            table.keys as f64,
            table.rows as f64,
            table.bytes as f64,
            table.waiting as f64,
            table.not_numbers as f64,
        ];
        families.iter_mut().zip(values).for_each(|(family, value)| family.add(labels(), value));
        for worker in &table.workers {
            let [name, range] = labels();
            steps.add([name, range, worker.worker.to_string()], worker.step as f64);
        }
    }
    let memory = [
        steps,
        Family::of(&series::TABLE_MEMORY).with([], server.used as f64),
        Family::of(&series::TABLE_LIMIT).with([], server.limit as f64),
    ];
    families.into_iter().chain(memory).collect()
}
