//! The last messages of a process: what was posted, and which operation carries it.

use super::recent::Ring;
use crate::{
    Result,
    clock::Moment,
    completion::Completion,
    core::{
        group::Rank,
        session::{
            flight::{FlightCall, FlightOperation, FlightState, KEPT},
            mailbox::Envelope,
        },
    },
};
use std::{collections::VecDeque, sync::Arc};

/// A send or a receive that is posted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MessagePost {
    /// The group of its two ranks, and how many fences that has had.
    pub(crate) group: u32,
    pub(crate) generation: u32,
    pub(crate) receives: bool,
    /// The other rank, if it is known.
    pub(crate) peer: Option<Rank>,
    pub(crate) envelope: Envelope,
}

/// What is kept of a message.
#[derive(Debug)]
struct MessageEntry {
    post: MessagePost,
    /// How many messages went from the sender to the receiver before it, once that is known.
    sequence: Option<u64>,
    /// How many operations had been issued before it.
    after: u64,
    issued: Moment,
    /// The operation that carries it, if it is a long one that is under way.
    carried_by: Option<u64>,
    /// When it was over, if no operation has carried it.
    ended: Option<Moment>,
    completion: Arc<Completion>,
}

/// The last messages, in the order in which they were posted.
#[derive(Debug, Default)]
pub(super) struct MessageRing {
    entries: VecDeque<MessageEntry>,
    posted: u64,
}

impl MessageRing {
    /// How many messages were posted.
    pub(super) fn posted(&self) -> u64 {
        self.posted
    }

    /// Keeps one that was posted now, instead of the oldest. Returns its number.
    pub(super) fn add(
        &mut self,
        post: MessagePost,
        completion: Arc<Completion>,
        after: u64,
        issued: Moment,
    ) -> u64 {
        if self.entries.len() >= KEPT {
            self.entries.pop_front();
        }
        self.entries.push_back(MessageEntry {
            post,
            sequence: None,
            after,
            issued,
            carried_by: None,
            ended: None,
            completion,
        });
        self.posted += 1;
        self.posted - 1
    }

    fn get_mut(&mut self, number: u64) -> Option<&mut MessageEntry> {
        let first = self.posted - self.entries.len() as u64;
        self.entries.get_mut(usize::try_from(number.checked_sub(first)?).ok()?)
    }

    /// It is the message of this number between its two ranks.
    pub(super) fn is(&mut self, number: u64, peer: Rank, sequence: u64) {
        if let Some(entry) = self.get_mut(number) {
            (entry.post.peer, entry.sequence) = (Some(peer), Some(sequence));
        }
    }

    /// An operation carries it.
    pub(super) fn carried(&mut self, number: u64, operation: u64) {
        if let Some(entry) = self.get_mut(number) {
            entry.carried_by = Some(operation);
        }
    }

    /// It is over, and no operation has carried it.
    pub(super) fn ended(&mut self, number: u64, now: Moment) {
        if let Some(entry) = self.get_mut(number) {
            entry.ended = Some(now);
        }
    }

    /// All that are kept, each with the number of operations that were issued before it.
    pub(super) fn flight(&self, operations: &Ring) -> Vec<(u64, FlightOperation)> {
        self.entries.iter().map(|entry| (entry.after, entry.flight(operations))).collect()
    }
}

impl MessageEntry {
    /// As others are told of it, but for its number.
    fn flight(&self, operations: &Ring) -> FlightOperation {
        let MessagePost { group, generation, receives, peer, envelope } = self.post;
        let carried_by =
            self.carried_by.and_then(|number| operations.get(number)).map(|entry| entry.flight(0, ""));
        let result = self.completion.result();
        let bytes = match &result {
            Some(Ok(())) => envelope.bytes().unwrap_or_default() as u64,
            _ => 0,
        };
        FlightOperation {
            number: 0,
            group,
            generation,
            call: FlightCall::Message {
                receives,
                peer,
                tag: envelope.tag,
                sequence: self.sequence,
                dtype: envelope.dtype.code(),
                count: envelope.count,
            },
            state: match (result, &carried_by) {
                (Some(result), _) => state_of(&result),
                (None, Some(_)) => FlightState::Running,
                (None, None) => FlightState::Queued,
            },
            issued: self.issued.since_boot(),
            began: carried_by.as_ref().and_then(|carried_by| carried_by.began),
            ended: self.ended.map(Moment::since_boot).or(carried_by.and_then(|carried_by| carried_by.ended)),
            sent: if receives { 0 } else { bytes },
            received: if receives { bytes } else { 0 },
        }
    }
}

fn state_of(result: &Result<()>) -> FlightState {
    match result {
        Ok(()) => FlightState::Done,
        Err(error) => FlightState::Failed { kind: error.kind().name().to_owned() },
    }
}
