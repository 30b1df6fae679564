//! Two algorithms, one inside hosts and one across them: the slow links carry the sums of each host's ranks.
//!
//! Inside a host [`radix`] scatters: each rank then holds the host's partial sum of its chunks. Across hosts the
//! holders of a chunk all-reduce it: by more stages of radix, by doubling, in one shot or through a reducer. Then each
//! host gathers.
//!
//! The shape stays canonical, because the operands of every sum are nodes of the canonical tree. The ranks of a host
//! can be one node, such as ranks 4 to 7. Other hosts, such as one with three ranks, have several nodes, the host's
//! *pieces*, and radix across hosts takes one partial sum of each piece. Data that is gathered has no shape, and enters
//! each host once.

use super::owners::{Level, Node, Walk, levels};
use super::partial::Partial;
use super::radix::{self, Halves, all_levels, checked, lone_ranks};
use super::reduction_server::Served;
use super::shares::{Owners, Shares};
use super::{Algorithm, Layout, Unsupported, doubling, one_shot};
use crate::collective::Collective;
use crate::group::{Group, Rank, nodes_of};
use crate::schedule::{Chunk, Cut, Form, Place, Program, ProgramBuilder, Schedule};
use alloc::{collections::BTreeSet, string::ToString, vec::Vec};
use core::ops::Range;

pub(super) fn all_reduce(
    group: &Group,
    layout: &Layout<'_>,
    inner: &Algorithm,
    outer: &Algorithm,
    shares: Option<&Shares>,
) -> Result<Schedule, Unsupported> {
    let (inside, outer) = composed(inner, outer)?;
    let reducers = match outer {
        Outer::Radix(across) => {
            let [scatter, gather] = both_levels(group, layout.hosts, inside, across)?;
            return Ok(radix::both_halves(group, shares, scatter, gather));
        }
        Outer::ChunkAllReduce(_) => 0,
        Outer::Served => layout.at_least_one()?,
    };
    let (inside, keys, workers) = (inside.to_vec(), group.keys().to_vec(), group.size());
    let hosts = whole_hosts(group, layout.hosts)?;
    let each = hosts.iter().map(|host| host.len() as u32).max().expect("a host");
    let owners = shares.map_or_else(|| Owners::even(reducers.max(1)), Owners::of);
    let (cut, chunks) = (owners.cut(each, false), owners.len() * each);
    let nodes = hosts.into_iter().map(|host| Node::in_turn(host, chunks)).collect();
    let across = match outer {
        Outer::ChunkAllReduce(all_reduce_chunk) => Across::ChunkAllReduce(nodes, all_reduce_chunk),
        _ => Across::Served(Served { workers, owners, each, nodes }),
    };
    Ok(Schedule::generated(workers, reducers, cut, move |rank| match &across {
        Across::Served(served) if rank >= workers => served.reducer(&keys, rank - workers),
        across => program(&keys, chunks, &inside, across, rank),
    }))
}

/// The reduce_scatter or, as `collective` says, the all_gather.
pub(super) fn half(
    collective: Collective,
    group: &Group,
    layout: &Layout<'_>,
    inner: &Algorithm,
    outer: &Algorithm,
) -> Result<Schedule, Unsupported> {
    Ok(half_through(collective, group, staged(group, layout, inner, outer)?))
}

/// The half of a collective through its levels, of those of both.
pub(super) fn half_through(collective: Collective, group: &Group, levels: [Vec<Level>; 2]) -> Schedule {
    let [scatter, gather] = levels;
    match collective {
        Collective::ReduceScatter => radix::half(group, Some(scatter), None),
        _ => radix::half(group, None, Some(gather)),
    }
}

