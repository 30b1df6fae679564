//! An operation that one thread runs from beginning to end, in the order of its program.
//!
//! Between ranks that share memory, most of a small operation's time would go into looking up the purpose of each frame
//! and counting each step's dependencies. Both are known if the proof shows that ranks can run their programs strictly
//! in order ([`Verified::serial`](crate::core::verify::Verified::serial)), and nothing else is under way. The next step
//! then waits for the next frames of certain ranks. Steps and frames are the same as in any other operation, worked out
//! once, in a [`Script`]. At any step the straight run can [become](Straight::into_operation) an ordinary operation.

use super::{
    operation::{Operation, OperationMeans},
    places::{BufferRange, FoldInput, SegmentMemory, step_work},
    script::{Message, Receivers, Script, ScriptStep, StepAction},
    sources::gather,
    staging::Staging,
};
use crate::{
    clock::Moment,
    core::{
        execution::{Rules, SegmentStep, Tally},
        session::membership::MemberId,
        wire::{Header, Kind as FrameKind},
    },
    execute::{
        io::Io,
        issue::{Caller, Identity, Issue, NumberedCall, PlanKey, Queued},
    },
    sys::{doorbell, kernel, span::Span},
    transport::{
        frame::{CELL_BYTES, Common, Frame, Wanted},
        shm::{Board, Source},
        ticket::OpKey,
    },
};
use std::{ops::Range, sync::Arc};

/// How much of a message is asked for as soon as it is found, while others are looked for: of longer ones the CPU asks for the
/// rest by itself.
const FETCHED_BYTES: usize = 2 << 10;

/// An operation that runs in order.
#[derive(Debug)]
pub(crate) struct Straight {
    pub(crate) script: Arc<Script>,
    pub(crate) issue: Issue,
    pub(crate) id: Identity,
    pub(crate) plan: PlanKey,
    pub(crate) caller: Caller,
    pub(crate) memory: Range<usize>,
    /// What the frames of all its messages have in common.
    common: Common,
    /// How many steps are done.
    done: usize,
    pub(crate) scratch: StraightScratch,
}

/// What a straight run notes, in memory that goes from one to the next.
#[derive(Debug, Default)]
pub(crate) struct StraightScratch {
    /// Per message: where it is.
    arrived: Vec<Arrival>,
    /// The lanes of the send under way whose receivers have no slot free.
    blocked: Vec<u32>,
    /// The lanes, and the messages, among which are those whose other ends may sleep through what they were sent, or through
    /// the room that was made for them.
    sent: Range<usize>,
    taken: Range<usize>,
    /// Whether something else than its messages was given to a link or taken from one, or a link has not taken all.
    pub(crate) flush: bool,
    /// When the step under way had all that it needs, if somebody watches.
    began: Option<Moment>,
}

/// Where a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arrival {
    No,
    /// With its frame, which is the next from this source; the offset is one of the sender's segment.
    Next(Source, usize),
    /// In its place in staging memory.
    Staged,
    /// It was used.
    Over,
}

/// How far a straight run has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StraightProgress {
    /// To its end.
    Done,
    /// To a step whose messages are not there.
    Waiting,
    /// To something that does not happen in a straight run.
    Stuck,
}

impl Straight {
    /// A run of an operation whose rank's program is serial.
    pub(crate) fn new(
        script: Arc<Script>,
        issue: Issue,
        NumberedCall { id, plan, timeout }: NumberedCall,
        memory: Range<usize>,
        mut scratch: StraightScratch,
        now: Moment,
    ) -> Self {
        scratch.blocked.clear();
        scratch.arrived.clear();
        scratch.arrived.resize(script.messages.len(), Arrival::No);
        Self {
            common: Common::of(&id.header(FrameKind::Data, 0)),
            script,
            issue,
            id,
            plan,
            caller: Caller { completion: None, timeout, issued: now },
            memory,
            done: 0,
            scratch,
        }
    }

