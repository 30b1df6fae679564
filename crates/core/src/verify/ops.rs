//! The graph's data about a step, resolved and packed: a schedule can have a step for every message.

use super::lists::{List, Lists};
use crate::schedule::{Chunk, Form};
use alloc::vec::Vec;
use core::{cell::Cell, ops::Range};

/// A place, numbered among all ranks' places, and what kind of place it is. The workers' user places come first, then
/// the slots, by rank. User places are in the order of chunks: whoever folds or sends a chunk meets it at many workers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct At(u32);

impl At {
    const ACC: u32 = 1 << 31;
    const USER: u32 = 1 << 30;
    const CODED: u32 = 1 << 27;
    const FLAGS: u32 = Self::ACC | Self::USER | Self::CODED;

    pub(super) fn user(index: u32) -> Self {
        Self(index | Self::USER)
    }

    pub(super) fn slot(index: u32, form: Form) -> Self {
        let flags = match form {
            Form::Plain => 0,
            Form::Acc => Self::ACC,
            Form::Coded => Self::CODED,
            Form::CodedResult => Self::CODED | Self::ACC,
        };
        Self(index | flags)
    }

    pub(super) fn index(self) -> usize {
        (self.0 & !Self::FLAGS) as usize
    }

    /// The place with a number higher by so many.
    pub(super) fn shifted(self, offset: u32) -> Self {
        Self(self.0 + offset)
    }

    pub(super) fn form(self) -> Form {
        match self.0 & (Self::CODED | Self::ACC) {
            0 => Form::Plain,
            Self::ACC => Form::Acc,
            Self::CODED => Form::Coded,
            _ => Form::CodedResult,
        }
    }

    pub(super) fn is_user(self) -> bool {
        self.0 & Self::USER != 0
    }
}

/// A step, resolved. Until messages are matched, senders and receivers are ranks; then they are nodes.
#[derive(Clone, Copy)]
pub(super) enum Op {
    Send {
        from: At,
        to: List,
    },
    /// Where it `decodes`, the message is a coded result.
    Recv {
        into: At,
        chunk: Chunk,
        sender: u32,
        decodes: bool,
    },
    Fold {
        into: At,
        fold: u32,
    },
    /// Copies, or encodes or decodes, as the forms of both places say.
    Copy {
        from: At,
        into: At,
    },
}

/// An [`Op`] in eight bytes, a place with the kind in the two bits that an [`At`] leaves and one number more, and
/// beside it what a run needs at the same time.
pub(super) struct PackedOp {
    at: u32,
    more: u32,
    /// What waits for its end: the later steps of its rank that conflict with it and, on the lanes of the messages
    /// that it takes, the sends of the messages after these.
    pub(super) followers: List,
    /// How much the step still waits for in the run at hand.
    pub(super) waits: Cell<u32>,
}

/// A message received into a slot. One into a user place is of that place's chunk.
#[derive(Clone, Copy)]
pub(super) struct Landing {
    chunk: Chunk,
    sender: u32,
}

/// What a sender's number leaves: whether the message is decoded.
const DECODES: u32 = 1 << 31;

impl PackedOp {
    const KIND: u32 = 3 << 28;
    const SEND: u32 = 0;
    const RECV: u32 = 1 << 28;
    const FOLD: u32 = 2 << 28;
    const COPY: u32 = 3 << 28;

    pub(super) fn new(op: Op, landings: &mut Vec<Landing>) -> Self {
        let (kind, at, more) = match op {
            Op::Send { from, to } => (Self::SEND, from, to.bits()),
            Op::Recv { into, sender, decodes, .. } if into.is_user() => {
                (Self::RECV, into, flagged(sender, decodes))
            }
            Op::Recv { into, chunk, sender, decodes } => {
                landings.push(Landing { chunk, sender: flagged(sender, decodes) });
                (Self::RECV, into, landings.len() as u32 - 1)
            }
            Op::Fold { into, fold } => (Self::FOLD, into, fold),
            Op::Copy { from, into } => (Self::COPY, from, into.0),
        };
        Self { at: at.0 | kind, more, followers: List::EMPTY, waits: Cell::new(0) }
    }

    /// `user_chunk`: the chunk of a user place.
    pub(super) fn get(&self, landings: &[Landing], user_chunk: impl Fn(At) -> Chunk) -> Op {
        let (at, more) = (self.at(), self.more);
        match self.kind() {
            Self::SEND => Op::Send { from: at, to: List::from_bits(more) },
            Self::RECV => {
                let Landing { chunk, sender } = match at.is_user() {
                    true => Landing { chunk: user_chunk(at), sender: more },
                    false => landings[more as usize],
                };
                Op::Recv { into: at, chunk, sender: sender & !DECODES, decodes: sender & DECODES != 0 }
            }
            Self::FOLD => Op::Fold { into: at, fold: more },
            _ => Op::Copy { from: at, into: At(more) },
        }
    }

    fn kind(&self) -> u32 {
        self.at & Self::KIND
    }

    pub(super) fn is_send(&self) -> bool {
        self.kind() == Self::SEND
    }

    /// The place that it sends, copies or writes.
    pub(super) fn at(&self) -> At {
        At(self.at & !Self::KIND)
    }

    /// Tells a receive who sends its message.
    pub(super) fn set_sender(&mut self, landings: &mut [Landing], sender: u32) {
        debug_assert_eq!(self.kind(), Self::RECV);
        let known = match self.at().is_user() {
            true => &mut self.more,
            false => &mut landings[self.more as usize].sender,
        };
        *known = sender | *known & DECODES;
    }

    /// Replaces the receivers, if it is a send.
    pub(super) fn map_receivers(&mut self, lists: &mut Lists, with: impl FnMut(u32) -> u32) {
        if self.kind() == Self::SEND {
            self.more = lists.map(List::from_bits(self.more), with).bits();
        }
    }
}

fn flagged(sender: u32, decodes: bool) -> u32 {
    sender | if decodes { DECODES } else { 0 }
}

pub(super) struct Fold {
    pub(super) chunk: Chunk,
    pub(super) finish: bool,
    pub(super) sources: Range<u32>,
}

impl Fold {
    /// Its entries in the graph's lists of sources and of merges.
    pub(super) fn sources(&self) -> Range<usize> {
        self.sources.start as usize..self.sources.end as usize
    }
}

/// One source of a fold.
#[derive(Clone, Copy)]
pub(super) enum From {
    At(At),
    Head { sender: u32, form: Form },
}

/// A [`From`] in four bytes: a place, or a sender in the place of its index.
#[derive(Clone, Copy)]
pub(super) struct PackedFrom(u32);

impl PackedFrom {
    const HEAD: u32 = 1 << 29;

    pub(super) fn new(from: From) -> Self {
        match from {
            From::At(at) => Self(at.0),
            From::Head { sender, form } => Self(At::slot(sender, form).0 | Self::HEAD),
        }
    }

    pub(super) fn get(self) -> From {
        let at = At(self.0 & !Self::HEAD);
        if self.0 & Self::HEAD == 0 {
            From::At(at)
        } else {
            From::Head { sender: at.index() as u32, form: at.form() }
        }
    }

    /// Who sends it, if it is a message.
    pub(super) fn sender(self) -> Option<u32> {
        match self.get() {
            From::At(_) => None,
            From::Head { sender, .. } => Some(sender),
        }
    }

    /// Tells a source that is a message who sends it.
    pub(super) fn set_sender(&mut self, sender: u32) {
        if let From::Head { form, .. } = self.get() {
            *self = Self::new(From::Head { sender, form });
        }
    }
}