/// The levels of two radixes, of which either half can do without the other.
fn staged(
    group: &Group,
    layout: &Layout<'_>,
    inner: &Algorithm,
    outer: &Algorithm,
) -> Result<[Vec<Level>; 2], Unsupported> {
    match composed(inner, outer)? {
        (inside, Outer::Radix(across)) => both_levels(group, layout.hosts, inside, across),
        _ => Err(Unsupported::Halves { outer: outer.to_string() }),
    }
}

type ChunkAllReduce = fn(&mut ProgramBuilder, Rank, &[Partial], Chunk, Place);

enum Outer<'a> {
    Radix(&'a [u32]),
    ChunkAllReduce(ChunkAllReduce),
    Served,
}

fn composed<'a>(inner: &'a Algorithm, outer: &'a Algorithm) -> Result<(&'a [u32], Outer<'a>), Unsupported> {
    use Algorithm::{Doubling, OneShot, ReductionServer};
    let refused = || Unsupported::Composition { inner: inner.to_string(), outer: outer.to_string() };
    let inside = checked(same_factors(inner).ok_or_else(refused)?)?;
    let across = match outer {
        Doubling => Outer::ChunkAllReduce(doubling::all_reduce_chunk),
        OneShot => Outer::ChunkAllReduce(one_shot::all_reduce_chunk),
        ReductionServer => Outer::Served,
        _ => Outer::Radix(checked(same_factors(outer).ok_or_else(refused)?)?),
    };
    Ok((inside, across))
}

/// The factors of a radix that scatters and gathers with the same ones.
pub(super) fn same_factors(algorithm: &Algorithm) -> Option<&[u32]> {
    match algorithm {
        Algorithm::Radix { scatter, gather } if scatter == gather => Some(scatter),
        _ => None,
    }
}

/// How each chunk is all-reduced across hosts on its own.
enum Across {
    ChunkAllReduce(Vec<Node>, ChunkAllReduce),
    Served(Served),
}

fn program(keys: &[u32], chunks: u32, inside: &[u32], across: &Across, rank: Rank) -> Program {
    let (Across::ChunkAllReduce(hosts, _) | Across::Served(Served { nodes: hosts, .. })) = across;
    let host = hosts.iter().find(|host| host.ranks.contains(&rank)).expect("hosts cover all ranks");
    let levels = levels(keys, lone_ranks(host.ranks.clone()), inside);
    let stages = Walk::new(levels, host.clone()).to(rank);
    let halves = Halves { keys, rank, chunks, stages, symmetry: None };
    let mut program = ProgramBuilder::new();
    let held = halves.reduce_scatter(&mut program);
    match across {
        Across::ChunkAllReduce(hosts, all_reduce_chunk) => {
            for chunk in halves.owned(host) {
                let partials: Vec<Partial> =
                    hosts.iter().map(|host| Partial::of(host, chunk, keys)).collect();
                all_reduce_chunk(&mut program, rank, &partials, chunk, held[chunk as usize]);
            }
        }
        Across::Served(served) => served.all_reduce_chunks(&mut program, rank, halves.owned(host), &held),
    }
    halves.all_gather(&mut program);
    program.build()
}

/// The levels to scatter through, which end in pieces of hosts, and those to gather through, which end in hosts.
fn both_levels(
    group: &Group,
    hosts: &[u32],
    inside: &[u32],
    across: &[u32],
) -> Result<[Vec<Level>; 2], Unsupported> {
    let partition = NestedRuns { pieces: pieces_of_hosts(group, hosts)?, inside: inside.to_vec() };
    Ok(nested_levels(group.keys(), &[partition], across))
}

/// Runs of ranks that together are all ranks, such as hosts, or the sites that these are in.
#[derive(Clone, Debug)]
pub(super) struct NestedRuns {
    /// Of each run: the largest nodes of the canonical tree that lie within it.
    pub(super) pieces: Vec<Level>,
    /// The factors of the stages inside of a run, from the runs of the partition before this one, or from lone ranks.
    pub(super) inside: Vec<u32>,
}

impl NestedRuns {
    fn runs(&self) -> Level {
        self.pieces.iter().map(whole).collect()
    }
}

