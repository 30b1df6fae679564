//! A small operation of a thread that waits for it, run straight through while nothing else is under way.
//!
//! The engine's lock is let go between tries, and whoever takes it meanwhile for anything else first
//! [interrupts](Engine::interrupt) the run, which is an operation like any other from then on.

use super::{
    Engine,
    begin::{Issue, Queued, Refused},
    inbox::Parked,
};
use crate::{
    execute::{
        operation::{Io, Operation},
        prepare::Peer,
        staging::Part,
        straight::{Pace, Straight},
    },
    work::Completion,
};
use std::sync::Arc;

/// How an operation began that was to be run straight through.
#[derive(Debug)]
pub(crate) enum Begun {
    Straight,
    /// Like any other.
    Ordinary(Arc<Completion>),
    /// Not at all: nothing has changed.
    No,
}

impl Engine {
    /// Issues an operation to be run straight through, if it may be.
    ///
    /// # Errors
    /// As [`issue`](Self::issue).
    pub(crate) fn begin_straight(&mut self, issue: &Issue) -> Result<Begun, Refused> {
        if self.reduces || self.ops.len() > 0 || !self.queue.is_empty() {
            return Ok(Begun::No);
        }
        let Some(group) = self.groups.get(&issue.group) else { return Ok(Begun::No) };
        let Some(prepared) = group.straight(&issue.call, self.links).cloned() else { return Ok(Begun::No) };
        // Whoever has to be invited to send waits for an ordinary operation's word.
        let crowded =
            |peer: &Peer| self.endpoints[group.settings.roster[peer.rank as usize] as usize].is_crowded();
        if prepared.peers.iter().any(crowded) {
            return Ok(Begun::No);
        }
        let part = if issue.priority > 0 { Part::Either } else { Part::Common };
        let Some(memory) = self.staging.take(prepared.staging_bytes(), part) else { return Ok(Begun::No) };
        let (id, timeout) = match self.agree(issue) {
            Ok(agreed) => agreed,
            Err(refused) => {
                self.staging.give_back(memory);
                self.stats.failed += u64::from(matches!(refused, Refused::Failed(_)));
                return Err(refused);
            }
        };
        let Some(group) = self.groups.get(&issue.group) else { return Ok(Begun::No) };
        let (key, room) = self.ops.reserve();
        let queued = Queued::new(id, issue, None, timeout);
        let operation = Operation::new(key, queued, prepared, memory, room);
        self.straight = Some(Straight::new(operation, &group.settings.roster));
        self.stats.most_in_flight = self.stats.most_in_flight.max(1);
        if !self.parked.is_empty() && !self.take_early() {
            let completion = self.interrupt();
            self.redeliver(|header| id.is_of(header));
            return Ok(completion.map_or(Begun::No, Begun::Ordinary));
        }
        Ok(Begun::Straight)
    }

    /// Hands the run the messages that came before it began. Returns whether nothing is odd about any.
    fn take_early(&mut self) -> bool {
        let Some(straight) = &mut self.straight else { return true };
        let id = straight.operation.id;
        let mut odd = false;
        self.parked.retain(|Parked { endpoint, header, body }| {
            if !id.is_of(header) {
                return true;
            }
            let taken = header.hash == id.hash
                && body.bytes().is_some_and(|bytes| {
                    straight.arrived_early(*endpoint, header, bytes, &self.staging).is_ok()
                });
            if taken {
                let endpoint = &mut self.endpoints[*endpoint as usize];
                self.stats.received(endpoint, header.length as usize);
                endpoint.parked -= u16::from(header.eager);
                endpoint.emptied(header.eager);
            }
            odd |= !taken;
            !taken
        });
        !odd
    }

    /// Lets the run go on and says how far it came. If it is done, so is the operation.
    pub(crate) fn run_straight(&mut self) -> Pace {
        let Some(straight) = &mut self.straight else { return Pace::Stuck };
        let mut io = Io { endpoints: &mut self.endpoints, staging: &self.staging, stats: &mut self.stats };
        let (pace, moved) = straight.run(&mut io);
        if moved {
            self.flush();
        }
        if pace == Pace::Done {
            self.end_straight();
        }
        pace
    }

    fn end_straight(&mut self) {
        let Some(Straight { mut operation, .. }) = self.straight.take() else { return };
        let (id, call, completion) = (operation.id, operation.prepared.call, operation.completion.take());
        self.staging.give_back(operation.memory.clone());
        self.ops.release(operation.key);
        self.conclude(&id, &call, completion, Ok(()), operation.issued);
        self.ops.recycle(operation.into_room());
        // Then it is not quite over: somebody has to see to the links.
        self.finished |= self.has_backlog();
    }

    /// How the run's end can be learnt of, whoever brings it about.
    pub(crate) fn follow_straight(&mut self) -> Option<Arc<Completion>> {
        let straight = self.straight.as_mut()?;
        Some(straight.operation.completion.get_or_insert_default().clone())
    }

    /// Whether this run is the one that has such an end.
    pub(crate) fn is_straight(&self, completion: &Arc<Completion>) -> bool {
        let of_it = self.straight.as_ref().and_then(|straight| straight.operation.completion.as_ref());
        of_it.is_some_and(|of_it| Arc::ptr_eq(of_it, completion))
    }

    /// Makes the run, if there is one, an operation like any other. Returns how its end can be learnt of.
    pub(crate) fn interrupt(&mut self) -> Option<Arc<Completion>> {
        let completion = self.follow_straight()?;
        let mut io = Io { endpoints: &mut self.endpoints, staging: &self.staging, stats: &mut self.stats };
        let operation = self.straight.take()?.into_operation(&mut io);
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
