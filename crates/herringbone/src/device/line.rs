//! A line of staged operations, with its streams and slots: does what its machine decides, and tells it what has ended.

use super::{
    outcome::{StagedOutcome, error_of},
    shape::{SLOTS, StagedBuffers, StagedCall, StagedCut, slice_request},
    shared::{DeviceShared, HostBuffers, LineParts, StagedMeans, StagedSubmission},
};
use crate::{
    Error, ErrorKind, LineTurn, MessageRequest, Pending, Request, Result,
    core::staging::{Signaller, SliceId, StagedAgreement, StagedShape, StagingAction, StagingMachine},
    sys::{
        device::{Accelerator, AcceleratorError, DeviceEvent, DeviceStream, PinnedMemory},
        region::Region,
    },
};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

/// An operation of the engine that a line has started.
pub(super) struct Started {
    pub(super) purpose: StagedPurpose,
    pub(super) pending: Pending,
}

/// What an operation of the engine is for.
#[derive(Clone, Copy, Debug)]
pub(super) enum StagedPurpose {
    /// That ranks agree about this staged operation.
    StagedAgreement(u64),
    Slice(SliceId),
}

/// What an event of a line is behind.
#[derive(Clone, Copy)]
enum Behind {
    CopyOut(SliceId),
    CopyIn(u64),
    /// The value of an operation.
    Signal(u64),
}

struct Queued {
    behind: Behind,
    /// `None` where the accelerator has recorded none: then the stream is looked at.
    event: Option<DeviceEvent>,
}

/// A line, its streams and its operations.
pub(super) struct StagingLine {
    shared: Arc<DeviceShared>,
    /// From the first call on for which the accelerator has given them.
    parts: Option<Arc<LineParts>>,
    staging: StagingMachine,
    running: BTreeMap<u64, Running>,
    /// What the streams have to do, in their order.
    outward: VecDeque<Queued>,
    inward: VecDeque<Queued>,
}

/// A staged operation that is not over.
struct Running {
    call: StagedCall,
    buffers: StagedBuffers,
    host: HostBuffers,
    cut: StagedCut,
    /// Until its last slice has started.
    turn: Option<LineTurn>,
    producer: Option<DeviceEvent>,
    /// Whether the stream of copies waits for the producer already.
    awaited: bool,
    outcome: Arc<StagedOutcome>,
    error: Option<Error>,
    /// Whether a stream has still to write the value.
    signalling: bool,
    retired: bool,
    shared: Arc<DeviceShared>,
}

impl Drop for Running {
    fn drop(&mut self) {
        let accelerator = &self.shared.accelerator;
        if let Some(producer) = self.producer {
            accelerator.release(producer);
        }
        if self.outcome.is_over() {
            return;
        }
        // The group was closed before it was over: nobody waits for ever.
        let error = self.error.take().unwrap_or_else(|| self.shared.closed(self.call.name()));
        self.outcome.fail(&error);
        self.outcome.finish(Err(error));
    }
}

impl Running {
    /// Has the stream wait for the producer, if none does yet.
    fn await_producer(
        &mut self,
        accelerator: &dyn Accelerator,
        stream: &DeviceStream,
    ) -> Result<(), AcceleratorError> {
        if let Some(producer) = self.producer.filter(|_| !self.awaited) {
            accelerator.wait(stream, producer)?;
            self.awaited = true;
        }
        Ok(())
    }
}

impl Drop for StagingLine {
    fn drop(&mut self) {
        for event in self.outward.drain(..).chain(self.inward.drain(..)).filter_map(|queued| queued.event) {
            self.shared.accelerator.release(event);
        }
    }
}

impl StagingLine {
    pub(super) fn new(shared: Arc<DeviceShared>) -> Self {
        let staging = StagingMachine::new(SLOTS);
        let (outward, inward) = (VecDeque::new(), VecDeque::new());
        Self { shared, parts: None, staging, running: BTreeMap::new(), outward, inward }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.running.is_empty()
    }

    /// Whether something is queued whose end only a look tells.
    pub(super) fn awaits_events(&self) -> bool {
        !self.outward.is_empty() || !self.inward.is_empty()
    }

    pub(super) fn push(&mut self, submission: StagedSubmission) {
        let StagedSubmission { call, buffers, cut, turn, means, outcome, .. } = submission;
        let shape = StagedShape {
            slices: cut.slices(),
            in_slots: cut.slice > 0,
            copies_out: cut.copies_out,
            copies_in: cut.copies_in,
            after: self.writers(&buffers),
        };
        let (number, host, producer, error) = match means {
            Ok(StagedMeans { parts, host, producer }) => {
                self.parts.get_or_insert(parts);
                (self.staging.push(shape), host, Some(producer), None)
            }
            Err(error) => (self.staging.push_failed(shape), HostBuffers::default(), None, Some(error)),
        };
        let running = Running {
            call,
            buffers,
            host,
            cut,
            turn,
            producer,
            awaited: false,
            outcome,
            error,
            signalling: false,
            retired: false,
            shared: self.shared.clone(),
        };
        self.running.insert(number, running);
    }

