//! The figures of a job's timeline: slow ranks and their cost, the activity of each rank in each step, the speed of operations.

use super::{
    read::{Interval, Intervals, OperationKey, PHASES, ReadOperation, ReadProcess, ReadTimeline},
    steps::{StepWindow, windows},
};
use herringbone::Collective;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

/// This many of the longest operations are listed.
const LONGEST: usize = 20;

/// The figures of a job.
#[derive(Debug)]
pub(super) struct Figures {
    /// From the first call to the last result, in nanoseconds.
    pub(super) total: i64,
    pub(super) steps: Vec<StepFigures>,
    /// Whether the program has marked its steps, so that they are not guessed.
    pub(super) has_marks: bool,
    /// Ranks by what they cost, the dearest first.
    pub(super) slowest: Vec<LateRank>,
    /// Kinds of operations by what waiting for their slowest ranks cost.
    pub(super) kinds: Vec<KindFigures>,
    pub(super) longest: Vec<LongOperation>,
}

/// A step of the program.
#[derive(Debug)]
pub(super) struct StepFigures {
    pub(super) window: StepWindow,
    /// For each rank.
    pub(super) ranks: Vec<StepOfRank>,
}

impl StepFigures {
    fn object(&self, read: &ReadTimeline) -> Value {
        let ranks = self.ranks.iter().map(|rank| {
            json!({
                "rank": read.name(rank.process),
                "computing_s": seconds(rank.computing),
                "waiting_s": seconds(rank.waiting),
                "busy_s": seconds(rank.busy),
            })
        });
        json!({
            "step": self.window.step,
            "start_s": seconds(self.window.whole.start),
            "end_s": seconds(self.window.whole.end),
            "ranks": ranks.collect::<Vec<_>>(),
        })
    }
}

/// What a rank did in a step, in nanoseconds: together they are the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StepOfRank {
    pub(super) process: u32,
    /// No operation was under way.
    pub(super) computing: i64,
    /// Operations were under way, and none could continue.
    pub(super) waiting: i64,
    /// An operation kept a thread busy.
    pub(super) busy: i64,
}

/// A rank that others have waited for.
#[derive(Clone, Debug, Default)]
pub(super) struct LateRank {
    pub(super) process: u32,
    /// In how many operations it was the last to call.
    pub(super) last_in: u64,
    /// For how long others had operations under way that it had not called: the sum over them, in nanoseconds.
    pub(super) waited: i64,
    /// That, divided by the number of the others: about what the job would be shorter without.
    pub(super) cost: i64,
    /// The most that the others waited in one operation, on average.
    pub(super) worst: i64,
}

/// Operations of a kind.
#[derive(Clone, Debug)]
pub(super) struct KindFigures {
    pub(super) kind: u32,
    pub(super) count: u64,
    /// How many ranks take part.
    pub(super) ranks: u32,
    /// The rank that was last most at the others' cost, and for how long they waited for it: together, and at most in one.
    pub(super) slowest: Option<u32>,
    pub(super) cost: i64,
    pub(super) worst: i64,
    /// The mean time from the last call to the last result, in nanoseconds.
    pub(super) time: i64,
    /// Bytes/s of the bus, as nccl-tests define them.
    pub(super) bus: Option<f64>,
}

/// An operation that took long.
#[derive(Clone, Debug)]
pub(super) struct LongOperation {
    pub(super) operation: ReadOperation,
    /// Which rank called it last, and how long after the mean of the others.
    pub(super) last: Option<(u32, i64)>,
}

/// For each operation that failed the first of those ranks that have not called it, though they are in its group.
type AbsentRanks = BTreeMap<OperationKey, u32>;

