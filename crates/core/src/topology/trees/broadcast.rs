//! Broadcasts that are made up round by round: in each round as many ranks as can be hear from one that knows.

use super::tree::least_rounds;
use crate::topology::{LinkMatrix, random::SplitMix};
use alloc::{vec, vec::Vec};

/// A tree by the parent of each rank; the root is its own.
pub(super) type Parents = Vec<u8>;

/// A tree and the rounds that its broadcast took.
///
/// Each rank prefers receivers with the least price, by the sender and the receiver; the number of receivers in a round counts
/// first.
pub(super) fn broadcast(
    links: &LinkMatrix,
    root: usize,
    price: &mut impl FnMut(usize, usize) -> f64,
) -> (Parents, u32) {
    let size = links.size();
    let mut parents: Parents = (0..size).map(|rank| rank as u8).collect();
    let mut is_informed = vec![false; size];
    is_informed[root] = true;
    let mut informed = vec![root];
    let mut rounds = 0;
    while informed.len() < size {
        let mut preferences: Vec<Vec<(f64, usize)>> = vec![];
        for from in &informed {
            let open = (0..size).filter(|to| !is_informed[*to] && links.both_ways(*from, *to) > 0.0);
            let mut preference: Vec<(f64, usize)> = open.map(|to| (price(*from, to), to)).collect();
            preference.sort_by(|a, b| a.0.total_cmp(&b.0));
            preferences.push(preference);
        }
        // Senders whose best receiver is cheapest choose first.
        let mut order: Vec<usize> = (0..informed.len()).filter(|at| !preferences[*at].is_empty()).collect();
        order.sort_by(|a, b| preferences[*a][0].0.total_cmp(&preferences[*b][0].0));
        let mut sender: Vec<Option<usize>> = vec![None; size];
        for at in order {
            augment(at, &preferences, &mut sender, &mut vec![false; size]);
        }
        for to in 0..size {
            if let Some(at) = sender[to] {
                parents[to] = informed[at] as u8;
                is_informed[to] = true;
                informed.push(to);
            }
        }
        rounds += 1;
    }
    (parents, rounds)
}

/// Finds a receiver for a sender; earlier ones may move to another receiver (Kuhn, 1955).
fn augment(
    at: usize,
    preferences: &[Vec<(f64, usize)>],
    sender: &mut [Option<usize>],
    seen: &mut [bool],
) -> bool {
    for (_, to) in &preferences[at] {
        if core::mem::replace(&mut seen[*to], true) {
            continue;
        }
        if sender[*to].is_none_or(|other| augment(other, preferences, sender, seen)) {
            sender[*to] = Some(at);
            return true;
        }
    }
    false
}

/// A tree with as few rounds as are found in so many tries: their logarithm where the links allow it, mostly.
pub(super) fn fewest_rounds(
    links: &LinkMatrix,
    root: usize,
    tries: u32,
    random: &mut SplitMix,
) -> (Parents, u32) {
    let size = links.size();
    let degree = |rank: usize| (0..size).filter(|to| links.both_ways(rank, *to) > 0.0).count();
    let degrees: Vec<f64> = (0..size).map(|rank| degree(rank) as f64).collect();
    let mut best: Option<(Parents, u32)> = None;
    for attempt in 0..tries {
        // Ranks that know many others should know early; half of the tries leave that to chance.
        let bias = if attempt % 2 == 0 { 0.5 } else { 0.0 };
        let found = broadcast(links, root, &mut |_, to| random.unit() * 4.0 - bias * degrees[to]);
        if best.as_ref().is_none_or(|(_, rounds)| found.1 < *rounds) {
            best = Some(found);
        }
        if best.as_ref().is_some_and(|(_, rounds)| *rounds == least_rounds(size)) {
            break;
        }
    }
    best.expect("a try")
}
