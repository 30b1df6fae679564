//! The joined dependency graph of all ranks' steps, in flat arrays.
//!
//! Nodes are steps. Two steps of a rank are ordered if they **conflict**: they touch the same place and one of them
//! writes it. Steps that share a lane in the same direction are ordered by its messages: a receive follows its
//! message's send, and a send follows the receive of the message before it on the same lane. Nothing else is.
//!
//! Messages are numbered in **lane order**: by receiver, then by sender, then as they were sent, so the next message
//! of a lane is the next number.

use super::{
    error::{StepFault, VerifyError},
    lower::Lowering,
};
use crate::{
    collective::Collective,
    schedule::{Chunk, Form, Place, Rank, Schedule},
};
use alloc::{vec, vec::Vec};
use core::ops::Range;

/// A step, numbered among all ranks' steps.
pub(super) type Node = u32;

/// The bit that ends a run of entries: the last receiver of a send, the last message of a lane.
const LAST: u32 = 1 << 31;

/// No number of a rank, node, message, source or place reaches this, which leaves bits for flags.
pub(super) const LIMIT: usize = 1 << 28;

/// A place, numbered among all ranks' places, and what kind of place it is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct At(u32);

impl At {
    const ACC: u32 = 1 << 31;
    const USER: u32 = 1 << 30;

    pub(super) fn new(index: u32, form: Form, user: bool) -> Self {
        let acc = if form == Form::Acc { Self::ACC } else { 0 };
        Self(index | acc | if user { Self::USER } else { 0 })
    }

    pub(super) fn index(self) -> usize {
        (self.0 & !(Self::ACC | Self::USER)) as usize
    }

    pub(super) fn form(self) -> Form {
        if self.0 & Self::ACC == 0 { Form::Plain } else { Form::Acc }
    }

    pub(super) fn is_user(self) -> bool {
        self.0 & Self::USER != 0
    }
}

/// A step, resolved.
#[derive(Clone, Copy)]
pub(super) enum Op {
    Send { from: At, parts: u32 },
    Recv { into: At, receive: u32 },
    Fold { fold: u32 },
    Copy { from: At, into: At },
}

/// One message that a receive or a fold takes.
#[derive(Clone, Copy)]
pub(super) struct Receive {
    /// Until messages are matched: the lane.
    pub(super) message: u32,
    /// The chunk that it must be of.
    pub(super) chunk: Chunk,
}

pub(super) struct Fold {
    pub(super) chunk: Chunk,
    pub(super) into: At,
    pub(super) finish: bool,
    pub(super) sources: Range<u32>,
    /// The entries of its heads in [`Graph::receives`].
    pub(super) receives: Range<u32>,
}

/// One source of a fold.
#[derive(Clone, Copy)]
pub(super) enum From {
    At { place: At, merges: u8 },
    Head { receive: u32, form: Form, merges: u8 },
}

/// See the [module](self).
pub(super) struct Graph {
    pub(super) chunks: u32,
    pub(super) workers: u32,
    /// The first node of each rank; one more entry ends the last.
    pub(super) first_node: Vec<Node>,
    /// The first place of each rank: a worker's chunks, then slots; one more entry ends the last.
    pub(super) first_place: Vec<u32>,
    pub(super) ops: Vec<Op>,
    pub(super) folds: Vec<Fold>,
    pub(super) sources: Vec<From>,
    pub(super) receives: Vec<Receive>,
    /// How many conflicting steps each node follows.
    pub(super) follows: Vec<u32>,
    /// Where each node's run in [`followers`](Self::followers) starts; one more entry ends the last.
    pub(super) first_follower: Vec<u32>,
    pub(super) followers: Vec<Node>,
    /// The receiver of each part of each send: its rank until messages are matched, then its node. Runs end in `LAST`.
    pub(super) receivers: Vec<u32>,
    /// The sending node of each message, in lane order. Lanes end in `LAST`.
    pub(super) senders: Vec<u32>,
    /// No worker overwrites what it has sent, nor its user's buffer more than once.
    pub(super) restartable: bool,
}

impl Graph {
    pub(super) fn new(schedule: &Schedule, collective: Collective) -> Result<Self, VerifyError> {
        if schedule.ranks() as usize > LIMIT {
            return Err(VerifyError::TooLarge { what: "ranks" });
        }
        let mut graph = Lowering::new(schedule, collective).all(schedule)?;
        graph.match_messages()?;
        Ok(graph)
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

    /// How many places all ranks have together.
    pub(super) fn places(&self) -> usize {
        self.first_place[self.ranks() as usize] as usize
    }

    /// The number of a worker's user place.
    pub(super) fn user(&self, worker: Rank, chunk: Chunk) -> usize {
        (self.first_place[worker as usize] + chunk) as usize
    }

    /// The later steps of its rank that conflict with a node.
    pub(super) fn followers_of(&self, node: Node) -> &[Node] {
        let runs = &self.first_follower[node as usize..];
        &self.followers[runs[0] as usize..runs[1] as usize]
    }

    /// An error at a node.
    pub(super) fn fault(&self, node: Node, fault: StepFault) -> VerifyError {
        let rank = self.rank(node);
        VerifyError::Step { rank, step: node - self.first_node[rank as usize], fault }
    }

    /// What a place of `rank` is called in its program.
    pub(super) fn place(&self, rank: Rank, at: At) -> Place {
        let local = at.index() as u32 - self.first_place[rank as usize];
        match (at.is_user(), rank < self.workers) {
            (true, _) => Place::User(local),
            (false, true) => Place::Slot(local - self.chunks),
            (false, false) => Place::Slot(local),
        }
    }

    /// The nodes that receive the parts of a send, given its first part.
    pub(super) fn receivers_from(&self, part: u32) -> impl Iterator<Item = Node> + '_ {
        run(&self.receivers[part as usize..])
    }

