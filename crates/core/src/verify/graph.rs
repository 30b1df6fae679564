//! The joined dependency graph of all ranks' steps, in flat arrays.
//!
//! Nodes are steps. Two steps of a rank are ordered if they **conflict**: they touch the same place and one of them
//! writes it. Steps that share a lane in the same direction are ordered by its messages. A receive follows its
//! message's send, and a send follows the receive of the message before it on the same lane. Nothing else is ordered.
//!
//! Thousands of ranks that all talk to all have tens of millions of steps, so an array by step or by message is a large
//! share of a proof's memory. Nothing is stored that follows from something else.

use super::{
    error::{StepFault, VerifyError},
    lists::Lists,
    ops::{At, Fold, Landing, Op, PackedFrom, PackedOp},
};
use crate::schedule::{Chunk, Place, Rank, Schedule};
use alloc::{vec, vec::Vec};
use core::ops::Range;

/// A step, numbered among all ranks' steps.
pub(super) type Node = u32;

/// No number of a rank, node, source or place reaches this, which leaves bits for flags.
pub(super) const LIMIT: usize = 1 << 27;

/// A message that a step takes, before messages are matched.
#[derive(Clone, Copy)]
pub(super) struct Take {
    pub(super) lane: Rank,
    pub(super) node: Node,
    /// Its number in [`Graph::sources`], if it is a source.
    pub(super) source: u32,
}

/// How much of a schedule a graph has.
#[derive(Clone, Copy)]
pub(super) struct Size {
    /// Into how many chunks the buffer is cut.
    pub(super) chunks: u32,
    /// How many workers the graph has: all, or the first one, which stands for all in a proof by symmetry. Its ranks are numbers of
    /// rows then, and so are those below.
    pub(super) workers: u32,
    /// How many workers the schedule has.
    pub(super) all_workers: u32,
}

/// See the [module](self).
pub(super) struct Graph {
    pub(super) size: Size,
    /// The first node of each rank; one more entry ends the last.
    pub(super) first_node: Vec<Node>,
    /// The first slot's place of each rank; one more entry ends the last.
    pub(super) first_slot: Vec<u32>,
    pub(super) ops: Vec<PackedOp>,
    /// By node, as far as the last that is not 1: for how many chunks it stands.
    spans: Vec<u16>,
    landings: Vec<Landing>,
    pub(super) folds: Vec<Fold>,
    pub(super) sources: Vec<PackedFrom>,
    /// By source: how many merges follow.
    pub(super) merges: Vec<u8>,
    /// The entries of all followers and receivers.
    pub(super) lists: Lists,
    /// No worker overwrites what it has sent, nor its user's buffer more than once.
    pub(super) restartable: bool,
    /// A step takes several messages of one lane.
    pub(super) takes_several: bool,
}

impl Graph {
    /// The graph of so many of the workers, and of reducers, before any program is lowered.
    pub(super) fn empty(schedule: &Schedule, workers: u32, most_inputs: u32) -> Result<Self, VerifyError> {
        let (all_workers, chunks) = (schedule.workers(), schedule.cut().chunks());
        let user_places = u64::from(chunks) * u64::from(most_inputs);
        let users = u64::from(workers).saturating_mul(user_places);
        for (count, what) in [(u64::from(schedule.ranks()), "ranks"), (users, "places")] {
            if count > LIMIT as u64 {
                return Err(VerifyError::TooLarge { what: what.into() });
            }
        }
        Ok(Self {
            size: Size { chunks, workers, all_workers },
            first_node: vec![0],
            first_slot: vec![users as u32],
            ops: Vec::new(),
            spans: Vec::new(),
            landings: Vec::new(),
            folds: Vec::new(),
            sources: Vec::new(),
            merges: Vec::new(),
            lists: Lists::default(),
            restartable: true,
            takes_several: false,
        })
    }

    /// Adds a step to the last rank, which stands for so many chunks.
    pub(super) fn push(&mut self, op: Op, span: u32) {
        if span > 1 {
            self.spans.resize(self.ops.len(), 1);
            self.spans.push(span as u16);
        }
        let op = PackedOp::new(op, &mut self.landings);
        self.ops.push(op);
    }

    /// For how many chunks a step stands.
    pub(super) fn span(&self, node: Node) -> u32 {
        self.spans.get(node as usize).map_or(1, |span| u32::from(*span))
    }

    /// The place of the chunk so many further on.
    pub(super) fn shifted(&self, at: At, offset: u32) -> At {
        at.shifted(if at.is_user() { offset * self.size.workers } else { offset })
    }

    /// What a step does.
    pub(super) fn op(&self, node: Node) -> Op {
        self.ops[node as usize].get(&self.landings, |user| self.user_chunk(user))
    }

