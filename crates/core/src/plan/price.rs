//! What a way to do a call costs, counted rather than simulated: nanoseconds that all ranks come to, in microseconds.
//!
//! Every choice by time asks [`price`]. It walks the programs of a few hosts' members, those that are busiest in the algorithms of this
//! crate, and adds up what their threads do and what their ports carry. With S segments the time is that of the busier of the two,
//! 1/S of the other, which waits for the first segment or has the last one left, and the latency of each message of the longest chain:
//! the alpha-beta model of Hockney (1994) with the threads' gamma, as Thakur, Rabenseifner and Gropp (2005) use it.
//! The simulator knows more, windows and lines before ports for example, and takes a thousand times as long.

use super::{
    Request,
    port_loads::host_numbers,
    ports,
    predicted::{candidates, machine},
    stages::most_on_a_host,
};
use crate::{
    algorithm::{Algorithm, Layout},
    codec::Codec,
    prepare::{Sizing, cutting},
    schedule::{Cut, Form, Origin, Place, Program, Rank, Schedule, SlotChunks, Step},
    session::lane::{EAGER_BYTES, EAGER_BYTES_HERE},
    simulate::{Calibration, Cores, HEADER_BYTES, Overhead, Picoseconds, Rig, duration},
};
use alloc::{vec, vec::Vec};

/// What a price depends on beside the call and the algorithm.
#[derive(Clone, Copy, Debug)]
pub struct Environment<'a> {
    /// Constants of the machines: a calibration's, or those of a [latency](Calibration::of_latency).
    pub known: &'a Calibration,
    /// How calls are cut.
    pub sizing: Sizing,
}

/// The programs of so many members are all looked at.
const FEW_MEMBERS: u32 = 16;

/// Picoseconds of a nanosecond.
const NANOSECOND: Picoseconds = 1000;

/// What so many messages, folds or copies work on: `units` of the buffer, each as wide as an element.
#[derive(Clone, Copy, Debug, Default)]
struct Handled {
    times: u64,
    units: u64,
}

impl Handled {
    fn add(&mut self, units: u64) {
        self.times += 1;
        self.units += units;
    }
}

/// What one member does in a segment.
#[derive(Clone, Copy, Debug, Default)]
struct MemberWork {
    sent: Handled,
    received: Handled,
    /// Messages to and from ranks of its host.
    here: Handled,
    folded: Handled,
    copied: Handled,
    /// How often it sends to other hosts after it has received something: as many rounds as its own program shows.
    turns: u64,
}

impl MemberWork {
    /// The same where chunks that lie side by side go together: so many messages in place of as many of one chunk.
    fn together(self, messages: u64, one_by_one: u64) -> Self {
        let fewer = |handled: Handled| {
            let times = (handled.times * messages).div_ceil(one_by_one.max(1));
            Handled { times, ..handled }
        };
        Self {
            sent: fewer(self.sent),
            received: fewer(self.received),
            here: fewer(self.here),
            folded: fewer(self.folded),
            copied: fewer(self.copied),
            ..self
        }
    }
}

/// What the members of a host do.
#[derive(Clone, Debug, Default)]
struct HostWork {
    members: Vec<MemberWork>,
    /// How much of the buffer goes out of its port, and into it.
    carried: [u64; 2],
    /// How many chunks go in a message at most.
    span: u32,
    /// For how many members those that were looked at stand; 0 for themselves alone.
    stands_for: u64,
}

/// An algorithm and what it costs.
#[derive(Clone, Debug)]
pub(super) struct Priced {
    pub(super) algorithm: Algorithm,
    pub(super) time: Picoseconds,
}

/// The candidates of a request that have a price, the least first.
pub(super) fn prices(request: &Request<'_>, environment: Environment<'_>) -> Vec<Priced> {
    let priced = |algorithm: Algorithm| {
        let time = price(request, &algorithm, environment)?.saturating_mul(NANOSECOND);
        Some(Priced { algorithm, time })
    };
    let mut found: Vec<Priced> = candidates(request).into_iter().filter_map(priced).collect();
    found.sort_by_key(|priced| priced.time);
    found
}

