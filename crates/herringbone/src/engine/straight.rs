//! A small operation of a thread that waits for it, run straight through while nothing else is under way.
//!
//! The engine's lock is let go where the thread yields, and whoever takes it meanwhile for anything else first
//! [interrupts](Engine::interrupt) the run, which is an operation like any other from then on.

use super::{Engine, buffers::are_usable, early::Parked};
use crate::{
    Result,
    completion::Completion,
    engine::refused::Refused,
    execute::{
        io::Io,
        issue::Issue,
        script::Script,
        staging::Part,
        straight::{Pace, Straight},
    },
};
use std::sync::Arc;

/// How an operation began that was to be run straight through.
#[derive(Debug)]
pub(crate) enum Begun {
    Straight,
    /// Like any other.
    Ordinary(Arc<Completion>),
    /// Not at all: nothing has changed.
    No(Issue),
}

impl Engine {
    /// Issues an operation to be run straight through, if it may be.
    ///
    /// # Errors
    /// As [`issue`](Self::issue).
    pub(crate) fn begin_straight(&mut self, issue: Issue) -> Result<Begun> {
        if self.reduces || self.ops.len() > 0 || !self.queue.is_empty() {
            return Ok(Begun::No(issue));
        }
        let group = self.groups.get(&issue.group);
        let group =
            group.filter(|group| are_usable(&issue.call, group.settings.me, &issue.input, &issue.output));
        let script = group.and_then(|group| group.script(&issue.call, self.links));
        let Some(script) = script.filter(|script| !self.is_crowded(script)).cloned() else {
            return Ok(Begun::No(issue));
        };
        let part = if issue.priority > 0 { Part::Either } else { Part::Common };
        let bytes = script.prepared.staging_bytes(script.prepared.depth);
        let Some(memory) = self.staging.take(bytes, part) else {
            return Ok(Begun::No(issue));
        };
        let agreed = match self.agree(&issue) {
            Ok(agreed) => agreed,
            Err(refused) => {
                self.staging.give_back(memory);
                return match refused {
                    Refused::Frozen => Ok(Begun::No(issue)),
                    Refused::Counted(error) => Ok(Begun::Ordinary(self.counted_as_failed(error))),
                    Refused::Failed(error) => {
                        self.stats.failed += 1;
                        Err(error)
                    }
                };
            }
        };
        let id = agreed.0;
        self.straight = Some(Straight::new(script, issue, agreed, memory, std::mem::take(&mut self.notes)));
        self.stats.most_in_flight = self.stats.most_in_flight.max(1);
        if !self.early.is_empty() && !self.take_early() {
            let completion = self.interrupt().unwrap_or_default();
            self.redeliver_to(&id);
            return Ok(Begun::Ordinary(completion));
        }
        Ok(Begun::Straight)
    }

    /// Whether one of a script's ranks has to be invited to send, and so waits for an ordinary operation's word.
    fn is_crowded(&self, script: &Script) -> bool {
        !self.early.is_empty() && script.endpoints().any(|at| self.endpoints[at as usize].is_crowded())
    }

    /// Hands the run the messages that came before it began. Returns whether nothing is odd about any.
    fn take_early(&mut self) -> bool {
        let Some(straight) = &mut self.straight else { return true };
        let id = straight.id;
        let taken =
            self.early.take(id.group, id.fingerprint.sequence, |Parked { endpoint, header, body }| {
                id.is_of(header)
                    && header.hash == id.hash
                    && body
                        .bytes()
                        .is_some_and(|bytes| straight.arrived_early(*endpoint, header, bytes, &self.staging))
            });
        for Parked { endpoint, header, .. } in taken {
            let endpoint = &mut self.endpoints[endpoint as usize];
            self.stats.received(endpoint, header.length as usize);
            endpoint.parked -= u16::from(header.eager);
            straight.notes.flush |= endpoint.emptied(header.eager);
        }
        !self.early.of(id.group, id.fingerprint.sequence).iter().any(|parked| id.is_of(&parked.header))
    }

    /// Lets the run go on and says how far it came; it looks up to `tries` times for messages. If it is done, so is the
    /// operation.
    pub(crate) fn run_straight(&mut self, tries: u32) -> Pace {
        let Some(straight) = &mut self.straight else { return Pace::Stuck };
        let mut io = Io { endpoints: &mut self.endpoints, staging: &self.staging, stats: &mut self.stats };
        let pace = straight.run(tries, &mut io, &mut self.board);
        // If it is done, it is not quite over: somebody has to see to the links.
        self.finished |= !self.flush_straight();
        if pace == Pace::Done {
            self.end_straight();
        }
        pace
    }

    /// Hands to links what the run has noted for them. Returns whether they have taken it.
    fn flush_straight(&mut self) -> bool {
        let Some(straight) = &mut self.straight else { return true };
        if !std::mem::take(&mut straight.notes.flush) {
            return true;
        }
        self.flush();
        let backlog = self.has_backlog();
        self.straight.iter_mut().for_each(|straight| straight.notes.flush = backlog);
        !backlog
    }

    fn end_straight(&mut self) {
        let Some(mut straight) = self.straight.take() else { return };
        let (id, call, completion) = (straight.id, straight.issue.call, straight.completion.take());
        self.staging.give_back(straight.memory.clone());
        self.conclude(&id, &call, completion, Ok(()), straight.issued);
        self.notes = straight.notes;
    }

    /// How the run's end can be learnt of, whoever brings it about.
    pub(crate) fn follow_straight(&mut self) -> Option<Arc<Completion>> {
        let straight = self.straight.as_mut()?;
        Some(straight.completion.get_or_insert_default().clone())
    }

    /// Whether this run is the one that has such an end.
    pub(crate) fn is_straight(&self, completion: &Arc<Completion>) -> bool {
        let of_it = self.straight.as_ref().and_then(|straight| straight.completion.as_ref());
        of_it.is_some_and(|of_it| Arc::ptr_eq(of_it, completion))
    }

    /// Makes the run, if there is one, an operation like any other. Returns how its end can be learnt of.
    pub(crate) fn interrupt(&mut self) -> Option<Arc<Completion>> {
        let completion = self.follow_straight()?;
        let group = self.groups.get(&self.straight.as_ref()?.id.group)?;
        let straight = self.straight.take()?;
        let (key, room) = self.ops.reserve();
        let mut io = Io { endpoints: &mut self.endpoints, staging: &self.staging, stats: &mut self.stats };
        let operation = straight.into_operation(key, room, &group.settings.roster, &mut io);
        let (key, id) = (operation.key, operation.id);
        if let Some(group) = self.groups.get_mut(&id.group) {
            group.running.push_back((id.fingerprint.sequence, key));
        }
        self.ops.insert(operation);
        self.run(key);
        self.fail_if_any_departed(key);
        self.flush();
        Some(completion)
    }
}
