//! Messages between two ranks, by tag: each announced message is matched with the receive that asks for it.
//!
//! The sender numbers its messages, for each receiver, and announces them in that order. **The receiver alone decides**
//! which of its receives gets which message. If a message fits several receives of its tag, the oldest gets it; if
//! several messages fit a receive, it gets the one that came first. So messages of one sender and tag never pass each
//! other, as in MPI (MPI 4.1, section 3.5), and a receive from any source needs no other rank's consent. A tag is only
//! a number to compare: nothing is stored for a tag that no receive waits for.

mod record;

pub use record::{CARRIED_BYTES, NoRecord, RECORD_BYTES, Record, is_length};

use crate::{element::DType, group::Rank};
use alloc::{
    collections::{BTreeMap, VecDeque},
    vec::Vec,
};
use core::fmt;

/// The most messages that a rank can have announced to another one without an answer. Further ones wait at their
/// sender.
pub const WAITING_MOST: usize = 16_384;

/// The properties of a message, or of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Envelope {
    /// The number that both sides give.
    pub tag: i64,
    /// The type of the elements.
    pub dtype: DType,
    /// How many there are.
    pub count: u64,
}

impl Envelope {
    /// How many bytes the elements take; `None` for more than there can be.
    pub fn bytes(&self) -> Option<usize> {
        usize::try_from(self.count).ok()?.checked_mul(self.dtype.bytes())
    }
}

impl fmt::Display for Envelope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.count, self.dtype)?;
        match self.tag {
            0 => Ok(()),
            tag => write!(f, " with tag {tag}"),
        }
    }
}

/// A message that found its receive.
#[derive(Debug, PartialEq, Eq)]
pub struct Match<R, P> {
    /// The sender.
    pub from: Rank,
    /// Its number among the messages of that rank to this one.
    pub number: u64,
    /// The envelope of the message.
    pub sent: Envelope,
    /// The data that came with it.
    pub payload: P,
    /// The envelope of the receive.
    pub wanted: Envelope,
    /// The receive.
    pub receive: R,
}

/// A receive that waits for its message.
#[derive(Debug)]
pub struct Asked<R> {
    /// The sender; `None` for any rank.
    pub from: Option<Rank>,
    /// The envelope of the receive.
    pub envelope: Envelope,
    /// The receive.
    pub receive: R,
}

/// A message that waits for its receive.
#[derive(Debug)]
struct Waiting<P> {
    /// How many messages came before it, of any rank.
    arrival: u64,
    number: u64,
    envelope: Envelope,
    payload: P,
}

/// The messages in flight between this rank and another one.
#[derive(Debug)]
struct Peer<S, P> {
    /// The number of the next message to it.
    next: u64,
    /// Messages that were announced to it and have no answer yet.
    sends: BTreeMap<u64, S>,
    /// The least number that its next message can have.
    next_announced: u64,
    /// Messages that it has announced and no receive has asked for, by tag.
    waiting: BTreeMap<i64, VecDeque<Waiting<P>>>,
    /// How many these are.
    waiting_number: usize,
}

/// The messages of one group at one rank. `S` is the caller's data of a send, `R` of a receive, and `P` came with a
/// message.
#[derive(Debug)]
pub struct Mailbox<S, R, P> {
    peers: BTreeMap<Rank, Peer<S, P>>,
    /// By tag, in the order of the calls.
    wanted: BTreeMap<i64, VecDeque<Asked<R>>>,
    arrivals: u64,
}

impl<S, R, P> Default for Mailbox<S, R, P> {
    fn default() -> Self {
        Self { peers: BTreeMap::new(), wanted: BTreeMap::new(), arrivals: 0 }
    }
}

impl<S, P> Default for Peer<S, P> {
    fn default() -> Self {
        Self {
            next: 0,
            sends: BTreeMap::new(),
            next_announced: 0,
            waiting: BTreeMap::new(),
            waiting_number: 0,
        }
    }
}

impl<S, R, P> Mailbox<S, R, P> {
    /// This rank sends a message to another. Returns its number, with which it is to be announced.
    pub fn send(&mut self, to: Rank, send: S) -> u64 {
        let peer = self.peers.entry(to).or_default();
        let number = peer.next;
        peer.next += 1;
        peer.sends.insert(number, send);
        number
    }

    /// A rank has answered a message, or this rank gives it up. Returns the send, if it had no answer before.
    pub fn answered(&mut self, by: Rank, number: u64) -> Option<S> {
        self.peers.get_mut(&by)?.sends.remove(&number)
    }

    /// A send that has no answer.
    pub fn send_mut(&mut self, to: Rank, number: u64) -> Option<&mut S> {
        self.peers.get_mut(&to)?.sends.get_mut(&number)
    }

    /// Whether this rank has ever sent a message of that number to a rank.
    pub fn has_sent(&self, to: Rank, number: u64) -> bool {
        self.peers.get(&to).is_some_and(|peer| number < peer.next)
    }

