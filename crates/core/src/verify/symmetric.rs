//! Proving a schedule whose ranks all do the same by one of them.
//!
//! The programs of such a [schedule](Symmetry) are counterparts of the first worker's, and of the first reducer's, by
//! definition. So a shift takes the joined graph of all ranks onto itself. It takes steps to steps, places to places,
//! messages to messages, and the k-th message of a lane to the k-th of its counterpart. That gives a smaller graph, the
//! **quotient**. It has a node for each step of the first worker, and of the first reducer, and an edge wherever any
//! steps alike to these have one. The quotient's properties hold for all:
//!
//! * **No deadlock.** A cycle of the whole graph is, step by step, one of the quotient. Conversely, a cycle of the
//!   quotient is a way from a step to its counterpart after a shift. Repeated until that shift comes back to its
//!   beginning, it is a cycle of the whole graph. So both have a cycle or none has, in the joined graph and in the one
//!   of [serial](run::serial) order.
//! * **The right result.** Steps run on the terms of the first rank. A message that it receives from another rank is
//!   the counterpart of one that it sends itself, and each term that is sent has a [counterpart](Shifts). A step that
//!   makes a term of others has to make its counterpart of theirs. Receives, copies and codes always do, and folds are
//!   [checked](Shifts::folded_alike). The first worker ends with the result that the collective promises. A shift
//!   changes this result as it changes the ranks and chunks, so all workers end with it. All workers agree about a
//!   chunk because its results on the first one are counterparts of each other, by the shifts that take chunk to chunk.
//! * **All other properties** of a schedule are properties of single ranks, and each rank is like the first: places,
//!   forms, chunks, counts, cost, restarts, and that reducers hear of their workers. Rounds are chains of messages, and
//!   a shift takes chains to chains.
//!
//! A schedule that does not satisfy this is not refused here: it is proven rank by rank, or refused, if that can be
//! done.

use super::{
    error::check_count,
    graph::{Graph, Take},
    lower::Lowering,
    ops::Op,
    order::Order,
    proven::Proven,
    run, served,
    shifts::{Lanes, Shifts},
    symbols::Symbols,
};
use crate::{
    collective::Collective,
    group::Group,
    schedule::{Cut, Rank, Schedule, Symmetry},
};
use alloc::{format, vec, vec::Vec};

/// The proof, if the schedule's ranks are alike in every respect that the collective knows of, and nothing is wrong.
pub(super) fn proven(schedule: &Schedule, collective: Collective, group: &Group) -> Option<Proven> {
    let symmetry = schedule.symmetry().filter(|symmetry| fits(symmetry, schedule, collective, group))?;
    let size = symmetry.size();
    let firsts = || (0..schedule.ranks()).step_by(size as usize);
    let mut programs = schedule.programs();
    if !firsts().all(|first| symmetry.keeps_steps(&programs(first))) {
        return None;
    }
    let lowering = Lowering::new(schedule, 1, collective, group).ok()?;
    let (mut graph, count) = lowering.of(schedule, firsts(), size).ok()?;
    if schedule.reducers() > 0 && !reducers_are_answered(&graph, symmetry) {
        return None;
    }
    let lanes = match_messages(&mut graph, symmetry)?;
    let is_coded = schedule.cut().is_coded();
    let results = |(shifts, terms)| {
        let mut symbols = Symbols::new(&graph, collective, group, terms, Some(shifts));
        run::joined(&graph, |node| symbols.step(node).map_err(|fault| graph.fault(node, fault))).ok()?;
        let results = if symbols.ends_alike() { symbols.results().ok()? } else { return None };
        (!schedule.side_by_side() || results.order == Order::Fixed).then_some(results)
    };
    let canonical = Shifts::in_canonical_order(symmetry, group, is_coded, &lanes).and_then(results);
    let results = canonical.or_else(|| Shifts::that_turn(symmetry, is_coded, &lanes).and_then(results))?;
    Some(Proven::of(&graph, &count, &results))
}

/// Whether a shift changes nothing about what a collective promises, and about lengths of chunks.
fn fits(symmetry: &Symmetry, schedule: &Schedule, collective: Collective, group: &Group) -> bool {
    let moves_chunks = symmetry.moves_chunks();
    let is_even = match schedule.cut() {
        Cut::Even { .. } | Cut::Blocks { .. } => true,
        Cut::Given { .. } => moves_chunks,
        Cut::Weighted { .. } => false,
    };
    let is_fair = match collective {
        Collective::AllReduce | Collective::Barrier => true,
        // Chunk r is rank r's.
        Collective::ReduceScatter | Collective::AllGather => moves_chunks,
        // The root is one rank, and the chunks of an all_to_all are pairs of ranks.
        Collective::Reduce { .. }
        | Collective::Broadcast { .. }
        | Collective::Gather { .. }
        | Collective::Scatter { .. }
        | Collective::AllToAll => false,
    };
    let workers = schedule.workers();
    let is_whole = symmetry.size() == workers && [0, workers].contains(&schedule.reducers());
    is_whole && workers > 1 && is_even && is_fair && !group.has_several()
}

