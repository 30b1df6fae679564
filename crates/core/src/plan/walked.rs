//! The work of a few hosts' members in a schedule, counted from their programs.

use super::Request;
use crate::{
    prepare::Sizing,
    schedule::{Form, Origin, Place, Program, Rank, Schedule, SlotChunks, Step},
    simulate::Rig,
};
use alloc::{vec, vec::Vec};

/// The programs of so many members are all looked at.
const FEW_MEMBERS: u32 = 16;

/// What so many messages, folds or copies work on: `units` of the buffer, each as wide as an element.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Handled {
    pub(super) times: u64,
    pub(super) units: u64,
}

impl Handled {
    pub(super) fn add(&mut self, units: u64) {
        self.times += 1;
        self.units += units;
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self { times: self.times + other.times, units: self.units + other.units }
    }
}

/// What one member does in a segment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MemberWork {
    pub(super) sent: Handled,
    pub(super) received: Handled,
    /// Messages to and from ranks of its host.
    pub(super) here: Handled,
    pub(super) folded: Handled,
    pub(super) copied: Handled,
    /// Out of its site, and into it.
    pub(super) crossed: [Handled; 2],
    /// How often it sends to other hosts after it has received something: as many rounds as its own program shows.
    pub(super) turns: u64,
}

impl MemberWork {
    /// The same where chunks that lie side by side go together: so many messages in place of as many of one chunk.
    pub(super) fn together(self, messages: u64, one_by_one: u64) -> Self {
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
            crossed: self.crossed.map(fewer),
            ..self
        }
    }
}

/// What the members of a host do.
#[derive(Clone, Debug, Default)]
pub(super) struct HostWork {
    pub(super) members: Vec<MemberWork>,
    /// How much of the buffer goes out of its port, and into it.
    pub(super) carried: [u64; 2],
    /// How many chunks go in a message at most.
    pub(super) span: u32,
    /// For how many members those that were looked at stand; 0 for themselves alone.
    pub(super) stands_for: u64,
}

/// A schedule on its machines.
pub(super) struct Walked<'a> {
    pub(super) request: &'a Request<'a>,
    pub(super) schedule: &'a Schedule,
    pub(super) rig: &'a Rig,
    pub(super) sizing: Sizing,
    /// Whether the ranks of a host do the same.
    pub(super) is_alike: bool,
}

impl Walked<'_> {
    /// So many units of the buffer in bytes.
    pub(super) fn bytes(&self, units: u64) -> u64 {
        let whole = u128::from(self.schedule.cut().units().max(1));
        let bytes = (u128::from(self.request.bytes) * u128::from(units)).div_ceil(whole);
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// The hosts that are looked at: all where there are few members, hosts differ in size, or uplinks add up what their sites' hosts send;
    /// else the first, the middle and the last with workers, the slowest, and the first and the last reducer.
    pub(super) fn sampled(&self) -> Vec<u32> {
        let Rig { hosts, ports, .. } = self.rig;
        let workers = &hosts[..self.schedule.workers() as usize];
        let last = workers.iter().copied().max().unwrap_or(0);
        let has_sites = self.rig.sites.is_some();
        if has_sites || self.schedule.ranks() <= FEW_MEMBERS || !are_equal(&ranks_of_hosts(workers)) {
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
    pub(super) fn work_of(&self, host: u32) -> HostWork {
        let hosts = &self.rig.hosts[..self.schedule.ranks() as usize];
        let all: Vec<Rank> =
            (0..).zip(hosts).filter(|(_, other)| **other == host).map(|(rank, _)| rank).collect();
        let (middle, last) = (all.len() / 2, all.len().saturating_sub(1));
        // Of its ranks three stand for all if its port does not count, or if they do the same.
        let is_sampled = (all.len() == hosts.len() || self.is_alike)
            && self.rig.sites.is_none()
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

    /// Whether what a member sends another one goes through the uplink of its site, or what it receives from it.
    fn crosses(&self, member: Rank, other: Rank) -> bool {
        let Some(sites) = &self.rig.sites else { return false };
        let [own, other] = [member, other].map(|rank| sites.of_host(self.rig.hosts[rank as usize]));
        own.is_some() && own != other
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
                if self.crosses(rank, lane) {
                    work.crossed[1].add(units);
                }
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
                        if self.crosses(rank, *lane) {
                            work.crossed[0].add(units);
                        }
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
}

/// How many messages a program sends.
fn messages(program: &Program) -> u64 {
    let sent = program.steps().iter().map(|step| match *step {
        Step::Send { to, .. } => program.lanes(to).len() as u64,
        _ => 0,
    });
    sent.sum()
}

/// How many ranks each host has, of the first to the last.
pub(super) fn ranks_of_hosts(hosts: &[u32]) -> Vec<u32> {
    let count = hosts.iter().max().map_or(0, |last| *last as usize + 1);
    hosts.iter().fold(vec![0; count], |mut counts, host| {
        counts[*host as usize] += 1;
        counts
    })
}

pub(super) fn are_equal(counts: &[u32]) -> bool {
    counts.windows(2).all(|pair| pair[0] == pair[1])
}
