//! The last messages of a process, and the operations that carry them.

use super::recent::Ring;
use crate::{
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

/// A send or a receive that is over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndedMessage {
    /// Its number among the messages that this process has posted.
    pub(crate) number: u64,
    pub(crate) receives: bool,
    pub(crate) issued: Moment,
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
    outcome: Outcome,
}

/// What is known of how a message ended.
#[derive(Debug)]
enum Outcome {
    /// What its completion says.
    Open(Arc<Completion>),
    Done,
    /// With an error of the kind of this name.
    Failed(&'static str),
}

/// The last messages, in the order in which they were posted, in memory that is taken with the first one.
///
/// Completions are given back soon: the program's next arrays lie above blocks that are kept.
#[derive(Debug, Default)]
pub(super) struct MessageRing {
    entries: VecDeque<MessageEntry>,
    posted: u64,
    /// The number of the first message whose completion is kept.
    first_open: u64,
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
        self.entries.reserve_exact(KEPT - self.entries.len());
        self.settle();
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
            outcome: Outcome::Open(completion),
        });
        self.posted += 1;
        self.posted - 1
    }

    /// Notes how the oldest messages ended.
    fn settle(&mut self) {
        self.first_open = self.first_open.max(self.posted - self.entries.len() as u64);
        while let Some(entry) = self.get_mut(self.first_open) {
            entry.outcome = match entry.outcome.result() {
                None => return,
                Some(Ok(())) => Outcome::Done,
                Some(Err(kind)) => Outcome::Failed(kind),
            };
            self.first_open += 1;
        }
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

    /// It is over, and no operation has carried it. Returns its group and generation, if it is kept.
    pub(super) fn ended(&mut self, number: u64, now: Moment) -> Option<(u32, u32)> {
        let entry = self.get_mut(number)?;
        entry.ended = Some(now);
        Some((entry.post.group, entry.post.generation))
    }

    /// The groups of those that are kept.
    pub(super) fn groups(&self) -> impl Iterator<Item = u32> {
        self.entries.iter().map(|entry| entry.post.group)
    }

    /// All that are kept, each with the number of operations that were issued before it.
    pub(super) fn flight(&self, operations: &Ring) -> Vec<(u64, FlightOperation)> {
        self.entries.iter().map(|entry| (entry.after, entry.flight(operations))).collect()
    }
}

impl Outcome {
    /// The name of the error's kind, if the message failed; `None` if it is not over.
    fn result(&self) -> Option<std::result::Result<(), &'static str>> {
        match self {
            Outcome::Open(completion) => Some(completion.result()?.map_err(|error| error.kind().name())),
            Outcome::Done => Some(Ok(())),
            Outcome::Failed(kind) => Some(Err(kind)),
        }
    }
}

impl MessageEntry {
    /// As others are told of it, but for its number.
    fn flight(&self, operations: &Ring) -> FlightOperation {
        let MessagePost { group, generation, receives, peer, envelope } = self.post;
        let carried_by =
            self.carried_by.and_then(|number| operations.get(number)).map(|entry| entry.flight(0, ""));
        let result = self.outcome.result();
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
                (Some(Ok(())), _) => FlightState::Done,
                (Some(Err(kind)), _) => FlightState::Failed { kind: kind.to_owned() },
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Error, ErrorKind, core::element::DType};

    fn post() -> MessagePost {
        let envelope = Envelope { tag: 1, dtype: DType::F32, count: 2 };
        MessagePost { group: 3, generation: 4, receives: true, peer: Some(1), envelope }
    }

    /// Else the program's next arrays lie above the blocks that are kept, and its memory grows.
    #[test]
    fn completions_are_given_back_in_order_and_how_messages_ended_stays_known() {
        let mut ring = MessageRing::default();
        let completions: Vec<Arc<Completion>> = (0..3).map(|_| Arc::default()).collect();
        for completion in &completions {
            ring.add(post(), completion.clone(), 0, Moment::default());
        }
        completions[0].finish(Ok(()));
        completions[1].finish(Err(Error::new(ErrorKind::Closed)));
        assert_eq!(ring.ended(1, Moment::default()), Some((3, 4)));
        ring.add(post(), Arc::default(), 0, Moment::default());
        let held = completions.iter().map(Arc::strong_count).collect::<Vec<_>>();
        assert_eq!(held, [1, 1, 2]);
        let states: Vec<FlightState> =
            ring.flight(&Ring::default()).into_iter().map(|(_, message)| message.state).collect();
        let failed = FlightState::Failed { kind: ErrorKind::Closed.name().to_owned() };
        assert_eq!(states, [FlightState::Done, failed, FlightState::Queued, FlightState::Queued]);
        let memory = ring.entries.capacity();
        for _ in 0..2 * KEPT {
            ring.add(post(), Arc::default(), 0, Moment::default());
        }
        assert_eq!((ring.entries.len(), ring.entries.capacity()), (KEPT, memory));
        assert_eq!(ring.ended(1, Moment::default()), None);
    }
}
