//! The time for which links are busy, if they are known: trees, `radix` in other stages, or the choice by sizes and
//! hosts.

use super::{Choice, LINKED_BYTES, Request};
use crate::algorithm::{Algorithm, Layout};
use crate::collective::Collective;
use crate::schedule::{Rank, Schedule, SlotChunks, Step};
use crate::topology::LinkMatrix;
use alloc::{format, string::String, vec, vec::Vec};

/// The algorithm that leaves least to the slowest link: the choice, trees, or `radix` in any stages. The choice stays where they
/// leave no less.
pub(super) fn lighter(request: &Request<'_>, choice: Choice) -> Choice {
    let Request { collective, bytes, group, links, .. } = *request;
    let Some(links) = links.filter(|_| collective == Collective::AllReduce && bytes >= LINKED_BYTES) else {
        return choice;
    };
    let timed = |algorithm: Algorithm| {
        let layout = Layout { reducers: request.reducers, hosts: request.hosts, links: Some(links) };
        let schedule = algorithm.schedule(collective, group, &layout).ok()?;
        Some((busiest(&schedule, links), algorithm))
    };
    let (trees, radix) = (Algorithm::Trees { mode: None, single: false }, Algorithm::radix(vec![]));
    let mut others = vec![trees.clone(), radix.clone()];
    others.extend(best_stages(request, links).filter(|staged| !others.contains(staged)));
    others.retain(|other| *other != choice.algorithm);
    let others: Vec<(f64, Algorithm)> = others.into_iter().filter_map(timed).collect();
    let Some((own, _)) = timed(choice.algorithm.clone()) else { return choice };
    let named = |(time, algorithm): &(f64, Algorithm)| match time.is_finite() {
        true => format!("{} with {algorithm}", shown(*time)),
        false => format!("{algorithm} needs a missing link"),
    };
    let best = others.iter().filter(|(time, _)| *time < own).min_by(|a, b| a.0.total_cmp(&b.0));
    let worse: Vec<String> = others
        .iter()
        .filter(|other| [&trees, &radix].contains(&&other.1) && best.is_none_or(|best| best.1 != other.1))
        .map(named)
        .chain(best.map(|_| named(&(own, choice.algorithm.clone()))))
        .collect();
    match best {
        Some((time, algorithm)) => {
            let why = format!("the slowest link is busy for {}, {}", shown(*time), worse.join(", "));
            Choice { algorithm: algorithm.clone(), why }
        }
        None => {
            let Choice { algorithm, why } = choice;
            let why = format!("{why}; its slowest link is busy for {}, {}", shown(own), worse.join(", "));
            Choice { algorithm, why }
        }
    }
}

/// `radix` with the stages, of each half its own, that leave least to the slowest link.
fn best_stages(request: &Request<'_>, links: &LinkMatrix) -> Option<Algorithm> {
    let Request { group, reducers, hosts, .. } = *request;
    let layout = Layout { reducers, hosts, links: Some(links) };
    let all = stages(group.size());
    let half = |collective: Collective| {
        let sent = |factors: &Vec<u32>| {
            let schedule = Algorithm::radix(factors.clone()).schedule(collective, group, &layout).ok()?;
            Some((factors.clone(), sent(&schedule, links.size())))
        };
        all.iter().filter_map(sent).collect::<Vec<_>>()
    };
    let (scatters, gathers) = (half(Collective::ReduceScatter), half(Collective::AllGather));
    let pairs = scatters.iter().flat_map(|scatter| gathers.iter().map(move |gather| (scatter, gather)));
    let timed = pairs.map(|((scatter, down), (gather, up))| {
        let sent: Vec<u32> = down.iter().zip(up).map(|(down, up)| down + up).collect();
        (busy(&sent, links), scatter.len().max(1) + gather.len().max(1), scatter, gather)
    });
    let best = timed.min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)))?;
    Some(Algorithm::Radix { scatter: best.2.clone(), gather: best.3.clone() })
}

/// The stages in which so many ranks can scatter or gather, fewer before more: powers of two whose product has a place for each
/// rank.
fn stages(ranks: u32) -> Vec<Vec<u32>> {
    let doublings = ranks.next_power_of_two().ilog2();
    let mut all = vec![vec![]];
    // A bit says whether a stage ends after a doubling.
    for ends in 1..1u32 << doublings.saturating_sub(1) {
        let mut factors = vec![2];
        for doubling in 1..doublings {
            match (ends >> (doubling - 1) & 1, factors.last_mut()) {
                (0, Some(factor)) => *factor *= 2,
                _ => factors.push(2),
            }
        }
        all.push(factors);
    }
    all.sort_by_key(Vec::len);
    all
}

/// How many seconds of a GB the slowest link is busy: what it carries each way, by its bandwidth. Infinite where a link is used
/// that is not there.
pub(super) fn busiest(schedule: &Schedule, links: &LinkMatrix) -> f64 {
    busy(&sent(schedule, links.size()), links) / f64::from(schedule.cut().units())
}

/// A sender and a receiver of a schedule that no link connects, if there are any.
pub fn missing_link(schedule: &Schedule, links: &LinkMatrix) -> Option<[Rank; 2]> {
    let size = links.size();
    let sent = sent(schedule, size);
    let is_missing = |at: &usize| sent[*at] > 0 && links.speed(at / size, at % size) <= 0.0;
    (0..sent.len()).find(is_missing).map(|at| [(at / size) as Rank, (at % size) as Rank])
}

/// The chunks, or [units](crate::schedule::Cut::units) of the buffer, that each rank sends to each other one.
fn sent(schedule: &Schedule, size: usize) -> Vec<u32> {
    let mut sent = vec![0u32; size * size];
    for rank in 0..size.min(schedule.workers() as usize) {
        let program = schedule.program(rank as u32);
        let program = program.chunk_by_chunk();
        let mut held = SlotChunks::new(&program, schedule.cut().chunks());
        for step in program.steps() {
            held.step(step);
            if let Step::Send { from, to } = *step {
                let units = schedule.cut().units_of(held.chunk(from));
                // Reducers stand behind links of which nothing is known.
                let workers = program.lanes(to).iter().filter(|to| (**to as usize) < size);
                workers.for_each(|to| sent[rank * size + *to as usize] += units);
            }
        }
    }
    sent
}

/// How long the slowest link is busy with so many chunks.
fn busy(sent: &[u32], links: &LinkMatrix) -> f64 {
    let size = links.size();
    let used = sent.iter().enumerate().filter(|(_, sent)| **sent > 0);
    let time = |(at, sent): (usize, &u32)| f64::from(*sent) / links.speed(at / size, at % size);
    used.map(time).fold(0.0, f64::max)
}

fn shown(seconds: f64) -> String {
    match seconds.is_finite() {
        true => format!("{:.2} ms/GB", 1000.0 * seconds),
        false => "ever, as a link that it needs is not there".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_order_of_stages_is_there_once() {
        assert_eq!(stages(8), [vec![], vec![2, 4], vec![4, 2], vec![2, 2, 2]].map(Vec::from));
        assert_eq!(stages(5).len(), 4);
        assert_eq!((stages(1), stages(2), stages(64).len()), (vec![vec![]], vec![vec![]], 32));
    }
}
