//! Looks for an all-reduce that is better on given machines than the algorithms' schedules, where ports are unequal, or
//! links are slow or missing.
//!
//! A schedule that is found is used like any other: it is [proved](crate::verify), [simulated](crate::simulate) and
//! written as a text, and a job takes it from a file (`HERRINGBONE_PLAN="all_reduce:64K-inf:file=PATH"`).
//!
//! The search decides for each chunk of the buffer. It chooses the rank that holds the partial sum of each node of the
//! group's canonical tree, and the tree along which the result is sent. So the results have the same bits as with the other
//! algorithms. If the link between two ranks is slow or missing, other ranks forward the message. A
//! [round](ScheduleSearch::round) begins with a good earlier schedule or a draft: one like `radix`, `tree` or
//! `hierarchical`, or one that follows the shortest ways. Then it tries many small moves and compares how long they
//! keep ports, links and threads busy. The simulator decides.
//!
//! A seed and a number of rounds fix the result.
//!
//! ```
//! use herringbone_core::{
//!     element::{DType, ReduceOp}, collective::Collective, group::Group, prepare::{Call, Sizing}, search::{Problem, ScheduleSearch},
//!     simulate::{Costs, Port, Rig},
//! };
//!
//! let mut rig = Rig::with_ports(vec![0, 1, 2], 1_000_000_000, 20_000_000, Costs::DEFAULT);
//! rig.ports[2] = Port { out: 250_000_000, into: 250_000_000 };
//! let group = Group::of_size(3);
//! let call = Call::new(Collective::AllReduce, DType::F32, ReduceOp::Sum, 1 << 18);
//! let sizing = Sizing { hosts: 3, shared: false, segment_bytes: 0, most_staged: 56 << 20 };
//! let mut search = ScheduleSearch::new(Problem { group: &group, rig: &rig, call, sizing }, 1)?;
//! search.round();
//! let found = search.best().expect("three ranks that are linked have a schedule");
//! println!("{} ps\n{}", found.time, found.verified.schedule());
//! # Ok::<(), herringbone_core::search::Unsearchable>(())
//! ```

mod anneal;
mod draft;
mod listed;
mod network;
mod write;

use crate::{
    group::{Group, Rank},
    prepare::{Call, Sizing},
    schedule::HEAVIEST,
    simulate::{Picoseconds, Rig, Workload, estimate},
    topology::random::SplitMix,
    verify::{Order, Verified, verify},
};
use alloc::vec::Vec;
use anneal::{Draft, Ground};
use draft::{ChunkDraft, FoldTree};
use network::Interconnect;

pub use listed::{Listed, listed};

/// The most ranks that a schedule is searched for: as many as a text has.
pub const SEARCHED_RANKS: u32 = 64;

/// How many moves a round tries for each chunk.
const MOVES: u32 = 1500;

/// How many loads a round looks at, about: where there are many links it tries fewer moves.
const MOST_WORK: u32 = 60_000_000;

/// How many chunks a draft has at least, if there are not as many ranks.
const CHUNKS: usize = 8;

/// The most messages that are simulated one by one for a draft.
const MOST_MESSAGES: u64 = 50_000;

/// How many drafts are kept to begin with again.
const KEPT: usize = 4;

/// The group, the call and the machines of a search.
#[derive(Clone, Copy, Debug)]
pub struct Problem<'a> {
    /// The workers.
    pub group: &'a Group,
    /// Their machines, without reducers.
    pub rig: &'a Rig,
    /// The all-reduce.
    pub call: Call,
    /// How jobs cut it.
    pub sizing: Sizing,
}

/// Why nothing can be searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsearchable {
    /// The number of ranks is too small or too large.
    #[error(
        "schedules are searched for 2 to {SEARCHED_RANKS} ranks, and there are {ranks}; name a topology of as many"
    )]
    Ranks {
        /// How many.
        ranks: u32,
    },
    /// Some have several inputs.
    #[error(
        "schedules are searched for ranks with one input each, and some have several; search for a group without shards"
    )]
    SeveralInputs,
    /// The links do not connect all ranks.
    #[error(
        "no way of links leads from each rank to each other; add the links that are missing to the topology"
    )]
    Apart,
}

/// A schedule that was found.
#[derive(Debug)]
pub struct FoundSchedule {
    /// The schedule, proved; its sums follow the group's canonical tree.
    pub verified: Verified,
    /// How long it takes by the simulation.
    pub time: Picoseconds,
    /// In which round it was found, from 1.
    pub round: u32,
}

