//! The work that an engine leaves for itself, for its surroundings, and for waiting threads.

use super::{
    early::Parked,
    group::Group,
    port_reports::PORT_INTERVAL,
    timers::{Timer, Timers},
};
use crate::{
    Error, Result,
    clock::Moment,
    completion::Completion,
    core::{
        group::Rank,
        session::{
            control::Message,
            group_state::{Output, Outputs},
            membership::MemberId,
        },
    },
    execute::issue::{Identity, PlanKey},
    observe::Observer,
    transport::{
        Broken,
        tcp::TcpLink,
        ticket::{OpKey, Token},
    },
};
use std::{collections::VecDeque, sync::Arc, time::Duration};

/// How often operations are looked through for those that have waited long, and reducers for silent ones.
const LOOK: Duration = Duration::from_millis(100);

/// What the engine asks of its surroundings.
#[derive(Debug)]
pub(crate) enum Event {
    /// A link to this endpoint is needed.
    Want(MemberId),
    /// A link broke.
    Broken { endpoint: MemberId, reason: Broken },
    /// Something to tell the hub.
    ToHub(Message),
    /// An operation has failed whose process writes its flight record then.
    Failed,
}

/// What the poller is to do for a link over a socket.
#[derive(Debug)]
pub(crate) enum Interest {
    /// There is a new socket, to be read when something has come.
    New(MemberId),
    /// A socket is to be written to when it takes something again, or no longer.
    Room { endpoint: MemberId, wanted: bool },
    /// A link is gone: the poller forgets its socket before that closes, since a forked process may keep it open.
    Gone(Box<TcpLink>),
}

/// Work that one part of the engine defers for another. The engine does it before it returns to its caller, in this order; so no
/// part calls back into the one that called it.
#[derive(Debug)]
pub(super) enum Deferred {
    /// An operation may be able to go on.
    Run(OpKey),
    /// What is left of a group's operations without a reducer fails: all of it, or else that about which its ranks do not agree.
    FailRedone { group: u32, error: Error, all: bool },
    /// Queued operations may be able to start.
    Start,
    /// A link is of no use any more.
    Broken { endpoint: MemberId, reason: Broken },
    /// A link needs the memory of a message no more.
    HandedOver(Token),
    /// Frames that came early may be of use now.
    Redeliver(Vec<Parked>),
    /// A group that was dropped may be over.
    Forget(u32),
    /// Something has come, ended or changed in a group that serves another one.
    Served(u32),
    /// The operations of a group that use reducers are to be finished without.
    Redo(u32),
    /// What a group wants done.
    Group(u32, Box<Output>),
}

/// How an operation ended, for those that wait for it.
pub(super) struct Ended {
    pub(super) id: Identity,
    pub(super) plan: PlanKey,
    pub(super) completion: Option<Arc<Completion>>,
    pub(super) issued: Moment,
    pub(super) result: Result<()>,
}

/// What an engine leaves to do.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// For the surroundings.
    pub(crate) events: Vec<Event>,
    /// For the poller.
    pub(crate) interests: Vec<Interest>,
    /// Whether something ended since this was last asked.
    pub(super) finished: bool,
    /// Whether links may take something, once all else is done.
    pub(super) flushes: bool,
    pub(crate) observer: Observer,
    pub(super) timers: Timers,
    deferred: VecDeque<Deferred>,
}

impl Outbox {
    /// The moment at which the engine was called.
    pub(crate) fn now(&self) -> Moment {
        self.observer.now
    }

    /// Defers something.
    pub(super) fn push(&mut self, deferred: Deferred) {
        let is_there = match (&deferred, self.deferred.back()) {
            (Deferred::Run(key), Some(Deferred::Run(last))) => key == last,
            (Deferred::Redo(group), Some(Deferred::Redo(last))) => group == last,
            (Deferred::Start, Some(Deferred::Start)) => true,
            _ => false,
        };
        if !is_there {
            self.deferred.push_back(deferred);
        }
    }

    /// Nothing more comes from an endpoint that has left: what waits for its link may start or fail now.
    pub(super) fn departed(&mut self) {
        self.push(Deferred::Start);
        self.finished = true;
    }

    /// The next deferred work.
    pub(super) fn next(&mut self) -> Option<Deferred> {
        self.deferred.pop_front()
    }

    /// Sets a timer to this long from now.
    pub(super) fn after(&mut self, timer: Timer, delay: Duration) {
        self.timers.set(timer, self.now() + delay);
    }

    /// Has what this timer is for looked at soon.
    pub(super) fn look_soon(&mut self, timer: Timer) {
        self.timers.ensure(timer, self.now() + LOOK);
    }

    /// Tells those that wait for an operation of rank `me` how it ended.
    pub(super) fn conclude(&mut self, group: &mut Group, me: Rank, ended: Ended) {
        let Ended { id, plan, completion, issued, result } = ended;
        let result = result.map_err(|error| error.about(me, group.settings.named(id.fingerprint)));
        self.observer.ended(&id, issued, &result);
        if result.is_ok() {
            if group.completed(plan) {
                self.timers.ensure(Timer::Ports(id.group), self.observer.now + PORT_INTERVAL);
            }
            let hears_all = id.fingerprint.hears_all(group.settings.me);
            group.state.complete(id.fingerprint.sequence, hears_all, self);
        }
        group.state.ended(self);
        if group.settings.serves.is_some() {
            self.push(Deferred::Served(id.group));
        }
        if let Some(completion) = completion {
            completion.finish(result);
            self.finished = true;
        }
    }
}

impl Outputs for Outbox {
    fn put(&mut self, group: u32, output: Output) {
        match output {
            Output::Tell(message) => self.events.push(Event::ToHub(message)),
            Output::Leave => self.push(Deferred::Forget(group)),
            Output::After(delay) => {
                self.after(Timer::Group(group), delay);
                // What waits for a decision in a repair group may have failed.
                self.push(Deferred::Served(group));
            }
            output => self.push(Deferred::Group(group, Box::new(output))),
        }
    }
}