    /// The node that sends a message.
    pub(super) fn sender(&self, message: u32) -> Node {
        self.senders[message as usize] & !LAST
    }

    /// The node that sends the next message of the same lane.
    pub(super) fn next_sender(&self, message: u32) -> Option<Node> {
        (self.senders[message as usize] & LAST == 0).then(|| self.sender(message + 1))
    }

    /// The entries in [`receives`](Self::receives) of the messages that a node takes.
    pub(super) fn receives_of(&self, node: Node) -> Range<u32> {
        match self.ops[node as usize] {
            Op::Recv { receive, .. } => receive..receive + 1,
            Op::Fold { fold } => self.folds[fold as usize].receives.clone(),
            Op::Send { .. } | Op::Copy { .. } => 0..0,
        }
    }

    /// Joins every part of every send with the step that receives it.
    fn match_messages(&mut self) -> Result<(), VerifyError> {
        let (first_message, parts) = self.sort_into_lanes();
        // By lane of the receiver at hand: its next message. Entries of earlier receivers point at other senders.
        let mut next = vec![u32::MAX; self.ranks() as usize];
        for receiver in 0..self.ranks() {
            let messages = first_message[receiver as usize]..first_message[receiver as usize + 1];
            let lanes = self.mark_lanes(messages.clone(), &mut next);
            let mut taken = 0;
            for node in self.nodes_of(receiver) {
                for receive in self.receives_of(node) {
                    let lane = self.receives[receive as usize].message;
                    let message = next[lane as usize];
                    if !messages.contains(&message) || !self.nodes_of(lane).contains(&self.sender(message)) {
                        return Err(self.fault(node, StepFault::NeverSent { lane }));
                    }
                    next[lane as usize] += 1;
                    taken += 1;
                    self.receives[receive as usize].message = message;
                    let part = parts[message as usize] as usize;
                    self.receivers[part] = node | (self.receivers[part] & LAST);
                }
            }
            if taken != messages.len() {
                return Err(self.unreceived(receiver, &lanes, &next));
            }
        }
        Ok(())
    }

    /// Numbers the messages in lane order. Gives each receiver's first message, and the part that each message is.
    fn sort_into_lanes(&mut self) -> (Vec<u32>, Vec<u32>) {
        let mut first_message = vec![0; self.ranks() as usize + 1];
        for to in &self.receivers {
            first_message[(to & !LAST) as usize + 1] += 1;
        }
        for receiver in 0..self.ranks() as usize {
            first_message[receiver + 1] += first_message[receiver];
        }
        let mut free = first_message.clone();
        let mut parts = vec![0; self.receivers.len()];
        self.senders = vec![0; self.receivers.len()];
        for (node, op) in self.ops.iter().enumerate() {
            let Op::Send { parts: part, .. } = *op else { continue };
            for (at, to) in run(&self.receivers[part as usize..]).enumerate() {
                let message = free[to as usize] as usize;
                free[to as usize] += 1;
                self.senders[message] = node as Node;
                parts[message] = part + at as u32;
            }
        }
        (first_message, parts)
    }

    /// Marks the last message of each lane to one receiver, and sets each lane's next message to its first.
    /// Gives each lane's last message.
    fn mark_lanes(&mut self, messages: Range<u32>, next: &mut [u32]) -> Vec<u32> {
        let mut lanes = Vec::new();
        let mut at = messages.start;
        while at < messages.end {
            let lane = self.rank(self.sender(at));
            next[lane as usize] = at;
            let sent = self.nodes_of(lane);
            let rest = &self.senders[at as usize..messages.end as usize];
            at += rest.partition_point(|sender| *sender < sent.end) as u32;
            self.senders[at as usize - 1] |= LAST;
            lanes.push(at - 1);
        }
        lanes
    }

    fn unreceived(&self, to: Rank, lanes: &[u32], next: &[u32]) -> VerifyError {
        let left = lanes.iter().find_map(|last| {
            let rank = self.rank(self.sender(*last));
            let message = next[rank as usize];
            (message <= *last).then(|| (rank, self.sender(message)))
        });
        let (rank, node) = left.expect("fewer messages were taken than sent");
        VerifyError::Unreceived { rank, step: node - self.first_node[rank as usize], to }
    }
}

/// The entries of a run that ends in `LAST`.
fn run(entries: &[u32]) -> impl Iterator<Item = u32> + '_ {
    let len = entries.iter().position(|entry| entry & LAST != 0).map_or(0, |last| last + 1);
    entries[..len].iter().map(|entry| entry & !LAST)
}

/// Marks an entry as the last of its run.
pub(super) fn end_run(entries: &mut [u32]) {
    if let Some(last) = entries.last_mut() {
        *last |= LAST;
    }
}