    /// Runs as far as it can, looking up to `tries` times for messages that are not there.
    pub(crate) fn run(&mut self, tries: u32, io: &mut Io<'_>, board: &mut Board) -> StraightProgress {
        let progress = self.advance(tries, io, board);
        self.announce(io);
        progress
    }

    /// Wakes those that sleep and were sent something, or wait for room: one fence for all of them.
    fn announce(&mut self, io: &mut Io<'_>) {
        let (sent, taken) = (std::mem::take(&mut self.scratch.sent), std::mem::take(&mut self.scratch.taken));
        if sent.is_empty() && taken.is_empty() {
            return;
        }
        doorbell::published();
        let receivers = self.script.lanes[sent].iter().map(|lane| lane.endpoint);
        let senders = self.script.messages[taken].iter().map(|message| message.endpoint);
        for endpoint in receivers.chain(senders) {
            self.scratch.flush |= !io.endpoints[endpoint].announce();
        }
    }

    fn advance(&mut self, mut tries: u32, io: &mut Io<'_>, board: &mut Board) -> StraightProgress {
        let (input, output) = (self.issue.input.access(), self.issue.output.access());
        let (Some(input), Some(output)) = (&input, &output) else { return StraightProgress::Stuck };
        let staged = io.staging.segment().span(self.memory.clone());
        let memory = SegmentMemory::new(Some(input), Some(output), staged);
        let run = Run { script: &self.script, common: &self.common, id: &self.id, memory };
        while let Some(step) = self.script.steps.get(self.done) {
            let progress = run.step(step, &mut self.scratch, &mut tries, io, board);
            if progress != StraightProgress::Done {
                return progress;
            }
            let ran = SegmentStep { segment: 0, step: self.done as u32 };
            let began = self.scratch.began.take();
            io.observer.step(&self.id, ran, began, || step_work(&self.script.prepared, ran));
            self.done += 1;
        }
        StraightProgress::Done
    }

    /// The endpoints from which messages are missing that the next step needs, as far as it has looked.
    pub(crate) fn missing(&self) -> Vec<MemberId> {
        let messages = self.script.steps.get(self.done).map_or(0..0, |step| step.messages.clone());
        let missing = messages.filter(|at| self.scratch.arrived[*at] == Arrival::No);
        missing.map(|at| self.script.messages[at].endpoint).collect()
    }

    /// Takes in a message that came before this operation began. Returns whether the script has it.
    pub(crate) fn arrived_early(
        &mut self,
        endpoint: MemberId,
        header: &Header,
        bytes: &[u8],
        staging: &Staging,
    ) -> bool {
        let is_it = |message: &Message| (message.endpoint, message.index) == (endpoint, header.index);
        let Some(at) = self.script.messages.iter().position(is_it) else { return false };
        let message = &self.script.messages[at];
        let expected = (message.bytes, message.bytes, 0, Arrival::No);
        if (bytes.len(), header.length as usize, header.segment, self.scratch.arrived[at]) != expected {
            return false;
        }
        let place = self.memory.start + message.offset;
        staging.segment().span(place..place + bytes.len()).write(bytes);
        self.scratch.arrived[at] = Arrival::Staged;
        true
    }

    /// The operation, to go on in any order.
    pub(crate) fn into_operation(
        self,
        key: OpKey,
        counts: Tally,
        ids: &[MemberId],
        rules: Rules,
        io: &mut Io<'_>,
    ) -> Operation {
        let Self { script, issue, id, plan, caller, memory, done, mut scratch, .. } = self;
        for (message, arrived) in script.messages.iter().zip(&mut scratch.arrived) {
            if let Arrival::Next(source, at) = *arrived {
                *arrived = keep(message, source, at, &memory, io);
            }
        }
        let Caller { completion, timeout, issued } = caller;
        let queued = Queued::new(NumberedCall { id, plan, timeout }, &issue, completion, issued);
        let means =
            OperationMeans { prepared: script.prepared.clone(), mapped: None, memory, counts, ids, rules };
        let mut operation = Operation::new(key, queued, means);
        for lane in &scratch.blocked {
            let endpoint = script.lanes[*lane as usize].endpoint;
            io.endpoints[endpoint].wait_for_slot(id.fingerprint.priority, key);
        }
        let has_come = |head: usize| scratch.arrived[head] != Arrival::No;
        let (execution, mut ends) = operation.parts(io);
        execution.resume(done, &scratch.blocked, has_come, &mut ends);
        operation
    }
}