/// What `algorithm` costs for a request, in nanoseconds, from the call to the last rank's return. All ranks come to the same number.
/// `None` where it has no schedule for the request, where messages are coded, or where links that are
/// no ports, or uplinks of sites, limit it.
pub fn price(request: &Request<'_>, algorithm: &Algorithm, environment: Environment<'_>) -> Option<u64> {
    let Request { collective, group, hosts, links, .. } = *request;
    let is_tree_of_links = matches!(algorithm, Algorithm::Trees { .. });
    let has_sites = request.ports.is_some_and(|ports| ports.sites().is_some());
    if request.codec != Codec::Plain
        || is_tree_of_links
        || has_sites
        || links.is_some() && ports::deciding(request).is_none()
    {
        return None;
    }
    let reducers = if algorithm.needs_reducers() { request.reducers } else { 0 };
    let schedule = algorithm.schedule(collective, group, &Layout { reducers, hosts, links }).ok()?;
    let rig = machine(request, environment.known, reducers);
    let counts = ranks_of_hosts(&rig.hosts[..schedule.workers() as usize]);
    let is_alike = are_equal(&counts) && is_alike(algorithm);
    let walked = Walked { request, schedule: &schedule, rig: &rig, sizing: environment.sizing, is_alike };
    Some(walked.time(Way::of(request, algorithm)) / NANOSECOND)
}

/// A schedule on its machines.
struct Walked<'a> {
    request: &'a Request<'a>,
    schedule: &'a Schedule,
    rig: &'a Rig,
    sizing: Sizing,
    /// Whether the ranks of a host do the same.
    is_alike: bool,
}

