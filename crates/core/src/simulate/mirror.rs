//! When one rank can stand for all: every rank sends as much as every other, at the same steps.
//!
//! Ranks are numbers of several digits here, in one radix or several. A schedule is alike for all if it stays the same
//! after adding any number digit by digit. Then rank 0's messages to rank p correspond to messages from rank -p (digit
//! by digit) to rank 0, at the same time.

use super::{machine::Rig, workload::Workload};
use crate::{
    group::Rank,
    prepare::{Kind, Outbound, Prepared},
    schedule::{Cut, Form, Step},
    verify::Proof,
};
use alloc::vec::Vec;

/// What comes back to rank 0 for what it sends.
#[derive(Clone, Debug)]
pub(super) struct Mirror {
    /// Per lane of rank 0: the head at which what the opposite rank sends instead is taken.
    pub(super) heads: Vec<u32>,
    /// Per position among the peers: that of the opposite peer.
    pub(super) peers: Vec<u32>,
    /// Whether ranks drift apart in time, which one rank cannot show.
    pub(super) drifts: bool,
}

/// The mirror of rank 0, if all workers are alike: as many on each host, one input each, no reducers, chunks as long as each other, and from the opposite rank
/// comes at the same steps what goes to a rank.
pub(super) fn of(work: &Workload<'_>, machine: &Rig, first: &Prepared) -> Option<Mirror> {
    let schedule = work.verified.schedule();
    let on_host = machine.on_host_of(0);
    let alike = machine.hosts_are_alike(schedule.ranks());
    let ports = machine.ports.windows(2).all(|pair| pair[0] == pair[1]);
    let same_speed = machine.slowness.iter().all(|slowness| *slowness == 1000);
    let is_ordered = machine.random_order.is_none() && work.parts.is_none();
    let is_weighted = matches!(schedule.cut(), Cut::Weighted { .. });
    let alike = alike && !is_weighted && !work.verified.group().has_several();
    if schedule.reducers() > 0
        || !alike
        || !ports
        || !same_speed
        || machine.links.is_some()
        || machine.sites.is_some()
        || !is_ordered
    {
        return None;
    }
    let ranks: Vec<Rank> = first.peers.iter().map(|peer| peer.rank).collect();
    let opposite = opposites(&ranks, schedule.workers()).filter(|peers| fits(first, peers));
    let one_way = || ring(first, schedule.workers()).filter(|peers| fits(first, peers));
    let of_hosts =
        || on_other_hosts(&ranks, schedule.workers(), on_host as u32).filter(|peers| fits(first, peers));
    let peers = opposite.or_else(one_way).or_else(of_hosts)?;
    if !are_alike(work) {
        return None;
    }
    let head = |lane: &Outbound| {
        let from = &first.peers[peers[lane.peer as usize] as usize];
        from.heads[usize::from(lane.index)]
    };
    let heads = first.lanes.iter().map(head).collect();
    // With one partner in each of several stages, whoever is late in one makes the next ones late, while ports are idle.
    let drifts = peers.len() > 2 && (0..).zip(&peers).all(|(at, opposite)| at == *opposite);
    Some(Mirror { heads, peers, drifts })
}

/// The opposite of each of rank 0's peers, by position, if they are all multiples of each digit's stride, a digit's next stride
/// being this one's times its radix.
fn opposites(ranks: &[Rank], workers: u32) -> Option<Vec<u32>> {
    let mut peers = Vec::with_capacity(ranks.len());
    while let Some(&stride) = ranks.get(peers.len()) {
        let start = peers.len();
        let multiples = (1..).zip(&ranks[start..]);
        let multiples = multiples.take_while(|(times, rank)| Some(**rank) == stride.checked_mul(*times));
        let ends = |digits: &usize| {
            let next = ranks.get(start + digits).copied().unwrap_or(workers);
            stride.checked_mul(*digits as u32 + 1) == Some(next)
        };
        let digits = (1..=multiples.count()).rev().find(ends)?;
        peers.extend((start..start + digits).rev().map(|at| at as u32));
    }
    Some(peers)
}

/// The same where a rank is its place on a host, of which there are so many, and a host.
fn on_other_hosts(ranks: &[Rank], workers: u32, on_host: u32) -> Option<Vec<u32>> {
    let hosts = workers / on_host;
    let opposite = |rank: &Rank| {
        let (place, host) = (rank % on_host, rank / on_host);
        let rank = (on_host - place) % on_host + (hosts - host) % hosts * on_host;
        Some(ranks.binary_search(&rank).ok()? as u32)
    };
    ranks.iter().map(opposite).collect()
}

/// The two peers of a ring, each the other's opposite.
fn ring(first: &Prepared, workers: u32) -> Option<Vec<u32>> {
    match first.peers.as_slice() {
        [next, last] if next.rank == 1 && last.rank + 1 == workers => Some(alloc::vec![1, 0]),
        _ => None,
    }
}

/// Whether from the opposite of each peer comes what goes to it: as many messages, of the same forms, over the same medium.
fn fits(first: &Prepared, peers: &[u32]) -> bool {
    let mut forms: Vec<Vec<Form>> = first.peers.iter().map(|_| Vec::new()).collect();
    for step in &first.steps {
        let Kind::Send(send) = &step.kind else { continue };
        for lane in &first.lanes[send.lanes.start as usize..send.lanes.end as usize] {
            forms[lane.peer as usize].push(send.form);
        }
    }
    (0..peers.len()).all(|at| {
        let from = &first.peers[peers[at] as usize];
        let come = from.heads.iter().map(|head| first.heads[*head as usize].form);
        peers[peers[at] as usize] as usize == at
            && from.shared == first.peers[at].shared
            && come.eq(forms[at].iter().copied())
    })
}

/// Whether the last rank has as much to do as the first: steps that send and receive as many messages, in the same order. Counterparts have.
fn are_alike(work: &Workload<'_>) -> bool {
    if work.verified.proof() == Proof::Symmetry {
        return true;
    }
    let schedule = work.verified.schedule();
    let counted = |rank| {
        let program = schedule.program(rank);
        let count = |step: &Step| match *step {
            Step::Send { to, .. } => (program.lanes(to).len(), 0),
            _ => (0, program.received(step).count()),
        };
        program.steps().iter().map(count).collect::<Vec<_>>()
    };
    counted(0) == counted(schedule.workers() - 1)
}