/// All ranks are in the world; others are in the groups in which they have called something.
fn absent_ranks(read: &ReadTimeline, ranks: &[u32], groups: &[&[ReadOperation]]) -> AbsentRanks {
    let mut members: BTreeMap<u64, BTreeSet<u32>> = BTreeMap::new();
    for operation in groups.iter().copied().flatten() {
        let of_group = members.entry(operation.key.group).or_default();
        match read.kinds[operation.kind as usize].group == "world" {
            true => of_group.extend(ranks),
            false => _ = of_group.insert(operation.process),
        }
    }
    let failed = groups.iter().filter(|group| group.iter().any(|operation| operation.has_failed));
    let absent = |group: &&&[ReadOperation]| {
        let key = group[0].key;
        let called = |rank: &u32| group.iter().any(|operation| operation.process == *rank);
        Some((key, members[&key.group].iter().copied().find(|rank| !called(rank))?))
    };
    failed.filter_map(|group| absent(&group)).collect()
}

/// How an operation was called.
struct StragglerWaits {
    last: u32,
    /// For how long each other rank waited for the last one, in their order.
    waits: Vec<(u32, Interval)>,
}

impl StragglerWaits {
    /// For operations that at least two ranks have called, or that an absent rank has not.
    fn of(operations: &[ReadOperation], absent: &AbsentRanks) -> Option<Self> {
        let last = operations.iter().max_by_key(|operation| operation.issued)?;
        if let Some(absent) = absent.get(&last.key) {
            let whole =
                |other: &ReadOperation| (other.process, Interval { start: other.issued, end: other.ended });
            return Some(Self { last: *absent, waits: operations.iter().map(whole).collect() });
        }
        let others = operations.iter().filter(|operation| operation.process != last.process);
        let waits: Vec<(u32, Interval)> = others
            .map(|other| {
                // A root of a broadcast might have ended before, without waiting.
                let end = last.issued.min(other.ended);
                (other.process, Interval { start: other.issued, end: end.max(other.issued) })
            })
            .collect();
        (!waits.is_empty()).then_some(Self { last: last.process, waits })
    }

    fn mean(&self) -> i64 {
        let sum: i64 = self.waits.iter().map(|(_, wait)| wait.end - wait.start).sum();
        sum / self.waits.len() as i64
    }
}

/// Works all of it out.
pub(super) fn figures(read: &ReadTimeline) -> Figures {
    let is_rank = |process: u32| read.processes.get(&process).is_some_and(|found| found.about.role == 0);
    let ranks: Vec<(&u32, &ReadProcess)> =
        read.processes.iter().filter(|(process, _)| is_rank(**process)).collect();
    let groups: Vec<&[ReadOperation]> = read.operations.chunk_by(|one, other| one.key == other.key).collect();
    let numbers: Vec<u32> = ranks.iter().map(|(process, _)| **process).collect();
    let absent = absent_ranks(read, &numbers, &groups);
    let first = read.operations.iter().map(|operation| operation.issued).min().unwrap_or(0);
    let last = read.operations.iter().map(|operation| operation.ended).max().unwrap_or(0);
    let (windows, has_marks) = windows(&ranks, Interval { start: first, end: last });
    Figures {
        total: last - first,
        steps: windows.into_iter().map(|window| step(window, &ranks)).collect(),
        has_marks,
        slowest: slowest(&groups, &absent, ranks.len()),
        kinds: kinds(read, &groups, &absent),
        longest: longest(&groups, &absent),
    }
}

fn step(window: StepWindow, ranks: &[(&u32, &ReadProcess)]) -> StepFigures {
    let each = ranks.iter().filter_map(|(process, rank)| {
        let own = window.of(**process)?;
        let under_way = rank.under_way.within(own);
        let busy = rank.busy.within(own).min(under_way);
        let computing = own.end - own.start - under_way;
        Some(StepOfRank { process: **process, computing, waiting: under_way - busy, busy })
    });
    let ranks = each.collect();
    StepFigures { window, ranks }
}

