//! The cost of one way to do a call, counted rather than simulated: nanoseconds that are equal on all ranks, computed
//! in microseconds.
//!
//! Every choice by time asks [`price`]. It walks the programs of a few hosts' members, which are the busiest in this
//! crate's algorithms. It adds up the work of their threads and the load of their ports. With S segments the time has
//! three parts. The first is the time of the busier of the two. The second is 1/S of the other, which waits for the
//! first segment or finishes the last one. The third is the latency of each message of the longest chain. This is the
//! alpha-beta model of Hockney (1994) with the threads' gamma, as Thakur, Rabenseifner and Gropp (2005) use it. The
//! simulator also models windows and queues at ports, for example, and takes a thousand times as long.

use super::{
    Request,
    candidates::{candidates, machine},
    port_loads::host_numbers,
    ports,
    stages::most_on_a_host,
    walked::{Handled, HostWork, MemberWork, Walked, are_equal, ranks_of_hosts},
};
use crate::{
    algorithm::{Algorithm, Layout},
    codec::Codec,
    prepare::{Sizing, cutting},
    schedule::Cut,
    session::lane::{EAGER_BYTES, EAGER_BYTES_HERE},
    simulate::{Calibration, Cores, HEADER_BYTES, Overhead, Picoseconds, duration},
};
use alloc::vec::Vec;

/// The inputs of a price in addition to the call and the algorithm.
#[derive(Clone, Copy, Debug)]
pub struct PriceBasis<'a> {
    /// Constants of the machines, from a calibration or a [latency](Calibration::of_latency).
    pub known: &'a Calibration,
    /// How calls are cut.
    pub sizing: Sizing,
}

/// Picoseconds of a nanosecond.
const NANOSECOND: Picoseconds = 1000;

/// An algorithm and what it costs.
#[derive(Clone, Debug)]
pub(super) struct Priced {
    pub(super) algorithm: Algorithm,
    pub(super) time: Picoseconds,
}

/// The candidates of a request that have a price, the least first.
pub(super) fn prices(request: &Request<'_>, basis: PriceBasis<'_>) -> Vec<Priced> {
    let priced = |algorithm: Algorithm| {
        let time = price(request, &algorithm, basis)?.saturating_mul(NANOSECOND);
        Some(Priced { algorithm, time })
    };
    let mut found: Vec<Priced> = candidates(request).into_iter().filter_map(priced).collect();
    found.sort_by_key(|priced| priced.time);
    found
}

