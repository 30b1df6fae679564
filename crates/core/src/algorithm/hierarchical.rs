//! Two algorithms, one inside hosts and one across them: the slow links carry one partial sum of each host.
//!
//! Inside a host [`radix`](super::radix) scatters: each rank comes to hold the host's partial sum of its chunks. Across
//! hosts the holders of a chunk all-reduce it: by more stages of radix, by doubling, in one shot or through a reducer.
//! Then each host gathers. The shape stays canonical because a host's ranks are a whole node of the canonical tree.

use super::owners::{Level, Node, levels, stages};
use super::partial::Partial;
use super::radix::{Halves, checked, lone_ranks};
use super::reduction_server::Served;
use super::{Algorithm, Layout, Unsupported, doubling, one_shot};
use crate::group::{Group, Rank};
use crate::schedule::{Chunk, Cut, Place, Program, ProgramBuilder, Schedule};
use alloc::{collections::BTreeSet, string::ToString, vec::Vec};
use core::ops::Range;

pub(super) fn all_reduce(
    group: &Group,
    layout: &Layout<'_>,
    inner: &Algorithm,
    outer: &Algorithm,
) -> Result<Schedule, Unsupported> {
    let (inside, outer) = composed(inner, outer)?;
    let (inside, keys) = (inside.to_vec(), group.keys().to_vec());
    let hosts = whole_hosts(&keys, layout.hosts)?;
    let workers = group.size();
    let largest = hosts.iter().map(|host| host.len() as u32).max().expect("a host");
    let in_turn = |chunks| hosts.iter().map(|host| Node::in_turn(host.clone(), chunks)).collect();
    let (chunks, reducers, across) = match outer {
        Outer::Radix(factors) => (workers, 0, Across::Stages(levels(&keys, hosts, factors))),
        Outer::Exchange(exchange) => (largest, 0, Across::Exchange(in_turn(largest), exchange)),
        Outer::Served => {
            let reducers = layout.at_least_one()?;
            let (each, nodes) = (largest, in_turn(largest * reducers));
            (largest * reducers, reducers, Across::Served(Served { workers, reducers, each, nodes }))
        }
    };
    Ok(Schedule::generated(workers, reducers, Cut::Even { chunks }, move |rank| match &across {
        Across::Served(served) if rank >= workers => served.reducer(&keys, rank - workers),
        across => program(&keys, chunks, &inside, across, rank),
    }))
}

type Exchange = fn(&mut ProgramBuilder, Rank, &[Partial], Chunk, Place);

enum Outer<'a> {
    Radix(&'a [u32]),
    Exchange(Exchange),
    Served,
}

fn composed<'a>(inner: &'a Algorithm, outer: &'a Algorithm) -> Result<(&'a [u32], Outer<'a>), Unsupported> {
    use Algorithm::{Doubling, OneShot, ReductionServer};
    let refused = || Unsupported::Composition { inner: inner.to_string(), outer: outer.to_string() };
    let inside = checked(both_halves(inner).ok_or_else(refused)?)?;
    let across = match outer {
        Doubling => Outer::Exchange(doubling::exchange),
        OneShot => Outer::Exchange(one_shot::exchange),
        ReductionServer => Outer::Served,
        _ => Outer::Radix(checked(both_halves(outer).ok_or_else(refused)?)?),
    };
    Ok((inside, across))
}

/// The factors of a radix that scatters and gathers with the same ones.
fn both_halves(algorithm: &Algorithm) -> Option<&[u32]> {
    match algorithm {
        Algorithm::Radix { scatter, gather } if scatter == gather => Some(scatter),
        _ => None,
    }
}

/// What happens above the hosts: more stages of the same scatter, or an all-reduce of each chunk on its own.
enum Across {
    Stages(Vec<Level>),
    Exchange(Vec<Node>, Exchange),
    Served(Served),
}

fn program(keys: &[u32], chunks: u32, inside: &[u32], across: &Across, rank: Rank) -> Program {
    let (above, host) = match across {
        Across::Stages(levels) => stages(levels, Node::in_turn(0..keys.len() as Rank, chunks), rank),
        Across::Exchange(hosts, _) | Across::Served(Served { nodes: hosts, .. }) => {
            let host = hosts.iter().find(|host| host.ranks.contains(&rank)).expect("hosts cover all ranks");
            (Vec::new(), host.clone())
        }
    };
    let inner_levels = levels(keys, lone_ranks(host.ranks.clone()), inside);
    let (mut stages, _) = stages(&inner_levels, host.clone(), rank);
    stages.extend(above);

    let halves = Halves { keys, rank, chunks, stages };
    let mut program = ProgramBuilder::new();
    let held = halves.reduce_scatter(&mut program);
    match across {
        Across::Stages(_) => {}
        Across::Exchange(hosts, exchange) => {
            for chunk in halves.owned(&host) {
                let partials: Vec<Partial> =
                    hosts.iter().map(|host| Partial::of(host, chunk, keys)).collect();
                exchange(&mut program, rank, &partials, chunk, held[chunk as usize]);
            }
        }
        Across::Served(served) => served.exchange(&mut program, rank, halves.owned(&host), &held),
    }
    halves.all_gather(&mut program);
    program.build()
}

/// The ranks of each host, if each host is a whole node of the canonical tree and there are levels inside and across.
fn whole_hosts(keys: &[u32], hosts: &[u32]) -> Result<Level, Unsupported> {
    let workers = keys.len() as u32;
    if hosts.len() != keys.len() {
        return Err(Unsupported::UnknownHosts { known: hosts.len(), workers });
    }
    let mut known = BTreeSet::new();
    let mut runs = Level::new();
    for run in hosts.chunk_by(|a, b| a == b) {
        let start = runs.last().map_or(0, |last| last.end);
        let run_of_ranks = start..start + run.len() as Rank;
        if !known.insert(run[0]) || !is_node(keys, &run_of_ranks) {
            return Err(Unsupported::SplitHost { rank: start });
        }
        runs.push(run_of_ranks);
    }
    match runs.len() {
        1 => Err(Unsupported::OneHost { workers }),
        lone if lone == keys.len() => Err(Unsupported::LoneWorkers { workers }),
        _ => Ok(runs),
    }
}

/// Whether the ranks of a run are all that lie below one node of the canonical tree.
fn is_node(keys: &[u32], run: &Range<Rank>) -> bool {
    let (first, last) = (keys[run.start as usize], keys[run.end as usize - 1]);
    let below = u32::BITS - (first ^ last).leading_zeros();
    let outside = |key: &u32| key.checked_shr(below) != first.checked_shr(below);
    let before = run.start.checked_sub(1).map(|rank| &keys[rank as usize]);
    before.is_none_or(outside) && keys.get(run.end as usize).is_none_or(outside)
}
