//! Counts the data that a schedule's programs send from host to host.

use crate::group::Rank;
use crate::schedule::{Cut, Form, Program, Schedule, SlotChunks, Step};
use alloc::{collections::BTreeMap, vec, vec::Vec};

/// The number of [units](crate::schedule::Cut::units) of the buffer (chunks if all are equal) that go through the
/// busiest host's link, one way. It is the most that a host sends to others, or receives from them. `hosts` is as in
/// [`Layout::hosts`](crate::algorithm::Layout::hosts); a worker without one, and each reducer, has a host of its own.
/// Partial sums are multiplied by `widening`.
pub fn busiest_link(schedule: &Schedule, hosts: &[u32], widening: u32) -> u64 {
    let hosts = Hosts::of(schedule.ranks(), hosts);
    let (mut sent, mut received) = (vec![0; hosts.count], vec![0; hosts.count]);
    let mut count = |from: Rank, to: Rank, units: u64| {
        let (from, to) = (hosts.of[from as usize], hosts.of[to as usize]);
        if from != to {
            sent[from] += units;
            received[to] += units;
        }
    };
    let mut programs = schedule.programs();
    match schedule.symmetry() {
        Some(symmetry) => {
            for first in (0..schedule.ranks()).step_by(symmetry.size() as usize) {
                let lanes = sent_units(&programs(first), schedule.cut(), widening);
                for by in 0..symmetry.size() {
                    let from = symmetry.rank(first, by);
                    lanes.iter().for_each(|(to, units)| count(from, symmetry.rank(*to, by), *units));
                }
            }
        }
        None => {
            for rank in 0..schedule.ranks() {
                let lanes = sent_units(&programs(rank), schedule.cut(), widening);
                lanes.into_iter().for_each(|(to, units)| count(rank, to, units));
            }
        }
    }
    sent.into_iter().chain(received).max().unwrap_or(0)
}

/// The units that a program sends to each rank, as often as they are wide.
fn sent_units(program: &Program, cut: &Cut, widening: u32) -> BTreeMap<Rank, u64> {
    let program = &*program.chunk_by_chunk();
    let (mut held, mut sent) = (SlotChunks::new(program, cut.chunks()), BTreeMap::new());
    for step in program.steps() {
        held.step(step);
        let Step::Send { from, to } = *step else { continue };
        let wide = program.form(from) == Some(Form::Acc);
        let units = u64::from(cut.units_of(held.chunk(from)));
        let units = if wide { u64::from(widening) * units } else { units };
        program.lanes(to).iter().for_each(|lane| *sent.entry(*lane).or_insert(0) += units);
    }
    sent
}

/// The hosts of all ranks, as numbers from 0 up.
struct Hosts {
    of: Vec<usize>,
    count: usize,
}

impl Hosts {
    fn of(ranks: u32, hosts: &[u32]) -> Self {
        let mut known = BTreeMap::new();
        let host = |rank: Rank| hosts.get(rank as usize).map_or((1, rank), |host| (0, *host));
        let numbered = |rank: Rank| {
            let next = known.len();
            *known.entry(host(rank)).or_insert(next)
        };
        let of = (0..ranks).map(numbered).collect();
        Self { of, count: known.len() }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::Request;
    use super::*;
    use crate::algorithm::{Algorithm, Layout};
    use crate::codec::Codec;
    use crate::collective::Collective;
    use crate::group::Group;

    /// An all-reduce of so much that only links count.
    pub(crate) fn large<'a>(group: &'a Group, hosts: &'a [u32]) -> Request<'a> {
        let (collective, bytes) = (Collective::AllReduce, 1 << 40);
        Request {
            collective,
            bytes,
            widening: 1,
            group,
            reducers: 0,
            hosts,
            forced: None,
            codec: Codec::Plain,
            links: None,
            ports: None,
        }
    }

    /// How many chunks the busiest link carries, and how many the buffer has.
    pub(crate) fn busiest(request: &Request<'_>, algorithm: &Algorithm) -> (u64, u64) {
        let layout = Layout { reducers: request.reducers, hosts: request.hosts, links: None };
        let schedule = algorithm.schedule(request.collective, request.group, &layout).unwrap();
        let chunks = u64::from(schedule.cut().units());
        (busiest_link(&schedule, request.hosts, request.widening), chunks)
    }

    #[test]
    fn what_stays_inside_a_host_goes_through_no_link() {
        let group = Group::of_size(4);
        let carried = |hosts: &[u32]| busiest(&large(&group, hosts), &Algorithm::OneShot).0;
        assert_eq!(carried(&[0; 4]), 0);
        assert_eq!(carried(&[0, 0, 0, 1]), 3);
        assert_eq!(carried(&[]), 3, "each has a host of its own");
    }
}