    /// The operations that write some of what a call on these buffers reads or writes.
    fn writers(&self, buffers: &StagedBuffers) -> Vec<u64> {
        let writes = |running: &Running| {
            let written = running.buffers.output.as_ref().filter(|_| running.cut.copies_in);
            let used = [&buffers.input, &buffers.output].into_iter().flatten();
            written.is_some_and(|written| used.into_iter().any(|memory| memory.overlaps(written)))
        };
        self.running.iter().filter(|(_, running)| writes(running)).map(|(number, _)| *number).collect()
    }

    /// An operation of the engine has ended.
    pub(super) fn ended(&mut self, purpose: StagedPurpose, pending: &Pending) {
        let result = pending.result().unwrap_or(Ok(()));
        let (StagedPurpose::StagedAgreement(number)
        | StagedPurpose::Slice(SliceId { operation: number, .. })) = purpose;
        if let Some(running) = self.running.get_mut(&number) {
            running.outcome.set_source(pending.source());
            if let Err(error) = &result {
                running.error.get_or_insert_with(|| error.clone());
            }
        }
        match purpose {
            StagedPurpose::StagedAgreement(number) => self.agreed(number, &result),
            StagedPurpose::Slice(slice) => self.staging.ended(slice, result.is_ok()),
        }
    }

    /// It is known whether ranks agree about a staged operation.
    fn agreed(&mut self, number: u64, result: &Result<()>) {
        let agreement = match result.as_ref().map_err(Error::kind) {
            Ok(()) => StagedAgreement::Same,
            // Of this call: no rank completes an agreement before all have called it.
            Err(ErrorKind::Mismatch { .. } | ErrorKind::Memory { ended_by: None, .. }) => {
                StagedAgreement::Refused
            }
            // All that can be done is to make as many calls as the others, who are taken to make the same.
            Err(_) => StagedAgreement::Unknown,
        };
        if let Some(running) = self.running.get_mut(&number).filter(|_| agreement == StagedAgreement::Refused)
        {
            // It makes no more calls.
            running.turn = None;
        }
        self.staging.agreed(number, agreement);
    }

    /// Tells the machine which copies have ended. Returns whether any has.
    pub(super) fn look(&mut self) -> bool {
        let mut has_moved = false;
        for inward in [false, true] {
            while let Some((behind, result)) = self.complete(inward) {
                has_moved = true;
                if let Err(error) = result {
                    self.fail(behind, &error);
                }
                match behind {
                    Behind::CopyOut(slice) => self.staging.copied_out(slice),
                    Behind::CopyIn(ticket) => self.staging.copied_in(ticket),
                    Behind::Signal(number) => self.signalled(number),
                }
            }
        }
        has_moved
    }

    /// What a stream has done, if that is the next thing it has to do.
    fn complete(&mut self, inward: bool) -> Option<(Behind, Result<(), AcceleratorError>)> {
        let (accelerator, parts) = (&self.shared.accelerator, self.parts.as_ref()?);
        let (queue, stream) = match inward {
            true => (&mut self.inward, &parts.inward),
            false => (&mut self.outward, &parts.outward),
        };
        let result = match queue.front()?.event {
            Some(event) => accelerator.query(event),
            None => accelerator.is_idle(stream),
        };
        if matches!(result, Ok(false)) {
            return None;
        }
        let Queued { behind, event } = queue.pop_front()?;
        if let Some(event) = event {
            accelerator.release(event);
        }
        Some((behind, result.map(|_| ())))
    }

    /// A stream has failed: so have the operations behind whose copies it was.
    fn fail(&mut self, behind: Behind, error: &AcceleratorError) {
        let error = error_of(error);
        match behind {
            Behind::CopyOut(slice) => self.fail_operation(slice.operation, error),
            Behind::CopyIn(_) | Behind::Signal(_) => {
                let all: Vec<u64> = self.running.keys().copied().collect();
                for number in all {
                    self.fail_operation(number, error.clone());
                }
            }
        }
    }

    fn fail_operation(&mut self, number: u64, error: Error) {
        if let Some(running) = self.running.get_mut(&number) {
            let rank = self.shared.communicator.rank();
            let error = error.about(rank, running.call.name());
            running.error.get_or_insert(error);
            self.staging.fail(number);
        }
    }