/// The messages of one lane and of all that are alike to it: from the first rank of its kind to another one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct LaneKind {
    /// The row of the sender, and of the receiver.
    from: Rank,
    to: Rank,
    /// What takes the first receiver to the one that the first sender sends to.
    place: u32,
}

/// Tells each send of the quotient who takes its messages, and the other way round, and lets each send follow the step that takes
/// the message before on its lane. Returns where messages come from; `None` if not each is taken.
fn match_messages(graph: &mut Graph, symmetry: &Symmetry) -> Option<Lanes> {
    let row = |rank: Rank| rank / symmetry.size();
    let (mut sends, mut takes) = (Vec::new(), Vec::new());
    for node in 0..graph.nodes() {
        let from = graph.rank(node);
        let Op::Send { to, .. } = graph.op(node) else { continue };
        for to in graph.lists.of(to) {
            sends.push((LaneKind { from, to: row(to), place: symmetry.place_of(to) }, sends.len(), node));
        }
    }
    let mut taken = Vec::new();
    for node in 0..graph.nodes() {
        taken.clear();
        graph.takes_of(node, &mut taken);
        for take in &taken {
            let place = symmetry.opposite(symmetry.place_of(take.lane));
            let kind = LaneKind { from: row(take.lane), to: graph.rank(node), place };
            takes.push((kind, *take));
        }
    }
    // Stable, so messages of one kind stay in their order.
    sends.sort_by_key(|(kind, ..)| *kind);
    takes.sort_by_key(|(kind, _)| *kind);
    let lanes = lanes(graph, &takes, symmetry.size());
    let (mut ends, mut edges) = (vec![0; sends.len()], Vec::new());
    if sends.len() != takes.len() {
        return None;
    }
    let mut before: Option<(LaneKind, Take)> = None;
    for ((kind, at, sender), (other, take)) in sends.into_iter().zip(&takes) {
        if kind != *other {
            return None;
        }
        graph.set_sender(*take, sender);
        ends[at] = take.node;
        match before.filter(|(before, _)| *before == kind) {
            Some((_, before)) if before.node == take.node => graph.takes_several = true,
            Some((_, before)) => edges.push((before.node, sender)),
            None => {}
        }
        before = Some((kind, *take));
    }
    for of_kind in takes.chunk_by(|a, b| a.0 == b.0) {
        check_count(of_kind.len(), || format!("messages of rank {}", of_kind[0].1.lane)).ok()?;
    }
    edges.sort_unstable();
    graph.follow(&edges);
    let mut next = ends.into_iter();
    graph.map_receivers(|_| next.next().expect("as many as were counted"));
    Some(lanes)
}

/// Where messages come from, and other sources.
fn lanes(graph: &Graph, takes: &[(LaneKind, Take)], size: u32) -> Lanes {
    let mut lanes =
        Lanes { of_nodes: vec![0; graph.nodes() as usize], of_sources: vec![0; graph.sources.len()] };
    for node in 0..graph.nodes() {
        if let Op::Fold { fold, .. } = graph.op(node) {
            lanes.of_sources[graph.folds[fold as usize].sources()].fill(graph.rank(node) * size);
        }
    }
    for (_, take) in takes {
        match graph.op(take.node) {
            Op::Fold { .. } => lanes.of_sources[take.source as usize] = take.lane,
            _ => lanes.of_nodes[take.node as usize] = take.lane,
        }
    }
    lanes
}

/// Whether the first reducer, before messages are matched, exchanges messages with workers only, and sends to each that sends to it.
fn reducers_are_answered(graph: &Graph, symmetry: &Symmetry) -> bool {
    let (mut heard, mut receivers, mut taken) = (Vec::new(), Vec::new(), Vec::new());
    for node in graph.nodes_of(1) {
        taken.clear();
        graph.takes_of(node, &mut taken);
        heard.extend(taken.iter().map(|take| take.lane));
        if let Op::Send { to, .. } = graph.op(node) {
            receivers.extend(graph.lists.of(to));
        }
    }
    served::unanswered(&heard, &mut receivers, symmetry.size()).is_none()
}