/// The ranks that were last, by what that cost. If waits of one rank for another one overlap, as in concurrent
/// operations, each moment is included once.
fn slowest(groups: &[&[ReadOperation]], absent: &AbsentRanks, ranks: usize) -> Vec<LateRank> {
    let mut late: BTreeMap<u32, LateRank> = BTreeMap::new();
    let mut waits: BTreeMap<(u32, u32), Vec<Interval>> = BTreeMap::new();
    for straggler in groups.iter().filter_map(|group| StragglerWaits::of(group, absent)) {
        let rank = late.entry(straggler.last).or_default();
        rank.process = straggler.last;
        rank.last_in += 1;
        rank.worst = rank.worst.max(straggler.mean());
        for (other, wait) in straggler.waits.into_iter().filter(|(_, wait)| wait.end > wait.start) {
            waits.entry((straggler.last, other)).or_default().push(wait);
        }
    }
    for ((last, _), mut waits) in waits {
        waits.sort_unstable_by_key(|wait| wait.start);
        let mut merged = Intervals::default();
        waits.iter().for_each(|wait| merged.add(wait.start, wait.end));
        let waited: i64 = merged.iter().map(|wait| wait.end - wait.start).sum();
        late.entry(last).or_default().waited += waited;
    }
    let mut late: Vec<LateRank> = late.into_values().collect();
    late.iter_mut().for_each(|rank| rank.cost = rank.waited / ranks.saturating_sub(1).max(1) as i64);
    late.sort_by_key(|rank| (std::cmp::Reverse(rank.cost), rank.process));
    late
}

fn kinds(read: &ReadTimeline, groups: &[&[ReadOperation]], absent: &AbsentRanks) -> Vec<KindFigures> {
    let mut found: BTreeMap<u32, Vec<&[ReadOperation]>> = BTreeMap::new();
    for group in groups {
        found.entry(group[0].kind).or_default().push(group);
    }
    let mut kinds: Vec<KindFigures> = found
        .into_iter()
        .map(|(kind, groups)| {
            let mut costs: BTreeMap<u32, i64> = BTreeMap::new();
            let (mut worst, mut time) = (0, 0);
            for group in &groups {
                if let Some(straggler) = StragglerWaits::of(group, absent) {
                    *costs.entry(straggler.last).or_default() += straggler.mean();
                    worst = worst.max(straggler.mean());
                }
                let called = group.iter().map(|operation| operation.issued).max().unwrap_or(0);
                let ended = group.iter().map(|operation| operation.ended).max().unwrap_or(0);
                time += (ended - called).max(0);
            }
            let ranks = groups.iter().map(|group| group.len()).max().unwrap_or(0) as u32;
            let time = time / groups.len() as i64;
            let slowest = costs.iter().max_by_key(|(_, cost)| **cost).map(|(rank, _)| *rank);
            let about = &read.kinds[kind as usize];
            let collective: Option<Collective> = about.name.parse().ok();
            let bus = collective.filter(|_| time > 0 && ranks > 1 && about.bytes > 0).map(|collective| {
                whole_bytes(collective, ranks, about.bytes) as f64 * collective.bus_share(ranks)
                    / (time as f64 / 1e9)
            });
            KindFigures {
                kind,
                count: groups.len() as u64,
                ranks,
                slowest,
                cost: costs.values().sum(),
                worst,
                time,
                bus,
            }
        })
        .collect();
    kinds.sort_by_key(|kind| (std::cmp::Reverse(kind.cost), kind.kind));
    kinds
}

/// The bytes of the larger buffer, as in nccl-tests; a call has the bytes of the smaller one.
fn whole_bytes(collective: Collective, ranks: u32, bytes: u64) -> u64 {
    let root = collective.root().unwrap_or(0);
    let larger = collective.input_elements(ranks, root, 1).max(collective.output_elements(ranks, root, 1));
    bytes.saturating_mul(larger as u64)
}

/// The longest operations, each on the rank on which it took longest.
fn longest(groups: &[&[ReadOperation]], absent: &AbsentRanks) -> Vec<LongOperation> {
    let duration = |operation: &ReadOperation| operation.ended - operation.issued;
    let mut all: Vec<(&ReadOperation, &[ReadOperation])> = groups
        .iter()
        .filter_map(|group| Some((group.iter().max_by_key(|operation| duration(operation))?, *group)))
        .collect();
    all.sort_by_key(|(operation, _)| (std::cmp::Reverse(duration(operation)), operation.key));
    all.truncate(LONGEST);
    let each = all.into_iter().map(|(operation, group)| LongOperation {
        operation: operation.clone(),
        last: StragglerWaits::of(group, absent).map(|straggler| (straggler.last, straggler.mean())),
    });
    each.collect()
}