    /// This rank asks for a message.
    pub fn receive(&mut self, wanted: Asked<R>) -> Option<Match<R, P>> {
        let tag = wanted.envelope.tag;
        let first = |(rank, peer): (&Rank, &Peer<S, P>)| {
            let waiting = peer.waiting.get(&tag)?.front()?;
            Some((waiting.arrival, *rank))
        };
        let oldest = match wanted.from {
            Some(from) => self.peers.get_key_value(&from).and_then(first),
            None => self.peers.iter().filter_map(first).min(),
        };
        let Some((_, from)) = oldest else {
            self.wanted.entry(tag).or_default().push_back(wanted);
            return None;
        };
        let waiting = self.peers.get_mut(&from)?.take(tag, 0)?;
        Some(matched(from, waiting, wanted))
    }

    /// A rank has announced a message. Numbers are missing if announcements were lost.
    ///
    /// # Errors
    /// If its number does not follow the last one, or if too many messages wait.
    pub fn announced(
        &mut self,
        from: Rank,
        number: u64,
        envelope: Envelope,
        payload: P,
    ) -> Result<Option<Match<R, P>>, OutOfTurn> {
        let peer = self.peers.entry(from).or_default();
        if number < peer.next_announced || peer.waiting_number >= WAITING_MOST {
            return Err(OutOfTurn { number, next: peer.next_announced });
        }
        peer.next_announced = number.saturating_add(1);
        self.arrivals += 1;
        let waiting = Waiting { arrival: self.arrivals, number, envelope, payload };
        let tag = envelope.tag;
        let fits = |wanted: &Asked<R>| wanted.from.is_none_or(|rank| rank == from);
        let at = self.wanted.get(&tag).and_then(|all| all.iter().position(fits));
        let Some(wanted) = at.and_then(|at| self.take_wanted(tag, at)) else {
            self.peers.entry(from).or_default().add(waiting);
            return Ok(None);
        };
        Ok(Some(matched(from, waiting, wanted)))
    }

    /// A rank withdraws a message. Returns the message if no receive has asked for it.
    pub fn withdrawn(&mut self, from: Rank, number: u64) -> Option<Envelope> {
        let peer = self.peers.get_mut(&from)?;
        let place = peer.waiting.iter().find_map(|(tag, all)| {
            all.iter().position(|waiting| waiting.number == number).map(|at| (*tag, at))
        });
        let (tag, at) = place?;
        peer.take(tag, at).map(|waiting| waiting.envelope)
    }

    /// Drops the messages that a rank has announced and no receive has asked for, because its sends have failed.
    pub fn forget(&mut self, from: Rank) {
        if let Some(peer) = self.peers.get_mut(&from) {
            peer.waiting.clear();
            peer.waiting_number = 0;
        }
    }

    /// The sends that have no answer, with their receivers and numbers.
    pub fn sends(&self) -> impl Iterator<Item = (Rank, u64, &S)> {
        self.peers
            .iter()
            .flat_map(|(rank, peer)| peer.sends.iter().map(|(number, send)| (*rank, *number, send)))
    }

    /// The receives that wait.
    pub fn wanted(&self) -> impl Iterator<Item = &Asked<R>> {
        self.wanted.values().flatten()
    }

    /// Gives up the receives for which `which` holds, in the order of their calls.
    pub fn give_up(&mut self, mut which: impl FnMut(&Asked<R>) -> bool) -> Vec<Asked<R>> {
        let mut given_up = Vec::new();
        for all in self.wanted.values_mut() {
            let (gone, stay) = core::mem::take(all).into_iter().partition(|wanted| which(wanted));
            *all = stay;
            given_up.extend::<VecDeque<_>>(gone);
        }
        self.wanted.retain(|_, all| !all.is_empty());
        given_up
    }

    fn take_wanted(&mut self, tag: i64, at: usize) -> Option<Asked<R>> {
        let all = self.wanted.get_mut(&tag)?;
        let taken = all.remove(at);
        if all.is_empty() {
            self.wanted.remove(&tag);
        }
        taken
    }
}

impl<S, P> Peer<S, P> {
    fn add(&mut self, waiting: Waiting<P>) {
        self.waiting_number += 1;
        self.waiting.entry(waiting.envelope.tag).or_default().push_back(waiting);
    }

    fn take(&mut self, tag: i64, at: usize) -> Option<Waiting<P>> {
        let all = self.waiting.get_mut(&tag)?;
        let taken = all.remove(at);
        if all.is_empty() {
            self.waiting.remove(&tag);
        }
        self.waiting_number -= usize::from(taken.is_some());
        taken
    }
}

/// A message whose number does not follow the last one, or one message too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("message {number} where {next} is the next")]
pub struct OutOfTurn {
    /// The number.
    pub number: u64,
    /// The least that it can be.
    pub next: u64,
}

fn matched<R, P>(from: Rank, waiting: Waiting<P>, wanted: Asked<R>) -> Match<R, P> {
    let Waiting { number, envelope, payload, .. } = waiting;
    Match { from, number, sent: envelope, payload, wanted: wanted.envelope, receive: wanted.receive }
}

#[cfg(test)]
mod tests;
