//! The events that a listener gets.

use crate::{
    Result,
    core::{
        session::{Cause, membership::MemberId},
        wire::Fingerprint,
    },
};
use std::{fmt, time::Duration};

/// The identity of an operation: it is the same in all its events, and on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OperationId {
    /// The number of its group; 0 is the group of all ranks.
    pub group: u32,
    /// How many fences of its group came before it.
    pub generation: u32,
    /// How many operations of its group were issued before it.
    pub sequence: u64,
}

/// Why an operation runs on this rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OperationPurpose {
    /// A program called it, or a reducer takes part in it.
    Called,
    /// It carries a long message that this rank sends.
    Sends,
    /// It carries a long message that this rank receives.
    Receives,
    /// It announces messages, and carries the short ones. It can wait until there is one.
    Announces,
    /// It serves other operations: it agrees on named ones, or finishes a lost reducer's operation.
    Serves,
}

/// The kind of a program's step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StepKind {
    /// Gives a message to links.
    Send,
    /// Moves a message to its destination.
    Receive,
    /// Copies within this rank's memory.
    Copy,
    /// Folds partial sums, of this rank and of messages.
    Fold,
    /// Encodes with a codec.
    Encode,
    /// Decodes.
    Decode,
}

impl StepKind {
    /// Its name: `send`, `receive`, `copy`, `fold`, `encode`, `decode`.
    pub fn name(self) -> &'static str {
        match self {
            StepKind::Send => "send",
            StepKind::Receive => "receive",
            StepKind::Copy => "copy",
            StepKind::Fold => "fold",
            StepKind::Encode => "encode",
            StepKind::Decode => "decode",
        }
    }
}

/// The work of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepWork {
    /// Its kind.
    pub kind: StepKind,
    /// How long its result is in bytes; of a send, each of its messages.
    pub bytes: usize,
}

/// Something that happened on this rank. An endpoint is a worker or a reducer, by its identity in the job.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum TraceEvent<'a> {
    /// A program called an operation, or a reducer learned of one from a worker.
    Issued {
        /// The operation.
        operation: OperationId,
        /// The call.
        call: &'a Fingerprint,
        /// The name of its group: `world`, or the subgroup's.
        group: &'a str,
        /// The algorithm that the plan chose.
        algorithm: &'a str,
        /// Why it runs here.
        purpose: OperationPurpose,
    },
    /// A worker has introduced a group, or its next generation, to this reducer.
    Introduced {
        /// The number of the group.
        group: u32,
        /// This process's place among the reducers of the group.
        reducer: u32,
    },
    /// Its links, its memory and its buffers are there, so its program runs.
    Began {
        /// The operation.
        operation: OperationId,
    },
    /// A step of its program ran, for one segment. The messages of a send can leave later.
    Step {
        /// The operation.
        operation: OperationId,
        /// The segment.
        segment: u32,
        /// The step, counted from 0 in this rank's program.
        step: u32,
        /// Its work.
        work: StepWork,
        /// When it began; its inputs from other ranks were there.
        began: Duration,
    },
    /// A message was given to the link of its receiver.
    Sent {
        /// The operation.
        operation: OperationId,
        /// The receiver.
        endpoint: MemberId,
        /// The segment.
        segment: u32,
        /// How long the message's payload is.
        bytes: usize,
    },
    /// A message was taken in.
    Received {
        /// The operation.
        operation: OperationId,
        /// The sender.
        endpoint: MemberId,
        /// The segment.
        segment: u32,
        /// How long the message's payload is.
        bytes: usize,
    },
    /// The operation cannot continue. The event comes again only when the operation waits for other ranks, or when a
    /// listener has joined.
    Waited {
        /// The operation.
        operation: OperationId,
        /// The endpoints whose messages, room or links are missing. Empty if it waits for memory, or for an older
        /// operation.
        endpoints: &'a [MemberId],
    },
    /// The caller has the operation's result; on a reducer, it is over.
    Ended {
        /// The operation.
        operation: OperationId,
        /// How.
        result: &'a Result<()>,
    },
    /// A message that a program has sent or received is over, and no operation of its own has carried it.
    Delivered {
        /// Whether this rank received it.
        receives: bool,
        /// When the program called.
        issued: Duration,
        /// How it ended.
        result: &'a Result<()>,
    },
    /// Nothing has come from an endpoint for long.
    Suspected {
        /// The endpoint: a silent reducer, or a rank that an operation waits for.
        endpoint: MemberId,
        /// For how long.
        silent: Duration,
    },
    /// A process has ended, or cannot be reached any more.
    Lost {
        /// The endpoint.
        endpoint: MemberId,
        /// The observed reason.
        reason: &'a str,
    },
    /// Plans follow ports that have become slow or fast, as all members have agreed; see `HERRINGBONE_REBALANCE`.
    Rebalanced {
        /// The number of the group.
        group: u32,
        /// The first operation that is planned so.
        from: u64,
        /// The observed speeds of ports, and the new plans.
        why: &'a str,
    },
    /// All members of a group have left the operations that could not continue.
    Fenced {
        /// The number of the group.
        group: u32,
        /// The generation that begins.
        generation: u32,
        /// Why.
        cause: &'a Cause,
    },
}

/// Which of the listeners of a fabric; see [`Communicator::listen`](crate::Communicator::listen).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ListenerId(pub(super) u64);

/// A listener, which gets all events; see [`Communicator::listen`](crate::Communicator::listen).
///
/// It is called by whichever thread drives the engine, which waits meanwhile: it returns soon, and calls no communicator.
pub trait Sink: Send + fmt::Debug {
    /// Something happened. `now` is the system's monotonic clock (`CLOCK_MONOTONIC`), so processes of one host agree on it.
    fn event(&mut self, now: Duration, event: &TraceEvent<'_>);
}