    /// Does what the machine decides, up to the next operation of the engine that starts.
    pub(super) fn act(&mut self) -> Option<Started> {
        while let Some(action) = self.staging.next_action() {
            match action {
                StagingAction::Agree { operation, lacking } => match self.agree(operation, lacking) {
                    Ok(pending) => {
                        return Some(Started { purpose: StagedPurpose::StagedAgreement(operation), pending });
                    }
                    Err(error) => {
                        self.fail_operation(operation, error);
                        self.staging.agreed(operation, StagedAgreement::Unknown);
                    }
                },
                StagingAction::CopyOut { slice, slot, behind } => {
                    if let Err(error) = self.copy_out(slice, slot, behind) {
                        self.fail_operation(slice.operation, error_of(&error));
                        self.staging.copied_out(slice);
                    }
                }
                StagingAction::Start { slice, slot, lacking, last } => {
                    let started = self.start(slice, slot, lacking);
                    if let Some(running) = self.running.get_mut(&slice.operation) {
                        running.turn = running.turn.take().filter(|_| !last);
                    }
                    match started {
                        Ok(pending) => {
                            return Some(Started { purpose: StagedPurpose::Slice(slice), pending });
                        }
                        Err(error) => {
                            self.fail_operation(slice.operation, error);
                            self.staging.ended(slice, false);
                        }
                    }
                }
                StagingAction::CopyIn { slice, slot, ticket } => {
                    if let Err(error) = self.copy_in(slice, slot, ticket) {
                        self.fail_operation(slice.operation, error_of(&error));
                        self.staging.copied_in(ticket);
                    }
                }
                StagingAction::Signal { operation, by } => self.signal(operation, by),
                StagingAction::Retire { operation } => self.retire(operation),
            }
        }
        None
    }

    fn copy_out(
        &mut self,
        slice: SliceId,
        slot: Option<usize>,
        behind: Option<u64>,
    ) -> Result<(), AcceleratorError> {
        let (accelerator, Some(parts)) = (&self.shared.accelerator, &self.parts) else { return Ok(()) };
        let (stream, Some(running)) = (&parts.outward, self.running.get_mut(&slice.operation)) else {
            return Ok(());
        };
        running.await_producer(&**accelerator, stream)?;
        let is_it =
            |queued: &&Queued| matches!(queued.behind, Behind::CopyIn(ticket) if Some(ticket) <= behind);
        if let Some(queued) = self.inward.iter().rev().find(is_it) {
            let no_event = || AcceleratorError::new("waiting for a copy", "no event was recorded behind it");
            accelerator.wait(stream, queued.event.ok_or_else(no_event)?)?;
        }
        let range = running.cut.range(slice.slice);
        let host = slot.map(|slot| &parts.slots[slot]).or(running.host.input.as_ref());
        if let (Some(from), Some(host)) = (&running.buffers.input, host) {
            let from = if slot.is_some() { from.part(range) } else { from.clone() };
            accelerator.copy_out(stream, &from, host, 0)?;
        }
        // The copy is queued, with an event or without.
        let event = accelerator.record(stream).ok();
        self.outward.push_back(Queued { behind: Behind::CopyOut(slice), event });
        Ok(())
    }

    /// Has the ranks agree about an operation.
    fn agree(&self, number: u64, lacking: bool) -> Result<Pending> {
        let communicator = &self.shared.communicator;
        match self.running.get(&number) {
            Some(Running { call: StagedCall::Collective(request), cut, turn, .. }) => {
                let elements = cut.bytes / request.call.dtype.bytes();
                let lacks = if lacking { cut.bytes } else { 0 };
                in_turn(turn.as_ref(), || communicator.submit_ahead_of(request, elements, lacks))
            }
            _ => Err(self.shared.closed("a staged operation")),
        }
    }

    fn start(&mut self, slice: SliceId, slot: Option<usize>, lacking: bool) -> Result<Pending> {
        let communicator = &self.shared.communicator;
        let Some(running) = self.running.get(&slice.operation) else {
            return Err(self.shared.closed("a staged operation"));
        };
        let slot = self.parts.as_ref().zip(slot).map(|(parts, slot)| &parts.slots[slot]);
        let regions = Regions::of(running, slice, slot, lacking);
        if !lacking {
            for memory in slot.into_iter().chain(&running.host.input).chain(&running.host.output) {
                self.shared.accelerator.host_uses(memory, 0..memory.len());
            }
        }
        let Regions { input, output } = regions;
        match &running.call {
            StagedCall::Collective(request) if running.cut.slice > 0 => {
                let request = slice_request(request, input);
                in_turn(running.turn.as_ref(), || communicator.submit(request))
            }
            StagedCall::Collective(request) => {
                let request = Request { input, output, ..request.clone() };
                in_turn(running.turn.as_ref(), || communicator.submit(request))
            }
            StagedCall::Send { to, message } => {
                communicator.submit_send(*to, MessageRequest { region: input, ..message.clone() })
            }
            StagedCall::Receive { from, message } => {
                communicator.submit_recv(*from, MessageRequest { region: output, ..message.clone() })
            }
        }
    }