/// Moves a message that lies with its frame to its place in staging memory, and is done with the frame. Returns where the
/// message is then.
fn keep(message: &Message, source: Source, at: usize, memory: &Range<usize>, io: &mut Io<'_>) -> Arrival {
    let endpoint = &mut io.endpoints[message.endpoint];
    let place = memory.start + message.offset;
    let Some(carried) = endpoint.payload(at, message.bytes) else { return Arrival::No };
    io.staging.segment().span(place..place + message.bytes).copy_from(carried);
    endpoint.take(source);
    Arrival::Staged
}

/// What a run of steps needs.
struct Run<'a> {
    script: &'a Script,
    common: &'a Common,
    id: &'a Identity,
    memory: SegmentMemory<'a>,
}

impl Run<'_> {
    /// Runs a step, if its messages are there.
    fn step(
        &self,
        step: &ScriptStep,
        scratch: &mut StraightScratch,
        tries: &mut u32,
        io: &mut Io<'_>,
        board: &mut Board,
    ) -> StraightProgress {
        for at in step.messages.clone() {
            while scratch.arrived[at] == Arrival::No {
                match self.look(&self.script.messages[at], scratch, io) {
                    Ok(Some((source, found))) => scratch.arrived[at] = Arrival::Next(source, found),
                    // At once: on some cores the processor's instruction to pause lasts as long as a message takes.
                    Ok(None) if *tries > 0 => *tries -= 1,
                    Ok(None) => return StraightProgress::Waiting,
                    Err(()) => return StraightProgress::Stuck,
                }
            }
        }
        scratch.began = io.observer.watch();
        let complete = match &step.action {
            StepAction::Send { from, to: Receivers { lanes, all } } => {
                scratch.sent = match scratch.sent.is_empty() {
                    true => lanes.clone(),
                    false => scratch.sent.start.min(lanes.start)..scratch.sent.end.max(lanes.end),
                };
                let Some(payload) = self.memory.at(from) else { return StraightProgress::Stuck };
                let posted = all.is_some_and(|index| self.post(payload, lanes.clone(), index, io, board));
                posted || self.send(payload, lanes.clone(), scratch, io)
            }
            StepAction::Move { from, into } => self.move_to(from, into, scratch, io),
            StepAction::Fold { parts, into, form, finish } => {
                let Some(into) = self.memory.at(into) else { return StraightProgress::Stuck };
                self.fold(parts, kernel::Target::of(into, *form), *finish, scratch, io)
            }
        };
        if !complete {
            return StraightProgress::Stuck;
        }
        for at in step.messages.clone() {
            let arrived = std::mem::replace(&mut scratch.arrived[at], Arrival::Over);
            if let Arrival::Next(source, _) = arrived {
                io.endpoints[self.script.messages[at].endpoint].take(source);
                if source == Source::Lane {
                    let first = if scratch.taken.is_empty() { at } else { scratch.taken.start };
                    scratch.taken = first..at + 1;
                }
            }
        }
        StraightProgress::Done
    }

    /// Looks for a message. Returns where it lies, or an error if something else has come.
    fn look(
        &self,
        message: &Message,
        scratch: &mut StraightScratch,
        io: &mut Io<'_>,
    ) -> Result<Option<(Source, usize)>, ()> {
        let endpoint = &mut io.endpoints[message.endpoint];
        let wanted = Wanted::new(self.common, message.bytes, message.index);
        loop {
            match endpoint.find(&wanted, &mut scratch.flush) {
                None => return Ok(None),
                Some(Ok(found)) => {
                    if message.bytes > CELL_BYTES
                        && let Some(payload) = endpoint.payload(found.1, message.bytes)
                    {
                        payload.fetch(FETCHED_BYTES);
                    }
                    io.observer.received_straight(self.id, message.endpoint, message.bytes);
                    return Ok(Some(found));
                }
                Some(Err(())) if !endpoint.take_credits() => return Err(()),
                // Room was made, and perhaps for somebody whose messages this run does not take from its lane.
                Some(Err(())) => scratch.flush = true,
            }
        }
    }

    /// Sends a message to its receivers. Returns whether all have it; those that have no room for it are noted.
    fn send(
        &self,
        payload: Span<'_>,
        lanes: Range<usize>,
        scratch: &mut StraightScratch,
        io: &mut Io<'_>,
    ) -> bool {
        let (mut frame, priority) = (Frame::carrying(self.common, payload), self.id.fingerprint.priority);
        for (at, lane) in lanes.clone().zip(&self.script.lanes[lanes]) {
            let endpoint = &mut io.endpoints[lane.endpoint];
            let room =
                endpoint.take_eager(priority) || endpoint.take_credits() && endpoint.take_eager(priority);
            if !room || !endpoint.is_shared() {
                scratch.blocked.push(at as u32);
                continue;
            }
            io.observer.sent_straight(self.id, lane.endpoint, payload.len(), io.observer.watch());
            endpoint.send_shared(&mut frame, lane.index, true);
        }
        scratch.blocked.is_empty()
    }

    /// Sends a message to its receivers by writing it once, if they are all the local ranks and there is room for it.
    fn post(
        &self,
        payload: Span<'_>,
        lanes: Range<usize>,
        index: u16,
        io: &mut Io<'_>,
        board: &mut Board,
    ) -> bool {
        if !board.is_read_by(lanes.len()) {
            return false;
        }
        let mut frame = Frame::carrying(self.common, payload);
        frame.address(index, false, 0);
        let moment = io.observer.watch();
        if !board.post(&frame) {
            return false;
        }
        for lane in &self.script.lanes[lanes] {
            let endpoint = &mut io.endpoints[lane.endpoint];
            endpoint.was_posted();
            io.observer.sent_straight(self.id, lane.endpoint, payload.len(), moment);
        }
        true
    }

    /// Where a message lies; `None` if its sender's memory is gone.
    fn message<'a>(&'a self, head: u32, scratch: &StraightScratch, io: &'a Io<'_>) -> Option<Span<'a>> {
        let Message { endpoint, bytes, offset, .. } = self.script.messages[head as usize];
        match scratch.arrived[head as usize] {
            Arrival::Next(_, at) => io.endpoints[endpoint].payload(at, bytes),
            _ => self.memory.at(&BufferRange::Staged(offset..offset + bytes)),
        }
    }

    fn move_to(&self, from: &FoldInput, into: &BufferRange, scratch: &StraightScratch, io: &Io<'_>) -> bool {
        let from = self.memory.source(from, |head| self.message(head, scratch, io));
        let (Some(from), Some(into)) = (from, self.memory.at(into)) else { return false };
        if !into.same_start(from.span) {
            into.copy_from(from.span);
        }
        true
    }

    /// Folds parts into a target.
    fn fold(
        &self,
        parts: &[FoldInput],
        into: kernel::Target<'_>,
        finish: Option<u32>,
        scratch: &StraightScratch,
        io: &Io<'_>,
    ) -> bool {
        let call = &self.script.prepared.call;
        let message = |head| self.message(head, scratch, io);
        let sources = parts.iter().map(|part| self.memory.source(part, message));
        let any = kernel::Source { span: into.span, form: into.form, merges: 0 };
        let fold = |sources: &[_]| {
            kernel::fold(call.dtype, call.op, into, sources, finish);
        };
        gather(sources, any, fold).is_some()
    }
}
