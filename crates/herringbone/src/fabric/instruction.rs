//! What a [watch](super::watch::Watch) wants done.

use crate::{
    core::{
        group::Rank,
        session::{
            Cause,
            control::{Death, Message},
            membership::{MemberId, Roster},
            survivors::Survival,
        },
    },
    engine::Engine,
};
use std::{collections::BTreeMap, sync::Arc};

/// What a watch wants done.
#[derive(Debug)]
pub(crate) enum Instruction {
    /// A message is to be sent on the connection with a rank.
    Say { to: Rank, message: Message },
    /// A sign of life is to be sent on all connections; those that are broken are [unreachable](super::watch::Watch::unreachable).
    Beat,
    /// The connection with a rank is of no use any more.
    Part(Rank),
    /// A link to this endpoint is to be made.
    Link(MemberId),
    /// A reducer is to be called, to see whether it [is there](super::watch::Watch::greeted).
    Greet(String),
    /// The job has other members.
    Renew(Arc<Roster>),
    /// Whoever waits to go on with the members of a group that are left is told who they are.
    Answer { group: u32, answer: ToSurvivor },
    /// Something is to be done to the engine. What that [answers](Deed::done_to) is for [the hub](super::watch::Watch::tell_hub).
    Do(Deed),
}

/// What a rank hears that wants to go on with those that are left.
#[derive(Debug)]
pub(crate) enum ToSurvivor {
    /// The hub has decided; and so many operations of the group have all completed that go on.
    Decided(Survival, u64),
    /// There is no hub. These are gone; `true` for those of which that is certain.
    WithoutHub(BTreeMap<Rank, bool>),
}

/// What is to be done to an engine.
#[derive(Debug)]
pub(crate) enum Deed {
    Tell { group: u32, message: Message },
    DisputeAllWith { endpoint: MemberId, cause: Cause },
    Lose { worker: MemberId, death: Death, hub_is_gone: bool },
    Leave(MemberId),
    NoLink { endpoint: MemberId, problem: String },
    Renew(Arc<Roster>),
    LeftByAll(u32),
    WithoutHub,
    SayGoodbye,
}

impl Deed {
    /// Does it. Returns what the engine answers to the hub.
    pub(crate) fn done_to(self, engine: &mut Engine) -> Option<Message> {
        match self {
            Deed::Tell { group, message } => return engine.told_by_hub(group, &message),
            Deed::DisputeAllWith { endpoint, cause } => engine.dispute_all_with(endpoint, &cause),
            Deed::Lose { worker, death, hub_is_gone } => engine.lose(worker, &death.to_string(), hub_is_gone),
            Deed::Leave(worker) => engine.leave(worker),
            Deed::NoLink { endpoint, problem } => engine.no_link(endpoint, problem),
            Deed::Renew(roster) => engine.renew(&roster),
            Deed::LeftByAll(group) => engine.left_by_all(group),
            Deed::WithoutHub => engine.without_hub(),
            Deed::SayGoodbye => engine.say_goodbye(),
        }
        None
    }
}
