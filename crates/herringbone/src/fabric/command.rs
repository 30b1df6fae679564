//! What other threads ask of the control thread.

use crate::{
    core::session::{control::Message, membership::MemberId},
    engine::outbox::Event,
    node::Surroundings,
    sys::{doorbell::Bell, pidfd::Pidfd},
};
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

/// What other threads ask of the control thread.
pub(crate) enum Command {
    Event(Event),
    /// For the hub, wherever it is.
    ToHub(Message),
    /// A host-mate's process, to be watched.
    Watch(MemberId, Pidfd),
    /// A link could not be made.
    NoLink {
        endpoint: MemberId,
        problem: String,
    },
    /// A reducer has answered, or has called by itself, in this life; or it has not answered.
    Greeted {
        address: String,
        life: Option<u64>,
    },
    Close,
}

/// Work for the control thread, from any thread.
pub(crate) struct Commands {
    queue: Mutex<VecDeque<Command>>,
    pub(crate) bell: Bell,
}

impl Commands {
    pub(crate) fn new() -> std::io::Result<Arc<Self>> {
        Ok(Arc::new(Self { queue: Mutex::default(), bell: Bell::new()? }))
    }

    pub(crate) fn send(&self, command: Command) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).push_back(command);
        // The control thread looks ten times a second in any case.
        let _rung = self.bell.ring();
    }

    pub(crate) fn take(&self) -> VecDeque<Command> {
        std::mem::take(&mut *self.queue.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The engine's events become commands.
pub(crate) struct ToControl(pub(crate) Arc<Commands>);

impl Surroundings for ToControl {
    fn handle(&self, events: Vec<Event>) {
        events.into_iter().for_each(|event| self.0.send(Command::Event(event)));
    }
}