/// The levels to scatter through, which pass the pieces of each partition, and those to gather through, which pass its runs. Each run of a
/// partition is made of runs of the one before it.
pub(super) fn nested_levels(keys: &[u32], partitions: &[NestedRuns], across: &[u32]) -> [Vec<Level>; 2] {
    let (mut scatter, mut nodes) = (Vec::new(), lone_ranks(0..keys.len() as Rank));
    for partition in partitions {
        let pieces: Level = partition.pieces.iter().flatten().cloned().collect();
        scatter.extend(levels_below(keys, &nodes, &pieces, &partition.inside));
        nodes = pieces;
    }
    scatter.extend(levels(keys, nodes, across));
    if partitions.iter().flat_map(|partition| &partition.pieces).all(|pieces| pieces.len() == 1) {
        return [scatter.clone(), scatter];
    }
    // Nothing is added up, so that runs may be told apart by their places in the list.
    let (mut gather, mut nodes, mut places) = (Vec::new(), lone_ranks(0..keys.len() as Rank), keys.to_vec());
    for partition in partitions {
        let runs = partition.runs();
        gather.extend(levels_below(&places, &nodes, &runs, &partition.inside));
        places = (0..).zip(&runs).flat_map(|(at, run)| run.clone().map(move |_| at)).collect();
        nodes = runs;
    }
    gather.extend(levels(&places, nodes, across));
    [scatter, gather]
}

/// What the link of each host carries while a buffer is scattered, and while it is gathered, in an all-reduce or one of its halves, by a radix or by one inside
/// hosts and one across them: in parts of which the buffer has one for each rank, or, [by shares](Algorithm::Weighted), in the
/// [units](crate::schedule::Cut::units) of its cut. Partial sums are `widening` times as wide.
///
/// # Errors
/// As [`pieces_of_hosts`]; and for other algorithms.
pub(crate) fn carried(
    group: &Group,
    hosts: &[u32],
    algorithm: &Algorithm,
    collective: Collective,
    widening: u64,
) -> Result<[Vec<Carried>; 2], Unsupported> {
    let pieces = pieces_of_hosts(group, hosts)?;
    let (algorithm, shares) = match algorithm {
        Algorithm::Weighted { plain, shares } => (&**plain, Some(shares)),
        plain => (plain, None),
    };
    let workers = group.size();
    let [scatter, gather] = match algorithm {
        Algorithm::Radix { scatter, gather } => [scatter, gather].map(|factors| all_levels(group, factors)),
        Algorithm::Hierarchical { inner, outer } => {
            staged(group, &Layout { reducers: 0, hosts, links: None }, inner, outer)?
        }
        other => return Err(Unsupported::Halves { outer: other.to_string() }),
    };
    let (cut, all) = match collective {
        Collective::AllReduce => radix::owned(group.keys(), shares, [&scatter, &gather]),
        _ => (Cut::Given { parts: workers }, Node::in_turn(0..workers, workers)),
    };
    let host_of: Vec<usize> =
        pieces.iter().enumerate().flat_map(|(host, pieces)| whole(pieces).map(move |_| host)).collect();
    let mut links = [(); 2].map(|()| alloc::vec![Carried::default(); pieces.len()]);
    let [scattered, gathered] = &mut links;
    crossings(&scatter, &all, &host_of, &mut |part, chunk, [own, above]| {
        let units = u64::from(cut.units_of(chunk));
        let wide = if part.form() == Form::Acc { widening * units } else { units };
        scattered[own].out += wide;
        scattered[above].into += wide;
    });
    crossings(&gather, &all, &host_of, &mut |_, chunk, [own, above]| {
        let units = u64::from(cut.units_of(chunk));
        gathered[above].out += units;
        gathered[own].into += units;
    });
    Ok(links)
}

/// What a link carries each way.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Carried {
    pub(crate) out: u64,
    pub(crate) into: u64,
}