/// The cost of `algorithm` for a request, in nanoseconds, from the call to the last rank's return. All ranks get the
/// same number. Uplinks of sites are priced like ports. `None` if it has no schedule for the request, if messages are
/// coded, or if links that are no ports limit it.
pub fn price(request: &Request<'_>, algorithm: &Algorithm, basis: PriceBasis<'_>) -> Option<u64> {
    let Request { collective, group, hosts, links, .. } = *request;
    let is_tree_of_links = matches!(algorithm, Algorithm::Trees { .. });
    if request.codec != Codec::Plain
        || is_tree_of_links
        || links.is_some() && ports::deciding(request).is_none()
    {
        return None;
    }
    let reducers = if algorithm.needs_reducers() { request.reducers } else { 0 };
    let schedule = algorithm.schedule(collective, group, &Layout { reducers, hosts, links }).ok()?;
    let rig = machine(request, basis.known, reducers);
    let counts = ranks_of_hosts(&rig.hosts[..schedule.workers() as usize]);
    let is_alike = are_equal(&counts) && is_alike(algorithm);
    let walked = Walked { request, schedule: &schedule, rig: &rig, sizing: basis.sizing, is_alike };
    Some(walked.time(Way::of(request, algorithm)) / NANOSECOND)
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
        let costs = &self.rig.costs;
        let busy_with = |comes_back: bool, bucket: u64| {
            let line = PricedLine { comes_back, segments, bucket };
            let port = works.iter().map(|(host, work)| self.port(*host, work, line)).max();
            port.unwrap_or(0).max(self.busiest_uplink(&works, line))
        };
        let port = busy_with(way.comes_back, costs.bucket);
        // What a bucket lets through at once has to flow back into it before the next call, both ways at the same time.
        let sustained = busy_with(false, 0);
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
        let slowest = slowest.max(self.uplink_time(segment));
        let across = [each(costs.send), each(costs.receive), each(costs.fold), slowest, hop];
        let across = across.into_iter().fold(0, Picoseconds::saturating_add).saturating_mul(rounds);
        let inside = each(costs.here).saturating_mul(2).saturating_add(each(costs.fold));
        let inside = inside.saturating_mul(way.local_rounds);
        let first = across.saturating_add(inside).saturating_add(grant);
        let one_by_one = first.saturating_add(busy / segments * (segments - 1));
        costs.call.saturating_add(together.max(one_by_one)).max(sustained)
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

    /// The uplinks of sites, each by its number, out and in, for payload; none where no site is known.
    fn uplinks(&self) -> impl Iterator<Item = [u64; 2]> {
        let count = self.rig.sites.as_ref().map_or(0, |sites| sites.uplinks.len()) as u32;
        (0..count).map(|site| {
            [self.rig.uplink(site, |uplink| uplink.out), self.rig.uplink(site, |uplink| uplink.into)]
        })
    }

    /// How long the slower way of the slowest uplink takes for so many bytes, if that is more than its bucket.
    fn uplink_time(&self, bytes: u64) -> Picoseconds {
        let bytes = bytes.saturating_sub(self.rig.costs.bucket);
        self.uplinks().flatten().map(|rate| duration(bytes, rate)).max().unwrap_or(0)
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
    fn port(&self, host: u32, work: &HostWork, line: PricedLine) -> Picoseconds {
        let port = self.rig.ports[host as usize];
        let count = |member: &MemberWork| member.sent.times.max(member.received.times);
        let messages: u64 = work.members.iter().map(count).sum();
        let messages = match work.stands_for {
            0 => messages,
            all => messages * all / work.members.len() as u64,
        };
        let rates = [port.out, port.into].map(|rate| self.rig.payload_rate(host, rate));
        let carried = work.carried.map(|units| Handled { times: messages, units });
        self.carrying(carried, rates, line)
    }

    /// How long the busiest uplink of a site is busy with what all of the site's hosts send to others and receive from them.
    fn busiest_uplink(&self, works: &[(u32, HostWork)], line: PricedLine) -> Picoseconds {
        let Some(sites) = &self.rig.sites else { return 0 };
        let crossed = |site: u32| {
            let hosts = works.iter().filter(|(host, _)| sites.of_host(*host) == Some(site));
            let members = hosts.flat_map(|(_, work)| &work.members);
            members.fold([Handled::default(); 2], |[out, into], member| {
                let [more_out, more_into] = member.crossed;
                [out.plus(more_out), into.plus(more_into)]
            })
        };
        let times = (0..).zip(self.uplinks()).map(|(site, rates)| self.carrying(crossed(site), rates, line));
        times.max().unwrap_or(0)
    }

    /// How long a port or an uplink is busy with what goes out of it and into it, at these rates for payload.
    fn carrying(&self, [out, into]: [Handled; 2], rates: [u64; 2], line: PricedLine) -> Picoseconds {
        let PricedLine { comes_back, segments, bucket } = line;
        let busy = |carried: Handled, rate: u64| {
            let headers = (HEADER_BYTES * carried.times).saturating_mul(segments);
            let bytes = self.bytes(carried.units).saturating_add(headers);
            duration(bytes.saturating_sub(bucket), rate)
        };
        let ways = [busy(out, rates[0]), busy(into, rates[1])];
        let (more, less) = (ways[0].max(ways[1]), ways[0].min(ways[1]));
        if comes_back { more.saturating_add(less / segments) } else { more }
    }
}

/// How a port or an uplink is used.
#[derive(Clone, Copy, Debug)]
struct PricedLine {
    /// Whether results come back, that of the last segment after all inputs have gone out.
    comes_back: bool,
    /// How many segments there are.
    segments: u64,
    /// How many bytes it lets through at once.
    bucket: u64,
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
                    let found = price(&request, &algorithm, PriceBasis { known: &known, sizing });
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
