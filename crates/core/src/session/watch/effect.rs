//! The tasks from a [watch](super::Watch).

use crate::{
    group::Rank,
    session::{
        Cause,
        control::{Death, Message},
        fence::Directed,
        membership::{MemberId, Roster},
        survivors::Shrunk,
    },
};
use alloc::{collections::BTreeMap, string::String, sync::Arc};

/// A task from a watch.
#[derive(Debug)]
pub enum Effect {
    /// Send this on the control connection with a rank, which can turn out to be
    /// [unreachable](super::Watch::unreachable).
    Send(Directed),
    /// Close the control connection with a rank.
    Disconnect(Rank),
    /// Make a link to this member.
    Connect(MemberId),
    /// Call a reducer, to see whether it [is there](super::Watch::greeted).
    Probe(String),
    /// The job has these members from now on.
    Members(Arc<Roster>),
    /// Answer the callers that wait to continue with a group's survivors.
    Answer {
        /// The group.
        group: u32,
        /// The outcome.
        answer: ShrinkAnswer,
    },
    /// A line for people, about this rank.
    Log {
        /// Whether it is a warning.
        warns: bool,
        /// The rank that it is about, if it is about one.
        peer: Option<Rank>,
        /// The line.
        line: String,
    },
    /// Events of groups. The engine's answer is for [the hub](super::Watch::tell_hub).
    Groups(GroupEvent),
}

/// The answer to a rank that wants to continue with the survivors.
#[derive(Debug)]
pub enum ShrinkAnswer {
    /// The hub has decided.
    Decided(Shrunk),
    /// There is no hub. These ranks are gone; the value is `true` if that is certain.
    NoHub(BTreeMap<Rank, bool>),
}

/// An event of a process's groups.
#[derive(Debug)]
pub enum GroupEvent {
    /// A message of the hub to a group.
    FromHub(Message),
    /// A worker has died.
    PeerDied {
        /// Which.
        worker: MemberId,
        /// How that is known.
        death: Death,
        /// Whether no rank decides any more.
        hub_is_gone: bool,
    },
    /// A worker has left in order.
    PeerLeft(MemberId),
    /// The link to a live worker is lost: operations that need it fail, on all members.
    LinkBroke {
        /// The other end.
        endpoint: MemberId,
        /// Why.
        cause: Cause,
    },
    /// No rank decides any more: rank 0 has left, and is not there for the others either.
    NoHub,
}