/// A search under way.
#[derive(Debug)]
pub struct ScheduleSearch<'a> {
    problem: Problem<'a>,
    tree: FoldTree,
    network: Interconnect,
    random: SplitMix,
    rounds: u32,
    best: Option<FoundSchedule>,
    /// The best drafts, by time.
    kept: Vec<(Picoseconds, Draft)>,
}

/// What the draft of a round begins with.
const STARTS: [Start; 7] = [
    Start::Direct,
    Start::Nearest,
    Start::Hosts,
    Start::Blocks(4),
    Start::Blocks(2),
    Start::Tree,
    Start::Blocks(8),
];

#[derive(Clone, Copy, Debug)]
enum Start {
    /// Each rank owns a chunk, and folds it for all.
    Direct,
    /// Partial sums meet where the ways are short.
    Nearest,
    /// Hosts sum first.
    Hosts,
    /// So many ranks after each other sum first, as in a stage of `radix`.
    Blocks(u32),
    /// Ranks of each node send to its lowest.
    Tree,
}

impl<'a> ScheduleSearch<'a> {
    /// Begins.
    ///
    /// # Errors
    /// [`Unsearchable`].
    pub fn new(problem: Problem<'a>, seed: u64) -> Result<Self, Unsearchable> {
        let ranks = problem.group.size();
        if !(2..=SEARCHED_RANKS).contains(&ranks) {
            return Err(Unsearchable::Ranks { ranks });
        }
        if problem.group.has_several() {
            return Err(Unsearchable::SeveralInputs);
        }
        let bytes = problem.call.count as u64 * problem.call.dtype.bytes() as u64;
        let network = Interconnect::of(problem.rig, ranks as usize, bytes);
        if !network.is_connected() {
            return Err(Unsearchable::Apart);
        }
        let (tree, random) = (FoldTree::of(problem.group.keys()), SplitMix::new(seed));
        Ok(Self { problem, tree, network, random, rounds: 0, best: None, kept: Vec::new() })
    }

    /// How many rounds there were.
    pub fn rounds(&self) -> u32 {
        self.rounds
    }

    /// The best schedule so far.
    pub fn best(&self) -> Option<&FoundSchedule> {
        self.best.as_ref()
    }

    /// Ends.
    pub fn into_best(self) -> Option<FoundSchedule> {
        self.best
    }

    /// Tries one more draft. Returns whether it is the best so far.
    pub fn round(&mut self) -> bool {
        let ground = Ground { tree: &self.tree, network: &self.network };
        let at = self.rounds as usize;
        self.rounds += 1;
        let (mut draft, looseness) = match (STARTS.get(at), self.kept.len()) {
            (Some(start), _) => (self.started(*start), 1.0),
            (None, 0) => (self.started(STARTS[at % STARTS.len()]), 1.0),
            // What was good in finer pieces, or shaken more or less.
            (None, kept) if at % 5 == 4 => (self.kept[self.random.below(kept)].1.split(ground), 0.1),
            (None, kept) => (self.kept[self.random.below(kept)].1.clone(), [0.1, 0.5, 1.0][at % 3]),
        };
        let moves = MOVES * draft.chunks.len() as u32;
        let moves = moves.min(MOST_WORK / (self.network.resources() + 4 * self.tree.ranks) as u32);
        let start = (at < STARTS.len()).then(|| draft.clone());
        draft.improve(ground, moves, looseness, &mut self.random);
        let started_best = start.is_some_and(|start| self.judge(start));
        self.judge(draft) || started_best
    }

    /// Proves and simulates a draft. Returns whether it is the best.
    fn judge(&mut self, draft: Draft) -> bool {
        let Problem { group, rig, call, sizing } = self.problem;
        let schedule = write::schedule(&self.tree, &self.network, group.keys(), &draft.chunks);
        let proof = verify(schedule, call.collective, group);
        debug_assert!(proof.as_ref().is_ok_and(|proof| proof.order() == Order::Fixed), "{proof:?}");
        let Ok(verified) = proof else { return false };
        if verified.order() != Order::Fixed {
            return false;
        }
        let work = Workload::of_one(&verified, call, sizing);
        let Ok(outcome) = estimate(MOST_MESSAGES, &work, rig) else { return false };
        let time = outcome.total();
        let place = self.kept.partition_point(|(known, _)| *known <= time);
        if self.kept.iter().all(|(_, known)| known.chunks != draft.chunks) {
            self.kept.insert(place, (time, draft));
            self.kept.truncate(KEPT);
        }
        let is_best = self.best.as_ref().is_none_or(|best| time < best.time);
        if is_best {
            self.best = Some(FoundSchedule { verified, time, round: self.rounds });
        }
        is_best
    }