/// Calls `crosses` for each chunk of each node whose owner is on another host than the chunk's owner one level above, with both
/// hosts.
fn crossings(
    levels: &[Level],
    whole: &Node,
    host_of: &[usize],
    crosses: &mut impl FnMut(&Node, Chunk, [usize; 2]),
) {
    let host = |rank: Rank| host_of[rank as usize];
    let Some((level, below)) = levels.split_last() else { return };
    if host(whole.ranks.start) == host(whole.ranks.end - 1) {
        return;
    }
    for part in level.iter().filter(|part| whole.ranks.contains(&part.start)) {
        let part = whole.below(part.clone());
        for chunk in 0..whole.chunks() {
            let hosts = [host(part.owner(chunk)), host(whole.owner(chunk))];
            if hosts[0] != hosts[1] {
                crosses(&part, chunk, hosts);
            }
        }
        crossings(below, &part, host_of, crosses);
    }
}

/// The levels from these nodes up to runs of them, without the runs themselves: of each run as many as it has, the others as they are.
fn levels_below(keys: &[u32], nodes: &Level, runs: &Level, inside: &[u32]) -> Vec<Level> {
    let within = |run: &Range<Rank>| nodes.iter().filter(|node| run.contains(&node.start)).cloned().collect();
    let of_runs: Vec<Vec<Level>> = runs.iter().map(|run| levels(keys, within(run), inside)).collect();
    let most = of_runs.iter().map(Vec::len).max().unwrap_or(0);
    let level =
        |at: usize| of_runs.iter().flat_map(|levels| levels[at.min(levels.len() - 1)].clone()).collect();
    (0..most.saturating_sub(1)).map(level).collect()
}

/// All ranks of a host.
fn whole(pieces: &Level) -> Range<Rank> {
    pieces[0].start..pieces[pieces.len() - 1].end
}

/// The pieces of each host: the largest nodes of the canonical tree that lie within it.
///
/// # Errors
/// [`Unsupported`] unless there are levels inside and across, and the ranks of each host are consecutive.
pub(crate) fn pieces_of_hosts(group: &Group, hosts: &[u32]) -> Result<Vec<Level>, Unsupported> {
    let (keys, workers) = (group.keys(), group.size());
    if hosts.len() != keys.len() {
        return Err(Unsupported::UnknownHosts { known: hosts.len(), workers });
    }
    let mut known = BTreeSet::new();
    let mut starts = (0..hosts.len()).filter(|at| *at == 0 || hosts[*at] != hosts[at - 1]);
    if let Some(rank) = starts.find(|start| !known.insert(hosts[*start])) {
        return Err(Unsupported::SplitHost { rank: rank as Rank });
    }
    let all = pieces_of_runs(keys, hosts);
    match all.len() {
        1 => Err(Unsupported::OneHost { workers }),
        lone if lone == keys.len() => Err(Unsupported::LoneWorkers { workers }),
        _ => Ok(all),
    }
}

/// The pieces of each run of ranks that have one number.
pub(super) fn pieces_of_runs(keys: &[u32], numbers: &[u32]) -> Vec<Level> {
    let mut end = 0;
    let runs = numbers.chunk_by(|a, b| a == b).map(|run| {
        let start = end;
        end += run.len() as Rank;
        start..end
    });
    runs.map(|run| nodes_of(keys, run)).collect()
}

/// The ranks of each host, if each host is a whole node of the canonical tree.
fn whole_hosts(group: &Group, hosts: &[u32]) -> Result<Level, Unsupported> {
    let hosts = pieces_of_hosts(group, hosts)?;
    match hosts.iter().find(|pieces| pieces.len() > 1) {
        Some(pieces) => Err(Unsupported::HostInPieces { rank: pieces[0].start, pieces: pieces.len() }),
        None => Ok(hosts.iter().map(whole).collect()),
    }
}