    fn copy_in(&mut self, slice: SliceId, slot: Option<usize>, ticket: u64) -> Result<(), AcceleratorError> {
        let (accelerator, Some(parts)) = (&self.shared.accelerator, &self.parts) else { return Ok(()) };
        let (stream, Some(running)) = (&parts.inward, self.running.get_mut(&slice.operation)) else {
            return Ok(());
        };
        if !running.cut.copies_out {
            // Nothing was copied out behind the producer, so this would be the first to wait for it.
            running.await_producer(&**accelerator, stream)?;
        }
        let range = running.cut.range(slice.slice);
        let host = slot.map(|slot| &parts.slots[slot]).or(running.host.output.as_ref());
        if let (Some(to), Some(host)) = (&running.buffers.output, host) {
            let to = if slot.is_some() { to.part(range) } else { to.clone() };
            accelerator.copy_in(stream, host, 0, &to)?;
        }
        // As for a copy out.
        let event = accelerator.record(stream).ok();
        self.inward.push_back(Queued { behind: Behind::CopyIn(ticket), event });
        Ok(())
    }

    fn signal(&mut self, number: u64, by: Signaller) {
        let accelerator = &self.shared.accelerator;
        let Some(running) = self.running.get_mut(&number) else { return };
        if let Some(error) = &running.error {
            running.outcome.fail(error);
            return;
        }
        let Some(parts) = self.parts.as_ref().filter(|_| by == Signaller::Stream) else {
            running.outcome.land(None);
            if let Some(word) = running.outcome.word {
                accelerator.set_value(word);
            }
            return;
        };
        let stream = &parts.inward;
        let written = running.outcome.word.map_or(Ok(()), |word| accelerator.write_value(stream, word));
        match written.and_then(|()| accelerator.record(stream)) {
            Ok(before) => running.outcome.land(Some(before)),
            Err(error) => {
                let error = error_of(&error).about(self.shared.communicator.rank(), running.call.name());
                running.outcome.fail(&error);
                running.error = Some(error);
            }
        }
        // The value may be queued where an event is not.
        running.signalling = true;
        let event = accelerator.record(stream).ok();
        self.inward.push_back(Queued { behind: Behind::Signal(number), event });
    }

    /// A stream has written an operation's value.
    fn signalled(&mut self, number: u64) {
        if let Some(running) = self.running.get_mut(&number) {
            running.signalling = false;
            if running.retired {
                self.finish(number);
            }
        }
    }

    fn retire(&mut self, number: u64) {
        let Some(running) = self.running.get_mut(&number) else { return };
        running.retired = true;
        if !running.signalling {
            self.finish(number);
        }
    }

    fn finish(&mut self, number: u64) {
        let Some(mut running) = self.running.remove(&number) else { return };
        let result = running.error.take().map_or(Ok(()), Err);
        if let Err(error) = &result {
            // The stream may have failed after the machine was done. This is before the word has another user.
            running.outcome.fail(error);
        }
        if let Some(word) = running.outcome.word {
            self.shared.accelerator.give_back(word);
        }
        self.shared.give_back(std::mem::take(&mut running.host));
        running.outcome.finish(result);
    }
}

/// What the engine gets of an operation's host memory.
struct Regions {
    input: Region,
    output: Region,
}

impl Regions {
    fn of(running: &Running, slice: SliceId, slot: Option<&PinnedMemory>, lacking: bool) -> Self {
        let range = running.cut.range(slice.slice);
        if running.cut.slice > 0 {
            let region = match slot.filter(|_| !lacking) {
                Some(slot) => slot.region().part(0..range.len()),
                None => Region::lacking(range.len()),
            };
            return Self { input: region.clone(), output: region };
        }
        let StagedBuffers { input, output } = &running.buffers;
        let region = |length: usize, host: &Option<PinnedMemory>| match host.as_ref().filter(|_| !lacking) {
            Some(host) => host.region().part(0..length),
            None if length == 0 => Region::zeroed(0),
            None => Region::lacking(length),
        };
        Self {
            input: region(input.as_ref().map_or(0, |memory| memory.len()), &running.host.input),
            output: region(output.as_ref().map_or(0, |memory| memory.len()), &running.host.output),
        }
    }
}

/// Makes a call in its place among those of the line.
fn in_turn(turn: Option<&LineTurn>, call: impl FnOnce() -> Result<Pending>) -> Result<Pending> {
    match turn {
        Some(turn) => turn.run(call),
        None => call(),
    }
}