/// Nanoseconds in seconds.
pub(super) fn seconds(nanoseconds: i64) -> f64 {
    nanoseconds as f64 / 1e9
}

impl Figures {
    /// Writes them as `--json` prints them: seconds, bytes, and bytes/s. A job can have a million steps, so they are written one by one.
    ///
    /// # Errors
    /// Errors of the output.
    pub(super) fn write_json(
        &self,
        read: &ReadTimeline,
        roofline: &Value,
        out: &mut impl Write,
    ) -> io::Result<()> {
        out.write_all(b"{")?;
        let others = self.object(read);
        for (name, value) in
            others.as_object().into_iter().flatten().chain([(&"roofline".to_owned(), roofline)])
        {
            write!(out, "{}:{value},", Value::from(name.as_str()))?;
        }
        out.write_all(b"\"steps\":[")?;
        for (index, step) in self.steps.iter().enumerate() {
            write!(out, "{}{}", if index == 0 { "" } else { "," }, step.object(read))?;
        }
        out.write_all(b"]}\n")?;
        out.flush()
    }

    /// All but the steps and the roofs.
    fn object(&self, read: &ReadTimeline) -> Value {
        let slowest = self.slowest.iter().map(|late| {
            json!({
                "rank": read.name(late.process),
                "last_in": late.last_in,
                "cost_s": seconds(late.cost),
                "waited_s": seconds(late.waited),
                "worst_s": seconds(late.worst),
            })
        });
        let faults = read.faults.iter().map(
            |fault| json!({"at_s": seconds(fault.at), "seen_by": read.name(fault.process), "what": fault.what}),
        );
        json!({
            "job": read.job,
            "seconds": seconds(self.total),
            "ranks": read.processes.values().filter(|process| process.about.role == 0).count(),
            "clock_error_s": read.error as f64 / 1e9,
            "left_out": read.left_out,
            "has_marks": self.has_marks,
            "slowest": slowest.collect::<Vec<_>>(),
            "operations": self.operations_json(read),
            "longest": self.longest_json(read),
            "faults": faults.collect::<Vec<_>>(),
            "more_faults": read.more_faults,
        })
    }

    fn operations_json(&self, read: &ReadTimeline) -> Vec<Value> {
        let kinds = self.kinds.iter().map(|figures| {
            let kind = &read.kinds[figures.kind as usize];
            json!({
                "operation": kind.name,
                "group": kind.group,
                "algorithm": kind.algorithm,
                "bytes": kind.bytes,
                "count": figures.count,
                "ranks": figures.ranks,
                "slowest": figures.slowest.and_then(|rank| read.name(rank)),
                "cost_s": seconds(figures.cost),
                "worst_s": seconds(figures.worst),
                "time_s": seconds(figures.time),
                "bus": figures.bus,
            })
        });
        kinds.collect()
    }

    fn longest_json(&self, read: &ReadTimeline) -> Vec<Value> {
        let longest = self.longest.iter().map(|long| {
            let operation = &long.operation;
            let phases = PHASES
                .iter()
                .zip(operation.phases)
                .map(|(phase, time)| ((*phase).to_owned(), seconds(time).into()));
            json!({
                "operation": read.kinds[operation.kind as usize].name,
                "group": read.kinds[operation.kind as usize].group,
                "sequence": operation.key.sequence,
                "rank": read.name(operation.process),
                "start_s": seconds(operation.issued),
                "seconds": seconds(operation.ended - operation.issued),
                "phases_s": phases.collect::<serde_json::Map<String, Value>>(),
                "last": long.last.and_then(|(rank, _)| read.name(rank)),
                "last_by_s": long.last.map(|(_, by)| seconds(by)),
                "failed": operation.has_failed,
            })
        });
        longest.collect()
    }
}