    pub(super) fn is_send(&self, node: Node) -> bool {
        self.ops[node as usize].is_send()
    }

    /// The place that a step sends.
    pub(super) fn sent(&self, sender: Node) -> At {
        debug_assert!(self.is_send(sender));
        self.ops[sender as usize].at()
    }

    /// How many steps there are.
    pub(super) fn nodes(&self) -> Node {
        self.ops.len() as Node
    }

    /// Whether one worker stands for all.
    pub(super) fn is_of_one(&self) -> bool {
        self.size.workers < self.size.all_workers
    }

    /// The rank of a node.
    pub(super) fn rank(&self, node: Node) -> Rank {
        self.first_node.partition_point(|first| *first <= node) as Rank - 1
    }

    pub(super) fn ranks(&self) -> Rank {
        self.first_node.len() as Rank - 1
    }

    pub(super) fn nodes_of(&self, rank: Rank) -> Range<Node> {
        self.first_node[rank as usize]..self.first_node[rank as usize + 1]
    }

    /// How many user places each worker has: one for each chunk, as often as any of them has inputs.
    pub(super) fn user_places(&self) -> u32 {
        self.first_slot[0] / self.size.workers
    }

    /// How many user places all workers have together.
    pub(super) fn users(&self) -> usize {
        self.first_slot[0] as usize
    }

    /// How many places all ranks have together.
    pub(super) fn places(&self) -> usize {
        self.first_slot[self.ranks() as usize] as usize
    }

    /// A worker's user place, by its [number](Place::User).
    pub(super) fn user(&self, worker: Rank, number: Chunk) -> At {
        At::user(number * self.size.workers + worker)
    }

    /// The chunk of a user place, whichever input it is of.
    pub(super) fn user_chunk(&self, at: At) -> Chunk {
        let number = self.user_number(at);
        // A division would show in the proof of a large schedule, and most members have one input.
        if number < self.size.chunks { number } else { number % self.size.chunks }
    }

    fn user_number(&self, at: At) -> Chunk {
        at.index() as u32 / self.size.workers
    }

    /// An error at a node.
    pub(super) fn fault(&self, node: Node, fault: StepFault) -> VerifyError {
        let rank = self.rank(node);
        VerifyError::Step { rank, step: node - self.first_node[rank as usize], fault }
    }

    /// What a place of `rank` is called in its program.
    pub(super) fn place(&self, rank: Rank, at: At) -> Place {
        if at.is_user() {
            Place::User(self.user_number(at))
        } else {
            Place::Slot(at.index() as u32 - self.first_slot[rank as usize])
        }
    }

    /// Who sends the messages that a node takes.
    pub(super) fn senders_of(&self, node: Node) -> impl Iterator<Item = u32> + '_ {
        let (received, sources) = match self.op(node) {
            Op::Recv { sender, .. } => (Some(sender), 0..0),
            Op::Fold { fold, .. } => (None, self.folds[fold as usize].sources()),
            Op::Send { .. } | Op::Copy { .. } => (None, 0..0),
        };
        received.into_iter().chain(self.sources[sources].iter().filter_map(|source| source.sender()))
    }

    /// Before messages are matched: adds what a node takes to `takes`, in order.
    pub(super) fn takes_of(&self, node: Node, takes: &mut Vec<Take>) {
        match self.op(node) {
            Op::Recv { sender: lane, .. } => takes.push(Take { lane, node, source: 0 }),
            Op::Fold { fold, .. } => takes.extend(self.folds[fold as usize].sources().filter_map(|source| {
                let lane = self.sources[source].sender()?;
                Some(Take { lane, node, source: source as u32 })
            })),
            Op::Send { .. } | Op::Copy { .. } => {}
        }
    }

    /// Tells the step that takes a message who sends it.
    pub(super) fn set_sender(&mut self, take: Take, sender: Node) {
        match self.op(take.node) {
            Op::Fold { .. } => self.sources[take.source as usize].set_sender(sender),
            _ => self.ops[take.node as usize].set_sender(&mut self.landings, sender),
        }
    }

    /// Makes every second node of `edges`, which are sorted, follow the first.
    pub(super) fn follow(&mut self, edges: &[(Node, Node)]) {
        for followed in edges.chunk_by(|a, b| a.0 == b.0) {
            let op = &mut self.ops[followed[0].0 as usize];
            op.followers = self.lists.extend(op.followers, followed.iter().map(|(_, after)| *after));
        }
    }

    /// Replaces the receivers of every send, node by node.
    pub(super) fn map_receivers(&mut self, mut with: impl FnMut(u32) -> u32) {
        for op in &mut self.ops {
            op.map_receivers(&mut self.lists, &mut with);
        }
    }
}