impl Walked<'_> {
    fn time(&self, way: Way) -> Picoseconds {
        self.time_by(way, self.sampled())
    }

    /// The time by what the members of some hosts do.
    fn time_by(&self, way: Way, hosts: Vec<u32>) -> Picoseconds {
        let usual = self.usual();
        let works: Vec<(u32, HostWork)> = hosts.into_iter().map(|host| (host, self.work_of(host))).collect();
        let members = || works.iter().flat_map(|(_, work)| &work.members);
        let rounds = way.rounds.unwrap_or_else(|| members().map(|member| member.turns).max().unwrap_or(0));
        let segments = usual.segments;
        let thread = members().map(|member| self.thread(member, segments)).max().unwrap_or(0);
        let thread = thread.max(self.on_shared_cores(&works, segments));
        let port = works.iter().map(|(host, work)| self.port(*host, work, way.comes_back, segments)).max();
        let port = port.unwrap_or(0);
        let costs = &self.rig.costs;
        let segment = self.bytes(u64::from(self.schedule.cut().most_units())) / segments;
        let span = works.iter().map(|(_, work)| work.span).max().unwrap_or(1);
        let message = segment.saturating_mul(u64::from(self.request.widening) * u64::from(span));
        let eager = if self.sizing.shared { EAGER_BYTES_HERE } else { EAGER_BYTES };
        let is_eager = segments == 1 && message <= eager as u64;
        let wake = if is_eager || self.sizing.shared { 0 } else { costs.wake };
        let hop = self.rig.latency.saturating_add(wake);
        // A thread that sends one message after the other to several ranks waits for less.
        let in_round = members().map(|member| member.sent.times).max().unwrap_or(0) / rounds.max(1);
        let meanwhile = costs.send.each.saturating_mul(in_round.saturating_sub(1));
        let waited = if segments == 1 { hop.saturating_sub(meanwhile) } else { hop };
        // What is not eager waits for the first grant; what reducers take part in ends when all have heard of all.
        let grants = u64::from(!is_eager && rounds > 0) + if self.schedule.reducers() > 0 { 2 } else { 0 };
        let grant = self.rig.latency.saturating_mul(grants);
        // The port is busy while the thread hands over the next message, or segment.
        let alike = if is_eager { in_round.max(1) } else { segments };
        let busy = thread.max(port).saturating_add(thread.min(port) / alike);
        let chain = rounds.saturating_mul(waited).saturating_add(grant);
        let windows = segments.div_ceil(usual.depth.max(1));
        let in_windows = chain.saturating_mul(windows).saturating_add(busy / windows);
        let together = busy.saturating_add(chain).max(in_windows);
        // In trees each round is another rank's.
        let each = |overhead: Overhead| overhead.of(segment);
        let slowest = works.iter().map(|(host, _)| self.payload_time(*host, segment)).max().unwrap_or(0);
        let across = [each(costs.send), each(costs.receive), each(costs.fold), slowest, hop];
        let across = across.into_iter().fold(0, Picoseconds::saturating_add).saturating_mul(rounds);
        let inside = each(costs.here).saturating_mul(2).saturating_add(each(costs.fold));
        let inside = inside.saturating_mul(way.local_rounds);
        let first = across.saturating_add(inside).saturating_add(grant);
        let one_by_one = first.saturating_add(busy / segments * (segments - 1));
        costs.call.saturating_add(together.max(one_by_one))
    }

    /// How long the slower way of a host's port takes for so many bytes, if that is more than its bucket.
    fn payload_time(&self, host: u32, bytes: u64) -> Picoseconds {
        let port = self.rig.ports[host as usize];
        let bytes = bytes.saturating_sub(self.rig.costs.bucket);
        [port.out, port.into]
            .map(|rate| duration(bytes, self.rig.payload_rate(host, rate)))
            .into_iter()
            .max()
            .unwrap_or(0)
    }

    /// How the call is cut, by and large.
    fn usual(&self) -> cutting::UsualSegments {
        let cut = self.schedule.cut();
        let (chunks, chunk) = (cut.units().div_ceil(cut.most_units()), u64::from(cut.most_units()));
        let medium = cutting::Medium::of(self.schedule.reducers(), self.sizing);
        let is_weighted = matches!(cut, Cut::Weighted { .. });
        let bytes = self.bytes(chunk).saturating_mul(u64::from(self.request.widening));
        cutting::usual_segments(medium, is_weighted, chunks, bytes, self.sizing.segment_bytes)
    }

    /// So many units of the buffer in bytes.
    fn bytes(&self, units: u64) -> u64 {
        let whole = u128::from(self.schedule.cut().units().max(1));
        let bytes = (u128::from(self.request.bytes) * u128::from(units)).div_ceil(whole);
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// The hosts that are looked at: all where there are few members, or hosts differ in size; else the first, the middle and the last
    /// with workers, the slowest, and the first and the last reducer.
    fn sampled(&self) -> Vec<u32> {
        let Rig { hosts, ports, .. } = self.rig;
        let workers = &hosts[..self.schedule.workers() as usize];
        let last = workers.iter().copied().max().unwrap_or(0);
        if self.schedule.ranks() <= FEW_MEMBERS || !are_equal(&ranks_of_hosts(workers)) {
            return (0..ports.len() as u32).collect();
        }
        let rate = |host: &u32| {
            let port = ports[*host as usize];
            let known = |rate: u64| if rate == 0 { u64::MAX } else { rate };
            known(port.out).min(known(port.into))
        };
        let slowest = (0..=last).min_by_key(rate);
        let reducers = hosts[workers.len()..].iter().copied();
        let ends = [reducers.clone().next(), reducers.last()];
        let mut found: Vec<u32> =
            [Some(0), Some(last / 2), Some(last), slowest].into_iter().chain(ends).flatten().collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    /// What the members of a host do. Where all share one host its port does not count, and three of them are looked at.
    fn work_of(&self, host: u32) -> HostWork {
        let hosts = &self.rig.hosts[..self.schedule.ranks() as usize];
        let all: Vec<Rank> =
            (0..).zip(hosts).filter(|(_, other)| **other == host).map(|(rank, _)| rank).collect();
        let (middle, last) = (all.len() / 2, all.len().saturating_sub(1));
        // Of its ranks three stand for all if its port does not count, or if they do the same.
        let is_sampled = (all.len() == hosts.len() || self.is_alike)
            && all.len() > 3
            && hosts.len() > FEW_MEMBERS as usize;
        let times = if is_sampled { all.len() as u64 } else { 1 };
        let looked_at: Vec<Rank> = match is_sampled {
            true => [0, middle, last].map(|at| all[at]).into(),
            false => all,
        };
        let mut work = HostWork::default();
        for rank in looked_at {
            let program = self.schedule.program(rank);
            let one_by_one = program.chunk_by_chunk();
            let member = self.walk(rank, &one_by_one, &mut work.carried);
            let member = member.together(messages(&program), messages(&one_by_one));
            work.span = work.span.max(program.longest_span());
            work.members.push(member);
        }
        if is_sampled {
            work.carried = work.carried.map(|units| units * times / work.members.len() as u64);
            work.stands_for = times;
        }
        work
    }

    /// Goes through a program.
    fn walk(&self, rank: Rank, program: &Program, [out, into]: &mut [u64; 2]) -> MemberWork {
        let (cut, hosts) = (self.schedule.cut(), &self.rig.hosts);
        let is_here = |other: Rank| hosts[other as usize] == hosts[rank as usize];
        let units = |chunk, form: Option<Form>| {
            let wide = if form == Some(Form::Acc) { u64::from(self.request.widening) } else { 1 };
            wide * u64::from(cut.units_of(chunk))
        };
        let (mut work, mut has_received) = (MemberWork::default(), true);
        let mut held = SlotChunks::new(program, cut.chunks());
        let receive = |work: &mut MemberWork, into: &mut u64, lane, units| match is_here(lane) {
            true => work.here.add(units),
            false => {
                work.received.add(units);
                *into += units;
            }
        };
        for step in program.steps() {
            match *step {
                Step::Send { from, to } => {
                    let units = units(held.chunk(from), program.form(from));
                    if self.sizing.shared && matches!(from, Place::User(_)) {
                        work.copied.add(units);
                    }
                    for lane in program.lanes(to) {
                        if is_here(*lane) {
                            work.here.add(units);
                            continue;
                        }
                        work.sent.add(units);
                        *out += units;
                        work.turns += u64::from(core::mem::take(&mut has_received));
                    }
                }
                Step::Recv { lane, chunk, into: place } => {
                    let units = units(chunk, program.form(place));
                    receive(&mut work, into, lane, units);
                    let is_placed = !self.sizing.shared && self.schedule.reducers() == 0;
                    if !(is_placed && matches!(place, Place::User(_))) {
                        work.copied.add(units);
                    }
                    has_received = true;
                }
                Step::Fold { chunk, from, .. } => {
                    let mut all = 0;
                    for source in program.sources(from) {
                        let form = match source.from {
                            Origin::Head { lane, form } => {
                                receive(&mut work, into, lane, units(chunk, Some(form)));
                                has_received = true;
                                Some(form)
                            }
                            Origin::At(place) => program.form(place),
                        };
                        all += units(chunk, form);
                    }
                    work.folded.add(all);
                }
                Step::Copy { from, .. } => work.copied.add(units(held.chunk(from), program.form(from))),
                Step::Encode { .. } | Step::Decode { .. } => {}
            }
            held.step(step);
        }
        work
    }

    /// How long a member's thread is busy.
    fn thread(&self, work: &MemberWork, segments: u64) -> Picoseconds {
        let costs = &self.rig.costs;
        let of = |overhead: Overhead, Handled { times, units }: Handled| {
            let each = overhead.each.saturating_mul(times).saturating_mul(segments);
            each.saturating_add(duration(self.bytes(units), overhead.rate))
        };
        let MemberWork { sent, received, here, folded, copied, .. } = *work;
        let all = [
            of(costs.send, sent),
            of(costs.receive, received),
            of(costs.here, here),
            of(costs.fold, folded),
            of(costs.copy, copied),
        ];
        all.into_iter().fold(0, Picoseconds::saturating_add)
    }

    /// How long cores take that all members share; 0 where each has its own.
    fn on_shared_cores(&self, works: &[(u32, HostWork)], segments: u64) -> Picoseconds {
        let Cores::InAll(cores) = self.rig.cores else { return 0 };
        let times: Vec<Picoseconds> = works
            .iter()
            .flat_map(|(_, work)| &work.members)
            .map(|member| self.thread(member, segments))
            .collect();
        let sum = times.iter().fold(0u128, |sum, time| sum + u128::from(*time));
        let all = sum * u128::from(self.schedule.ranks()) / times.len().max(1) as u128;
        u64::try_from(all / u128::from(cores.max(1))).unwrap_or(u64::MAX)
    }

    /// How long a host's port is busy. Where results come back, that of the last segment does after all inputs have gone out.
    fn port(&self, host: u32, work: &HostWork, comes_back: bool, segments: u64) -> Picoseconds {
        let port = self.rig.ports[host as usize];
        let bucket = self.rig.costs.bucket;
        let count = |member: &MemberWork| member.sent.times.max(member.received.times);
        let messages: u64 = work.members.iter().map(count).sum();
        let messages = match work.stands_for {
            0 => messages,
            all => messages * all / work.members.len() as u64,
        };
        let busy = |units: u64, rate: u64| {
            let rate = self.rig.payload_rate(host, rate);
            let headers = (HEADER_BYTES * messages).saturating_mul(segments);
            duration(self.bytes(units).saturating_add(headers).saturating_sub(bucket), rate)
        };
        let ways = [busy(work.carried[0], port.out), busy(work.carried[1], port.into)];
        let (more, less) = (ways[0].max(ways[1]), ways[0].min(ways[1]));
        if comes_back { more.saturating_add(less / segments) } else { more }
    }
}

/// How many messages a program sends.
fn messages(program: &Program) -> u64 {
    let sent = program.steps().iter().map(|step| match *step {
        Step::Send { to, .. } => program.lanes(to).len() as u64,
        _ => 0,
    });
    sent.sum()
}

/// What a walk through some programs does not show.
#[derive(Clone, Copy, Debug)]
struct Way {
    /// How many messages between hosts follow each other at most; `None` where every program shows it, as ranks do the same.
    rounds: Option<u64>,
    /// How many messages inside a host follow each other in a tree at most.
    local_rounds: u64,
    /// Whether results come back by the port that inputs have gone out by, so that the last segment comes after all have gone.
    comes_back: bool,
}

impl Way {
    fn of(request: &Request<'_>, algorithm: &Algorithm) -> Self {
        let most = most_on_a_host(request);
        let local_rounds = match algorithm {
            Algorithm::Tree | Algorithm::DoubleTree => 2 * depth(most),
            _ => 0,
        };
        let is_mixed = matches!(algorithm.plain(), Algorithm::Mixed { .. });
        let comes_back = algorithm.needs_reducers() && !is_mixed
            || matches!(algorithm, Algorithm::Star | Algorithm::Tree | Algorithm::DoubleTree);
        Self { rounds: rounds(request, algorithm), local_rounds, comes_back }
    }
}

/// How many ranks each host has, of the first to the last.
fn ranks_of_hosts(hosts: &[u32]) -> Vec<u32> {
    let count = hosts.iter().max().map_or(0, |last| *last as usize + 1);
    hosts.iter().fold(vec![0; count], |mut counts, host| {
        counts[*host as usize] += 1;
        counts
    })
}

fn are_equal(counts: &[u32]) -> bool {
    counts.windows(2).all(|pair| pair[0] == pair[1])
}

/// Whether the ranks of a host do the same, where hosts have as many ranks as each other.
fn is_alike(algorithm: &Algorithm) -> bool {
    match algorithm {
        Algorithm::Radix { .. } => true,
        Algorithm::Weighted { plain, .. } => is_alike(plain),
        Algorithm::Hierarchical { inner, outer } => is_alike(inner) && is_alike(outer),
        _ => false,
    }
}

fn rounds(request: &Request<'_>, algorithm: &Algorithm) -> Option<u64> {
    let (_, hosts) = host_numbers(request, 0);
    let hosts = hosts as u64;
    match algorithm.plain() {
        _ if hosts < 2 && !algorithm.needs_reducers() => Some(0),
        Algorithm::OneShot => Some(1),
        Algorithm::Tree | Algorithm::DoubleTree => Some(2 * depth(hosts)),
        Algorithm::Chain => Some(2 * (hosts - 1)),
        Algorithm::Star | Algorithm::ReductionServer | Algorithm::Mixed { .. } => Some(2),
        Algorithm::Weighted { plain, .. } => rounds(request, plain),
        _ => None,
    }
}

/// How deep a binary tree of so many is.
fn depth(leaves: u64) -> u64 {
    u64::from(leaves.max(1).next_power_of_two().ilog2())
}

#[cfg(test)]
mod tests {
    use super::super::counted::tests::large;
    use super::*;
    use crate::group::Group;

    /// Looking at a few hosts comes to what looking at all comes to, whatever the layout.
    #[test]
    fn hosts_that_are_looked_at_are_the_busiest() {
        let layouts: [&[u32]; 8] =
            [&[1; 17], &[1; 32], &[1; 50], &[2; 9], &[8; 4], &[8; 8], &[16, 8, 8], &[4, 4, 4, 5, 5, 5]];
        for (sizes, reducers) in
            layouts.into_iter().flat_map(|sizes| [0, 2].map(|reducers| (sizes, reducers)))
        {
            let hosts: Vec<u32> =
                (0..).zip(sizes).flat_map(|(host, size)| (0..*size).map(move |_| host)).collect();
            let group = Group::of_size(hosts.len() as u32);
            for bytes in [64, 16 << 10, 1 << 20, 16 << 20] {
                let request = Request { bytes, reducers, ..large(&group, &hosts) };
                let known =
                    Calibration { port: 62_500_000, reducer_port: 62_500_000, ..Calibration::DEFAULT };
                let sizing = Sizing {
                    hosts: sizes.len() as u32,
                    shared: false,
                    segment_bytes: 0,
                    most_staged: 56 << 20,
                };
                for algorithm in candidates(&request) {
                    let found = price(&request, &algorithm, Environment { known: &known, sizing });
                    let Some(found) = found else { continue };
                    let reducers = if algorithm.needs_reducers() { reducers } else { 0 };
                    let layout = Layout { reducers, hosts: &hosts, links: None };
                    let schedule = algorithm.schedule(request.collective, &group, &layout).unwrap();
                    let rig = machine(&request, &known, reducers);
                    let is_alike = false;
                    let walked =
                        Walked { request: &request, schedule: &schedule, rig: &rig, sizing, is_alike };
                    let all = (0..rig.ports.len() as u32).collect();
                    let exact = walked.time_by(Way::of(&request, &algorithm), all) / NANOSECOND;
                    let ratio = found as f64 / exact as f64;
                    let label = format!("{algorithm} on {sizes:?}, {bytes} B: {found} for {exact}");
                    assert!((0.97..1.001).contains(&ratio), "{label}");
                }
            }
        }
    }

    /// What a choice costs goes with the programs that are made and walked: in a release some 6 us each among 64 ranks.
    #[test]
    fn a_choice_among_64_ranks_walks_few_programs() {
        for (each, reducers, most) in [(1, 0, 40), (1, 16, 80), (4, 0, 130), (8, 0, 130), (32, 0, 240)] {
            let hosts: Vec<u32> = (0..64).map(|rank| rank / each).collect();
            let group = Group::of_size(64);
            let request = Request { bytes: 1 << 20, reducers, ..large(&group, &hosts) };
            let sizing = Sizing { hosts: 64 / each, shared: false, segment_bytes: 0, most_staged: 56 << 20 };
            let programs = |algorithm: Algorithm| {
                let reducers = if algorithm.needs_reducers() { reducers } else { 0 };
                let layout = Layout { reducers, hosts: &hosts, links: None };
                let schedule = algorithm.schedule(request.collective, &group, &layout).ok()?;
                let rig = machine(&request, &Calibration::DEFAULT, reducers);
                let is_alike = is_alike(&algorithm);
                let walked = Walked { request: &request, schedule: &schedule, rig: &rig, sizing, is_alike };
                Some(
                    walked
                        .sampled()
                        .into_iter()
                        .map(|host| walked.work_of(host).members.len())
                        .sum::<usize>(),
                )
            };
            let all: usize = candidates(&request).into_iter().filter_map(programs).sum();
            assert!((1..=most).contains(&all), "{each} on each host: {all} programs");
        }
    }
}
