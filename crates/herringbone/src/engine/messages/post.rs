//! The calls of messages, and their carriers.

use crate::{
    Error,
    clock::Moment,
    completion::Completion,
    core::{
        collective::Collective,
        element::{DType, ReduceOp},
        group::Rank,
        prepare::Call,
        session::{lane::MESSAGE_PRIORITY, mailbox::Envelope},
    },
    engine::outbox::Outbox,
    execute::issue::Issue,
    observe::EndedMessage,
    request::CallAttrs,
    sys::region::Region,
};
use std::{sync::Arc, time::Duration};

/// A send or a receive that was posted.
#[derive(Clone, Debug)]
pub(crate) struct Posted {
    pub(crate) envelope: Envelope,
    pub(crate) region: Region,
    pub(crate) timeout: Duration,
    pub(crate) completion: Arc<Completion>,
    pub(crate) issued: Moment,
    pub(crate) receives: bool,
    /// Its number among the messages that this process has posted.
    pub(crate) record: u64,
    /// Whether its caller was told that it failed. A send stays then until it is answered.
    pub(crate) is_over: bool,
}

/// With whom a message is exchanged.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ToOrFrom {
    To(Rank),
    /// `None` for any rank.
    From(Option<Rank>),
}

/// The groups between this rank and another one, by their numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Channel {
    /// What this rank announces and answers.
    pub(crate) records_to: u32,
    /// What the other announces and answers.
    pub(crate) records_from: u32,
    /// Long messages to the other.
    pub(crate) to: u32,
    /// Long messages from the other.
    pub(crate) from: u32,
}

impl Channel {
    pub(super) fn groups(&self) -> [u32; 4] {
        [self.records_to, self.records_from, self.to, self.from]
    }
}

/// A record that is being received.
#[derive(Debug)]
pub(super) struct IncomingRecord {
    pub(super) completion: Arc<Completion>,
    pub(super) bytes: Region,
}

impl Posted {
    pub(crate) fn new(envelope: Envelope, region: Region, timeout: Duration) -> Self {
        let (completion, issued) = (Arc::default(), Moment::default());
        Self { envelope, region, timeout, completion, issued, receives: false, record: 0, is_over: false }
    }

    /// What is told of it when it is over.
    pub(super) fn as_ended(&self) -> EndedMessage {
        EndedMessage { number: self.record, receives: self.receives, issued: self.issued }
    }

    /// It is over, and no operation carries it.
    pub(super) fn end(&self, result: Result<(), Error>, out: &mut Outbox) {
        out.observer.message_ended(self.as_ended(), &result);
        self.completion.finish(result);
        out.finished = true;
    }
}

/// An operation that has to be issued.
#[derive(Debug)]
pub(super) struct HeldIssue {
    pub(super) issue: Issue,
    pub(super) completion: Arc<Completion>,
    /// The message that it carries, if it is no record.
    pub(super) message: Option<EndedMessage>,
}

/// A broadcast in a group of two, of which one end is this rank's.
pub(super) fn broadcast(group: u32, root: Rank, region: &Region, timeout: Duration) -> Issue {
    let collective = Collective::Broadcast { root };
    let call = Call::new(collective, DType::U8, ReduceOp::Sum, region.len());
    let issue = Issue::new(group, call, region.clone(), region.clone());
    let attrs = CallAttrs { priority: MESSAGE_PRIORITY, timeout: Some(timeout), ..CallAttrs::default() };
    Issue { attrs, ..issue }
}