    fn started(&self, start: Start) -> Draft {
        let ranks = self.tree.ranks;
        // A multiple of the ranks, so that each owns as many.
        let chunks = ranks * CHUNKS.div_ceil(ranks);
        let chunk = |at: usize| self.chunk(start, (at % ranks) as Rank);
        let ground = Ground { tree: &self.tree, network: &self.network };
        Draft::of(ground, (0..chunks).map(chunk).collect())
    }

    fn chunk(&self, start: Start, owner: Rank) -> ChunkDraft {
        let (tree, weight) = (&self.tree, HEAVIEST / 2);
        match start {
            Start::Direct => ChunkDraft::direct(tree, owner, weight),
            Start::Tree => ChunkDraft::along(tree, owner, weight, |node, _| tree.first[node]),
            Start::Hosts => {
                let hosts = &self.problem.rig.hosts;
                self.in_blocks(owner, weight, &|rank| hosts[rank as usize])
            }
            Start::Blocks(size) => self.in_blocks(owner, weight, &|rank| rank / size),
            Start::Nearest => self.nearest(owner, weight),
        }
    }

    /// Ranks of a block, which `block` says, sum first, each of them as much of the chunks; then the owners sum those.
    fn in_blocks(&self, owner: Rank, weight: u8, block: &dyn Fn(Rank) -> u32) -> ChunkDraft {
        let tree = &self.tree;
        ChunkDraft::along(tree, owner, weight, |node, _| {
            let ranks = tree.ranks_of(node);
            let own = block(ranks.start);
            if !ranks.clone().all(|rank| block(rank) == own) {
                return owner;
            }
            let members = (0..tree.ranks as Rank).filter(|rank| block(*rank) == own);
            let count = members.clone().count();
            members.clone().nth(owner as usize % count).unwrap_or(owner)
        })
    }

    /// Partial sums meet so that all of them together go the shortest ways to the owner, and the result goes the shortest ways back.
    fn nearest(&self, owner: Rank, weight: u8) -> ChunkDraft {
        let (tree, network) = (&self.tree, &self.network);
        let ranks = tree.ranks;
        // What a node's sum takes until it is at each rank.
        let mut least: Vec<Vec<u64>> = Vec::with_capacity(tree.nodes());
        for node in 0..tree.nodes() {
            let made = match tree.below(node) {
                None => (0..ranks).map(|rank| if rank == node { 0 } else { u64::MAX }).collect(),
                Some(below) => (0..ranks)
                    .map(|rank| below.iter().map(|child| least[*child][rank]).sum())
                    .collect::<Vec<u64>>(),
            };
            let reached = |to: usize| {
                let ways = (0..ranks).filter(|from| made[*from] < u64::MAX);
                ways.map(|from| made[from] + network.distance(from as Rank, to as Rank)).min().unwrap_or(0)
            };
            least.push((0..ranks).map(reached).collect());
        }
        let mut holders = tree.first.clone();
        holders[tree.root()] = owner;
        for node in (tree.ranks..tree.nodes()).rev() {
            let at = holders[node];
            for child in tree.below(node).into_iter().flatten().filter(|child| *child >= ranks) {
                let below = tree.below(child).unwrap_or_default();
                let takes = |rank: usize| {
                    let made: u64 = below.iter().map(|child| least[*child][rank]).sum();
                    (made + network.distance(rank as Rank, at), rank != at as usize)
                };
                holders[child] = (0..ranks).min_by_key(|rank| takes(*rank)).unwrap_or(0) as Rank;
            }
        }
        let parent = |rank: Rank| {
            let way: Vec<Rank> = core::iter::once(owner).chain(network.way(owner, rank)).collect();
            if way.len() < 2 { owner } else { way[way.len() - 2] }
        };
        let parents = (0..ranks as Rank).map(parent).collect();
        ChunkDraft { holders, parents, weight }
    }
}

#[cfg(test)]
mod tests;
