//! A small operation of a thread that waits for it, run straight through while nothing else is under way.
//!
//! The engine's lock is released while the thread yields. A thread that takes it meanwhile for anything else first
//! [interrupts](Runner::engine) the run, which is an operation like any other from then on.

use super::{Engine, buffers::are_usable, early::Parked, outbox::Ended, refused::Refused, runtime::Runtime};
use crate::{
    Result,
    clock::Moment,
    completion::Completion,
    execute::{
        io::Io,
        issue::{Caller, Issue},
        script::Script,
        staging::Zone,
        straight::{Straight, StraightProgress, StraightScratch},
    },
    transport::shm::Board,
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

/// An engine, and the operation that a thread may be running straight through in it; then there is no other.
#[derive(Debug)]
pub(crate) struct Runner {
    engine: Engine,
    straight: Option<Straight>,
    scratch: StraightScratch,
}

/// What a straight run needs of an engine.
fn io(engine: &mut Engine) -> (Io<'_>, &mut Board) {
    let Runtime { links, ops, out, .. } = &mut engine.runtime;
    let io = Io { endpoints: &mut links.endpoints, staging: &ops.staging, observer: &mut out.observer };
    (io, &mut links.board)
}

impl Runner {
    pub(crate) fn new(engine: Engine) -> Self {
        Self { engine, straight: None, scratch: StraightScratch::default() }
    }

    /// The engine, for anything but a straight run: that goes on as an operation like any other. Says also whether there was one.
    pub(crate) fn engine(&mut self) -> (&mut Engine, bool) {
        let interrupted = self.straight.is_some() && self.interrupt().is_some();
        (&mut self.engine, interrupted)
    }

    /// The engine, to be looked at, whatever runs in it.
    pub(crate) fn as_it_is(&mut self) -> &mut Engine {
        &mut self.engine
    }

    /// Issues an operation to be run straight through, if it may be.
    ///
    /// # Errors
    /// As [`issue`](Engine::issue).
    pub(crate) fn begin(&mut self, mut issue: Issue, now: Moment) -> Result<Begun> {
        let engine = self.engine().0.at(now);
        issue.group = engine.current(issue.group);
        let is_free = engine.runtime.ops.table.len() == 0
            && engine.runtime.backlog.queue.is_empty()
            && engine.late.is_empty();
        let is_fit = issue.lacks.is_none() && issue.fed.as_ref().is_none_or(|fed| fed.allocate().is_ok());
        if engine.reduces || !is_free || !is_fit {
            return Ok(Begun::No(issue));
        }
        let group = engine.runtime.groups.get(issue.group);
        let group =
            group.filter(|group| are_usable(&issue.call, group.settings.me, &issue.input, &issue.output));
        let known = group.and_then(|group| group.script(&issue.call, engine.runtime.links.changes));
        let Some((plan, script)) = known.filter(|(_, script)| !is_crowded(engine, script)) else {
            return Ok(Begun::No(issue));
        };
        let script = script.clone();
        let part = if issue.attrs.priority > 0 { Zone::Either } else { Zone::Common };
        let bytes = script.prepared.staging_bytes(script.prepared.depth);
        let Some(memory) = engine.runtime.ops.staging.take(bytes, part) else {
            return Ok(Begun::No(issue));
        };
        let agreed = match engine.runtime.agree(&issue, Some(plan)) {
            Ok(agreed) => agreed,
            Err(refused) => {
                engine.runtime.ops.staging.give_back(memory);
                return match refused {
                    Refused::Frozen => Ok(Begun::No(issue)),
                    Refused::Counted(error) => Ok(Begun::Ordinary(Engine::counted_as_failed(error))),
                    Refused::Failed(error) => {
                        engine.runtime.out.observer.refused();
                        Err(error)
                    }
                };
            }
        };
        engine.runtime.out.observer.began_straight(&agreed.id);
        let is_early = !engine.runtime.backlog.early.is_empty();
        let scratch = std::mem::take(&mut self.scratch);
        self.straight = Some(Straight::new(script, issue, agreed, memory, scratch, now));
        if is_early && !self.take_early() {
            let completion = self.interrupt().unwrap_or_default();
            return Ok(Begun::Ordinary(completion));
        }
        Ok(Begun::Straight)
    }

    /// Hands the run the messages that came before it began. Returns whether nothing is odd about any.
    fn take_early(&mut self) -> bool {
        let Self { engine, straight: Some(straight), .. } = self else { return true };
        let Runtime { backlog, links, ops, out, .. } = &mut engine.runtime;
        let id = straight.id;
        let taken =
            backlog.early.take(id.group, id.fingerprint.sequence, |Parked { endpoint, header, body }| {
                id.is_of(header)
                    && header.hash == id.hash
                    && body
                        .bytes()
                        .is_some_and(|bytes| straight.arrived_early(*endpoint, header, bytes, &ops.staging))
            });
        for Parked { endpoint, header, .. } in taken {
            out.observer.received_straight(&id, endpoint, header.length as usize);
            let endpoint = &mut links.endpoints[endpoint];
            endpoint.parked -= u16::from(header.eager);
            straight.scratch.flush |= endpoint.emptied(header.eager);
        }
        !backlog.early.of(id.group, id.fingerprint.sequence).iter().any(|parked| id.is_of(&parked.header))
    }

    /// Lets the run go on and says how far it came; it looks up to `tries` times for messages. If it is done, it is to be
    /// [ended](Self::end).
    pub(crate) fn run(&mut self, tries: u32) -> StraightProgress {
        let Some(straight) = &mut self.straight else { return StraightProgress::Stuck };
        let (mut io, board) = io(&mut self.engine);
        let progress = straight.run(tries, &mut io, board);
        if progress == StraightProgress::Waiting {
            io.observer.waited(&straight.id, || straight.missing());
        }
        // If it is done, it is not quite over: somebody has to see to the links.
        self.engine.runtime.out.finished |= !self.flush();
        progress
    }

    /// Hands to links what the run has noted for them. Returns whether they have taken it.
    fn flush(&mut self) -> bool {
        let Some(straight) = &mut self.straight else { return true };
        if !std::mem::take(&mut straight.scratch.flush) {
            return true;
        }
        self.engine.flush();
        let unsent = self.engine.runtime.links.has_unsent();
        self.straight.iter_mut().for_each(|straight| straight.scratch.flush = unsent);
        !unsent
    }

    /// The run is done, and so is the operation.
    pub(crate) fn end(&mut self, now: Moment) {
        let Some(straight) = self.straight.take() else { return };
        let Runtime { groups, links, ops, out, .. } = &mut self.engine.at(now).runtime;
        ops.staging.give_back(straight.memory.clone());
        let (id, plan, Caller { completion, issued, .. }) = (straight.id, straight.plan, straight.caller);
        out.observer.left_straight(&id);
        let ended = Ended { id, plan, completion, issued, result: Ok(()) };
        if let Some(group) = groups.get_mut(id.group) {
            out.conclude(group, links.rank, ended);
        }
        self.scratch = straight.scratch;
        self.engine.catch_up();
    }

    /// How the run's end can be learnt of, whoever brings it about.
    pub(crate) fn follow(&mut self) -> Option<Arc<Completion>> {
        let straight = self.straight.as_mut()?;
        Some(straight.caller.completion.get_or_insert_default().clone())
    }

    /// Whether the run is the one that has such an end.
    pub(crate) fn is_running(&self, completion: &Arc<Completion>) -> bool {
        let of_it = self.straight.as_ref().and_then(|straight| straight.caller.completion.as_ref());
        of_it.is_some_and(|of_it| Arc::ptr_eq(of_it, completion))
    }

    /// Makes the run, if there is one, an operation like any other. Returns how its end can be learnt of.
    pub(crate) fn interrupt(&mut self) -> Option<Arc<Completion>> {
        let completion = self.follow()?;
        let straight = self.straight.take()?;
        let Runtime { groups, links, ops, out, .. } = &mut self.engine.runtime;
        let group = groups.get_mut(straight.id.group)?;
        let (key, counts) = ops.table.reserve();
        out.observer.left_straight(&straight.id);
        let mut io =
            Io { endpoints: &mut links.endpoints, staging: &ops.staging, observer: &mut out.observer };
        let operation = straight.into_operation(key, counts, &group.settings.ids, ops.rules, &mut io);
        out.flushes = true;
        self.engine.runtime.insert(operation);
        self.engine.catch_up();
        Some(completion)
    }
}

/// Whether one of a script's ranks has to be invited to send, and so waits for an ordinary operation's word.
fn is_crowded(engine: &Engine, script: &Script) -> bool {
    !engine.runtime.backlog.early.is_empty()
        && script.endpoints().any(|at| engine.runtime.links.endpoints[at].is_crowded())
}
